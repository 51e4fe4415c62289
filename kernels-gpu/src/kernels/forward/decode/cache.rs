//! How K and V lie in the cache, and how they come to the tensor cores.

use super::scheduler::{PackedRow, Tile};
use super::{MAX_STEPS, ROWS, Tiles};
use crate::config;
use crate::params::ForwardParams;
use crate::ptx::{cp_async, special};
use crate::tile::element::Element;
use crate::tile::global::GlobalRows;
use crate::tile::matmul::{LeftOperand, Loaded, left, right_transposed};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;
use crate::tile::shared::SharedTile;
use core::marker::PhantomData;

/// A stage: a chunk of K, one of V, and where they have scales, these.
#[derive(Clone, Copy)]
pub struct Stage {
    pub(super) k: SharedTile,
    pub(super) v: SharedTile,
    /// `f32 [2, ROWS]`, of K and of V.
    pub(super) scales: u32,
}

impl Stage {
    /// A step's.
    #[inline(always)]
    pub(super) fn of_step<C: Cache, T: Tiles>(step: u32) -> Stage {
        let row_bytes = T::HEAD_DIM * C::ELEMENT_BYTES;
        let stage_bytes = 2 * ROWS * row_bytes + C::SCALES_BYTES;
        let of_warp = special::thread_idx_x() / 32 * C::STAGES + step % C::STAGES;
        let base = special::shared_base() + of_warp * stage_bytes;
        let tile = |base| SharedTile { base, row_bytes };
        Stage {
            k: tile(base),
            v: tile(base + ROWS * row_bytes),
            scales: base + 2 * ROWS * row_bytes,
        }
    }
}

/// A kind of cache: how a warp uses Q, K and V.
pub trait Cache: Sized {
    /// Stages of a warp.
    const STAGES: u32;
    /// Bytes of an element of K and V.
    const ELEMENT_BYTES: u32;
    /// Bytes of the scales of a stage: 0 where there are none.
    const SCALES_BYTES: u32;
    /// Whether neighbours among the columns of O are the elements of neighbouring fragments.
    const INTERLEAVES: bool;

    /// Waits for the oldest of as many groups as there are stages.
    fn wait_for_q();

    /// Waits for the oldest of one group less.
    fn wait_for_step();

    /// Begins the copies of Q to a stage, where it comes that way. The caller commits the group.
    ///
    /// # Safety
    /// Nothing uses the stage until the copies have been waited for. Tensors are as the parameters say.
    unsafe fn begin<T: Tiles>(p: &ForwardParams, tile: Tile, stage: Stage);

    /// Takes Q.
    ///
    /// # Safety
    /// Warp-collective; the copies to the stage have arrived. Tensors are as the parameters say.
    unsafe fn new<T: Tiles>(p: &ForwardParams, tile: Tile, stage: Stage) -> Self;

    /// S = Q Kᵀ.
    ///
    /// # Safety
    /// Warp-collective; the stage has been filled.
    unsafe fn scores<T: Tiles>(&self, stage: Stage) -> T::Scores;

    /// O ← O + P V.
    ///
    /// # Safety
    /// As [`Cache::scores`].
    unsafe fn add<T: Tiles>(&mut self, o: &mut T::Output, p: T::Scores, stage: Stage);

    /// O as it should be, when all chunks have been added.
    fn finish<T: Tiles>(&self, o: &mut T::Output);
}

/// K and V of the queries' type.
pub struct Same<E> {
    q: Loaded<MAX_STEPS>,
    element: PhantomData<E>,
}

impl<E: Element> Cache for Same<E> {
    const STAGES: u32 = config::DECODE_STAGES;
    const ELEMENT_BYTES: u32 = 2;
    const SCALES_BYTES: u32 = 0;
    const INTERLEAVES: bool = false;

    #[inline(always)]
    fn wait_for_q() {
        cp_async::cp_async_wait_group::<{ config::DECODE_STAGES - 1 }>();
    }

    #[inline(always)]
    fn wait_for_step() {
        cp_async::cp_async_wait_group::<{ config::DECODE_STAGES - 2 }>();
    }

    /// Rows of queries that the sequence does not have become 0, as do columns that q does not have.
    #[inline(always)]
    unsafe fn begin<T: Tiles>(p: &ForwardParams, tile: Tile, stage: Stage) {
        let chunks = T::HEAD_DIM / 8;
        let (lane, rows_at_once) = (special::lane_idx(), 32 / chunks);
        let (first_row, chunk) = (lane / chunks, lane % chunks);
        for i in 0..ROWS / rows_at_once {
            let row = first_row + i * rows_at_once;
            let PackedRow { head_idx, query } = tile.place(p, row);
            let source = GlobalRows::new(&p.q, tile.sequence, head_idx, 0);
            let source = source.with_columns(p.shape.head_dim);
            let (has_row, has_chunk) = (query < tile.rows_q.len, source.has_chunk(chunk));
            let query = if has_row { query } else { 0 };
            let from_chunk = if has_chunk { chunk } else { 0 };
            let from = source.rows.chunk(tile.rows_q.first + query, from_chunk);
            let bytes = if has_row & has_chunk { 16 } else { 0 };
            // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
            unsafe { cp_async::cp_async_cg_16(stage.k.chunk(row, chunk), from, bytes) };
        }
    }

    #[inline(always)]
    unsafe fn new<T: Tiles>(_: &ForwardParams, _: Tile, stage: Stage) -> Self {
        let mut fragments = [[0; 4]; MAX_STEPS];
        let q = left(stage.k, 0);
        let steps = T::HEAD_DIM as usize / 16;
        for (k, fragment) in fragments.iter_mut().enumerate().take(steps) {
            // SAFETY: the caller's contract.
            *fragment = unsafe { q.fragment(0, k) };
        }
        Same {
            q: Loaded(fragments),
            element: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn scores<T: Tiles>(&self, stage: Stage) -> T::Scores {
        let mut s = T::Scores::zero();
        // SAFETY: the caller's contract.
        // S = Q Kᵀ
        unsafe { E::gemm_ss(&mut s, self.q, right_transposed(stage.k, 0), T::HEAD_DIM) };
        s
    }

    #[inline(always)]
    unsafe fn add<T: Tiles>(&mut self, o: &mut T::Output, p: T::Scores, stage: Stage) {
        // SAFETY: the caller's contract.
        // O += P V
        unsafe { E::gemm_rs::<_, T::Scores>(o, p.pack::<E>(), E::right(stage.v, 0), 16) };
    }

    #[inline(always)]
    fn finish<T: Tiles>(&self, _: &mut T::Output) {}
}
