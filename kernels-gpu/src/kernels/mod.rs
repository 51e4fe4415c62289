//! The kernels, as the papers write them.

pub mod forward;

pub mod backward;

pub mod standard;

pub mod clear;

pub mod combine;

pub mod merge;

pub mod append;

mod partial;

mod scores;

pub mod sink_gradient;

pub mod tile_list;

mod blocks;

mod lengths;

pub mod block_list;

pub mod probes;

use crate::attention::mask::{Band, Bounds, Work};
use crate::params::{Shape, Window};
use crate::ptx::spec;

/// On which sides the mask ends, as the kernel is specialised.
#[inline(always)]
pub(crate) fn bounds() -> Bounds {
    Bounds {
        left: spec::left_bound(),
        right: spec::right_bound(),
        prefix: spec::prefix(),
    }
}

/// How the work of tiles grows, which decides the order in which blocks claim them in the backward pass. Under a block mask nothing is
/// known of that, and tiles add to dQ in ascending order.
#[inline(always)]
pub(crate) fn tile_work() -> Work {
    let Bounds { left, right, .. } = bounds();
    let by_band = !spec::block_mask();
    // Not `&&`: see `Bounds::work`, whose answer ptxas is to know.
    Bounds {
        left: left & by_band,
        right: right & by_band,
        prefix: false,
    }
    .work()
}

/// The mask of a problem.
#[inline(always)]
pub(crate) fn band(shape: &Shape, window: Window) -> Band {
    Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds())
}
