//! flash2 backward for sm_80 and newer: one tile of keys at a time, drawn from a ticket; query blocks stream past.
//!
//! Eight warps in two roles of four. Warp `w` of either role owns keys `32 w ..` of the tile. Score warps recompute P and
//! keep dV; gradient warps make dS and keep dK. P goes from a score warp to its partner through shared memory, in the
//! registers' own order, and the partner's dS takes its place there, in rows. So a fragment read from shared memory
//! always feeds two `mma`, and the pair needs one named barrier a step.
//!
//! dQ of a step, and dK, are multiplied during the next one. That leaves one barrier of all warps in a step, which
//! publishes the next Q and dO, and dS, and frees what the last step read; and it leaves gradient warps something to
//! do while their partners work out P. Step `i`, after its barrier:
//!
//! ```text
//! score warps                                gradient warps
//! begin the copies of dO, L, Δ of i + 1      dK += dSᵀ Q of i − 1
//! S, P of i → partner                        (they meet) begin the copy of Q of i + 1, over Q of i − 1
//! dV += Pᵀ dO                                their part of dQ += dS K of i − 1
//! their part of dQ += dS K of i − 1          dP of i
//!                                            ← P,  dS of i → shared memory
//! ```
//!
//! In the deterministic order a tile adds to a block of dQ when its turn has come: thread 0 waits for it before the
//! barrier and passes it on after the next, when all warps have added. Who waits for whom: [`schedule`].

use super::Tiles;
use super::probabilities::{probabilities, score_gradients, send};
use super::query_gradient::{add_query_gradient, pass_turn, wait_turn};
use crate::attention::divide;
use crate::attention::mask::{Mask, QBlocks, Rows};
use crate::attention::schedule::{self, BackwardTile, Direction};
use crate::config;
use crate::params::BackwardParams;
use crate::ptx::{atomic, barrier, cp_async, shared, special};
use crate::tile::copy::{self, Checked, Team};
use crate::tile::element::Element;
use crate::tile::global::{GlobalRows, row_of_head};
use crate::tile::matmul::{Registers, left, multiply_add, right, right_transposed};
use crate::tile::register::{Accumulator, Packed};
use crate::tile::shared::SharedTile;

/// Keys of a warp: two fragments.
pub(super) const WARP_KEYS: u32 = 32;
/// Warps of a role.
const ROLE_WARPS: u32 = 4;
/// The barrier of warp pair `w` is `PAIR_BARRIER + w`; barrier 0 is everybody's.
const PAIR_BARRIER: u32 = 1;
/// The barrier of the gradient warps.
const GRADIENT_BARRIER: u32 = PAIR_BARRIER + ROLE_WARPS;
/// Threads of a pair of warps.
const PAIR_THREADS: u32 = 64;

/// Where things lie in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) k: SharedTile,
    pub(super) v: SharedTile,
    /// Stage 0 of Q; the next stage follows.
    pub(super) q: SharedTile,
    pub(super) d_o: SharedTile,
    /// P, then dS, of an even step, `[keys][queries]`; of an odd one behind it.
    pub(super) d_s: SharedTile,
    /// Stage 0 of L and of Δ; stage 1 follows.
    pub(super) lse: u32,
    pub(super) delta: u32,
    /// The ticket drawn by thread 0, for all.
    pub(super) ticket: u32,
}

impl Layout {
    #[inline(always)]
    fn new<T: Tiles>() -> Self {
        let config = const { config::backward(T::HEAD_DIM) };
        let row_bytes = T::HEAD_DIM * 2;
        let (q_bytes, k_bytes) = (config.block_q * row_bytes, config.block_k * row_bytes);
        let k = special::shared_base();
        let v = k + k_bytes;
        let q = v + k_bytes;
        let d_o = q + 2 * q_bytes;
        let d_s = d_o + 2 * q_bytes;
        let lse = d_s + 2 * config.block_k * config.block_q * 2;
        let tile = |base| SharedTile { base, row_bytes };
        Layout {
            k: tile(k),
            v: tile(v),
            q: tile(q),
            d_o: tile(d_o),
            d_s: SharedTile {
                base: d_s,
                row_bytes: config.block_q * 2,
            },
            lse,
            delta: lse + 2 * config.block_q * 4,
            ticket: lse + 4 * config.block_q * 4,
        }
    }

