//! The kernels, as the papers write them.

pub mod forward;

pub mod backward;

pub mod standard;

pub mod clear;

pub mod tile_list;

mod blocks;

mod lengths;

pub mod probes;

use crate::attention::mask::{Band, Bounds};
use crate::params::{Shape, Window};
use crate::ptx::spec;

/// On which sides the mask ends, as the kernel is specialised.
#[inline(always)]
pub(crate) fn bounds() -> Bounds {
    Bounds {
        left: spec::left_bound(),
        right: spec::right_bound(),
    }
}

/// The mask of a problem.
#[inline(always)]
pub(crate) fn band(shape: &Shape, window: Window) -> Band {
    Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds())
}
