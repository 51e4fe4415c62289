//! Division by a number that the host knows: a multiplication, and a correction step.

/// A number to divide by, with its reciprocal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divisor {
    n: u32,
    /// ⌊(2³² − 1) / n⌋.
    reciprocal: u32,
}

impl Divisor {
    /// `n`; 1 instead of 0.
    pub const fn new(n: u32) -> Divisor {
        let n = if n == 0 { 1 } else { n };
        Divisor {
            n,
            reciprocal: u32::MAX / n,
        }
    }

    /// Quotient and remainder.
    ///
    /// The reciprocal is at most 1 less than 2³² / n, so the product is at most a / 2³² less than a / n: the quotient, or 1 less.
    #[inline(always)]
    pub fn divide(self, a: u32) -> (u32, u32) {
        let quotient = ((u64::from(a) * u64::from(self.reciprocal)) >> 32) as u32;
        let rest = a - quotient * self.n;
        if rest >= self.n {
            (quotient + 1, rest - self.n)
        } else {
            (quotient, rest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn quotients_and_remainders_are_exact() {
        let edges = |n: u32| {
            [
                0,
                1,
                n / 2,
                n - 1,
                n,
                n.saturating_add(1),
                n.saturating_mul(2),
            ]
        };
        let numbers = [
            1,
            2,
            3,
            5,
            7,
            8,
            15,
            16,
            48,
            264,
            797,
            65535,
            65536,
            0x7fff_ffff,
            1 << 31,
        ];
        for n in numbers.into_iter().chain([u32::MAX - 1, u32::MAX]) {
            let divisor = Divisor::new(n);
            let multiples = [u32::MAX / n, u32::MAX / n - u32::MAX / n / 3].map(|m| m * n);
            let near = multiples
                .into_iter()
                .flat_map(|a| [a.saturating_sub(1), a, a.saturating_add(n - 1)]);
            for a in near
                .chain(edges(n))
                .chain([u32::MAX, 1 << 31, 0x7fff_ffff, 12_345_678])
            {
                assert_eq!(divisor.divide(a), (a / n, a % n), "{a} / {n}");
            }
        }
        for n in 1..200 {
            let divisor = Divisor::new(n);
            assert!((0..20_000).all(|a| divisor.divide(a) == (a / n, a % n)));
        }
        assert_eq!(Divisor::new(0).divide(9), (9, 0));
    }
}