    /// The place of step `i` in a ring of two.
    #[inline(always)]
    pub(super) fn stage(tile: SharedTile, rows: u32, i: u32) -> SharedTile {
        SharedTile {
            base: tile.base + i % 2 * rows * tile.row_bytes,
            ..tile
        }
    }
}

/// One query block of one query head, as a step of the walk meets it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Which (batch, query head).
    pub(super) head: u32,
    pub(super) head_idx: u32,
    /// Which query block.
    pub(super) block: u32,
}

/// What one tile of keys works with.
pub(super) struct Tile<M> {
    pub(super) mask: M,
    pub(super) keys: Rows,
    pub(super) blocks: QBlocks,
    pub(super) tile: BackwardTile,
    pub(super) batch_idx: u32,
    pub(super) kv_head_idx: u32,
    pub(super) shared: Layout,
    pub(super) thread: u32,
    /// The warp's number in its role.
    pub(super) warp: u32,
    /// Query blocks of a head.
    pub(super) q_blocks: u32,
    /// Steps: query blocks of all heads of the group.
    pub(super) steps: u32,
}

/// Draws tiles until none are left.
///
/// # Safety
/// The launch is as [`config::backward`] says; tensors are as [`BackwardParams`] says, of `T::HEAD_DIM` columns; the
/// `delta` kernel ran before on the stream.
#[inline(always)]
pub unsafe fn backward<E: Element, T: Tiles, M: Mask>(p: &BackwardParams) {
    let shared = Layout::new::<T>();
    let thread = special::thread_idx_x();
    loop {
        // SAFETY: the barriers order the slot's write and read, and this tile's use of shared memory and the last's.
        let ticket = unsafe {
            if thread == 0 {
                shared::st_shared_u32(shared.ticket, atomic::atom_add_u32(p.ticket, 1));
            }
            barrier::barrier_sync_all();
            shared::ld_shared_u32(shared.ticket)
        };
        if ticket >= p.schedule.tiles * p.schedule.heads {
            return;
        }
        let tile = schedule::backward(&p.schedule, M::WORK, ticket);
        // SAFETY: as this function.
        unsafe { key_tile::<E, T, M>(p, shared, tile, thread) };
    }
}

/// One tile of keys: all its steps, then dK and dV.
#[inline(always)]
unsafe fn key_tile<E: Element, T: Tiles, M: Mask>(
    p: &BackwardParams,
    shared: Layout,
    tile: BackwardTile,
    thread: u32,
) {
    let config = const { config::backward(T::HEAD_DIM) };
    let batch_idx = divide(tile.head, p.shape.heads_k);
    let kv_head_idx = tile.head - batch_idx * p.shape.heads_k;
    let keys = Rows {
        first: tile.tile * config.block_k,
        len: config.block_k,
    };
    let mask = M::new(&p.shape);
    let blocks = mask.q_blocks(keys, &p.shape, config.block_q);
    let steps = (blocks.end - blocks.first) * p.shape.group_size;
    let warp = thread / 32 % ROLE_WARPS;
    let q_blocks = p.shape.seqlen_q.div_ceil(config.block_q);
    let t = Tile {
        q_blocks,
        mask,
        keys,
        blocks,
        tile,
        batch_idx,
        kv_head_idx,
        shared,
        thread,
        warp,
        steps,
    };

    let team = Team {
        thread,
        threads: config.threads,
    };
    let rows = |tensor| GlobalRows::new(tensor, batch_idx, kv_head_idx, p.shape.seqlen_k);
    let (first_key, warp_key) = (keys.first, warp * WARP_KEYS);
    // SAFETY: as `backward`. After the walk all warps have met, so that K and V may become dK and dV.
    unsafe {
        copy::load::<Checked>(shared.k, rows(&p.k), first_key, config.block_k, team);
        copy::load::<Checked>(shared.v, rows(&p.v), first_key, config.block_k, team);
        if thread < ROLE_WARPS * 32 {
            if steps > 0 {
                load_d_o::<T, M>(p, &t, 0);
            }
            let d_v = score_warp::<E, T, M>(p, &t);
            copy::store_through::<E, _>(
                rows(&p.d_v),
                first_key + warp_key,
                shared.v,
                warp_key,
                &d_v,
            );
        } else {
            if steps > 0 {
                load_q::<T, M>(p, &t, 0);
            }
            let mut d_k = gradient_warp::<E, T, M>(p, &t);
            d_k.for_each(|_, _, x| *x *= p.scale.scale);
            copy::store_through::<E, _>(
                rows(&p.d_k),
                first_key + warp_key,
                shared.k,
                warp_key,
                &d_k,
            );
        }
    }
}

