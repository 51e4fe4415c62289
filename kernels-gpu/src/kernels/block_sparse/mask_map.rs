//! Which blocks of the scores a mask expression hides or shows as a whole: found on the device, where the values of the call are, before
//! [`crate::kernels::block_sparse::list`] lists the visible blocks.
//!
//! The mask is a program of a few instructions ([`ferroflash_expression::MaskProgram`]), which this kernel interprets by interval arithmetic
//! ([`ferroflash_expression::interval`]): a value is what is known of it on a block of 128 queries and 128 keys. A value that depends on the queries or on the
//! keys alone, such as `document[batch, q]`, is evaluated at each of them first, and its bounds for the block are kept; so a first launch
//! visits rows and columns, not pairs. The second launch has a thread for each block. What is not known makes a block partial, and there
//! attention evaluates the mask at each pair: it may cost time, but changes nothing.
//!
//! Of masks of which intervals know little ([`ferroflash_expression::MaskMapping`]) a third launch, of this kernel with the mask itself in its
//! text ([`crate::spec::Constant::Score`]), evaluates it at each pair of the blocks that are left open.

mod pairs;
mod value;

use ferroflash_expression::interval::{Bounds, Truth};
use ferroflash_expression::{MAX_MASK_VALUES, MaskInstruction};

use value::{load, load_of, store, value_of};

use crate::attention::{batch_and_head, divide};
use crate::config;
use crate::kernels::band;
use crate::params::{
    BLOCK_MULTIPLE, FULL_BLOCK, HIDDEN_BLOCK, MaskMapParams, MaskMapPhase, PARTIAL_BLOCK,
};
use crate::ptx::{barrier, global, parameters, shuffle, spec, special};

/// Threads of a block.
const THREADS: u32 = config::mask_map().threads;
/// Queries, and keys, of a block of the map.
const ROWS: u32 = BLOCK_MULTIPLE;
/// Warps of a block of threads.
const WARPS: u32 = THREADS / 32;
/// Bytes of bounds.
const BOUNDS_BYTES: u32 = 16;

/// A task: a part of the program on a box of the scores.
#[derive(Clone, Copy)]
struct Task {
    batch: u32,
    head: u32,
    /// The part's instructions.
    first: u32,
    end: u32,
    /// The box: first and last query, first and last key.
    q: (u32, u32),
    k: (u32, u32),
    /// Where the bounds of the box's rows and columns lie, read or written.
    row_bounds: u64,
    column_bounds: u64,
    /// Whether each thread evaluates the part at a row, or a column, of its own.
    points: Points,
}

/// Which side of a box is evaluated point by point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Points {
    Rows,
    Columns,
    Neither,
}

/// The bounds that a block of threads computes, or a thread's block of the map; with the mask in the text, a warp's blocks evaluated pair by pair.
///
/// # Safety
/// The launch is as [`config::mask_map`] says, with as many threads as its [`MaskMapPhase`] wants; the mask is in the text in
/// [`MaskMapPhase::Pairs`], and in no other. Tensors and the workspace are as [`MaskMapParams`] says. `program` is the address of the first
/// instruction.
#[inline(always)]
pub unsafe fn mask_map(p: &MaskMapParams, program: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        match spec::score() {
            true => pairs::settle(p),
            false => interpret(p, program),
        }
    }
}

/// The result of intervals.
///
/// # Safety
/// As [`mask_map`].
#[inline(always)]
unsafe fn interpret(p: &MaskMapParams, program: u64) {
    let maps_bounds = p.phase == const { MaskMapPhase::Bounds as u32 };
    let thread = special::block_idx_x() * THREADS + special::thread_idx_x();
    let task = if maps_bounds {
        bounds_task(p, special::block_idx_x())
    } else {
        map_task(p, thread)
    };
    let mut truth = Truth::Unknown;
    // SAFETY: the caller's contract; whole warps come to what follows, and whole blocks to where bounds are written.
    unsafe {
        if let Some(task) = task {
            truth = evaluate(p, program, &task.at(special::thread_idx_x())).truth();
        }
        match task {
            Some(task) if maps_bounds => write_bounds(p, &task),
            _ if maps_bounds => {}
            _ => write_map(p, thread, state(p, task, truth)),
        }
    }
}

/// The block of queries, or of keys, whose bounds a block of threads finds.
#[inline(always)]
fn bounds_task(p: &MaskMapParams, idx: u32) -> Option<Task> {
    let program = &p.program;
    let (q_blocks, k_blocks) = (p.map.q_blocks, p.map.k_blocks);
    let of_rows = if program.row_bounds > 0 {
        p.n_maps * q_blocks
    } else {
        0
    };
    let task = if idx < of_rows {
        let map = divide(idx, q_blocks);
        let task = task_of(p, map, idx - map * q_blocks, 0);
        Task {
            first: 0,
            end: program.end_of_rows,
            points: Points::Rows,
            ..task
        }
    } else {
        let idx = idx - of_rows;
        let map = divide(idx, k_blocks);
        if map >= p.n_maps || program.column_bounds == 0 {
            return None;
        }
        let task = task_of(p, map, 0, idx - map * k_blocks);
        Task {
            first: program.end_of_rows,
            end: program.end_of_columns,
            points: Points::Columns,
            ..task
        }
    };
    Some(task)
}

/// Blocks of all maps.
#[inline(always)]
fn n_blocks(p: &MaskMapParams) -> u32 {
    p.n_maps * p.map.q_blocks * p.map.k_blocks
}

/// A block of a map, of all of them.
#[inline(always)]
fn map_task(p: &MaskMapParams, block: u32) -> Option<Task> {
    let row = divide(block, p.map.k_blocks);
    let map = divide(row, p.map.q_blocks);
    if map >= p.n_maps {
        return None;
    }
    let (q_block, k_block) = (row - map * p.map.q_blocks, block - row * p.map.k_blocks);
    Some(task_of(p, map, q_block, k_block))
}

