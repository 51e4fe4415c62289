//! The algorithm's parts that know no hardware: masks, and which tile is worked on when.
//!
//! Everything here is plain arithmetic, compiled into the kernels and into the host's tests alike.

pub mod mask;

pub mod schedule;

/// `a / b`, and 0 where `b` is 0: kernels must not contain a call to the panic handler.
#[inline(always)]
pub fn divide(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}