/// The walk of a score warp: gives dV.
#[inline(always)]
unsafe fn score_warp<E: Element, T: Tiles, M: Mask>(
    p: &BackwardParams,
    t: &Tile<M>,
) -> T::KeyGradient {
    let config = const { config::backward(T::HEAD_DIM) };
    let mut d_v = T::KeyGradient::zero();
    // SAFETY: as `backward`; `begin_step` has published what each step reads.
    unsafe {
        for i in 0..t.steps {
            begin_step::<T, M>(p, t, i);
            if i + 1 < t.steps {
                load_d_o::<T, M>(p, t, i + 1);
            }
            // Sᵀ = K Qᵀ
            let mut s = T::Scores::zero();
            let q = Layout::stage(t.shared.q, config.block_q, i);
            let k = left(t.shared.k, t.warp * WARP_KEYS);
            multiply_add::<E, _>(&mut s, k, right_transposed(q, 0), T::HEAD_DIM as usize / 16);
            // Pᵀ = exp(Sᵀ − L)
            probabilities::<T, M>(p, t, i, &mut s);
            let s = s.pack::<E>();
            send::<T, M>(t, i, &s);
            barrier::barrier_arrive(PAIR_BARRIER + t.warp, PAIR_THREADS);
            // dV += Pᵀ dO
            let d_o = Layout::stage(t.shared.d_o, config.block_q, i);
            multiply_add::<E, _>(
                &mut d_v,
                Registers(s),
                right(d_o, 0),
                config.block_q as usize / 16,
            );
            if i > 0 {
                add_query_gradient::<E, T, M>(p, t, i - 1);
            }
        }
        end_walk::<E, T, M>(p, t);
    }
    d_v
}

/// The walk of a gradient warp: gives dK / scale.
#[inline(always)]
unsafe fn gradient_warp<E: Element, T: Tiles, M: Mask>(
    p: &BackwardParams,
    t: &Tile<M>,
) -> T::KeyGradient {
    let config = const { config::backward(T::HEAD_DIM) };
    let mut d_k = T::KeyGradient::zero();
    let mut d_s = <T::Scores as Accumulator>::Packed::zero();
    // SAFETY: as `backward`; `begin_step` has published what each step reads, the pair's barrier P. Q of the last
    // step is read by gradient warps alone: when they have met, it may be overwritten.
    unsafe {
        for i in 0..t.steps {
            begin_step::<T, M>(p, t, i);
            if i > 0 {
                add_key_gradient::<E, T, M>(t, i - 1, d_s, &mut d_k);
                barrier::barrier_sync(GRADIENT_BARRIER, ROLE_WARPS * 32);
            }
            if i + 1 < t.steps {
                load_q::<T, M>(p, t, i + 1);
            }
            if i > 0 {
                add_query_gradient::<E, T, M>(p, t, i - 1);
            }
            // dPᵀ = V dOᵀ
            let mut d_p = T::Scores::zero();
            let d_o = Layout::stage(t.shared.d_o, config.block_q, i);
            let v = left(t.shared.v, t.warp * WARP_KEYS);
            multiply_add::<E, _>(
                &mut d_p,
                v,
                right_transposed(d_o, 0),
                T::HEAD_DIM as usize / 16,
            );
            // dSᵀ = Pᵀ ∘ (dPᵀ − Δ)
            barrier::barrier_sync(PAIR_BARRIER + t.warp, PAIR_THREADS);
            score_gradients::<E, T, M>(t, i, &mut d_p);
            d_s = d_p.pack::<E>();
            // All lanes have read P: dS takes its place.
            barrier::warp_sync();
            let rows = Layout::stage(t.shared.d_s, config.block_k, i);
            copy::store_packed::<T::Scores>(rows, t.warp * WARP_KEYS, 0, &d_s);
        }
        if t.steps > 0 {
            add_key_gradient::<E, T, M>(t, t.steps - 1, d_s, &mut d_k);
        }
        end_walk::<E, T, M>(p, t);
    }
    d_k
}

/// dK += dSᵀ Q of step `i`.
#[inline(always)]
unsafe fn add_key_gradient<E: Element, T: Tiles, M: Mask>(
    t: &Tile<M>,
    i: u32,
    d_s: <T::Scores as Accumulator>::Packed,
    d_k: &mut T::KeyGradient,
) {
    let block_q = const { config::backward(T::HEAD_DIM).block_q };
    let q = Layout::stage(t.shared.q, block_q, i);
    // SAFETY: as `gradient_warp`.
    unsafe { multiply_add::<E, _>(d_k, Registers(d_s), right(q, 0), block_q as usize / 16) };
}

