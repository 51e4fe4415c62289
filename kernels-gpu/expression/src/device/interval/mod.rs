//! Interval arithmetic: bounds of an expression's nodes at all places of a box, such as a block of scores. The host and the device share these rules.
//!
//! The bounds hold for evaluation in f32 and in f64 and for what a GPU computes: each function's bounds are moved outwards to the next `f32`,
//! and numbers too small for a normal `f32` may be 0. Operands are taken as independent of each other. That is exact for differences of `q`
//! and `k`, which are independent in a box. Division of numbers, roots, powers, logarithms and the like have no bounds here: the host has additional
//! rules for them.

mod ints;
pub(crate) mod nums;
mod ops;

pub use ops::{Binary, Compare, Index, Precision, Type, Unary};

/// The state of knowledge of a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is true.
    True,
    /// It is false.
    False,
    /// It is true or false.
    Unknown,
}

/// Bounds of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bounds {
    /// A number: at least `lo` and at most `hi`, or NaN if that is possible.
    Num {
        /// The least.
        lo: f32,
        /// The greatest.
        hi: f32,
        /// Whether it may be NaN.
        nan: bool,
    },
    /// An integer: at least `lo` and at most `hi`.
    Int {
        /// The least.
        lo: i32,
        /// The greatest.
        hi: i32,
    },
    /// A boolean.
    Cond(Truth),
}

impl Truth {
    /// A known boolean.
    #[inline(always)]
    pub const fn of(truth: bool) -> Truth {
        if truth { Truth::True } else { Truth::False }
    }

    #[inline(always)]
    const fn not(self) -> Truth {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    #[inline(always)]
    fn and(self, other: Truth) -> Truth {
        match (self, other) {
            (Truth::False, _) | (_, Truth::False) => Truth::False,
            (Truth::True, Truth::True) => Truth::True,
            _ => Truth::Unknown,
        }
    }

    #[inline(always)]
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
    /// An unknown value.
    #[inline(always)]
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

    /// A known number.
    #[inline(always)]
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

    /// A known integer.
    #[inline(always)]
    pub const fn int(x: i32) -> Bounds {
        Bounds::Int { lo: x, hi: x }
    }

    /// Bounds of a value that is one or the other.
    #[inline(always)]
    pub fn union(self, other: Bounds) -> Bounds {
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

    /// Its bounds as a boolean.
    #[inline(always)]
    pub fn truth(self) -> Truth {
        match self {
            Bounds::Cond(truth) => truth,
            Bounds::Num { .. } | Bounds::Int { .. } => Truth::Unknown,
        }
    }

    /// Its bounds as an integer.
    #[inline(always)]
    pub fn range(self) -> (i32, i32) {
        match self {
            Bounds::Int { lo, hi } => (lo, hi),
            Bounds::Num { .. } | Bounds::Cond(_) => (i32::MIN, i32::MAX),
        }
    }

    /// Bounds of a function of the value.
    #[inline(always)]
    pub fn unary(self, op: Unary) -> Bounds {
        match (op, self) {
            (Unary::ToF32, Bounds::Int { lo, hi }) => nums::from_ints(lo, hi),
            (Unary::ToI32, Bounds::Num { lo, hi, nan }) => ints::from_nums(lo, hi, nan),
            (op, Bounds::Int { lo, hi }) => ints::unary(op, (lo, hi)),
            (op, Bounds::Num { lo, hi, nan }) => nums::unary(op, nums::Range { lo, hi, nan }),
            (_, Bounds::Cond(a)) => Bounds::Cond(a.not()),
        }
    }

    /// Bounds of a function of this value and another one.
    #[inline(always)]
    pub fn binary(self, op: Binary, other: Bounds) -> Bounds {
        match self {
            Bounds::Int { lo, hi } => ints::binary(op, (lo, hi), other.range()),
            Bounds::Num { lo, hi, nan } => {
                nums::binary(op, nums::Range { lo, hi, nan }, nums::Range::of(other))
            }
            Bounds::Cond(a) => Bounds::Cond(a.binary(op, other.truth())),
        }
    }

    /// How this value compares with another one.
    #[inline(always)]
    pub fn compare(self, op: Compare, other: Bounds) -> Bounds {
        Bounds::Cond(match self {
            Bounds::Int { lo, hi } => order(op, (lo, hi), other.range()),
            Bounds::Num { lo, hi, nan } => {
                let b = nums::Range::of(other);
                let known = order(op, (lo, hi), (b.lo, b.hi));
                // With NaN only ≠ is true.
                if (nan || b.nan) && known != Truth::of(matches!(op, Compare::Ne)) {
                    Truth::Unknown
                } else {
                    known
                }
            }
            Bounds::Cond(_) => Truth::Unknown,
        })
    }

    /// Bounds of one value where this is true, and of the other where it is not.
    #[inline(always)]
    pub fn select(self, a: Bounds, b: Bounds) -> Bounds {
        match self.truth() {
            Truth::True => a,
            Truth::False => b,
            Truth::Unknown => a.union(b),
        }
    }

    /// As memory holds it: of what, the least, the greatest, whether it may be NaN.
    #[inline(always)]
    pub fn words(self) -> [u32; 4] {
        match self {
            Bounds::Num { lo, hi, nan } => [0, lo.to_bits(), hi.to_bits(), nan as u32],
            Bounds::Int { lo, hi } => [1, lo as u32, hi as u32, 0],
            Bounds::Cond(Truth::False) => [2, 0, 0, 0],
            Bounds::Cond(Truth::True) => [2, 1, 1, 0],
            Bounds::Cond(Truth::Unknown) => [2, 0, 1, 0],
        }
    }

    /// From memory.
    #[inline(always)]
    pub fn from_words([of, lo, hi, nan]: [u32; 4]) -> Bounds {
        match of {
            0 => Bounds::Num {
                lo: f32::from_bits(lo),
                hi: f32::from_bits(hi),
                nan: nan != 0,
            },
            1 => Bounds::Int {
                lo: lo as i32,
                hi: hi as i32,
            },
            _ if lo != hi => Bounds::Cond(Truth::Unknown),
            _ => Bounds::Cond(Truth::of(lo != 0)),
        }
    }

    /// The same where numbers that are not normal may be 0.
    #[inline(always)]
    pub fn flushed(self) -> Bounds {
        nums::flushed(self)
    }
}

/// How all values of one range compare with all of another.
#[inline(always)]
fn order<T: Copy + PartialOrd>(op: Compare, a: (T, T), b: (T, T)) -> Truth {
    let is_one = a.0 == a.1 && b.0 == b.1 && a.0 == b.0;
    let is_apart = a.1 < b.0 || b.1 < a.0;
    let (always, never) = match op {
        Compare::Lt => (a.1 < b.0, a.0 >= b.1),
        Compare::Le => (a.1 <= b.0, a.0 > b.1),
        Compare::Eq => (is_one, is_apart),
        Compare::Ne => (is_apart, is_one),
    };
    if always {
        Truth::True
    } else if never {
        Truth::False
    } else {
        Truth::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_they_were_written() {
        let truths = [Truth::True, Truth::False, Truth::Unknown];
        let conds = truths.map(Bounds::Cond);
        let all = [Type::F32, Type::I32, Type::Bool].map(Bounds::all);
        let (num, int) = (Bounds::num(-0.5), Bounds::Int { lo: -7, hi: 9 });
        for bounds in conds.into_iter().chain(all).chain([num, int]) {
            assert_eq!(Bounds::from_words(bounds.words()), bounds);
        }
    }
}
