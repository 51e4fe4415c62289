//! Cosines and sines of a row's position, and pairs turned by them.

use super::CHUNK;
use crate::params::RotaryParams;
use crate::ptx::global;
use crate::tile::element::Element;

/// Cosine and sine of an angle.
#[derive(Clone, Copy)]
pub(super) struct Angle {
    cos: f32,
    sin: f32,
}

/// A pair, the first element in the low half, turned.
#[inline(always)]
pub(super) fn turn<E: Element>(x: u32, Angle { cos, sin }: Angle) -> u32 {
    let [x_1, x_2] = E::unpack(x);
    E::pack(x_1 * cos - x_2 * sin, x_1 * sin + x_2 * cos)
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

    /// Of four pairs, of which those that there are count.
    ///
    /// # Safety
    /// The tables have the first.
    #[inline(always)]
    unsafe fn four(self, first: u32) -> [Angle; 4] {
        let at = u64::from(first) * 4;
        let mut angles = [Angle { cos: 1.0, sin: 0.0 }; 4];
        // SAFETY: the caller's contract.
        unsafe {
            if self.aligned && first + 4 <= self.n_pairs {
                let cos = global::ld_global_f32x4(self.cos + at);
                let sin = global::ld_global_f32x4(self.sin + at);
                for i in 0..4 {
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

    /// A chunk whose neighbours form pairs; what lies behind the pairs stays as it is.
    #[inline(always)]
    pub(super) fn turn_neighbours<E: Element>(self, chunk: u32, mut x: [u32; 4]) -> [u32; 4] {
        let first = chunk * (CHUNK / 2);
        if first >= self.n_pairs {
            return x;
        }
        // SAFETY: the first pair exists.
        let angles = unsafe { self.four(first) };
        for i in 0..4 {
            if first + (i as u32) < self.n_pairs {
                x[i] = turn::<E>(x[i], angles[i]);
            }
        }
        x
    }

    /// Two chunks of which one holds the first elements of pairs, and the other their second ones.
    #[inline(always)]
    pub(super) fn turn_halves<E: Element>(self, chunk: u32, x: [[u32; 4]; 2]) -> [[u32; 4]; 2] {
        let mut y = [[0; 4]; 2];
        for half in 0..2 {
            // SAFETY: there is a multiple of eight pairs.
            let angles = unsafe { self.four(chunk * CHUNK + half * 4) };
            for i in 0..2 {
                let word = half as usize * 2 + i;
                // Elements 2 word and 2 word + 1 of both chunks: two pairs.
                let (first, second) = (x[0][word], x[1][word]);
                let low = turn::<E>(first & 0xffff | second << 16, angles[2 * i]);
                let high = turn::<E>(first >> 16 | second & 0xffff_0000, angles[2 * i + 1]);
                y[0][word] = low & 0xffff | high << 16;
                y[1][word] = low >> 16 | high & 0xffff_0000;
            }
        }
        y
    }
}
