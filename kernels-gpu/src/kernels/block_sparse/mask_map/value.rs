//! Bounds of an instruction's value, and the places of values.

use ferroflash_expression::interval::{Bounds, Index, Truth, Type};
use ferroflash_expression::{
    MASK_BINARY, MASK_COMPARE, MASK_INDEX, MASK_UNARY, MAX_PARAMS, MAX_TENSORS, MaskInstruction,
    MaskOp, ScoreTensor,
};

use super::{BOUNDS_BYTES, THREADS, Task};
use crate::attention::divide;
use crate::params::MaskMapParams;
use crate::ptx::{global, shared, special};
use crate::tile::element::{Bf16, Element, F16};

/// Bounds of an instruction's value.
///
/// # Safety
/// As [`evaluate`].
#[inline(always)]
pub(super) unsafe fn value_of(
    p: &MaskMapParams,
    task: &Task,
    instruction: MaskInstruction,
) -> Bounds {
    let (which, bits) = (instruction.which(), instruction.bits());
    // SAFETY: the caller's contract.
    unsafe {
        let operand = |nth: u32| load(instruction.operand(nth));
        match instruction.op() {
            MaskOp::Index => index(p, task, which),
            MaskOp::F32 => Bounds::num(f32::from_bits(bits)),
            MaskOp::I32 => Bounds::int(bits as i32),
            MaskOp::Bool => Bounds::Cond(Truth::of(bits != 0)),
            MaskOp::ParamF32 => Bounds::num(f32::from_bits(param(p, which))),
            MaskOp::ParamI32 => Bounds::int(param(p, which) as i32),
            MaskOp::ReadF32 | MaskOp::ReadF16 | MaskOp::ReadBf16 | MaskOp::ReadI32 => {
                element(p, instruction)
            }
            MaskOp::Unary => unary(which, operand(0)),
            MaskOp::Binary => binary(which, operand(0), operand(1)),
            MaskOp::Compare => compare(which, operand(0), operand(1)),
            MaskOp::Select => operand(0).select(operand(1), operand(2)),
            MaskOp::Keep => operand(0),
            MaskOp::OfRows => read_bounds(task.row_bounds, which),
            MaskOp::OfColumns => read_bounds(task.column_bounds, which),
            MaskOp::Unknown => Bounds::all(Type::F32),
        }
    }
}

/// The bits of a parameter of the mask. Found by comparing: of an array that is indexed the compiler would make a copy in local memory.
#[inline(always)]
fn param(p: &MaskMapParams, which: u32) -> u32 {
    let mut value = 0;
    for nth in 0..MAX_PARAMS {
        if which == nth as u32 {
            value = p.score.values[nth];
        }
    }
    value
}

/// A tensor that the mask reads, found likewise.
#[inline(always)]
fn tensor(p: &MaskMapParams, which: u32) -> ScoreTensor {
    let mut tensor = p.score.tensors[0];
    for nth in 1..MAX_TENSORS {
        if which == nth as u32 {
            tensor = p.score.tensors[nth];
        }
    }
    tensor
}

/// Bounds of a function of a value, by the function's number.
#[inline(always)]
fn unary(which: u32, a: Bounds) -> Bounds {
    let mut value = const { Bounds::all(Type::F32) };
    // A loop that unrolls: each function's rules are there once.
    for nth in 0..MASK_UNARY.len() {
        if which == nth as u32 {
            value = a.unary(MASK_UNARY[nth]);
        }
    }
    value
}

/// The same of two values.
#[inline(always)]
fn binary(which: u32, a: Bounds, b: Bounds) -> Bounds {
    let mut value = const { Bounds::all(Type::F32) };
    for nth in 0..MASK_BINARY.len() {
        if which == nth as u32 {
            value = a.binary(MASK_BINARY[nth], b);
        }
    }
    value
}

/// The same of a comparison.
#[inline(always)]
fn compare(which: u32, a: Bounds, b: Bounds) -> Bounds {
    let mut value = const { Bounds::Cond(Truth::Unknown) };
    for nth in 0..MASK_COMPARE.len() {
        if which == nth as u32 {
            value = a.compare(MASK_COMPARE[nth], b);
        }
    }
    value
}

