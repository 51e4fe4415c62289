//! Merges attention over two parts of the keys into attention over all of them: `merge(o_1, lse_1, o_2, lse_2)`.
//!
//! ```text
//! m   ← max(L_1, L_2)
//! L   ← m + log(exp(L_1 − m) + exp(L_2 − m))
//! w_i ← exp(L_i − L)
//! O   ← w_1 O_1 + w_2 O_2
//! ```
//!
//! That is one step of ring attention (Liu et al. 2023), or two levels of a cascade of caches. The kernel does little but read and
//! write memory. A lane takes 16 bytes of a row, and its neighbours the adjacent bytes. A block takes consecutive rows of lse.
//!
//! Three rules hold for every row:
//!
//! - O_i of a part that weighs nothing is not read: it may be NaN.
//! - Where one part has all the weight, O is that part's, bit for bit, and L its L.
//! - Both orders of the parts give the same bits. Products are rounded before they are added: a fused multiply-add would round one
//!   product and not the other.

pub mod combine;

pub(crate) mod partial;

use crate::attention::{batch_and_head, divide};
use crate::config;
use crate::params::{MergeParams, TensorView};
use crate::ptx::math::max;
use crate::ptx::{global, special};
use crate::tile::products::{Products, rows};
use partial::{inverse, lse_of_all, weight};

const THREADS: u32 = config::merge().threads;
/// Rows of a block.
const ROWS: u32 = config::merge().block_q;

/// A word of −0, the number to which another can be added without a change.
const fn minus_zeros<E: Products>() -> u32 {
    match E::BYTES {
        4 => 0x8000_0000,
        _ => 0x8000_8000,
    }
}

/// A block's rows.
///
/// # Safety
/// The launch is as [`config::merge`] says, with a block for every `ROWS` rows of lse; tensors are as [`MergeParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn merge<E: Products>(p: &MergeParams) {
    let chunks = p.head_dim / E::PER_CHUNK;
    let first = special::block_idx_x() * ROWS;
    let mut idx = special::thread_idx_x();
    while idx < ROWS * chunks {
        let in_block = divide(idx, chunks);
        let row = first + in_block;
        if row < p.n_rows {
            // SAFETY: this function's contract: the row exists.
            unsafe { merge_chunk::<E>(p, row, idx - in_block * chunks) };
        }
        idx += THREADS;
    }
}

/// The weights of the two parts in a row, and the merged L.
struct Merged {
    weights: [f32; 2],
    lse: f32,
}

impl Merged {
    #[inline(always)]
    fn new(lse_1: f32, lse_2: f32) -> Merged {
        let most = max(lse_1, lse_2);
        let weights = [lse_1, lse_2].map(|lse| {
            // An infinite sum outweighs every finite one.
            if lse == f32::INFINITY {
                1.0
            } else {
                weight(lse, most)
            }
        });
        let sum = weights[0] + weights[1];
        // Not a number stays one.
        let lse = if sum.is_nan() {
            sum
        } else {
            lse_of_all(sum, most)
        };
        Merged {
            weights: weights.map(|weight| weight * inverse(sum)),
            lse,
        }
    }
}

/// 16 bytes of a row.
///
/// # Safety
/// The tensors have the row and the chunk; no other thread writes there.
#[inline(always)]
unsafe fn merge_chunk<E: Products>(p: &MergeParams, row: u32, chunk: u32) {
    let at = Chunk::of(p, row, chunk);
    let lse_at = u64::from(row) * 4;
    // SAFETY: the caller's contract.
    unsafe {
        let lse_1 = global::ld_global_f32(p.lse_1 + lse_at);
        let lse_2 = global::ld_global_f32(p.lse_2 + lse_at);
        let Merged { weights, lse } = Merged::new(lse_1, lse_2);
        // Where no part has weight, both are 0 and not −0, and so is their sum.
        let instead = if lse == f32::NEG_INFINITY {
            0
        } else {
            minus_zeros::<E>()
        };
        let o_1 = load_weighty::<E>(&p.o_1, at, weights[0], instead);
        let o_2 = load_weighty::<E>(&p.o_2, at, weights[1], instead);
        let mut o = E::unpack_chunk(o_1);
        let o_2 = E::unpack_chunk(o_2);
        for i in 0..E::PER_CHUNK as usize {
            o[i] = weights[0] * o[i] + weights[1] * o_2[i];
        }
        global::st_global_x4(at.address::<E>(&p.o), E::pack_chunk(o));
        // Not `&&`: one branch less.
        let writes_lse = (chunk == 0) & (p.lse != 0);
        global::st_global_f32_if(p.lse + lse_at, lse, writes_lse);
    }
}

/// 16 bytes of a part, if it weighs anything; else these words.
///
/// # Safety
/// The tensor has the place.
#[inline(always)]
unsafe fn load_weighty<E: Products>(
    o: &TensorView,
    at: Chunk,
    weight: f32,
    instead: u32,
) -> [u32; 4] {
    if weight == 0.0 {
        [instead; 4]
    } else {
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_x4(at.address::<E>(o)) }
    }
}

/// Which 16 bytes of a tensor.
#[derive(Clone, Copy)]
struct Chunk {
    batch_idx: u32,
    head_idx: u32,
    row: u32,
    chunk: u32,
}

impl Chunk {
    /// Of a row of lse, `[batch, heads, seqlen]`.
    #[inline(always)]
    fn of(p: &MergeParams, row: u32, chunk: u32) -> Chunk {
        let head = divide(row, p.seqlen);
        let (batch_idx, head_idx) = batch_and_head(head, p.heads);
        Chunk {
            batch_idx,
            head_idx,
            row: row - head * p.seqlen,
            chunk,
        }
    }

    #[inline(always)]
    fn address<E: Products>(self, tensor: &TensorView) -> u64 {
        rows::<E>(tensor, self.batch_idx, self.head_idx, self.row + 1).chunk(self.row, self.chunk)
    }
}
