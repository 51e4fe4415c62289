//! Interval arithmetic: bounds on what nodes are worth at all places of a box, such as a tile of scores.
//!
//! The bounds hold for evaluation in f32 and in f64 and for what a GPU computes: each function's bounds are moved outwards to the next `f32`, or by
//! what the fastest instruction may be off, and numbers too small for a normal `f32` may be 0. So a mask that is known on a tile is known there on
//! every backend. Operands are taken as independent of each other. That is exact for differences of `q` and `k`, which are independent in a box.

mod ints;

mod nums;

use super::{Binary, Compare, Expression, Id, Index, MAX_RANK, Node, ParamValue, Type, Unary};

/// What is known of a truth value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is true.
    True,
    /// It is false.
    False,
    /// It is true or false.
    Unknown,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bounds {
    /// A number: at least `lo` and at most `hi`, or NaN where that is possible.
    Num {
        /// The least.
        lo: f32,
        /// The greatest.
        hi: f32,
        /// Whether it may be NaN.
        nan: bool,
    },
    /// A whole number: at least `lo` and at most `hi`.
    Int {
        /// The least.
        lo: i32,
        /// The greatest.
        hi: i32,
    },
    /// A truth value.
    Cond(Truth),
}

/// What a mask does on a box of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskOver {
    /// All scores count.
    AllTrue,
    /// No score counts.
    AllFalse,
    /// Some may count and others not.
    Unknown,
}

/// What is known of the elements of a tensor, by its place in the list and the ranges of the indices, which are inside the tensor or not. Nothing
/// known is `None`.
pub type TensorBounds<'a> = &'a dyn Fn(usize, [(i32, i32); MAX_RANK]) -> Option<Bounds>;

/// A box of places, and what is known of what a call gives. Of each range the least comes first.
#[derive(Clone, Copy)]
pub struct Ranges<'a> {
    indices: [(i32, i32); Index::ALL.len()],
    score: Bounds,
    params: &'a [Bounds],
    tensors: TensorBounds<'a>,
}

impl Truth {
    /// What is known of a truth value that is known.
    pub const fn of(truth: bool) -> Truth {
        if truth { Truth::True } else { Truth::False }
    }

    const fn not(self) -> Truth {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    fn and(self, other: Truth) -> Truth {
        match (self, other) {
            (Truth::False, _) | (_, Truth::False) => Truth::False,
            (Truth::True, Truth::True) => Truth::True,
            _ => Truth::Unknown,
        }
    }

    fn binary(self, op: Binary, other: Truth) -> Truth {
        match op {
            Binary::And => self.and(other),
            Binary::Or => self.not().and(other.not()).not(),
            Binary::Xor if self == Truth::Unknown || other == Truth::Unknown => Truth::Unknown,
            Binary::Xor => Truth::of(self != other),
            _ => Truth::Unknown,
        }
    }
}

impl Bounds {
    /// Nothing is known.
    pub const fn all(ty: Type) -> Bounds {
        match ty {
            Type::F32 => Bounds::Num {
                lo: f32::NEG_INFINITY,
                hi: f32::INFINITY,
                nan: true,
            },
            Type::I32 => Bounds::Int {
                lo: i32::MIN,
                hi: i32::MAX,
            },
            Type::Bool => Bounds::Cond(Truth::Unknown),
        }
    }

    /// A number that is known.
    pub const fn num(x: f32) -> Bounds {
        if x.is_nan() {
            return Bounds::all(Type::F32);
        }
        Bounds::Num {
            lo: x,
            hi: x,
            nan: false,
        }
    }

    /// A whole number that is known.
    pub const fn int(x: i32) -> Bounds {
        Bounds::Int { lo: x, hi: x }
    }

    /// What is known of a value that is one or the other.
    fn union(self, other: Bounds) -> Bounds {
        match (self, other) {
            (
                Bounds::Num { lo, hi, nan },
                Bounds::Num {
                    lo: lo_b,
                    hi: hi_b,
                    nan: nan_b,
                },
            ) => Bounds::Num {
                lo: lo.min(lo_b),
                hi: hi.max(hi_b),
                nan: nan || nan_b,
            },
            (Bounds::Int { lo, hi }, Bounds::Int { lo: lo_b, hi: hi_b }) => Bounds::Int {
                lo: lo.min(lo_b),
                hi: hi.max(hi_b),
            },
            (Bounds::Cond(a), Bounds::Cond(b)) if a == b => self,
            _ => Bounds::Cond(Truth::Unknown),
        }
    }

    fn truth(self) -> Truth {
        match self {
            Bounds::Cond(truth) => truth,
            Bounds::Num { .. } | Bounds::Int { .. } => Truth::Unknown,
        }
    }

    fn range(self) -> (i32, i32) {
        match self {
            Bounds::Int { lo, hi } => (lo, hi),
            Bounds::Num { .. } | Bounds::Cond(_) => (i32::MIN, i32::MAX),
        }
    }
}

impl From<ParamValue> for Bounds {
    fn from(value: ParamValue) -> Bounds {
        match value {
            ParamValue::F32(x) => Bounds::num(x),
            ParamValue::I32(x) => Bounds::int(x),
        }
    }
}

impl<'a> Ranges<'a> {
    /// All places; nothing is known of what a call gives, but that indices are not negative.
    pub fn all() -> Ranges<'a> {
        Ranges {
            indices: [(0, i32::MAX); Index::ALL.len()],
            score: Bounds::all(Type::F32),
            params: &[],
            tensors: &|_, _| None,
        }
    }

