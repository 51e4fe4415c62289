//! Numbers as sums: a coefficient times a value, once per value, plus a constant, where coefficients and the constant change
//! at most once per tile.
//!
//! Scaling is algebraic here. The score is X times softmax_scale, and the value of an expression is divided by it again. A coefficient counts the
//! powers of softmax_scale separately from its other factors, so that both cancel if no other operation is between them.

use super::coefficient::{Coef, ScaleAt};
use super::integer::Affine;
use super::op::{Arena, Depends, Level, Op, OpId};

/// What is summed: it changes more often than the tile.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// Any value.
    Op(OpId),
    /// An integer as f32: a multiple of the running index plus a term that the tile fixes.
    Index(Affine),
}

/// `Σ coefficient · atom + constant`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    /// Each atom once.
    pub terms: Vec<(Coef, Atom)>,
    /// None is 0.
    pub constant: Option<Coef>,
}

/// Terms that a sum has before it becomes one value. It bounds the work on expressions that multiply sums again and again.
const MAX_TERMS: usize = 8;

impl Sum {
    /// A constant.
    pub fn constant(coef: Coef) -> Sum {
        Sum {
            terms: Vec::new(),
            constant: Some(coef),
        }
    }

    /// One term.
    pub fn term(coef: Coef, atom: Atom) -> Sum {
        Sum {
            terms: vec![(coef, atom)],
            constant: None,
        }
    }

    /// The value of an operation.
    pub fn of(op: OpId, arena: &Arena) -> Sum {
        match arena.get(op) {
            Op::Imm(bits) => Sum::constant(Coef::of(f64::from(f32::from_bits(bits)))),
            _ if arena.level(op) == Level::Tile => Sum::constant(Coef {
                value: Some(op),
                ..Coef::ONE
            }),
            _ => Sum::term(Coef::ONE, Atom::Op(op)),
        }
    }

    /// Its coefficient where it is of the tile's level.
    pub fn as_constant(&self) -> Option<Coef> {
        self.terms
            .is_empty()
            .then(|| self.constant.unwrap_or(Coef::of(0.0)))
    }
}

/// The algebra of sums, over the operations that it makes.
pub struct Algebra<'a> {
    /// Where operations are put.
    pub arena: &'a mut Arena,
    /// Where softmax_scale lies.
    pub at: ScaleAt,
}

