//! The band around the diagonal within a mask: kernels have bands built in, and plans use them for tiles.
//!
//! A mask is a conjunction of terms. A term such as `k <= q + seqlen_k - seqlen_q` or `q - k < 512` compares integers that are sums of indices and
//! constants; it is a side of a band if the coefficients of q and k differ only in sign. The rest of the mask remains an expression.

use super::intern::Interner;
use super::{Binary, Compare, Expression, Id, Index, Node, Unary};

/// How many positions before and after its own a query sees; `None`: all. Query `q` has the position `q + seqlen_k − seqlen_q`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// Keys before.
    pub left: Option<u32>,
    /// Keys after.
    pub right: Option<u32>,
}

/// The lengths of sequences.
#[derive(Clone, Copy, Debug)]
pub struct Seqlens {
    /// Of q, or the most of them.
    pub seqlen_q: u32,
    /// Of k, or the most of them.
    pub seqlen_k: u32,
    /// Whether sequences have different lengths.
    pub vary: bool,
}

/// A mask without its band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutBand {
    /// The band.
    pub sides: Sides,
    /// The rest of the mask, if any: it names the same parameters and tensors as the mask.
    pub rest: Option<Expression>,
}

/// An integer: indices with coefficients, and a constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    q: i64,
    k: i64,
    seqlen_q: i64,
    seqlen_k: i64,
    constant: i64,
}

impl Expression {
    /// Splits the band off a mask over sequences of these lengths; `None` if no term is a side of a band.
    pub fn without_band(&self, seqlens: Seqlens) -> Option<WithoutBand> {
        let sums = sums(self.nodes(), seqlens);
        let (mut sides, mut left) = (Sides::default(), Vec::new());
        let mut spine = vec![self.nodes().len() as Id - 1];
        while let Some(id) = spine.pop() {
            match self.nodes()[id as usize] {
                // Of truth values, as is the mask itself.
                Node::Binary(Binary::And, a, b) => spine.extend([b, a]),
                node => match side(self.nodes(), node, &sums, seqlens) {
                    Some(side) => sides = sides.within(side),
                    None => left.push(id),
                },
            }
        }
        if sides == Sides::default() {
            return None;
        }
        let mut interner = Interner::new(self.params(), self.tensors());
        let ids = interner.copy_all(self.nodes());
        let left = left.into_iter().map(|id| ids[id as usize]);
        let rest = left.reduce(|a, b| interner.add(Node::Binary(Binary::And, a, b)));
        // Terms of a mask make a mask.
        let rest = rest
            .map(|root| interner.expression(root))
            .transpose()
            .ok()?;
        Some(WithoutBand { sides, rest })
    }
}

impl Sides {
    /// The intersection of both.
    pub fn within(self, other: Sides) -> Sides {
        let least = |a: Option<u32>, b| [a, b].into_iter().flatten().min();
        Sides {
            left: least(self.left, other.left),
            right: least(self.right, other.right),
        }
    }
}

/// The side of a term.
fn side(nodes: &[Node], term: Node, sums: &[Option<Sum>], seqlens: Seqlens) -> Option<Sides> {
    let compared = |node: Node| match node {
        Node::Compare(compare, a, b) => Some((compare, a, b)),
        _ => None,
    };
    let (compare, a, b) = match term {
        // ¬(a < b) is b ≤ a, and ¬(a ≤ b) is b < a: of whole numbers.
        Node::Unary(Unary::Not, inner) => match compared(nodes[inner as usize])? {
            (Compare::Lt, a, b) => (Compare::Le, b, a),
            (Compare::Le, a, b) => (Compare::Lt, b, a),
            _ => return None,
        },
        _ => compared(term)?,
    };
    let below = match compare {
        Compare::Lt => 1,
        Compare::Le => 0,
        Compare::Eq | Compare::Ne => return None,
    };
    let sum = |id: Id| sums[id as usize];
    // The term is `difference ≤ 0`.
    let difference = sum(a)?.plus(sum(b)?, -1).plus(Sum::constant(below), 1);
    // Kernels' places grow with seqlen_k − seqlen_q.
    let (to_the_right, aligned) = match (difference.k, difference.q) {
        (1, -1) => (true, difference.plus(Sum::ALIGNMENT, 1)),
        (-1, 1) => (false, difference.plus(Sum::ALIGNMENT, -1)),
        _ => return None,
    };
    let of_lengths = match seqlens.vary {
        true if (aligned.seqlen_q, aligned.seqlen_k) != (0, 0) => return None,
        true => 0,
        false => {
            aligned.seqlen_q * i64::from(seqlens.seqlen_q)
                + aligned.seqlen_k * i64::from(seqlens.seqlen_k)
        }
    };
    // Kernels' bands hold a query's own place.
    let reach = u32::try_from(-aligned.constant - of_lengths).ok()?;
    Some(match to_the_right {
        true => Sides {
            left: None,
            right: Some(reach),
        },
        false => Sides {
            left: Some(reach),
            right: None,
        },
    })
}

