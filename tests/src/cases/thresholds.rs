//! Small problems for a device whose thresholds are smaller still ([`Thresholds`](ferroflash::plan::Thresholds)): a plan takes the ways that
//! otherwise only problems of thousands of rows get. They run as a whole.

use super::fp8::{self, Fp8Case};
use super::latent::{self, LatentCase};
use super::pages::{self, PagedCase};
use super::{Case, few, grouped, short};

/// Divided keys in flash2's kernel for few queries, of sequences of one length and of their own.
pub fn few() -> Vec<Case> {
    let divided = few::splits().into_iter().step_by(5);
    divided
        .chain(few::lengths().into_iter().step_by(13))
        .collect()
}

/// The same in flash3's compact tiles.
pub fn short() -> Vec<Case> {
    short::splits().into_iter().step_by(7).collect()
}

/// The same in flash3's grouped tiles.
pub fn grouped() -> Vec<Case> {
    grouped::splits().into_iter().step_by(5).collect()
}

/// Keys and values in pages, of which splits are made.
pub fn paged() -> Vec<PagedCase> {
    pages::splits()
}

/// The same in 8 bits.
pub fn in_8_bits() -> Vec<Fp8Case> {
    fp8::splits()
}

/// Values in the keys.
pub fn latent() -> Vec<LatentCase> {
    latent::splits().into_iter().step_by(3).collect()
}
