//! Comparisons of whole numbers, and what is known of their sizes.

use super::integer::Affine;
use super::op::{Arena, Given, Op, OpId};
use crate::Compare;
use crate::device::MAX_INDEX;

/// The greatest value of an operation that is never negative; none where it may be, or is not known.
pub fn most(op: OpId, arena: &Arena) -> Option<i32> {
    const ROWS: i32 = MAX_INDEX as i32;
    const HEADS: i32 = 1 << 16;
    match arena.get(op) {
        Op::Imm(bits) => (bits as i32 >= 0).then_some(bits as i32),
        Op::Given(given) => match given {
            Given::Batch | Given::Own | Given::First | Given::Running => Some(ROWS),
            Given::SeqlenQ | Given::SeqlenK => Some(ROWS),
            Given::Head | Given::KvHead => Some(HEADS),
            Given::X => None,
        },
        Op::Instr(instr, [a, b, _]) => match instr.text() {
            "shr.s32" => match arena.get(b) {
                Op::Imm(by) => most(a, arena).map(|most| most >> (by & 31)),
                _ => None,
            },
            "and.b32" => match arena.get(b) {
                Op::Imm(bits) if bits as i32 >= 0 => Some(bits as i32),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// A comparison of whole numbers. Where the difference of both sides is a multiple of the column plus what a block fixes,
/// that becomes a bound, once per block, which columns compare with an immediate.
pub fn compare(compare: Compare, a: &Affine, b: &Affine, arena: &mut Arena) -> OpId {
    if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
        return arena.bool(match compare {
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Eq => a == b,
            Compare::Ne => a != b,
        });
    }
    if let Some(folded) = with_bound(compare, a, b, arena) {
        return folded;
    }
    let (a, b) = (a.write(arena), b.write(arena));
    let text = match compare {
        Compare::Lt => "setp.lt.s32",
        Compare::Le => "setp.le.s32",
        Compare::Eq => "setp.eq.s32",
        Compare::Ne => "setp.ne.s32",
    };
    arena.pred(text, &[a, b])
}

fn with_bound(compare: Compare, a: &Affine, b: &Affine, arena: &mut Arena) -> Option<OpId> {
    let mut difference = a.minus(b, arena);
    difference.constant = a.constant.checked_sub(b.constant)?;
    if !difference.is_index(arena) {
        return None;
    }
    // step · column + rest is compared with 0.
    let step = difference.step(arena);
    let rest = difference.at_first(arena);
    let (tame, wild): (Vec<_>, Vec<_>) = rest
        .terms
        .into_iter()
        .partition(|&(_, op)| most(op, arena).is_some());
    let tame = Affine {
        terms: tame,
        constant: rest.constant,
    };
    // Neither the bound nor a column's distance to it may wrap around.
    let (low, high) = tame.range(arena)?;
    let near = |x: i32| x.unsigned_abs() < 7 << 28;
    if !near(low) || !near(high) {
        return None;
    }
    let negative = tame.times(-1);
    let bound = match wild.as_slice() {
        [] => negative.write(arena),
        [(1, wild)] => {
            let negative = negative.write(arena);
            arena.b32("sub.sat.s32", &[negative, *wild])
        }
        [(-1, wild)] => {
            let negative = negative.write(arena);
            arena.b32("add.sat.s32", &[negative, *wild])
        }
        _ => return None,
    };
    let column = arena.op(Op::ColumnInt(step));
    let text = match compare {
        Compare::Lt => "setp.gt.s32",
        Compare::Le => "setp.ge.s32",
        Compare::Eq => "setp.eq.s32",
        Compare::Ne => "setp.ne.s32",
    };
    Some(arena.pred(text, &[bound, column]))
}
