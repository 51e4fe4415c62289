//! Probes of Hopper's instructions: blocks of one warpgroup, and besides the two addresses tensor maps of the input and of
//! the output.

use super::{get, put, put_all};
use crate::params::TensorMap;
use crate::ptx::{
    atomic, barrier, convert, global, ldmatrix, mbarrier, shared, shuffle, special, tensor_map,
    tma, warpgroup,
};

mod made_maps;
mod products;

pub(super) use made_maps::*;
pub(super) use products::*;

/// The tensors that the probes copy, as the third parameter of every entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProbeMaps {
    /// The input.
    pub from: TensorMap,
    /// The output.
    pub to: TensorMap,
    /// The input, in boxes of two heads.
    pub from_heads: TensorMap,
    /// The output, in boxes of two heads.
    pub to_heads: TensorMap,
}

const COLUMNS: u32 = 72;
const ROWS: u32 = 20;
const HEADS: u32 = 2;
const BATCH: u32 = 2;
/// Rows of a box.
const BOX_ROWS: u32 = 16;
/// Bytes of a box.
pub(super) const BOX: u32 = BOX_ROWS * 128;
/// Words of a tensor.
const WORDS: u32 = COLUMNS * ROWS * HEADS * BATCH / 2;

#[cfg(not(target_arch = "nvptx64"))]
impl ProbeMaps {
    /// `[2, 2, 20, 72]` (batch, heads, rows, columns) at the beginning of both.
    pub fn new(input: u64, output: u64) -> ProbeMaps {
        let row = u64::from(COLUMNS) * 2;
        let head = row * u64::from(ROWS);
        let map = |base, box_heads: u32| TensorMap {
            base,
            sizes: [COLUMNS, ROWS, HEADS, BATCH].map(u64::from),
            strides: [row, head, head * u64::from(HEADS)],
            box_rows: u64::from(BOX_ROWS / box_heads),
            box_heads: box_heads.into(),
            ..TensorMap::default()
        };
        ProbeMaps {
            from: map(input, 1),
            to: map(output, 1),
            from_heads: map(input, 2),
            to_heads: map(output, 2),
        }
    }

    /// All of them.
    pub fn each(&mut self) -> [&mut TensorMap; 4] {
        let ProbeMaps {
            from,
            to,
            from_heads,
            to_heads,
        } = self;
        [from, to, from_heads, to_heads]
    }
}

/// Whether this is the block's first thread; each time a question that the compiler cannot answer by an earlier one. It
/// would copy a barrier between two of them into both ways of a branch, and split the first warp at it.
pub(super) unsafe fn first_thread() -> bool {
    let warp_first = shuffle::shuffle_idx_u32(special::thread_idx_x(), 0);
    warp_first == 0 && special::lane_idx() == 0
}

/// Four phases of a barrier on which every other thread arrives, for both lanes of its pair.
pub(super) unsafe fn mbarrier_phases(input: u64, output: u64, _: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let bar = base + 2048;
    if first_thread() {
        mbarrier::mbarrier_init(bar, 64);
        mbarrier::fence_mbarrier_init();
    }
    barrier::barrier_sync_all();
    for phase in 0..4 {
        let words = base + phase * 512;
        shared::st_shared_u32(words + thread * 4, get(input, phase));
        barrier::warp_sync();
        mbarrier::mbarrier_arrive_if(bar, thread & 1);
        mbarrier::mbarrier_wait(bar, phase & 1);
        let other = (thread * 5 + 3) % 128;
        put(output, phase, shared::ld_shared_u32(words + other * 4));
    }
}

/// The address of the map of this number among [`ProbeMaps`].
fn map_at(maps: u64, idx: u64) -> u64 {
    maps + idx * size_of::<TensorMap>() as u64
}

/// Boxes inside, over each edge, and beside the tensor.
const LOADED: [[i32; 4]; 6] = [
    [0, 2, 1, 1],
    [64, 3, 0, 1],
    [8, 12, 1, 0],
    [-8, -3, 0, 0],
    [0, 0, 2, 0],
    [0, 1 << 30, 0, 0],
];

/// All of them on one barrier, in the first of its phases; one of them again, in the second, by a map that was
/// prefetched, and to be evicted first.
pub(super) unsafe fn tma_loads(_: u64, output: u64, maps: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let bar = base + 7 * BOX;
    if first_thread() {
        mbarrier::mbarrier_init(bar, 1);
        mbarrier::fence_mbarrier_init();
    }
    barrier::barrier_sync_all();
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, 6 * BOX);
        for i in 0..LOADED.len() {
            let at = LOADED[i].map(|x| x as u32);
            tma::tma_load(base + i as u32 * BOX, maps, at, bar);
        }
    }
    mbarrier::mbarrier_wait(bar, 0);
    // Who has not seen the first phase's end would take the second's for it.
    barrier::barrier_sync_all();
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, BOX);
        tensor_map::prefetch(maps);
        tma::tma_load_evict_first(base + 6 * BOX, maps, [8, 4, 1, 1], bar);
    }
    mbarrier::mbarrier_wait(bar, 1);
    for k in 0..7 * BOX / 512 {
        put(
            output,
            k,
            shared::ld_shared_u32(base + k * 512 + thread * 4),
        );
    }
}

