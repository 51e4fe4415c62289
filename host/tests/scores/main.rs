//! Scores and masks that are expressions: results of the CPU beside f64, what calls refuse, and plans.

#[cfg(feature = "emulator")]
mod emulated;
mod naive;
mod plans;
mod results;
mod validation;
