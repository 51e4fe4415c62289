//! The kernels, as the papers write them.

pub mod forward;

pub mod backward;

pub mod standard;

pub mod probes;
