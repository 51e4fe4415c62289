//! Integers as affine sums, comparisons of them with immediates, and division.
//!
//! Sums wrap around, and so does their algebra: terms may be collected in any order. Two uses assume that the sum of an
//! expression itself does not wrap: a comparison that is turned into a bound, and the conversion of a sum to f32. Indices
//! stay far below that ([`most`]), and a bound saturates where one parameter or element of a tensor is added to them, so that
//! `i32::MAX` works as "no bound".

use super::bound::most;
use super::op::{Arena, Depends, Given, Level, Op, OpId};
use crate::Binary;

/// `Σ factor · value + constant`, which wraps around.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Affine {
    /// Each value once, by its number; no factor is 0.
    pub terms: Vec<(i32, OpId)>,
    /// The rest.
    pub constant: i32,
}

/// Largest factor of the running index that becomes an immediate: times the columns of a block it does not wrap.
const MAX_STEP: u32 = 1 << 16;

/// Terms that a sum has before it becomes one value.
const MAX_TERMS: usize = 8;

impl Affine {
    /// A constant.
    pub fn constant(constant: i32) -> Affine {
        Affine {
            terms: Vec::new(),
            constant,
        }
    }

    /// The value of an operation.
    pub fn of(op: OpId, arena: &Arena) -> Affine {
        match arena.get(op) {
            Op::Imm(bits) => Affine::constant(bits as i32),
            _ => Affine {
                terms: vec![(1, op)],
                constant: 0,
            },
        }
    }

    /// The constant that it is.
    pub fn as_constant(&self) -> Option<i32> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Times a constant.
    pub fn times(&self, factor: i32) -> Affine {
        let mut terms = self.terms.clone();
        for (known, _) in &mut terms {
            *known = known.wrapping_mul(factor);
        }
        terms.retain(|(known, _)| *known != 0);
        Affine {
            terms,
            constant: self.constant.wrapping_mul(factor),
        }
    }

    /// The sum of two.
    pub fn plus(&self, other: &Affine, arena: &mut Arena) -> Affine {
        let mut terms = self.terms.clone();
        for &(factor, op) in &other.terms {
            match terms.iter_mut().find(|(_, known)| *known == op) {
                Some((known, _)) => *known = known.wrapping_add(factor),
                None => terms.push((factor, op)),
            }
        }
        terms.retain(|(factor, _)| *factor != 0);
        terms.sort_by_key(|&(_, op)| op);
        let sum = Affine {
            terms,
            constant: self.constant.wrapping_add(other.constant),
        };
        if sum.terms.len() <= MAX_TERMS {
            return sum;
        }
        let op = sum.write(arena);
        Affine::of(op, arena)
    }

    /// The difference of two.
    pub fn minus(&self, other: &Affine, arena: &mut Arena) -> Affine {
        self.plus(&other.times(-1), arena)
    }

    /// The factor of the running index.
    pub fn step(&self, arena: &Arena) -> i32 {
        self.terms
            .iter()
            .find(|(_, op)| arena.get(*op) == Op::Given(Given::Running))
            .map_or(0, |(factor, _)| *factor)
    }

    /// Whether it changes with the running index by a constant step, and otherwise at most once per tile.
    pub fn is_index(&self, arena: &Arena) -> bool {
        let step = self.step(arena);
        step != 0
            && step.unsigned_abs() <= MAX_STEP
            && self.terms.iter().all(|&(_, op)| {
                arena.get(op) == Op::Given(Given::Running) || arena.level(op) == Level::Tile
            })
    }

    /// With the block's first running index in place of the running index.
    pub fn at_first(&self, arena: &mut Arena) -> Affine {
        let first = arena.given(Given::First);
        let step = self.step(arena);
        let mut sum = self.clone();
        sum.terms
            .retain(|(_, op)| arena.get(*op) != Op::Given(Given::Running));
        sum.plus(
            &Affine {
                terms: if step == 0 {
                    Vec::new()
                } else {
                    vec![(step, first)]
                },
                constant: 0,
            },
            arena,
        )
    }