/// The walk's last dQ; afterwards nobody reads shared memory any more.
#[inline(always)]
unsafe fn end_walk<E: Element, T: Tiles, M: Mask>(p: &BackwardParams, t: &Tile<M>) {
    // SAFETY: as `backward`.
    unsafe {
        begin_step::<T, M>(p, t, t.steps);
        if t.steps > 0 {
            add_query_gradient::<E, T, M>(p, t, t.steps - 1);
        }
        barrier::barrier_sync_all();
        if t.steps > 0 {
            pass_turn(p, t, t.steps - 1);
        }
    }
}

/// The barrier of step `i`, with the turns that are waited for before and passed on behind it.
#[inline(always)]
unsafe fn begin_step<T: Tiles, M: Mask>(p: &BackwardParams, t: &Tile<M>, i: u32) {
    cp_async::cp_async_commit_group();
    cp_async::cp_async_wait_group::<0>();
    // SAFETY: as `backward`; all of the block's warps come here.
    unsafe {
        if i > 0 {
            wait_turn::<T, M>(p, t, i - 1);
        }
        barrier::barrier_sync_all();
        if i > 1 {
            pass_turn(p, t, i - 2);
        }
    }
}

/// The query block of step `i`: heads of the group one after the other, blocks in the tile's direction.
#[inline(always)]
pub(super) fn step_at<M: Mask>(p: &BackwardParams, t: &Tile<M>, i: u32) -> Step {
    let blocks = t.blocks.end - t.blocks.first;
    // Without groups, no division by a number known at run time only.
    let in_group = if p.shape.group_size == 1 {
        0
    } else {
        divide(i, blocks)
    };
    let walked = i - in_group * blocks;
    let head_idx = t.kv_head_idx * p.shape.group_size + in_group;
    let block = match t.tile.direction {
        Direction::Up => t.blocks.first + walked,
        Direction::Down => t.blocks.end - 1 - walked,
    };
    Step {
        head: t.batch_idx * p.shape.heads_q + head_idx,
        head_idx,
        block,
    }
}

/// Begins the copy of Q of step `i`; gradient warps do.
#[inline(always)]
unsafe fn load_q<T: Tiles, M: Mask>(p: &BackwardParams, t: &Tile<M>, i: u32) {
    let block_q = const { config::backward(T::HEAD_DIM).block_q };
    let step = step_at(p, t, i);
    let rows = GlobalRows::new(&p.q, t.batch_idx, step.head_idx, p.shape.seqlen_q);
    let tile = Layout::stage(t.shared.q, block_q, i);
    // SAFETY: as `gradient_warp`.
    unsafe { copy::load::<Checked>(tile, rows, step.block * block_q, block_q, role_team(t)) };
}

/// Begins the copies of dO, L and Δ of step `i`; score warps do.
#[inline(always)]
unsafe fn load_d_o<T: Tiles, M: Mask>(p: &BackwardParams, t: &Tile<M>, i: u32) {
    let block_q = const { config::backward(T::HEAD_DIM).block_q };
    let step = step_at(p, t, i);
    let (first, team) = (step.block * block_q, role_team(t));
    let rows = GlobalRows::new(&p.d_o, t.batch_idx, step.head_idx, p.shape.seqlen_q);
    let tile = Layout::stage(t.shared.d_o, block_q, i);
    let chunks = block_q / 4;
    // SAFETY: as `score_warp`; L and Δ are padded to whole blocks.
    unsafe {
        copy::load::<Checked>(tile, rows, first, block_q, team);
        if team.thread < 2 * chunks {
            let (source, target) = if team.thread < chunks {
                (p.lse_log2, t.shared.lse)
            } else {
                (p.delta, t.shared.delta)
            };
            let chunk = team.thread % chunks;
            let from = row_of_head(source, step.head, p.padded_q, first + chunk * 4);
            cp_async::cp_async_cg_16(target + i % 2 * block_q * 4 + chunk * 16, from, 16);
        }
    }
}

/// The threads of this thread's role.
#[inline(always)]
fn role_team<M>(t: &Tile<M>) -> Team {
    Team {
        thread: t.thread % (ROLE_WARPS * 32),
        threads: ROLE_WARPS * 32,
    }
}