    /// Only places where an index is at least `lo` and at most `hi`.
    pub fn with_index(mut self, index: Index, lo: i32, hi: i32) -> Ranges<'a> {
        self.indices[index as usize] = (lo, hi);
        self
    }

    /// What is known of the score.
    pub fn with_score(self, score: Bounds) -> Ranges<'a> {
        Ranges { score, ..self }
    }

    /// What is known of the parameters, each by its place in the list.
    pub fn with_params(self, params: &'a [Bounds]) -> Ranges<'a> {
        Ranges { params, ..self }
    }

    /// What is known of the tensors.
    pub fn with_tensors(self, tensors: TensorBounds<'a>) -> Ranges<'a> {
        Ranges { tensors, ..self }
    }

    /// What is known of a node of type `ty`, given what is known of its operands.
    fn bounds(&self, node: Node, ty: Type, known: &[Bounds]) -> Bounds {
        let of = |id: Id| known[id as usize];
        match node {
            Node::Score => self.score,
            Node::Index(index) => {
                let (lo, hi) = self.indices[index as usize];
                Bounds::Int { lo, hi }
            }
            Node::F32(bits) => Bounds::num(f32::from_bits(bits)),
            Node::I32(x) => Bounds::int(x),
            Node::Bool(x) => Bounds::Cond(Truth::of(x)),
            Node::Param(slot) => self.given(ty, self.params.get(usize::from(slot)).copied()),
            Node::Read(slot, ids) => {
                let ranges = ids.map(|id| of(id).range());
                self.given(ty, (self.tensors)(usize::from(slot), ranges))
            }
            Node::Unary(op, a) => match (op, of(a)) {
                (Unary::ToF32, Bounds::Int { lo, hi }) => nums::from_ints(lo, hi),
                (Unary::ToI32, Bounds::Num { lo, hi, nan }) => ints::from_nums(lo, hi, nan),
                (op, Bounds::Int { lo, hi }) => ints::unary(op, (lo, hi)),
                (op, Bounds::Num { lo, hi, nan }) => nums::unary(op, nums::Range { lo, hi, nan }),
                (_, Bounds::Cond(a)) => Bounds::Cond(a.not()),
            },
            Node::Binary(op, a, b) => match (of(a), of(b)) {
                (Bounds::Int { lo, hi }, b) => ints::binary(op, (lo, hi), b.range()),
                (Bounds::Num { lo, hi, nan }, b) => {
                    nums::binary(op, nums::Range { lo, hi, nan }, nums::Range::of(b))
                }
                (Bounds::Cond(a), b) => Bounds::Cond(a.binary(op, b.truth())),
            },
            Node::Compare(op, a, b) => Bounds::Cond(match (of(a), of(b)) {
                (Bounds::Int { lo, hi }, b) => order(op, (lo, hi), b.range()),
                (Bounds::Num { lo, hi, nan }, b) => {
                    let b = nums::Range::of(b);
                    match order(op, (lo, hi), (b.lo, b.hi)) {
                        // With NaN only ≠ is true.
                        known if nan || b.nan => {
                            let with_nan = Truth::of(op == Compare::Ne);
                            if known == with_nan {
                                known
                            } else {
                                Truth::Unknown
                            }
                        }
                        known => known,
                    }
                }
                (Bounds::Cond(_), _) => Truth::Unknown,
            }),
            Node::Select(c, a, b) => match of(c).truth() {
                Truth::True => of(a),
                Truth::False => of(b),
                Truth::Unknown => of(a).union(of(b)),
            },
        }
    }

    /// What is known of a value of the call, if that is of its type.
    fn given(&self, ty: Type, known: Option<Bounds>) -> Bounds {
        let all = Bounds::all(ty);
        known
            .filter(|known| std::mem::discriminant(known) == std::mem::discriminant(&all))
            .unwrap_or(all)
    }
}

/// How all values of one range compare with all of another.
fn order<T: PartialOrd>(op: Compare, a: (T, T), b: (T, T)) -> Truth {
    let (always, never) = match op {
        Compare::Lt => (a.1 < b.0, a.0 >= b.1),
        Compare::Le => (a.1 <= b.0, a.0 > b.1),
        Compare::Eq | Compare::Ne => {
            let is_one = a.0 == a.1 && b.0 == b.1 && a.0 == b.0;
            let is_apart = a.1 < b.0 || b.1 < a.0;
            if op == Compare::Eq {
                (is_one, is_apart)
            } else {
                (is_apart, is_one)
            }
        }
    };
    match (always, never) {
        (true, _) => Truth::True,
        (_, true) => Truth::False,
        (false, false) => Truth::Unknown,
    }
}

impl Expression {
    /// What is known of the value at all places of a box.
    pub fn bounds(&self, ranges: &Ranges) -> Bounds {
        let mut all = Vec::new();
        self.all_bounds(ranges, &mut all);
        all.last().copied().unwrap_or(Bounds::all(Type::F32))
    }

    /// What is known of each node at all places of a box, in place of what `all` held. For many boxes: the memory is used again.
    pub fn all_bounds(&self, ranges: &Ranges, all: &mut Vec<Bounds>) {
        all.clear();
        for node in &self.nodes {
            let ty = match *node {
                Node::Param(slot) => self.params[usize::from(slot)].ty,
                Node::Read(slot, _) => self.tensors[usize::from(slot)].element.ty(),
                // Of the others the type is not asked for.
                _ => Type::F32,
            };
            let bounds = ranges.bounds(*node, ty, all);
            all.push(nums::flushed(bounds));
        }
    }

    /// What a mask does on a box of places. Of a score nothing is known.
    pub fn mask_over(&self, ranges: &Ranges) -> MaskOver {
        match self.bounds(ranges).truth() {
            Truth::True => MaskOver::AllTrue,
            Truth::False => MaskOver::AllFalse,
            Truth::Unknown => MaskOver::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