/// Boxes of eight rows of two heads: inside, over each edge of rows and heads, and beside the tensor.
const LOADED_HEADS: [[i32; 4]; 5] = [
    [0, 2, 0, 1],
    [64, 15, 1, 0],
    [8, -3, -1, 1],
    [0, 12, 0, 0],
    [0, 0, 2, 0],
];

/// All of them on one barrier.
pub(super) unsafe fn tma_loads_of_heads(_: u64, output: u64, maps: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let bar = base + 5 * BOX;
    if first_thread() {
        mbarrier::mbarrier_init(bar, 1);
        mbarrier::fence_mbarrier_init();
    }
    barrier::barrier_sync_all();
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, 5 * BOX);
        for i in 0..LOADED_HEADS.len() {
            let at = LOADED_HEADS[i].map(|x| x as u32);
            tma::tma_load(base + i as u32 * BOX, map_at(maps, 2), at, bar);
        }
    }
    mbarrier::mbarrier_wait(bar, 0);
    for k in 0..5 * BOX / 512 {
        put(
            output,
            k,
            shared::ld_shared_u32(base + k * 512 + thread * 4),
        );
    }
}

/// Four boxes for each head, stored so that together they cover the tensor and overlap nowhere: they hang over its last
/// rows and columns.
pub(super) unsafe fn tma_stores(input: u64, output: u64, maps: u64) {
    stores(input, output, map_at(maps, 1), [2, HEADS]);
}

/// The same with six boxes of eight rows for each pair of heads.
pub(super) unsafe fn tma_stores_of_heads(input: u64, output: u64, maps: u64) {
    stores(input, output, map_at(maps, 3), [3, 1]);
}

/// Stores boxes that cover the tensor with so many along its rows and its heads. What lies behind the tensor is written,
/// too.
#[inline(always)]
unsafe fn stores(input: u64, output: u64, to: u64, boxes: [u32; 2]) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    for k in 0..4 * BOX / 512 {
        shared::st_shared_u32(base + k * 512 + thread * 4, get(input, k));
    }
    tma::fence_proxy_async();
    barrier::barrier_sync_all();
    if first_thread() {
        store_all(base, to, boxes);
    }
    if thread < 64 {
        let rest = output + u64::from(WORDS + thread) * 4;
        global::st_global_u32(rest, get(input, 0));
    }
}

/// One thread stores the boxes, and waits until they have been read.
#[inline(always)]
unsafe fn store_all(base: u32, to: u64, [along_rows, along_heads]: [u32; 2]) {
    let box_rows = BOX_ROWS * along_heads / HEADS;
    let mut place = 0;
    for batch in 0..BATCH {
        for head in 0..along_heads {
            for below in 0..along_rows {
                for right in 0..2 {
                    let at = [right * 64, below * box_rows, head, batch];
                    tma::tma_store_if(to, at, base + place % 4 * BOX, 1);
                    place += 1;
                }
            }
        }
    }
    tma::bulk_commit_group();
    tma::bulk_wait_group_read::<0>();
}

/// Copies of 16 bytes, a few and many, from places of their own, side by side in shared memory.
pub(super) unsafe fn bulk_loads(input: u64, output: u64, _: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let bar = base + 2048;
    if first_thread() {
        mbarrier::mbarrier_init(bar, 1);
        mbarrier::fence_mbarrier_init();
    }
    barrier::barrier_sync_all();
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, 2048);
        tma::bulk_load(base, input + 1536, 512, bar);
        tma::bulk_load(base + 512, input + 1040, 16, bar);
        tma::bulk_load(base + 528, input + 16, 1520, bar);
    }
    mbarrier::mbarrier_wait(bar, 0);
    for k in 0..4 {
        let at = base + k * 512 + thread * 4;
        put(output, k, shared::ld_shared_u32(at));
    }
}

/// The same pieces the other way round, in two groups; then all read what has been stored.
pub(super) unsafe fn bulk_stores(input: u64, output: u64, _: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    for k in 0..4 {
        shared::st_shared_u32(base + k * 512 + thread * 4, get(input, k));
    }
    tma::fence_proxy_async();
    barrier::barrier_sync_all();
    if first_thread() {
        tma::bulk_store(output + 1536, base, 512);
        tma::bulk_store(output, base + 512, 16);
        tma::bulk_commit_group();
        tma::bulk_store(output + 16, base + 528, 1520);
        tma::bulk_commit_group();
        tma::bulk_wait_group::<1>();
        tma::bulk_wait_group::<0>();
    }
    barrier::barrier_sync_all();
    for k in 0..4 {
        put(output, 4 + k, get(output, k));
    }
}

