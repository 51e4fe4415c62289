//! What every backend of ferroflash is held to: the oracle, the inputs, the cases, the tolerances, and one suite.
//!
//! | module | what it is |
//! |---|---|
//! | [`oracle`] | attention from its definition, in f64 |
#![forbid(unsafe_code)]

pub mod oracle;