/// The last part of the program on a block.
#[inline(always)]
fn task_of(p: &MaskMapParams, map: u32, q_block: u32, k_block: u32) -> Task {
    let rows = |block: u32, seqlen: u32| {
        let (first, end) = (block * ROWS, (block + 1) * ROWS);
        (first, if end < seqlen { end } else { seqlen } - 1)
    };
    let bounds = |base: u64, blocks: u32, block: u32, each: u32| {
        let idx = u64::from(map) * u64::from(blocks) + u64::from(block);
        base + idx * u64::from(each * BOUNDS_BYTES)
    };
    let (batch, head) = batch_and_head(map, p.maps_per_batch);
    let program = &p.program;
    Task {
        batch,
        head,
        first: program.end_of_columns,
        end: program.end,
        q: rows(q_block, p.shape.seqlen_q),
        k: rows(k_block, p.shape.seqlen_k),
        row_bounds: bounds(p.row_bounds, p.map.q_blocks, q_block, program.row_bounds),
        column_bounds: bounds(
            p.column_bounds,
            p.map.k_blocks,
            k_block,
            program.column_bounds,
        ),
        points: Points::Neither,
    }
}

impl Task {
    /// The same at one of the box's rows or columns, if it is evaluated at each. Beyond the sequence that is its last one.
    #[inline(always)]
    fn at(self, point: u32) -> Task {
        let only = |(first, last): (u32, u32)| {
            let row = first + point;
            let row = if row < last { row } else { last };
            (row, row)
        };
        match self.points {
            Points::Rows => Task {
                q: only(self.q),
                ..self
            },
            Points::Columns => Task {
                k: only(self.k),
                ..self
            },
            Points::Neither => self,
        }
    }
}

/// Bounds of the value of a task's last instruction.
///
/// # Safety
/// As [`mask_map`].
#[inline(always)]
unsafe fn evaluate(p: &MaskMapParams, program: u64, task: &Task) -> Bounds {
    let mut value = Bounds::Cond(Truth::Unknown);
    let mut idx = task.first;
    while idx < task.end {
        // SAFETY: the caller's contract; operands have been written.
        unsafe {
            let at = program + u64::from(idx) * size_of::<MaskInstruction>() as u64;
            let instruction = MaskInstruction::from_words(parameters::ld_generic_x4(at));
            value = value_of(p, task, instruction).flushed();
            store(instruction.to(), value);
        }
        idx += 1;
    }
    value
}

/// Writes the union of the bounds that all threads of the block have kept.
///
/// # Safety
/// As [`mask_map`]; all threads of the block come here.
#[inline(always)]
unsafe fn write_bounds(p: &MaskMapParams, task: &Task) {
    const { assert!(THREADS == ROWS && WARPS.is_power_of_two()) };
    let (n, address) = if task.points == Points::Rows {
        (p.program.row_bounds, task.row_bounds)
    } else {
        (p.program.column_bounds, task.column_bounds)
    };
    let mut idx = 0;
    while idx < n {
        let kept = MAX_MASK_VALUES as u32 + idx;
        // SAFETY: the caller's contract; the program keeps as many. Nobody writes between the barriers what others read there.
        unsafe {
            let of_warp = union_of_lanes(load(kept), 32);
            store(kept, of_warp);
            barrier::barrier_sync_all();
            let warp = special::lane_idx() % WARPS;
            let of_block = union_of_lanes(load_of(kept, warp * 32), WARPS);
            if special::thread_idx_x() == 0 {
                let at = address + u64::from(idx * BOUNDS_BYTES);
                global::st_global_x4(at, of_block.words());
            }
        }
        idx += 1;
    }
}

/// Bounds of the values of this many adjacent lanes, a power of two.
///
/// # Safety
/// All lanes of the warp come here.
#[inline(always)]
unsafe fn union_of_lanes(mut bounds: Bounds, lanes: u32) -> Bounds {
    let mut distance = lanes / 2;
    while distance > 0 {
        let words = bounds.words();
        let mut others = [0; 4];
        for word in 0..4 {
            // SAFETY: the caller's contract.
            others[word] = unsafe { shuffle::shuffle_bfly_u32(words[word], distance) };
        }
        bounds = bounds.union(Bounds::from_words(others));
        distance /= 2;
    }
    bounds
}

/// The byte of a block on which this is known of the mask: full where the band, too, shows all of it.
#[inline(always)]
fn state(p: &MaskMapParams, task: Option<Task>, truth: Truth) -> u8 {
    let Some(Task { q, k, .. }) = task else {
        return HIDDEN_BLOCK;
    };
    let band = band(&p.shape, p.window);
    let by_band = band.first_key(q.1) <= k.0 && k.1 < band.end_key(q.0);
    match truth {
        Truth::False => HIDDEN_BLOCK,
        Truth::True if by_band => FULL_BLOCK,
        _ => PARTIAL_BLOCK,
    }
}

/// Writes the bytes of a warp, four of them at a time. The map has room for the last four.
///
/// # Safety
/// As [`mask_map`]; all lanes of the warp come here.
#[inline(always)]
unsafe fn write_map(p: &MaskMapParams, thread: u32, state: u8) {
    let lane = special::lane_idx();
    let mut word = u32::from(state);
    // SAFETY: the caller's contract.
    unsafe {
        for byte in 1..4 {
            word |= shuffle::shuffle_idx_u32(state.into(), (lane + byte) % 32) << (8 * byte);
        }
        if lane.is_multiple_of(4) && thread < n_blocks(p) {
            global::st_global_u32(p.map.map + u64::from(thread), word);
        }
    }
}
