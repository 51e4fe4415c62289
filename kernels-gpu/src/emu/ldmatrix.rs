//! `ldmatrix` and `stmatrix`: rows of 8×8 matrices from shared memory, dealt out to the lanes, and back.

use super::machine::Who;
use super::shared::Readers;
use super::site;
use super::warp::{Meeting, collective};

/// Whether a lane has part of a row or of a column.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// Lane `l` has elements `2·(l % 4)` and the next of row `l / 4`.
    Rows,
    /// Lane `l` has elements `2·(l % 4)` and the next of column `l / 4`.
    Transposed,
}

/// Rows, and columns, of a matrix.
const SIDE: usize = 8;

/// `ldmatrix` of `N` matrices.
#[track_caller]
#[inline]
pub(crate) fn load<const N: usize>(instruction: &'static str, addr: u32, order: Order) -> [u32; N] {
    collective(instruction, [addr], |block, who, at| {
        let site = site::intern(instruction, at);
        for matrix in 0..N {
            let mut rows = [[0u16; SIDE]; SIDE];
            for (row, elements) in rows.iter_mut().enumerate() {
                let lane = matrix * SIDE + row;
                let addr = block.warps[who.warp].operands[lane][0];
                let (actor, shared) = block.actor(Who { lane, ..who }, site);
                let offset = shared.read(&actor, addr, 16, Readers::Warp)?;
                let bytes: [u8; 16] = shared.bytes(offset);
                for (element, bytes) in elements.iter_mut().zip(bytes.chunks_exact(2)) {
                    *element = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
            for (lane, results) in block.warps[who.warp].results.iter_mut().enumerate() {
                let (major, minor) = (lane / 4, lane % 4 * 2);
                let (lo, hi) = match order {
                    Order::Rows => (rows[major][minor], rows[major][minor + 1]),
                    Order::Transposed => (rows[minor][major], rows[minor + 1][major]),
                };
                results[matrix] = u32::from(lo) | u32::from(hi) << 16;
            }
        }
        Ok(Meeting::Over)
    })
}

/// `stmatrix` of `N` matrices. A row is written by the lane that gave its address.
#[track_caller]
#[inline]
pub(crate) fn store<const N: usize>(
    instruction: &'static str,
    addr: u32,
    x: [u32; N],
    order: Order,
) {
    let mut given = [0; 5];
    given[0] = addr;
    given[1..][..N].copy_from_slice(&x);
    let [] = collective(instruction, given, |block, who, at| {
        let site = site::intern(instruction, at);
        let operands = block.warps[who.warp].operands;
        for lane in 0..N * SIDE {
            let (matrix, row) = (lane / SIDE, lane % SIDE);
            let (actor, shared) = block.actor(Who { lane, ..who }, site);
            let offset = shared.write(&actor, operands[lane][0], 16)?;
            for col in 0..SIDE {
                let (major, minor) = match order {
                    Order::Rows => (row, col),
                    Order::Transposed => (col, row),
                };
                let pair = operands[major * SIDE / 2 + minor / 2][1 + matrix].to_le_bytes();
                shared.fill(offset + 2 * col, &pair[minor % 2 * 2..][..2]);
            }
        }
        Ok(Meeting::Over)
    });
}