    /// Its value as an operation: what changes seldom is added first.
    pub fn write(&self, arena: &mut Arena) -> OpId {
        let step = self.step(arena);
        if step != 0 {
            let (fixed, rest): (Vec<_>, Vec<_>) = self
                .terms
                .iter()
                .filter(|(_, op)| arena.get(*op) != Op::Given(Given::Running))
                .partition(|(_, op)| arena.level(*op) != Level::Score);
            let first = arena.given(Given::First);
            let base = Affine {
                terms: fixed,
                constant: self.constant,
            };
            let base = base.plus(
                &Affine {
                    terms: vec![(step, first)],
                    constant: 0,
                },
                arena,
            );
            let base = base.write(arena);
            let column = arena.op(Op::ColumnInt(step));
            let sum = arena.b32("add.s32", &[base, column]);
            return chain(&rest, Some(sum), arena);
        }
        let mut terms = self.terms.clone();
        terms.sort_by_key(|&(factor, op)| {
            (arena.level(op), arena.depends(op).per_row(), factor != 1)
        });
        let Some(&(_, first)) = terms.first() else {
            return arena.i32(self.constant);
        };
        let least = arena.level(first);
        let later = terms.iter().position(|&(_, op)| arena.level(op) != least);
        let (now, later) = terms.split_at(later.unwrap_or(terms.len()));
        let mut sum = None;
        if now[0].0 != 1 && self.constant != 0 {
            sum = Some(arena.i32(self.constant));
        }
        let with_constant = sum.is_some() || self.constant == 0;
        let mut sum = chain(now, sum, arena);
        if !with_constant {
            let constant = arena.i32(self.constant);
            sum = arena.b32("add.s32", &[sum, constant]);
        }
        chain(later, Some(sum), arena)
    }

    /// Whether it is known not to be negative.
    pub fn is_natural(&self, arena: &Arena) -> bool {
        let terms = self
            .terms
            .iter()
            .all(|&(factor, op)| factor > 0 && most(op, arena).is_some());
        terms && self.constant >= 0 && self.range(arena).is_some()
    }

    /// The least and greatest value, if all terms are bounded and the sum does not wrap around.
    pub fn range(&self, arena: &Arena) -> Option<(i32, i32)> {
        let (mut low, mut high) = (i64::from(self.constant), i64::from(self.constant));
        for &(factor, op) in &self.terms {
            let extreme = i64::from(factor) * i64::from(most(op, arena)?);
            low += extreme.min(0);
            high += extreme.max(0);
        }
        Some((i32::try_from(low).ok()?, i32::try_from(high).ok()?))
    }
}

fn chain(terms: &[(i32, OpId)], start: Option<OpId>, arena: &mut Arena) -> OpId {
    let mut sum = start;
    for &(factor, op) in terms {
        sum = Some(match (sum, factor) {
            (Some(sum), 1) => arena.b32("add.s32", &[sum, op]),
            (Some(sum), -1) => arena.b32("sub.s32", &[sum, op]),
            (None, 1) => op,
            (None, -1) => arena.b32("neg.s32", &[op]),
            (Some(sum), _) => {
                let factor = arena.i32(factor);
                arena.b32("mad.lo.s32", &[op, factor, sum])
            }
            (None, _) => {
                let factor = arena.i32(factor);
                arena.b32("mul.lo.s32", &[op, factor])
            }
        });
    }
    match sum {
        Some(sum) => sum,
        None => arena.i32(0),
    }
}

/// a · b.
fn mul(a: &Affine, b: &Affine, arena: &mut Arena) -> Affine {
    match (a.as_constant(), b.as_constant()) {
        (_, Some(factor)) => a.times(factor),
        (Some(factor), None) => b.times(factor),
        (None, None) => {
            let (a, b) = (a.write(arena), b.write(arena));
            let product = arena.b32("mul.lo.s32", &[a, b]);
            Affine::of(product, arena)
        }
    }
}

