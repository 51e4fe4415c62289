//! How many blocks a kernel gets and in which order they take the tiles. Choices of speed only: every choice gives the
//! same results.

use ferroflash_kernels::config::Footprint;
use ferroflash_kernels::params::{FASTEST, ORDERED, Schedule};

use crate::plan::DeviceInfo;
use crate::problem::{Mask, Order, Problem};

/// Bytes of K and V that the heads of one causal group may take together, of `kv_bytes` each: what the L2 cache of an H200
/// (50 MB) keeps while their query tiles pass. Tiles of a long sequence do not read all of it at a time: above head_dim 128,
/// where a byte is worth more products, twice as many heads are 2 to 4 % faster at 8k and 16k, and 2 to 12 % slower at 2k
/// and less.
const fn group_bytes(head_dim: usize, kv_bytes: u64) -> u64 {
    if head_dim > 128 && kv_bytes >= 8 << 20 {
        64 << 20
    } else {
        32 << 20
    }
}

/// The most blocks of a grid: CUDA's limit of the x dimension.
pub const MAX_GRID: u64 = i32::MAX as u64;

/// Query tiles of the forward pass.
///
/// Without a mask every tile costs the same, and tiles of one head lie side by side: they read the same K and V.
/// Causal tiles cost between one key block and all: long ones of several heads start first, as many heads as the L2
/// cache holds.
///
/// `group_size` of the heads that it counts share K and V.
pub fn forward(
    problem: &Problem,
    tiles: u32,
    heads: u32,
    group_size: u32,
    element_bytes: u64,
) -> Schedule {
    let heads_per_group = match problem.mask {
        Mask::Full => 1,
        Mask::Causal => {
            let kv_bytes = (2 * element_bytes)
                .saturating_mul(problem.seqlen_k as u64)
                .saturating_mul(problem.head_dim as u64)
                .max(1);
            let heads_k = (group_bytes(problem.head_dim, kv_bytes) / kv_bytes).max(1);
            let heads_q = heads_k.saturating_mul(group_size.into());
            heads_q.clamp(1, u64::from(heads.max(1))) as u32
        }
    };
    Schedule {
        tiles,
        heads_per_group,
        heads,
        order: ORDERED,
    }
}

/// Key tiles of the backward pass: as many heads side by side as fill the device once.
pub fn backward(
    problem: &Problem,
    tiles: u32,
    heads: u32,
    device: &DeviceInfo,
    footprint: &Footprint,
) -> Schedule {
    let heads_per_group =
        (resident_blocks(device, footprint) / tiles.max(1)).clamp(1, heads.max(1));
    let order = match problem.order {
        Order::Deterministic => ORDERED,
        Order::Fastest => FASTEST,
    };
    Schedule {
        tiles,
        heads_per_group,
        heads,
        order,
    }
}

/// Blocks that the device holds at once.
pub fn resident_blocks(device: &DeviceInfo, footprint: &Footprint) -> u32 {
    device.n_sms.saturating_mul(footprint.blocks_per_sm).max(1)
}