impl Algebra<'_> {
    /// a + b.
    pub fn add(&mut self, a: &Sum, b: &Sum) -> Sum {
        let mut sum = a.clone();
        for (coef, atom) in &b.terms {
            match sum.terms.iter_mut().find(|(_, known)| known == atom) {
                Some((known, _)) => *known = known.plus(*coef, self.arena, self.at),
                None => sum.terms.push((*coef, atom.clone())),
            }
        }
        sum.constant = match (a.constant, b.constant) {
            (Some(a), Some(b)) => Some(a.plus(b, self.arena, self.at)),
            (a, b) => a.or(b),
        };
        self.bounded(sum)
    }

    /// a · b.
    pub fn mul(&mut self, a: &Sum, b: &Sum) -> Sum {
        match (a.as_constant(), b.as_constant()) {
            (_, Some(coef)) => self.scaled(a, coef),
            (Some(coef), None) => self.scaled(b, coef),
            (None, None) => {
                let (a_coef, a) = self.factored(a);
                let (b_coef, b) = self.factored(b);
                let product = self.arena.b32("mul.f32", &[a, b]);
                let coef = a_coef.times(b_coef, self.arena, self.at);
                Sum::term(coef, Atom::Op(product))
            }
        }
    }

    /// a times a coefficient.
    pub fn scaled(&mut self, a: &Sum, coef: Coef) -> Sum {
        if coef.is(1.0) {
            return a.clone();
        }
        let mut sum = a.clone();
        for (known, _) in &mut sum.terms {
            *known = known.times(coef, self.arena, self.at);
        }
        sum.constant = sum
            .constant
            .map(|known| known.times(coef, self.arena, self.at));
        sum
    }

    /// a / b. Divisors of the tile's level become factors.
    pub fn div(&mut self, a: &Sum, b: &Sum) -> Sum {
        if let Some(divisor) = b.as_constant() {
            if divisor.value.is_none() {
                let inverse = Coef {
                    factor: 1.0 / divisor.factor,
                    power: -divisor.power,
                    value: None,
                };
                return self.scaled(a, inverse);
            }
            let one = self.arena.f32(1.0);
            let divisor = divisor.write(self.arena, self.at);
            let inverse = self.arena.b32("div.full.f32", &[one, divisor]);
            let inverse = Coef {
                value: Some(inverse),
                ..Coef::ONE
            };
            return self.scaled(a, inverse);
        }
        let (a_coef, a) = match a.as_constant() {
            Some(coef) => (coef, self.arena.f32(1.0)),
            None => self.factored(a),
        };
        let b = self.write(b);
        let quotient = self.arena.b32("div.approx.ftz.f32", &[a, b]);
        Sum::term(a_coef, Atom::Op(quotient))
    }

    /// A coefficient and a value without one.
    fn factored(&mut self, a: &Sum) -> (Coef, OpId) {
        match (a.terms.as_slice(), a.constant) {
            ([(coef, atom)], None) => {
                let alone = Sum::term(Coef::ONE, atom.clone());
                (*coef, self.write(&alone))
            }
            _ => (Coef::ONE, self.write(a)),
        }
    }

    fn bounded(&mut self, sum: Sum) -> Sum {
        if sum.terms.len() <= MAX_TERMS {
            return sum;
        }
        let op = self.write(&sum);
        Sum::of(op, self.arena)
    }

    /// The sum's value as an operation.
    pub fn write(&mut self, sum: &Sum) -> OpId {
        if let Some(constant) = sum.as_constant() {
            return constant.write(self.arena, self.at);
        }
        let (base, slope) = self.index_terms(sum, sum.constant);
        self.total(sum, base, slope)
    }

    /// The sum's value but for that of its indices at the block's first running index; and that, which is the same for all of a row's columns.
    pub fn write_beside_rows(&mut self, sum: &Sum) -> (OpId, Option<OpId>) {
        if sum.as_constant().is_some() {
            return (self.write(sum), None);
        }
        let (of_row, slope) = self.index_terms(sum, None);
        let constant = sum.constant.map(|coef| coef.write(self.arena, self.at));
        (self.total(sum, constant, slope), of_row)
    }

    /// The sum of the terms that are no indices, of `base`, and of the slope times the column.
    fn total(&mut self, sum: &Sum, mut base: Option<OpId>, slope: Option<Coef>) -> OpId {
        let mut slope = slope.map(|coef| coef.write(self.arena, self.at));
        let of_row = Depends::OWN.and(Depends::SCORE);
        let others = sum.terms.iter().filter_map(|(coef, atom)| match atom {
            Atom::Op(op) => Some((*coef, *op)),
            Atom::Index(_) => None,
        });
        let (mut by_element, by_column): (Vec<_>, Vec<_>) =
            others.partition(|(_, op)| self.arena.depends(*op).on(of_row));
        // What differs between columns only is summed once for both rows.
        let base_is_shared = [base, slope]
            .into_iter()
            .flatten()
            .all(|op| !self.arena.depends(op).on(of_row));
        // A term without a coefficient takes the slope for one multiply-add.
        let is_addend = base.is_none()
            && by_column.is_empty()
            && by_element.iter().any(|(coef, _)| coef.is(1.0));
        let mut column = None;
        if base_is_shared && !is_addend && (slope.is_some() || !by_column.is_empty()) {
            column = self.chain(&by_column, &mut base);
            column = self.plus(column, base.take());
            column = self.with_slope(column, slope.take());
        } else if !by_column.is_empty() {
            column = self.chain(&by_column, &mut None);
        }
        if by_element.is_empty() {
            let sum = self.plus(column, base);
            return self.done(sum, slope);
        }
        // A term that has a coefficient takes an addend for nothing, in its fused multiply-add.
        by_element.sort_by_key(|(coef, _)| !coef.is(1.0));
        let mut addend = column.or(base);
        if column.is_none() {
            base = None;
        }
        let sum = self.chain(&by_element, &mut addend);
        let sum = self.plus(sum, addend);
        let sum = self.plus(sum, base);
        self.done(sum, slope)
    }

    fn done(&mut self, sum: Option<OpId>, slope: Option<OpId>) -> OpId {
        match self.with_slope(sum, slope) {
            Some(op) => op,
            None => self.arena.f32(0.0),
        }
    }

    fn plus(&mut self, a: Option<OpId>, b: Option<OpId>) -> Option<OpId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.arena.b32("add.f32", &[a, b])),
            (a, b) => a.or(b),
        }
    }

    /// Plus the slope times the column within the block: an immediate.
    fn with_slope(&mut self, base: Option<OpId>, slope: Option<OpId>) -> Option<OpId> {
        let Some(slope) = slope else { return base };
        let column = self.arena.op(Op::ColumnF32);
        Some(match base {
            Some(base) => self.fma(slope, column, base),
            None => self.arena.b32("mul.f32", &[slope, column]),
        })
    }

    fn fma(&mut self, a: OpId, b: OpId, c: OpId) -> OpId {
        self.arena.b32("fma.rn.f32", &[a, b, c])
    }

    /// The sum of the terms; the addend is taken where that costs nothing.
    fn chain(&mut self, terms: &[(Coef, OpId)], addend: &mut Option<OpId>) -> Option<OpId> {
        let mut sum: Option<OpId> = None;
        for (coef, op) in terms {
            sum = Some(
                match sum.or_else(|| if coef.is(1.0) { None } else { addend.take() }) {
                    Some(before) if coef.is(1.0) => self.arena.b32("add.f32", &[before, *op]),
                    // ptxas fuses it where the value is a product.
                    Some(before) if coef.is(-1.0) => self.arena.b32("sub.f32", &[before, *op]),
                    Some(before) => {
                        let coef = coef.write(self.arena, self.at);
                        self.fma(*op, coef, before)
                    }
                    None if coef.is(1.0) => *op,
                    None if coef.is(-1.0) => self.arena.b32("neg.f32", &[*op]),
                    None => {
                        let coef = coef.write(self.arena, self.at);
                        self.arena.b32("mul.f32", &[*op, coef])
                    }
                },
            );
        }
        match sum {
            Some(_) => sum,
            None => addend.take(),
        }
    }

    /// The sum of the terms that are indices, at the block's first running index, plus the constant; and how much it grows per column.
    fn index_terms(&mut self, sum: &Sum, constant: Option<Coef>) -> (Option<OpId>, Option<Coef>) {
        let mut base = constant.map(|constant| constant.write(self.arena, self.at));
        let mut slope: Option<Coef> = None;
        for (coef, atom) in &sum.terms {
            let Atom::Index(affine) = atom else { continue };
            let first = affine.at_first(self.arena).write(self.arena);
            let first = self.arena.b32("cvt.rn.f32.s32", &[first]);
            let mut addend = base;
            let sum = self.chain(&[(*coef, first)], &mut addend);
            base = self.plus(sum, addend);
            let step = coef.times_constant(f64::from(affine.step(self.arena)));
            slope = Some(match slope {
                Some(slope) => slope.plus(step, self.arena, self.at),
                None => step,
            });
        }
        (base, slope)
    }
}
