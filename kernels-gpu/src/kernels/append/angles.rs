//! Cosines and sines of a row's position, and pairs rotated by them.

use super::store::Store;
use crate::params::RotaryParams;
use crate::ptx::global;
use crate::tile::products::Products;

/// Cosine and sine of an angle.
#[derive(Clone, Copy)]
pub(super) struct Angle {
    cos: f32,
    sin: f32,
}

impl Angle {
    /// A pair rotated.
    #[inline(always)]
    pub(super) fn turn(self, [x_1, x_2]: [f32; 2]) -> [f32; 2] {
        let Angle { cos, sin } = self;
        [x_1 * cos - x_2 * sin, x_1 * sin + x_2 * cos]
    }
}

/// The angles of a position.
#[derive(Clone, Copy)]
pub(super) struct Angles {
    cos: u64,
    sin: u64,
    /// Pairs of a row.
    pub(super) n_pairs: u32,
    sin_sign: f32,
    /// Four of them, from a multiple of four on, lie at multiples of 16 bytes.
    aligned: bool,
}

impl Angles {
    #[inline(always)]
    pub(super) fn new(p: &RotaryParams, position: u32) -> Angles {
        let before = u64::from(position) * u64::from(p.n_pairs) * 4;
        let (cos, sin) = (p.cos + before, p.sin + before);
        Angles {
            cos,
            sin,
            n_pairs: p.n_pairs,
            sin_sign: p.sin_sign,
            aligned: (cos | sin).is_multiple_of(16),
        }
    }

    /// Of a pair.
    ///
    /// # Safety
    /// The tables have it.
    #[inline(always)]
    pub(super) unsafe fn one(self, pair: u32) -> Angle {
        let at = u64::from(pair) * 4;
        // SAFETY: the caller's contract.
        unsafe {
            Angle {
                cos: global::ld_global_f32(self.cos + at),
                sin: global::ld_global_f32(self.sin + at) * self.sin_sign,
            }
        }
    }

    /// Of `N` pairs, two or four, from a multiple of as many on; those that there are count.
    ///
    /// # Safety
    /// The tables have the first.
    #[inline(always)]
    unsafe fn several<const N: usize>(self, first: u32) -> [Angle; N] {
        let at = u64::from(first) * 4;
        let mut angles = [Angle { cos: 1.0, sin: 0.0 }; N];
        // SAFETY: the caller's contract.
        unsafe {
            if self.aligned && first + N as u32 <= self.n_pairs {
                let [cos, sin] = [self.cos, self.sin].map(|table| {
                    if N == 2 {
                        let [a, b] = global::ld_global_x2(table + at).map(f32::from_bits);
                        [a, b, 0.0, 0.0]
                    } else {
                        global::ld_global_f32x4(table + at)
                    }
                });
                for i in 0..N {
                    angles[i] = Angle {
                        cos: cos[i],
                        sin: sin[i] * self.sin_sign,
                    };
                }
            } else {
                for (i, angle) in angles.iter_mut().enumerate() {
                    if first + (i as u32) < self.n_pairs {
                        *angle = self.one(first + i as u32);
                    }
                }
            }
        }
        angles
    }

    /// The numbers of a chunk whose neighbours are `N` pairs, rotated.
    ///
    /// # Safety
    /// As [`Angles::several`].
    #[inline(always)]
    unsafe fn rotated<E: Products, const N: usize>(self, first: u32, x: [u32; 4]) -> E::Chunk {
        // SAFETY: the caller's contract.
        let angles = unsafe { self.several::<N>(first) };
        let mut y = E::unpack_chunk(x);
        for i in 0..N {
            [y[2 * i], y[2 * i + 1]] = angles[i].turn([y[2 * i], y[2 * i + 1]]);
        }
        y
    }

    /// A chunk whose neighbours form pairs; what lies behind the pairs stays as it is.
    #[inline(always)]
    pub(super) fn turn_neighbours<E: Products, S: Store<E>>(
        self,
        store: S,
        chunk: u32,
        x: [u32; 4],
    ) -> S::Chunk {
        let first = chunk * (E::PER_CHUNK / 2);
        if first >= self.n_pairs {
            return store.copied(x);
        }
        // SAFETY: the first pair exists.
        let y = unsafe {
            match E::PER_CHUNK {
                4 => self.rotated::<E, 2>(first, x),
                _ => self.rotated::<E, 4>(first, x),
            }
        };
        store.turned(x, y, 2 * (self.n_pairs - first))
    }

    /// Two chunks of which one holds the first elements of pairs, and the other their second ones.
    #[inline(always)]
    pub(super) fn turn_halves<E: Products, S: Store<E>>(
        self,
        store: S,
        chunk: u32,
        x: [[u32; 4]; 2],
    ) -> [S::Chunk; 2] {
        let [mut y_1, mut y_2] = x.map(E::unpack_chunk);
        for four in 0..E::PER_CHUNK as usize / 4 {
            // SAFETY: there are as many pairs as chunks have elements, or a multiple of that.
            let angles = unsafe { self.several::<4>(chunk * E::PER_CHUNK + four as u32 * 4) };
            for i in 0..4 {
                let at = 4 * four + i;
                [y_1[at], y_2[at]] = angles[i].turn([y_1[at], y_2[at]]);
            }
        }
        [
            store.turned(x[0], y_1, E::PER_CHUNK),
            store.turned(x[1], y_2, E::PER_CHUNK),
        ]
    }
}
