//! [candle_ferroflash] under the name of `candle-flash-attn`, so that crates that ask for that one get this one:
//!
//! ```toml
//! [patch.crates-io]
//! candle-flash-attn = { path = "…/bindings/candle/flash-attn" }
//! ```

pub use candle_ferroflash::*;
