//! flash2 forward for few queries over many keys, as when text is generated: the keys are divided among warps, and among blocks.
//!
//! A tile has 16 rows: the queries of all heads of a group, which have the same keys (GQA packed; heads of a query are neighbours).
//! Each of four warps takes every fourth chunk of 16 keys, with stages of its own, so that no warp waits for another until all have
//! come to their end. Then the block adds up what its warps have found, each with its own m and l. Keys may be divided into splits,
//! a block each; the last block of a tile to come adds up what the splits have found (Flash-Decoding, Dao et al. 2023).
//!
//! Where sequences have lengths of their own, no list of tiles is made: each block reads the lengths, and finds its share by itself.

mod cache;
mod e4m3;
mod keys;
mod merge;
mod place;
mod share;

use super::Tiles;
use crate::attention::divide;
use crate::attention::mask::Band;
use crate::config;
use crate::kernels::bounds;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, spec, special};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use cache::Stage;
pub use cache::{Cache, Same};
pub use e4m3::E4m3;
use keys::Keys;
use place::Tile;

/// Rows of a tile, and keys of a chunk.
const ROWS: u32 = 16;
/// Keys of a step of all warps: splits have multiples of as many.
const KEYS: u32 = ROWS * WARPS;
/// Warps of a block.
const WARPS: u32 = config::FEW_WARPS;

/// The tiles of head_dim `D` for few queries.
pub struct CompactTiles<const D: u32>;

impl Tiles for CompactTiles<32> {
    const HEAD_DIM: u32 = 32;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 4>;
}

impl Tiles for CompactTiles<64> {
    const HEAD_DIM: u32 = 64;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 8>;
}

impl Tiles for CompactTiles<128> {
    const HEAD_DIM: u32 = 128;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 16>;
}

/// The most steps of the product Q Kᵀ.
const MAX_STEPS: usize = 8;

/// One tile: see the module's documentation.
///
/// # Safety
/// The launch is as [`config::forward_few`] says, with a block for every KV head, tile, and share or sequence and split; tensors are as [`ForwardParams`]
/// says, of at most `T::HEAD_DIM` columns, q and o padded.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn forward<E: Element, C: Cache, T: Tiles>(p: &ForwardParams) {
    // SAFETY: the caller's contract.
    unsafe {
        let Some(tile) = Tile::of_block(p) else {
            return;
        };
        let mut o = T::Output::zero();
        let mut lse = [[f32::NEG_INFINITY; 2]; 2];
        if tile.idx * ROWS < tile.rows_q.len * p.shape.group_size {
            let window = if spec::lengths() {
                p.window.of_sequence(tile.rows_q.len, tile.rows_k.len)
            } else {
                p.window
            };
            let band = Band::new(tile.rows_q.len, tile.rows_k.len, window, bounds());
            lse = attend::<C, T>(p, tile, &band, &mut o);
        }
        merge::finish::<E, C, T>(p, tile, lse, &o);
    }
}

/// O and L of the warp's chunks.
#[inline(always)]
unsafe fn attend<C: Cache, T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    band: &Band,
    o: &mut T::Output,
) -> RowValues {
    let warp = special::thread_idx_x() / 32;
    let (first, end) = tile.chunks(p, band);
    let steps = divide(end - first + WARPS - 1 - warp, WARPS);
    let chunk = |step: u32| first + warp + step * WARPS;
    let stage = Stage::of_step::<C, T>;
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // Of the lane's two rows: the first key that the query sees, and one past the last.
    let fragment::Place { row, col } = fragment::accumulator(special::lane_idx(), 0);
    let seen = [row, row + 8].map(|row| {
        let query = tile.place(p, row).query;
        (band.first_key(query), band.end_key(query))
    });
    // SAFETY: a stage is filled when its last step is over, and read when its copies have been waited for.
    unsafe {
        let mut keys = Keys::new::<C>(p, tile);
        if spec::pages() {
            // All keys wait for the first pages. Without the barrier ptxas would have them looked up when Q is on its way.
            keys.look_up(chunk(0));
            barrier::warp_sync();
        }
        // Q lies in the stage that is filled last.
        let last = stage(C::STAGES - 1);
        C::begin::<T>(p, tile, last);
        cp_async::cp_async_commit_group();
        for step in 0..C::STAGES - 1 {
            if step < steps {
                keys.load::<C>(stage(step), chunk(step), chunk(step + 1));
            }
            cp_async::cp_async_commit_group();
        }
        C::wait_for_q();
        barrier::warp_sync();
        let mut cache = C::new::<T>(p, tile, last);

        let mut step = 0;
        while step < steps {
            C::wait_for_step();
            // The step's chunk has arrived in all lanes, and all have done with the stage that is filled next.
            barrier::warp_sync();
            let next = step + C::STAGES - 1;
            if next < steps {
                keys.load::<C>(stage(next), chunk(next), chunk(next + 1));
            }
            cp_async::cp_async_commit_group();

            let mut s = cache.scores::<T>(stage(step));
            let first_key = chunk(step) * ROWS;
            for n in 0..T::Scores::N {
                for (idx, s) in s.fragment_mut(0, n).iter_mut().enumerate() {
                    let (first, end) = seen[idx / 2];
                    let key = first_key + n as u32 * 8 + col + idx as u32 % 2;
                    if key < first || key >= end {
                        *s = f32::NEG_INFINITY;
                    }
                }
            }
            softmax.update(&mut s, o);
            cache.add::<T>(o, s, stage(step));
            step += 1;
        }
        cp_async::cp_async_wait_group::<0>();
        let lse = softmax.finish(o);
        cache.finish::<T>(o);
        lse
    }
}