/// The nodes that are sums of indices and cannot overflow 32 bits.
fn sums(nodes: &[Node], seqlens: Seqlens) -> Vec<Option<Sum>> {
    let most = i64::from(seqlens.seqlen_q.max(seqlens.seqlen_k));
    let mut sums: Vec<Option<Sum>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let of = |id: Id| sums[id as usize];
        let sum = match *node {
            Node::I32(x) => Some(Sum::constant(x.into())),
            Node::Index(index) => Sum::index(index),
            Node::Unary(Unary::Neg, a) => of(a).map(|a| Sum::default().plus(a, -1)),
            Node::Binary(Binary::Add, a, b) => of(a).zip(of(b)).map(|(a, b)| a.plus(b, 1)),
            Node::Binary(Binary::Sub, a, b) => of(a).zip(of(b)).map(|(a, b)| a.plus(b, -1)),
            _ => None,
        };
        sums.push(sum.filter(|sum| sum.magnitude(most) <= i64::from(i32::MAX)));
    }
    sums
}

impl Sum {
    /// seqlen_k − seqlen_q.
    const ALIGNMENT: Sum = Sum {
        q: 0,
        k: 0,
        seqlen_q: -1,
        seqlen_k: 1,
        constant: 0,
    };

    fn constant(constant: i64) -> Sum {
        Sum {
            constant,
            ..Sum::default()
        }
    }

    fn index(index: Index) -> Option<Sum> {
        let mut sum = Sum::default();
        *match index {
            Index::Query => &mut sum.q,
            Index::Key => &mut sum.k,
            Index::SeqlenQ => &mut sum.seqlen_q,
            Index::SeqlenK => &mut sum.seqlen_k,
            Index::Batch | Index::Head | Index::KvHead => return None,
        } = 1;
        Some(sum)
    }

    /// `self + times · other`.
    fn plus(self, other: Sum, times: i64) -> Sum {
        Sum {
            q: self.q + times * other.q,
            k: self.k + times * other.k,
            seqlen_q: self.seqlen_q + times * other.seqlen_q,
            seqlen_k: self.seqlen_k + times * other.seqlen_k,
            constant: self.constant + times * other.constant,
        }
    }

