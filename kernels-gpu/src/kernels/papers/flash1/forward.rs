//! flash1 forward, for sm_80 and newer: the schedule of the first FlashAttention paper (Dao et al. 2022, Algorithm 1).
//!
//! The outer loop is over keys, the inner one over queries. K_j and V_j lie in shared memory while all blocks of queries that see them are
//! streamed past. Between two blocks of keys a query's O, l and m wait in global memory:
//!
//! ```text
//! O ← 0,  l ← 0,  m ← −∞                          in global memory
//! for each KV block j:
//!     load K_j, V_j
//!     for each query block i that sees it:
//!         load Q_i, O_i, l_i, m_i
//!         S ← Q_i K_jᵀ                             tensor cores
//!         mask S, where the block is an edge
//!         m ← max(m_i, rowmax S)
//!         P ← exp(S − m),  l ← exp(m_i − m) l_i + rowsum P
//!         O ← diag(l)⁻¹ (diag(l_i) exp(m_i − m) O_i + P V_j)      tensor cores
//!         store O, l, m as O_i, l_i, m_i
//! L ← m + log l
//! ```
//!
//! So after each block of keys, memory holds the attention over the keys so far. O is f32 there: rounded to 16 bits, it would take up an error
//! with every block of keys. It is rounded once, at the end. m need not be the maximum, but near it (`tile/softmax.rs`).
//!
//! One block of threads has a whole query head, which is all of the paper's parallelism. flash2 (`sm80.rs`) exchanges the loops: then O, l and m stay
//! in registers, and the queries of a head are shared out, too.
//!
//! Each warp has 16 queries of every block. It alone reads and writes their rows of Q, O, l and m, so the inner loop has no barrier of all
//! warps. These stand where K and V change.

use core::marker::PhantomData;

use crate::attention::mask::{Band, Rows};
use crate::attention::score::RowTerms;
use crate::attention::{batch_and_head, divide};
use crate::config::{self, HALF_BYTES, TileConfig};
use crate::kernels::band;
use crate::kernels::common::sequence::StatisticRows;
use crate::kernels::forward::sm80::{Blocks, Tiles};
use crate::kernels::forward::{add_sinks, load_statistic, store_statistic, value_of_head};
use crate::params::Flash1ForwardParams;
use crate::ptx::{barrier, cp_async, spec, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::element::Element;
use crate::tile::global::GlobalMatrix;
use crate::tile::matmul::{left, right_transposed};
use crate::tile::products::{Products, rows};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues, log_sums_exp, scale_rows};

/// The tiles of head_dim `D` and elements `E`.
pub struct DefaultTiles<E, const D: u32>(PhantomData<E>);

macro_rules! tiles {
    ($($head_dim:literal)*) => {$(
        impl<E: Element> Tiles for DefaultTiles<E, $head_dim> {
            const HEAD_DIM: u32 = $head_dim;
            type Scores = RegisterTile<1, { config::flash1_forward($head_dim).block_k as usize / 8 }>;
            type Output = RegisterTile<1, { $head_dim / 8 }>;
        }
    )*};
}

tiles! { 32 64 128 256 }

impl<E: Element, const D: u32> Blocks for DefaultTiles<E, D>
where
    DefaultTiles<E, D>: Tiles,
{
    const CONFIG: TileConfig = config::flash1_forward(D);
    const ROW_BYTES: u32 = D * HALF_BYTES;
}

/// The state of a warp: its rows of one query head.
struct Head {
    band: Band,
    q: GlobalMatrix,
    k: GlobalMatrix,
    v: GlobalMatrix,
    o: GlobalMatrix,
    /// The warp's rows of a block of queries.
    q_tile: SharedTile,
    k_tile: SharedTile,
    v_tile: SharedTile,
    /// The first of them in a block.
    warp_row: u32,
    /// Which (batch, query head).
    head: u32,
    /// Blocks of queries.
    q_blocks: u32,
    thread: u32,
}

/// One query head: see the module's pseudo-code.
///
/// # Safety
/// The launch is as [`Blocks::CONFIG`] says; tensors are as [`Flash1ForwardParams`] says, of at most `T::HEAD_DIM` columns.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn forward<E: Products, T: Blocks>(p: &Flash1ForwardParams) {
    const { T::CONSISTENT };
    const { assert!(T::ROW_BYTES == T::HEAD_DIM * E::BYTES) };
    let config = const { T::CONFIG };
    let head = Head::new::<E, T>(p);
    // SAFETY: the caller's contract: this block alone touches the head's rows of O, l, m and L. A warp's lanes meet between writing l and m and
    // reading them.
    unsafe {
        // O ← 0,  l ← 0,  m ← −∞
        for i in 0..head.q_blocks {
            let (l, m) = ([[0.0; 2]; 2], [[f32::NEG_INFINITY; 2]; 2]);
            head.store::<T>(p, i, &T::Output::zero(), [l, m]);
        }
        for j in 0..head.band.seqlen_k().div_ceil(config.block_k) {
            head.stream_queries::<E, T>(p, j);
        }
        barrier::warp_sync();
        for i in 0..head.q_blocks {
            head.finish::<E, T>(p, i);
        }
    }
}

