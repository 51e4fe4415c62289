//! The command `ferroflash`.
fn main() {}
