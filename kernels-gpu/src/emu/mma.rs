//! `mma.m16n8k16` and `mma.m16n8k8`: the product over all lanes' fragments.
//!
//! Each element of the result is `((acc + a₀·b₀) + a₁·b₁) + … + a₁₅·b₁₅`, of tf32 to `a₇·b₇`, every sum rounded to nearest `f32`; the
//! products of two 16-bit numbers, or of two tf32, are exact. The hardware's order and rounding of the sums are not documented, so
//! the two agree within the rounding of 16 sums, not bit for bit.

use super::machine::LANES;
use super::warp::{Meeting, collective};
use crate::ptx::convert::{TF32_BITS, f16_of_e4m3, f16_of_e5m2};

/// Type of the elements of A and B.
#[derive(Clone, Copy)]
pub(crate) enum Operand {
    Bf16,
    F16,
    E4m3,
    E5m2,
}

impl Operand {
    /// Bytes of an element.
    #[inline]
    pub(super) const fn bytes(self) -> usize {
        match self {
            Operand::Bf16 | Operand::F16 => 2,
            Operand::E4m3 | Operand::E5m2 => 1,
        }
    }

    /// The elements of a register, the lowest first.
    #[inline]
    pub(super) fn elements(self, register: u32) -> impl Iterator<Item = f32> {
        let of_byte = |at: usize| {
            let byte = register.to_le_bytes()[at];
            let bits = match self {
                Operand::E5m2 => f16_of_e5m2(byte),
                _ => f16_of_e4m3(byte),
            };
            half::f16::from_bits(bits).to_f32()
        };
        let (elements, n) = match self {
            Operand::Bf16 | Operand::F16 => {
                let [low, high] = self.unpack(register);
                ([low, high, 0.0, 0.0], 2)
            }
            Operand::E4m3 | Operand::E5m2 => (std::array::from_fn(of_byte), 4),
        };
        elements.into_iter().take(n)
    }

    /// Both 16-bit elements of a register, the lower half first.
    #[inline]
    pub(super) fn unpack(self, register: u32) -> [f32; 2] {
        match self {
            Operand::Bf16 => [
                f32::from_bits(register << 16),
                f32::from_bits(register & 0xffff_0000),
            ],
            _ => {
                [register as u16, (register >> 16) as u16].map(|x| half::f16::from_bits(x).to_f32())
            }
        }
    }
}

const M: usize = 16;
const N: usize = 8;
const K: usize = 16;
/// Of tf32.
const K_TF32: usize = 8;

/// `mma.sync.aligned.m16n8k16.row.col.f32`: `acc += a · b`. Fragments: [`crate::ptx::mma`].
#[track_caller]
#[inline]
pub(crate) fn m16n8k16(
    instruction: &'static str,
    operand: Operand,
    acc: &mut [f32; 4],
    a: [u32; 4],
    b: [u32; 2],
) {
    let [c0, c1, c2, c3] = bits(*acc);
    let operands = [c0, c1, c2, c3, a[0], a[1], a[2], a[3], b[0], b[1]];
    let results: [u32; 4] = collective(instruction, operands, |block, who, _| {
        let warp = &mut block.warps[who.warp];
        let (mut a, mut b, mut c) = ([[0.0f32; K]; M], [[0.0f32; N]; K], [[0.0f32; N]; M]);
        for (lane, operands) in warp.operands.iter().enumerate() {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            for half in 0..2 {
                let row = group + 8 * half;
                for i in 0..2 {
                    c[row][pair + i] = f32::from_bits(operands[2 * half + i]);
                    let column = pair + 8 * i;
                    let register = operands[4 + half + 2 * i];
                    [a[row][column], a[row][column + 1]] = operand.unpack(register);
                }
                let elements = operand.unpack(operands[8 + half]);
                b[pair + 8 * half][group] = elements[0];
                b[pair + 8 * half + 1][group] = elements[1];
            }
        }
        multiply(&a, &b, &mut c);
        for lane in 0..LANES {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            let (upper, lower) = (&c[group], &c[group + 8]);
            warp.results[lane] = bits([upper[pair], upper[pair + 1], lower[pair], lower[pair + 1]]);
        }
        Ok(Meeting::Over)
    });
    for (acc, result) in acc.iter_mut().zip(results) {
        *acc = f32::from_bits(result);
    }
}

/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`: `acc += a · b`. Fragments: [`crate::ptx::mma`].
#[track_caller]
#[inline]
pub(crate) fn m16n8k8_tf32(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    let [c0, c1, c2, c3] = bits(*acc);
    let operands = [c0, c1, c2, c3, a[0], a[1], a[2], a[3], b[0], b[1]];
    let results: [u32; 4] = collective("mma.m16n8k8.tf32", operands, |block, who, _| {
        let warp = &mut block.warps[who.warp];
        let (mut a, mut b) = ([[0.0f32; K_TF32]; M], [[0.0f32; N]; K_TF32]);
        let mut c = [[0.0f32; N]; M];
        let tf32 = |register: u32| f32::from_bits(register & TF32_BITS);
        for (lane, operands) in warp.operands.iter().enumerate() {
            let (group, quad) = (lane / 4, lane % 4);
            for half in 0..2 {
                let row = group + 8 * half;
                for i in 0..2 {
                    c[row][2 * quad + i] = f32::from_bits(operands[2 * half + i]);
                    a[row][quad + 4 * i] = tf32(operands[4 + half + 2 * i]);
                }
                b[quad + 4 * half][group] = tf32(operands[8 + half]);
            }
        }
        multiply(&a, &b, &mut c);
        for lane in 0..LANES {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            let (upper, lower) = (&c[group], &c[group + 8]);
            warp.results[lane] = bits([upper[pair], upper[pair + 1], lower[pair], lower[pair + 1]]);
        }
        Ok(Meeting::Over)
    });
    for (acc, result) in acc.iter_mut().zip(results) {
        *acc = f32::from_bits(result);
    }
}

#[inline]
fn bits([a, b, c, d]: [f32; 4]) -> [u32; 4] {
    [a.to_bits(), b.to_bits(), c.to_bits(), d.to_bits()]
}

#[inline]
fn multiply<const K: usize>(a: &[[f32; K]; M], b: &[[f32; N]; K], c: &mut [[f32; N]; M]) {
    // Iterators are functions of their own where they are not inlined, and took a tenth of the emulator's time here.
    for row in 0..M {
        let mut sums = c[row];
        for k in 0..K {
            let x = a[row][k];
            for column in 0..N {
                sums[column] += x * b[k][column];
            }
        }
        c[row] = sums;
    }
}