/// a / b towards zero, 0 where b is 0.
fn div(a: &Affine, b: &Affine, arena: &mut Arena) -> Affine {
    match b.as_constant() {
        Some(0) => return Affine::constant(0),
        Some(1) => return a.clone(),
        Some(-1) => return a.times(-1),
        Some(divisor) => {
            let natural = a.is_natural(arena);
            let a = a.write(arena);
            let quotient = if natural && divisor > 0 && divisor.count_ones() == 1 {
                let by = arena.i32(divisor.trailing_zeros() as i32);
                arena.b32("shr.s32", &[a, by])
            } else {
                let divisor = arena.i32(divisor);
                arena.b32("div.s32", &[a, divisor])
            };
            return Affine::of(quotient, arena);
        }
        None => {}
    }
    let (a, b) = (a.write(arena), b.write(arena));
    let (safe, special) = safe_divisor(b, arena);
    let quotient = arena.b32("div.s32", &[a, safe]);
    // By 0 and −1 the quotient is the product.
    let product = arena.b32("mul.lo.s32", &[a, b]);
    let quotient = arena.select(product, quotient, special);
    Affine::of(quotient, arena)
}

/// The remainder of that division; a if b is 0.
fn rem(a: &Affine, b: &Affine, arena: &mut Arena) -> Affine {
    match b.as_constant() {
        Some(0) => return a.clone(),
        Some(1 | -1) => return Affine::constant(0),
        Some(divisor) => {
            let natural = a.is_natural(arena);
            let a = a.write(arena);
            let rest = if natural && divisor > 0 && divisor.count_ones() == 1 {
                let bits = arena.i32(divisor - 1);
                arena.b32("and.b32", &[a, bits])
            } else {
                let divisor = arena.i32(divisor);
                arena.b32("rem.s32", &[a, divisor])
            };
            return Affine::of(rest, arena);
        }
        None => {}
    }
    let (a, b) = (a.write(arena), b.write(arena));
    let (safe, _) = safe_divisor(b, arena);
    let rest = arena.b32("rem.s32", &[a, safe]);
    let zero = arena.i32(0);
    let is_zero = arena.pred("setp.eq.s32", &[b, zero]);
    let rest = arena.select(a, rest, is_zero);
    Affine::of(rest, arena)
}

/// The divisor, or 1 where it is 0 or −1; and whether it is one of these.
fn safe_divisor(b: OpId, arena: &mut Arena) -> (OpId, OpId) {
    let one = arena.i32(1);
    let two = arena.i32(2);
    let next = arena.b32("add.s32", &[b, one]);
    let special = arena.pred("setp.lt.u32", &[next, two]);
    (arena.select(one, b, special), special)
}

/// Min and max with the index that a tensor's dimension ends with.
pub fn clamp(low: Option<OpId>, index: OpId, last: OpId, arena: &mut Arena) -> OpId {
    let index = arena.b32("min.s32", &[last, index]);
    match low {
        Some(low) => arena.b32("max.s32", &[index, low]),
        None => index,
    }
}

/// Whether a term of the sum depends on any of these.
pub fn depends_on(sum: &Affine, depends: Depends, arena: &Arena) -> bool {
    sum.terms
        .iter()
        .any(|&(_, op)| arena.depends(op).on(depends))
}

/// A function of two integers.
pub fn binary(binary: Binary, a: &Affine, b: &Affine, arena: &mut Arena) -> Affine {
    let text = match binary {
        Binary::Add => return a.plus(b, arena),
        Binary::Sub => return a.minus(b, arena),
        Binary::Mul => return mul(a, b, arena),
        Binary::Div => return div(a, b, arena),
        Binary::Rem => return rem(a, b, arena),
        Binary::Shl => match b.as_constant() {
            Some(by) => return a.times(1_i32.wrapping_shl(by as u32)),
            None => "shl.b32",
        },
        Binary::Min => "min.s32",
        Binary::Max => "max.s32",
        Binary::And => "and.b32",
        Binary::Or => "or.b32",
        Binary::Xor => "xor.b32",
        Binary::Shr => "shr.s32",
    };
    let (a, mut b) = (a.write(arena), b.write(arena));
    if matches!(binary, Binary::Shl | Binary::Shr) {
        b = match arena.get(b) {
            Op::Imm(by) => arena.op(Op::Imm(by & 31)),
            _ => {
                let bits = arena.i32(31);
                arena.b32("and.b32", &[b, bits])
            }
        };
    }
    let op = arena.b32(text, &[a, b]);
    Affine::of(op, arena)
}
