//! flash2 forward for few queries over many keys, as when text is generated: the keys are divided among warps, and among blocks.
//!
//! A tile has 16 rows: the queries of all heads of a group, which have the same keys (GQA packed; heads of a query are neighbours).
//! Each of four warps takes every fourth chunk of 16 keys, with stages of its own, so that no warp waits for another until all have
//! come to their end. Then the block adds up what its warps have found, each with its own m and l. Keys may be divided into splits,
//! a block each; the last block of a tile to come adds up what the splits have found (Flash-Decoding, Dao et al. 2023).
//!
//! Where sequences have lengths of their own, no list of tiles is made: each block reads the lengths, and finds its share by itself.

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
use crate::tile::global::GlobalRows;
use crate::tile::matmul::{
    LeftOperand, Loaded, Registers, left, multiply_add, right, right_transposed,
};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use keys::Keys;
use place::{Place, Tile};

/// Rows of a tile, and keys of a chunk.
const ROWS: u32 = 16;
/// Keys of a step of all warps: splits have multiples of as many.
const KEYS: u32 = ROWS * WARPS;
/// Warps of a block.
const WARPS: u32 = config::FEW_WARPS;
/// Stages of a warp.
const STAGES: u32 = config::FEW_STAGES;

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
/// The launch is as [`config::forward`] says, with a block for every KV head, tile, and share or sequence and split; tensors are as [`ForwardParams`]
/// says, of `T::HEAD_DIM` columns, q and o padded.
#[inline(always)]
pub unsafe fn forward<E: Element, T: Tiles>(p: &ForwardParams) {
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
            lse = attend::<E, T>(p, tile, &band, &mut o);
        }
        merge::finish::<E, T>(p, tile, lse, &o);
    }
}

/// The warp's stages: each has a chunk of K and one of V.
#[derive(Clone, Copy)]
struct Stages {
    base: u32,
}

impl Stages {
    #[inline(always)]
    fn new<T: Tiles>() -> Stages {
        let bytes_of_warp = STAGES * 2 * ROWS * T::HEAD_DIM * 2;
        Stages {
            base: special::shared_base() + special::thread_idx_x() / 32 * bytes_of_warp,
        }
    }

    /// The tiles of K and V of a step.
    #[inline(always)]
    fn of_step<T: Tiles>(self, step: u32) -> [SharedTile; 2] {
        let row_bytes = T::HEAD_DIM * 2;
        let base = self.base + step % STAGES * 2 * ROWS * row_bytes;
        let k = SharedTile { base, row_bytes };
        let v = SharedTile {
            base: base + ROWS * row_bytes,
            row_bytes,
        };
        [k, v]
    }
}

/// O and L of the warp's chunks.
#[inline(always)]
unsafe fn attend<E: Element, T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    band: &Band,
    o: &mut T::Output,
) -> RowValues {
    let warp = special::thread_idx_x() / 32;
    let (first, end) = tile.chunks(p, band);
    let steps = divide(end - first + WARPS - 1 - warp, WARPS);
    let chunk = |step: u32| first + warp + step * WARPS;
    let stages = Stages::new::<T>();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // Of the lane's two rows: the first key that the query sees, and one past the last.
    let fragment::Place { row, col } = fragment::accumulator(special::lane_idx(), 0);
    let seen = [row, row + 8].map(|row| {
        let query = tile.place(p, row).query;
        (band.first_key(query), band.end_key(query))
    });
    // SAFETY: a stage is filled when its last step is over, and read when its copies have been waited for.
    unsafe {
        let mut keys = Keys::new(p, tile);
        // Q lies in the stage that is filled last.
        let [q_tile, _] = stages.of_step::<T>(STAGES - 1);
        load_q::<T>(p, tile, q_tile);
        cp_async::cp_async_commit_group();
        keys.look_up(chunk(0));
        for step in 0..STAGES - 1 {
            if step < steps {
                keys.load::<T>(stages.of_step::<T>(step), chunk(step), chunk(step + 1));
            }
            cp_async::cp_async_commit_group();
        }
        cp_async::cp_async_wait_group::<{ STAGES - 1 }>();
        barrier::warp_sync();
        let mut fragments = [[0; 4]; MAX_STEPS];
        let q = left(q_tile, 0);
        for (k, fragment) in fragments
            .iter_mut()
            .enumerate()
            .take(T::HEAD_DIM as usize / 16)
        {
            *fragment = q.fragment(0, k);
        }
        let q = Loaded(fragments);

        let mut step = 0;
        while step < steps {
            cp_async::cp_async_wait_group::<{ STAGES - 2 }>();
            // The step's chunk has arrived in all lanes, and all have done with the stage that is filled next.
            barrier::warp_sync();
            let next = step + STAGES - 1;
            if next < steps {
                keys.load::<T>(stages.of_step::<T>(next), chunk(next), chunk(next + 1));
            }
            cp_async::cp_async_commit_group();

            let [k, v] = stages.of_step::<T>(step);
            let mut s = T::Scores::zero();
            multiply_add::<E, _>(&mut s, q, right_transposed(k, 0), T::HEAD_DIM as usize / 16);
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
            multiply_add::<E, _>(o, Registers(s.pack::<E>()), right(v, 0), 1);
            step += 1;
        }
        cp_async::cp_async_wait_group::<0>();
        softmax.finish(o)
    }
}

/// Begins the copies of the tile's rows of Q; rows of queries that the sequence does not have become 0. The caller commits the group.
///
/// # Safety
/// Nobody reads the tile until the copies have been waited for.
#[inline(always)]
unsafe fn load_q<T: Tiles>(p: &ForwardParams, tile: Tile, q_tile: SharedTile) {
    let chunks = T::HEAD_DIM / 8;
    let (lane, rows_at_once) = (special::lane_idx(), 32 / chunks);
    let (first_row, chunk) = (lane / chunks, lane % chunks);
    for i in 0..ROWS / rows_at_once {
        let row = first_row + i * rows_at_once;
        let Place { head_idx, query } = tile.place(p, row);
        let source = GlobalRows::new(&p.q, tile.sequence, head_idx, 0);
        let inside = query < tile.rows_q.len;
        let query = if inside { query } else { 0 };
        let from = source.chunk(tile.rows_q.first + query, chunk);
        // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
        unsafe {
            cp_async::cp_async_cg_16(q_tile.chunk(row, chunk), from, if inside { 16 } else { 0 });
        }
    }
}
