//! The kernels, as the papers write them.
//!
//! | module | contents |
//! |---|---|
//! | `forward` | O and lse: flash2 (`sm80`), flash3 (`sm90`), `decode`, multi-head latent attention (`mla`) |
//! | `backward` | dQ, dK, dV, and gradients of sinks and of tensors that scores read |
//! | `varlen` | sequences with lengths of their own, and the list of their tiles |
//! | `block_sparse` | block masks: the map, and the lists of blocks that it leaves |
//! | `merge` | results over parts of the keys put together; split-KV's last kernel |
//! | `append` | rows of a KV cache, and rotary embeddings |
//! | `quantize` | a tensor to 8 bits |
//! | `dequantize` | q, k and v out of 8 bits, for the backward pass |
//! | `standard`, `papers` | attention that stores its scores; flash1 as its paper has it |
//! | `common` | where a tile's sequence lies, dropout, expressions of scores, time stamps |

pub mod forward;

pub mod backward;

pub mod varlen;

pub mod block_sparse;

pub mod merge;

pub mod append;

pub mod dequantize;
pub mod quantize;

pub mod standard;

pub mod papers;

pub mod common;

pub mod probes;

use crate::attention::mask::{Band, Bounds, Work};
use crate::params::{BlockLists, Shape, Window};
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

/// How the work of tiles grows, which decides the order in which blocks claim them in the backward pass. Under a block mask the plan says
/// so; else nothing is known of that, and tiles add to dQ in ascending order.
#[inline(always)]
pub(crate) fn tile_work(blocks: &BlockLists) -> Work {
    let Bounds { left, right, .. } = bounds();
    let by_lists = spec::block_mask();
    // Not `&&`: see `Bounds::work`, whose answer ptxas is to know.
    Bounds {
        left: left & !by_lists,
        right: (right & !by_lists) | (by_lists & (blocks.growing != 0)),
        prefix: false,
    }
    .work()
}

/// The same of the forward pass, where tiles do not wait for each other: under a block mask the band's order serves, too.
#[inline(always)]
pub(crate) fn query_tile_work(blocks: &BlockLists) -> Work {
    let Bounds { left, right, .. } = bounds();
    Bounds {
        left,
        right: right | (spec::block_mask() & (blocks.growing != 0)),
        prefix: false,
    }
    .work()
}

/// The mask of a problem.
#[inline(always)]
pub(crate) fn band(shape: &Shape, window: Window) -> Band {
    Band::new(shape.seqlen_q, shape.seqlen_k, window, bounds())
}