impl Head {
    #[inline(always)]
    fn new<E: Products, T: Blocks>(p: &Flash1ForwardParams) -> Head {
        let config = const { T::CONFIG };
        let (row_bytes, thread) = (T::ROW_BYTES, special::thread_idx_x());
        let head = special::block_idx_x();
        let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
        let kv_head_idx = divide(head_idx, p.shape.group_size);
        let chunks = p.shape.head_dim / E::PER_CHUNK;
        let chunks_v = p.shape.head_dim_v / E::PER_CHUNK;
        let rows_q = |tensor| rows::<E>(tensor, batch_idx, head_idx, p.shape.seqlen_q);
        let rows_k = |tensor| rows::<E>(tensor, batch_idx, kv_head_idx, p.shape.seqlen_k);
        let warp_row = thread / 32 * T::WARP_ROWS;
        let base = special::shared_base();
        let k_base = base + config.block_q * row_bytes;
        let tile = |base| SharedTile { base, row_bytes };
        Head {
            band: band(&p.shape, p.window),
            q: rows_q(&p.q).with_chunks(chunks),
            k: rows_k(&p.k).with_chunks(chunks),
            v: rows_k(&p.v).with_chunks(chunks_v),
            o: rows_q(&p.o).with_chunks(chunks_v),
            q_tile: tile(base + warp_row * row_bytes),
            k_tile: tile(k_base),
            v_tile: tile(k_base + config.block_k * row_bytes),
            warp_row,
            head,
            q_blocks: p.shape.seqlen_q.div_ceil(config.block_q),
            thread,
        }
    }

    /// KV block `j`: all query blocks that see it are streamed past.
    #[inline(always)]
    unsafe fn stream_queries<E: Products, T: Blocks>(&self, p: &Flash1ForwardParams, j: u32) {
        let config = const { T::CONFIG };
        let keys = Rows {
            first: j * config.block_k,
            len: config.block_k,
        };
        let blocks = self.band.q_blocks(keys, config.block_q);
        if blocks.n() == 0 {
            return;
        }
        let team = Team {
            thread: self.thread,
            threads: config.threads,
        };
        // SAFETY: as `forward`. One barrier stands behind the last use of the keys before, the other one before that of these.
        unsafe {
            barrier::barrier_sync_all();
            copy::load::<BoundsChecked>(self.k_tile, self.k, keys.first, config.block_k, team);
            copy::load::<BoundsChecked>(self.v_tile, self.v, keys.first, config.block_k, team);
            self.load_queries::<T>(blocks.first);
            cp_async::cp_async_commit_group();
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
            for i in blocks.first..blocks.end {
                let next = (i + 1 < blocks.end).then_some(i + 1);
                let is_edge = i < blocks.full_first || blocks.full_end <= i;
                self.step::<E, T>(p, (i, next), keys.first, is_edge);
            }
        }
    }

    /// Query block `i` and the keys from `first_key` on. Q of block `next` arrives meanwhile.
    #[inline(always)]
    unsafe fn step<E: Products, T: Blocks>(
        &self,
        p: &Flash1ForwardParams,
        (i, next): (u32, Option<u32>),
        first_key: u32,
        is_edge: bool,
    ) {
        let block_k = const { T::CONFIG.block_k };
        // SAFETY: as `forward`; K, V and the warp's rows of Q have arrived. All lanes have read Q when the next one is loaded over it.
        unsafe {
            let [l, m] = self.load_statistics::<T>(p, i);

            let mut s = T::Scores::zero();
            let k = right_transposed(self.k_tile, 0);
            // S = Q_i K_jᵀ
            E::gemm_ss(&mut s, left(self.q_tile, 0), k, T::HEAD_DIM);
            barrier::warp_sync();
            if let Some(next) = next {
                self.load_queries::<T>(next);
            }
            cp_async::cp_async_commit_group();
            if is_edge {
                let first_query = self.first_row::<T>(i);
                s.mask(|row, col| self.band.keep(first_query + row, first_key + col));
            }

            // m = max(m_i, rowmax S),  l = exp(m_i − m) l_i
            let mut softmax = OnlineSoftmax::resumed::<T::Scores>(p.scale.scale_log2, m, l);
            softmax.grow(&s, RowTerms::InScores);
            let weight_of_o = softmax.row_sums::<T::Scores>();

            // P = exp(S − m),  l += rowsum P
            let sums = softmax.exponentials(&mut s, RowTerms::InScores);
            softmax.add::<T::Scores>(sums);
            let weights = E::hold(&s);

            // O = diag(l)⁻¹ (diag(l_i) exp(m_i − m) O_i + P V_j)
            let mut o: T::Output = copy::load_accumulators(self.address_of_o::<T>(p, i));
            scale_rows(&mut o, weight_of_o);
            // O += P V
            E::gemm_rs::<_, T::Scores>(&mut o, weights, E::right(self.v_tile, 0), block_k);
            softmax.finalize(&mut o);

            // O_i, l_i, m_i
            let (l, m) = (softmax.row_sums::<T::Output>(), softmax.references());
            self.store::<T>(p, i, &o, [l, m]);
            cp_async::cp_async_wait_group::<0>();
            barrier::warp_sync();
        }
    }