/// A thread of each warp adds whole numbers, to places that the next one's overlap, on top of what the threads have written
/// there.
pub(super) unsafe fn bulk_adds(input: u64, output: u64, _: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    for k in 0..4 {
        let added = (get(input, k) % 4096) as f32;
        shared::st_shared_f32(base + k * 512 + thread * 4, added);
        put(output, k, (thread as f32).to_bits());
    }
    tma::fence_proxy_async();
    tma::fence_proxy_async_global();
    barrier::barrier_sync_all();
    if special::lane_idx() == 0 {
        let warp = thread / 32;
        let to = output + u64::from(warp) * 304;
        tma::bulk_add_f32(to, base + warp * 256, 1136);
        tma::bulk_commit_group();
        tma::bulk_wait_group::<0>();
    }
}

/// Each warp stores four matrices, the rows in an order of their own.
pub(super) unsafe fn stmatrix_x4(input: u64, output: u64, _: u64) {
    let lane = special::lane_idx();
    let base = special::shared_base() + special::thread_idx_x() / 32 * 512;
    let x = [get(input, 0), get(input, 1), get(input, 2), get(input, 3)];
    ldmatrix::stmatrix_x4(base + (lane * 5 + 3) % 32 * 16, x);
    barrier::warp_sync();
    put_all(output, 0, &shared::ld_shared_x4(base + lane * 16));
}

/// The same, transposed.
pub(super) unsafe fn stmatrix_x4_trans(input: u64, output: u64, _: u64) {
    let lane = special::lane_idx();
    let base = special::shared_base() + special::thread_idx_x() / 32 * 512;
    let x = [get(input, 0), get(input, 1), get(input, 2), get(input, 3)];
    ldmatrix::stmatrix_x4_trans(base + (lane * 5 + 3) % 32 * 16, x);
    barrier::warp_sync();
    put_all(output, 0, &shared::ld_shared_x4(base + lane * 16));
}

/// The same of two matrices, whose rows the first 16 lanes point at.
pub(super) unsafe fn stmatrix_x2_trans(input: u64, output: u64, _: u64) {
    let lane = special::lane_idx();
    let base = special::shared_base() + special::thread_idx_x() / 32 * 256;
    let x = [get(input, 0), get(input, 1)];
    ldmatrix::stmatrix_x2_trans(base + (lane * 5 + 3) % 16 * 16, x);
    barrier::warp_sync();
    put_all(output, 0, &shared::ld_shared_x2(base + lane * 8));
}

/// Eight places collect four whole numbers from each thread, and from some once more; the others stay 0.
pub(super) unsafe fn red_add_f32x4(_: u64, output: u64, _: u64) {
    let thread = special::thread_idx_x();
    put(output, 0, 0);
    barrier::barrier_sync_all();
    let x = [1, 2, 3, 4].map(|times| (times * thread + 1) as f32);
    let place = output + u64::from(thread % 8) * 16;
    atomic::red_add_f32x4(place, x);
    atomic::red_add_f32x4_if(place, x, thread & 24);
}

/// All numbers of 8 bits in their turn, beside each other, and whatever comes.
pub(super) unsafe fn cvt_f16x2_e4m3x2(input: u64, output: u64, _: u64) {
    let thread = special::thread_idx_x();
    let pair = ((2 * thread + 1) << 8) | (2 * thread);
    put(output, 0, convert::cvt_f16x2_e4m3x2(pair));
    put(output, 1, convert::cvt_f16x2_e4m3x2(get(input, 0)));
}

/// Registers given back, and some of them taken again: as few as every launch leaves.
pub(super) unsafe fn setmaxnreg(input: u64, output: u64, _: u64) {
    warpgroup::setmaxnreg_dec::<24>();
    put(output, 0, get(input, 0));
    warpgroup::setmaxnreg_inc::<32>();
    put(output, 1, !get(input, 0));
}

pub(super) unsafe fn cvt_f16x2_e5m2x2(input: u64, output: u64, _: u64) {
    // Every number of the format is among the inputs of a block.
    let thread = special::thread_idx_x();
    let pair = (thread << 8) | (thread + 128);
    put(output, 0, convert::cvt_f16x2_e5m2x2(pair));
    put(output, 1, convert::cvt_f16x2_e5m2x2(get(input, 0)));
}

/// Four numbers of a thread; then numbers around halfway between two of the format.
#[inline(always)]
unsafe fn to_bytes(input: u64, output: u64, convert: fn([f32; 4]) -> u32, scale: f32) {
    let x = [0, 1, 2, 3].map(|k| f32::from_bits(get(input, k)));
    put(output, 0, convert(x));
    let at = special::thread_idx_x() as f32 * scale;
    let ulp = f32::from_bits(at.to_bits() + 1);
    put(output, 1, convert([at, ulp, -at, -ulp]));
}

pub(super) unsafe fn cvt_e4m3x4(input: u64, output: u64, _: u64) {
    to_bytes(input, output, convert::cvt_e4m3x4, 0.0625)
}

pub(super) unsafe fn cvt_e5m2x4(input: u64, output: u64, _: u64) {
    to_bytes(input, output, convert::cvt_e5m2x4, 0.125)
}

pub(super) unsafe fn prmt_pair(input: u64, output: u64, _: u64) {
    // Digits up to 7: an eighth says something else.
    let order = get(input, 2) & 0x7777;
    put(
        output,
        0,
        convert::prmt_pair(get(input, 0), get(input, 1), order),
    );
}