    /// An upper bound of its absolute value, for indices of at most `most`.
    fn magnitude(self, most: i64) -> i64 {
        let times = self.q.abs() + self.k.abs() + self.seqlen_q.abs() + self.seqlen_k.abs();
        times * most + self.constant.abs()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{At, Cond, Evaluator, NoTensors, ScoreIndices};
    use super::*;

    fn seqlens(seqlen_q: u32, seqlen_k: u32, vary: bool) -> Seqlens {
        Seqlens {
            seqlen_q,
            seqlen_k,
            vary,
        }
    }

    fn split(of: Seqlens, f: impl FnOnce(At) -> Cond) -> Option<WithoutBand> {
        Expression::mask(f).unwrap().without_band(of)
    }

    fn sides(left: Option<u32>, right: Option<u32>) -> Sides {
        Sides { left, right }
    }

    #[test]
    fn causal_masks_and_windows_are_bands() {
        let same = seqlens(100, 100, false);
        let whole = |left, right| {
            Some(WithoutBand {
                sides: sides(left, right),
                rest: None,
            })
        };
        assert_eq!(split(same, |at| at.k.le(at.q)), whole(None, Some(0)));
        assert_eq!(split(same, |at| at.q.ge(at.k)), whole(None, Some(0)));
        assert_eq!(split(same, |at| !at.q.lt(at.k)), whole(None, Some(0)));
        assert_eq!(split(same, |at| (at.k - 7).lt(at.q)), whole(None, Some(6)));
        let window = |at: At| at.k.le(at.q) & (at.q - at.k).lt(32);
        assert_eq!(split(same, window), whole(Some(31), Some(0)));
        // A query's own place lies outside the first band, and in the second one it does not.
        assert_eq!(split(same, |at| at.k.lt(at.q)), None);
        let longer = seqlens(100, 110, false);
        assert_eq!(split(longer, |at| at.k.le(at.q)), None);
        assert_eq!(split(longer, |at| at.k.le(at.q + 12)), whole(None, Some(2)));
        let own = |at: At| at.q + at.seqlen_k - at.seqlen_q;
        for of in [longer, seqlens(100, 110, true)] {
            assert_eq!(split(of, |at| at.k.le(own(at))), whole(None, Some(0)));
            let left = |at: At| (own(at) - at.k).le(5) & own(at).ge(at.k);
            assert_eq!(split(of, left), whole(Some(5), Some(0)));
        }
        assert_eq!(split(seqlens(100, 100, true), |at| at.k.le(at.q)), None);
    }

    #[test]
    fn what_is_no_band_is_left() {
        let same = seqlens(100, 100, false);
        let document = |at: At| {
            let document = |place| at.tensor_i32("document", [at.batch, place]);
            document(at.q).eq(document(at.k))
        };
        let found = split(same, |at| document(at) & at.k.le(at.q)).unwrap();
        assert_eq!(found.sides, sides(None, Some(0)));
        assert_eq!(found.rest, Some(Expression::mask(document).unwrap()));
        assert_eq!(split(same, |at| (at.k - at.q).le(at.i32("window"))), None);
        assert_eq!(split(same, |at| at.k.le(at.q) | at.k.lt(10)), None);
        assert_eq!(split(same, |at| (at.k + at.k).le(at.q)), None);
        assert_eq!(split(same, |at| at.k.le(10)), None);
        // These sums leave 32 bits.
        assert_eq!(
            split(same, |at| (at.k + (i32::MAX - 9)).le(at.q + (i32::MAX - 9))),
            None
        );
    }

    fn evaluator(mask: &Expression) -> Evaluator<'_, f32> {
        Evaluator::new(mask, &[], &NoTensors).unwrap()
    }

    fn check(mask: &Expression, [seqlen_q, seqlen_k]: [i32; 2], vary: bool) {
        let longest = if vary { [8, 8] } else { [seqlen_q, seqlen_k] };
        let [longest_q, longest_k] = longest.map(|seqlen| seqlen as u32);
        let Some(found) = mask.without_band(seqlens(longest_q, longest_k, vary)) else {
            return;
        };
        let mut whole = evaluator(mask);
        let mut rest = found.rest.as_ref().map(evaluator);
        for (q, k) in (0..seqlen_q).flat_map(|q| (0..seqlen_k).map(move |k| (q, k))) {
            let place = ScoreIndices::default()
                .with(Index::Query, q)
                .with(Index::Key, k)
                .with(Index::SeqlenQ, seqlen_q)
                .with(Index::SeqlenK, seqlen_k);
            let own = q + seqlen_k - seqlen_q;
            let Sides { left, right } = found.sides;
            let in_band = right.is_none_or(|right| k <= own + right as i32)
                && left.is_none_or(|left| k >= own - left as i32);
            let in_rest = rest.as_mut().is_none_or(|rest| rest.mask(&place));
            let is_seen = in_band && in_rest;
            assert_eq!(is_seen, whole.mask(&place), "{mask} at {q}, {k}");
        }
    }

    /// A term that may be a side.
    fn term(at: At, kind: usize, c: i32) -> Cond {
        let own = at.q + at.seqlen_k - at.seqlen_q;
        match kind {
            0 => at.k.le(own + c),
            1 => (own - at.k).lt(c),
            2 => !at.q.lt(at.k - c),
            3 => (at.q - c).le(at.k),
            4 => (at.k + at.q).gt(c),
            _ => ((at.q - at.k) % 3).ne(c),
        }
    }

    #[test]
    fn band_and_rest_are_the_mask() {
        let numbers = || (0..6).flat_map(|kind| [-3, -1, 0, 2, 7].map(|c| (kind, c)));
        for (first, second) in numbers().flat_map(|a| numbers().map(move |b| (a, b))) {
            let mask =
                Expression::mask(|at| term(at, first.0, first.1) & term(at, second.0, second.1));
            let mask = mask.unwrap();
            for lengths in [[5, 5], [4, 7], [7, 4]] {
                check(&mask, lengths, false);
                check(&mask, lengths, true);
            }
        }
    }
}