    /// O of block `i`, rounded, and L: to the caller's memory.
    #[inline(always)]
    unsafe fn finish<E: Products, T: Blocks>(&self, p: &Flash1ForwardParams, i: u32) {
        let first_row = self.first_row::<T>(i);
        let rows = StatisticRows::padded(p.lse, &p.shape);
        // SAFETY: as `forward`. Nobody reads Q any more, so that the warp's rows of it may become rows of O.
        unsafe {
            let [l, m] = self.load_statistics::<T>(p, i);
            let mut o: T::Output = copy::load_accumulators(self.address_of_o::<T>(p, i));
            let mut lse = log_sums_exp::<T::Output>(m, l, p.scale.scale_log2);
            if spec::sinks() {
                let sink = value_of_head(p.sinks, p.shape.heads_q, self.head);
                lse = add_sinks(first_row, lse, &mut o, |_| sink);
            }
            copy::store_through::<E, T::Output>(self.o, first_row, self.q_tile, 0, &o);
            store_statistic::<T::Output>(rows, first_row, lse, |row| (self.head, row));
        }
    }

    /// The warp's first row of Q_i.
    #[inline(always)]
    fn first_row<T: Blocks>(&self, i: u32) -> u32 {
        i * T::CONFIG.block_q + self.warp_row
    }

    /// Begins the copy of the warp's rows of Q_i; the caller commits the group.
    #[inline(always)]
    unsafe fn load_queries<T: Blocks>(&self, i: u32) {
        let team = Team {
            thread: special::lane_idx(),
            threads: 32,
        };
        let first_row = self.first_row::<T>(i);
        // SAFETY: the caller knows that no lane reads them.
        unsafe { copy::load::<BoundsChecked>(self.q_tile, self.q, first_row, T::WARP_ROWS, team) }
    }

    /// l_i and m_i.
    #[inline(always)]
    unsafe fn load_statistics<T: Blocks>(&self, p: &Flash1ForwardParams, i: u32) -> [RowValues; 2] {
        let first_row = self.first_row::<T>(i);
        let place = |row| (self.head, row);
        // SAFETY: as `forward`.
        self.rows_of_statistics::<T>(p)
            .map(|rows| unsafe { load_statistic::<T::Output>(rows, first_row, place) })
    }

    /// O_i, and l_i and m_i.
    #[inline(always)]
    unsafe fn store<T: Blocks>(
        &self,
        p: &Flash1ForwardParams,
        i: u32,
        o: &T::Output,
        [l, m]: [RowValues; 2],
    ) {
        let first_row = self.first_row::<T>(i);
        let [rows_l, rows_m] = self.rows_of_statistics::<T>(p);
        let place = |row| (self.head, row);
        // SAFETY: as `forward`.
        unsafe {
            copy::store_accumulators(self.address_of_o::<T>(p, i), o);
            store_statistic::<T::Output>(rows_l, first_row, l, place);
            store_statistic::<T::Output>(rows_m, first_row, m, place);
        }
    }

    /// Where l and m lie: in whole blocks of queries.
    #[inline(always)]
    fn rows_of_statistics<T: Blocks>(&self, p: &Flash1ForwardParams) -> [StatisticRows; 2] {
        let padded_q = self.q_blocks * T::CONFIG.block_q;
        [p.l, p.m].map(|base| StatisticRows {
            base,
            rows: padded_q,
            seqlen_q: padded_q,
        })
    }

    /// Where the warp's rows of O_i lie.
    #[inline(always)]
    fn address_of_o<T: Blocks>(&self, p: &Flash1ForwardParams, i: u32) -> u64 {
        let padded_q = u64::from(self.q_blocks * T::CONFIG.block_q);
        let row = u64::from(self.head) * padded_q + u64::from(self.first_row::<T>(i));
        p.o_accum + row * u64::from(T::HEAD_DIM) * 4
    }
}
