//! Reads of tensors as PTX: addresses are summed where they change least.
//!
//! An index of the form "multiple of the running index plus what the tile fixes" is split: the block adds the address of its
//! first column, and a column adds its distance to that, clamped, with one multiply-add.

use std::mem::offset_of;

use super::ParamOffsets;
use super::integer::{self, Affine};
use super::op::{Arena, Depends, Given, IndexUse, Instr, Op, OpId};
use crate::device::ScoreTensor;
use crate::{ElementType, Index, Tensor};

/// Bytes of a tensor in the launch's parameter.
pub const TENSOR_BYTES: u32 = size_of::<ScoreTensor>() as u32;

/// Offset of the lengths of the dimensions, each a u32. The host checks that each is 1 to 2³⁰.
pub const TENSOR_LEN: u32 = offset_of!(ScoreTensor, len) as u32;

/// Offset of the strides of the dimensions in elements, each an i64. The host checks that those of dimensions with an index
/// that is not plainly `batch`, `head` or `kv_head` fit into an i32 when counted in bytes.
pub const TENSOR_STRIDE: u32 = offset_of!(ScoreTensor, stride) as u32;

/// Indices beyond this are outside of every tensor: an index that the call has a say in is moved here first, so that no
/// distance wraps around.
const FAR: i32 = 1 << 30;

/// A tensor, by its place in the list of the launch.
pub struct Read<'a> {
    /// Its description.
    pub tensor: &'a Tensor,
    /// Its place in the list.
    pub place: u32,
    /// An index for each dimension.
    pub indices: &'a [Affine],
}

impl Read<'_> {
    /// The element as an operation of 32 bits.
    pub fn write(&self, places: &ParamOffsets, arena: &mut Arena) -> OpId {
        let at = places.tensors + self.place * TENSOR_BYTES;
        let size_log2 = self.tensor.element.size_bytes().trailing_zeros();
        let mut elements = None;
        let (mut offsets, mut distances) = (Vec::new(), Vec::new());
        // Dimensions that change least come first: their sum is the tile's.
        let mut order: Vec<usize> = (0..self.indices.len()).collect();
        order.sort_by_key(|&dim| {
            let depends = self.indices[dim].terms.iter();
            let depends = depends.map(|&(_, op)| arena.depends(op));
            let depends = depends.fold(Depends::NOTHING, Depends::and);
            (depends.level(), depends.per_row())
        });
        for dim in order {
            let index = &self.indices[dim];
            if index.as_constant() == Some(0) {
                continue;
            }
            let len = arena.op(Op::Param32(at + TENSOR_LEN + 4 * dim as u32));
            let stride = at + TENSOR_STRIDE + 8 * dim as u32;
            let moves = Depends::COLUMN.and(Depends::SCORE);
            let unclamped = handed_over(index, arena);
            arena.index_uses.push(IndexUse {
                tensor: self.place as usize,
                dim,
                unclamped: unclamped.map(|(index, _)| index),
            });
            if let Some((_, op)) = unclamped {
                elements = Some(add_elements(elements, op, stride, arena));
            } else if !integer::depends_on(index, moves, arena) {
                let index = clamped(index, len, arena);
                elements = Some(add_elements(elements, index, stride, arena));
            } else if index.is_index(arena) {
                let (base, distance) = split(index, len, arena);
                offsets.push((base, stride));
                distances.push((distance, stride));
            } else {
                distances.push((clamped(index, len, arena), stride));
            }
        }
        let mut address = arena.op(Op::Param64(at));
        let size = arena.i32(size_log2 as i32);
        if let Some(elements) = elements {
            let bytes = arena.b64("shl.b64", &[elements, size]);
            address = arena.b64("add.s64", &[address, bytes]);
        }
        for (offset, stride) in offsets.into_iter().chain(distances) {
            let stride = arena.op(Op::Param32(stride));
            let bytes = arena.b32("shl.b32", &[stride, size]);
            address = arena.b64("mad.wide.s32", &[offset, bytes, address]);
        }
        arena.instr(load(self.tensor.element), &[address])
    }
}

fn load(element: ElementType) -> Instr {
    match element {
        ElementType::F32 | ElementType::I32 => Instr::B32("ld.global.nc.b32", 1),
        ElementType::F16 => Instr::LoadF16,
        ElementType::Bf16 => Instr::LoadBf16,
    }
}

/// Plus index · stride, in elements of 64 bits.
fn add_elements(elements: Option<OpId>, index: OpId, stride: u32, arena: &mut Arena) -> OpId {
    let stride = arena.op(Op::Param64(stride));
    let index = arena.b64("cvt.s64.s32", &[index]);
    match elements {
        Some(elements) => arena.b64("mad.lo.s64", &[index, stride, elements]),
        None => arena.b64("mul.lo.s64", &[index, stride]),
    }
}

fn last(len: OpId, arena: &mut Arena) -> OpId {
    let minus_one = arena.i32(-1);
    arena.b32("add.s32", &[len, minus_one])
}

/// The sequence or the head that an index is: it needs no clamp, since the host checks the tensor's size.
fn handed_over(index: &Affine, arena: &Arena) -> Option<(Index, OpId)> {
    let ([(1, op)], 0) = (index.terms.as_slice(), index.constant) else {
        return None;
    };
    let index = match arena.get(*op) {
        Op::Given(Given::Batch) => Index::Batch,
        Op::Given(Given::Head) => Index::Head,
        Op::Given(Given::KvHead) => Index::KvHead,
        _ => return None,
    };
    Some((index, *op))
}

fn clamped(index: &Affine, len: OpId, arena: &mut Arena) -> OpId {
    let zero = (!index.is_natural(arena)).then(|| arena.i32(0));
    let index = index.write(arena);
    let last = last(len, arena);
    integer::clamp(zero, index, last, arena)
}

/// The index of the block's first column, not clamped, and the distance of a column to it, clamped.
fn split(index: &Affine, len: OpId, arena: &mut Arena) -> (OpId, OpId) {
    let natural = index.is_natural(arena);
    let first = index.at_first(arena);
    let bounded = first
        .range(arena)
        .is_some_and(|(low, high)| low >= -FAR && high <= FAR);
    let mut base = first.write(arena);
    if !bounded {
        let (low, high) = (arena.i32(-FAR), arena.i32(FAR));
        base = arena.b32("max.s32", &[base, low]);
        base = arena.b32("min.s32", &[base, high]);
    }
    let last = last(len, arena);
    let most = arena.b32("sub.s32", &[last, base]);
    let zero = arena.i32(0);
    let least = (!natural).then(|| arena.b32("sub.s32", &[zero, base]));
    let column = arena.op(Op::ColumnInt(index.step(arena)));
    (base, integer::clamp(least, column, most, arena))
}