/// Bounds of an index.
#[inline(always)]
fn index(p: &MaskMapParams, task: &Task, which: u32) -> Bounds {
    let point = |x: u32| (x, x);
    let mut value = (0, 0);
    for nth in 0..MASK_INDEX.len() {
        if which == nth as u32 {
            value = match MASK_INDEX[nth] {
                Index::Batch => point(task.batch),
                Index::Head => point(task.head),
                Index::KvHead => point(divide(task.head, p.shape.group_size)),
                Index::Query => task.q,
                Index::Key => task.k,
                Index::SeqlenQ => point(p.shape.seqlen_q),
                Index::SeqlenK => point(p.shape.seqlen_k),
            };
        }
    }
    Bounds::Int {
        lo: value.0 as i32,
        hi: value.1 as i32,
    }
}

/// An element of a tensor; nothing is known of it where an index is not known. An index outside the tensor is moved to the nearest one inside.
///
/// # Safety
/// As [`evaluate`].
#[inline(always)]
unsafe fn element(p: &MaskMapParams, instruction: MaskInstruction) -> Bounds {
    let op = instruction.op();
    let tensor = tensor(p, instruction.which());
    let (mut elems, mut is_known) = (0, true);
    for dim in 0..tensor.len.len() {
        if (dim as u32) < instruction.rank() {
            // SAFETY: the caller's contract.
            let (lo, hi) = unsafe { load(instruction.operand(dim as u32)) }.range();
            let last = tensor.len[dim] as i32 - 1;
            let index = lo.min(last).max(0);
            elems += i64::from(index) * tensor.stride[dim];
            is_known &= lo == hi;
        }
    }
    if !is_known {
        return Bounds::all(match op {
            MaskOp::ReadI32 => Type::I32,
            _ => Type::F32,
        });
    }
    let at = |element_bytes: i64| tensor.base.wrapping_add_signed(elems * element_bytes);
    // SAFETY: the caller's contract: the tensor has the element.
    unsafe {
        match op {
            MaskOp::ReadI32 => Bounds::int(global::ld_global_u32(at(4)) as i32),
            MaskOp::ReadF16 => Bounds::num(F16::unpack(global::ld_global_u16(at(2)).into())[0]),
            MaskOp::ReadBf16 => Bounds::num(Bf16::unpack(global::ld_global_u16(at(2)).into())[0]),
            _ => Bounds::num(f32::from_bits(global::ld_global_u32(at(4)))),
        }
    }
}

/// Where a thread of the block has a value.
#[inline(always)]
fn place(value: u32, thread: u32) -> u32 {
    let in_block = value * THREADS + thread;
    special::shared_base() + in_block * BOUNDS_BYTES
}

/// A value of the thread.
///
/// # Safety
/// It has been stored.
#[inline(always)]
pub(super) unsafe fn load(value: u32) -> Bounds {
    // SAFETY: the caller's contract.
    unsafe { load_of(value, special::thread_idx_x()) }
}

/// A value of a thread of the block.
///
/// # Safety
/// It has been stored, and a barrier lies between.
#[inline(always)]
pub(super) unsafe fn load_of(value: u32, thread: u32) -> Bounds {
    // SAFETY: the caller's contract.
    Bounds::from_words(unsafe { shared::ld_shared_x4(place(value, thread)) })
}

/// Sets a value of the thread.
///
/// # Safety
/// A program has no more values than shared memory has places.
#[inline(always)]
pub(super) unsafe fn store(value: u32, bounds: Bounds) {
    // SAFETY: the caller's contract.
    unsafe { shared::st_shared_x4(place(value, special::thread_idx_x()), bounds.words()) };
}

/// Bounds that were kept.
///
/// # Safety
/// They have been written.
#[inline(always)]
unsafe fn read_bounds(address: u64, idx: u32) -> Bounds {
    // SAFETY: the caller's contract.
    Bounds::from_words(unsafe { global::ld_global_x4(address + u64::from(idx * BOUNDS_BYTES)) })
}
