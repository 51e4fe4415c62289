//! Which pieces of shared memory the descriptor of an operand names.

use std::ops::Range;

use crate::emu::bulk::swizzle;
use crate::emu::fault::{Fault, Kind};
use crate::emu::machine::Who;
use crate::emu::site::Site;
use crate::emu::tensor_core::{CHUNK, K, M};
use crate::ptx::wgmma::{Descriptor, Major};

/// Bytes of a row in the 128-byte swizzle.
const ROW: u32 = 128;
/// Rows after which the swizzle repeats.
const GROUP: u32 = 8;

/// What a descriptor says.
struct Tile {
    start: u32,
    leading: u32,
    stride: u32,
}

impl Tile {
    fn new(who: Who, site: Site, descriptor: Descriptor) -> Result<Tile, Fault> {
        let Descriptor { low, high } = descriptor;
        let rules = [
            (
                high >> 30 == 1,
                "of swizzles only that of 128 bytes is modelled",
            ),
            (
                high >> 17 & 7 == 0,
                "of base offsets of a descriptor only 0 is modelled",
            ),
            (
                low & 0xc000_c000 == 0 && high & 0x3ff1_c000 == 0,
                "a descriptor's other bits must be 0",
            ),
        ];
        if let Some((_, what)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(Kind::Operand {
                access: who.access(site),
                what,
                value: high,
            }
            .into());
        }
        Ok(Tile {
            start: (low & 0x3fff) << 4,
            leading: (low >> 16 & 0x3fff) << 4,
            stride: (high & 0x3fff) << 4,
        })
    }

    /// Pieces of rows `first ..` that hold 16 elements along the row: two for each.
    fn along_rows(&self, first: u32, rows: u32) -> Vec<u32> {
        (first..first + rows)
            .flat_map(|row| {
                let begin = self.start + row / GROUP * self.stride + row % GROUP * ROW;
                [0, CHUNK].map(|chunk| swizzle(begin + chunk))
            })
            .collect()
    }

    /// Pieces of 16 rows that hold these columns, in eights.
    fn across_rows(&self, eights: Range<u32>) -> Vec<u32> {
        let in_row = ROW / CHUNK;
        (0..K as u32)
            .flat_map(|row| {
                let begin = self.start + row / GROUP * self.stride + row % GROUP * ROW;
                eights.clone().map(move |piece| {
                    swizzle(begin + piece / in_row * self.leading + piece % in_row * CHUNK)
                })
            })
            .collect()
    }
}

/// What a warp reads of A: two pieces for each of its rows, or of A's columns.
pub(super) fn left(
    who: Who,
    site: Site,
    descriptor: Descriptor,
    major: Major,
    warp: usize,
) -> Result<Vec<u32>, Fault> {
    let tile = Tile::new(who, site, descriptor)?;
    let first = (warp * M) as u32;
    Ok(match major {
        Major::K => tile.along_rows(first, M as u32),
        Major::Mn => tile.across_rows(first / 8..(first + M as u32) / 8),
    })
}

/// What a warp reads of B, all of it: two pieces for each of its columns, or its rows one by one.
pub(super) fn right(
    who: Who,
    site: Site,
    descriptor: Descriptor,
    major: Major,
    columns: u32,
) -> Result<Vec<u32>, Fault> {
    let tile = Tile::new(who, site, descriptor)?;
    Ok(match major {
        Major::K => tile.along_rows(0, columns),
        Major::Mn => tile.across_rows(0..columns / 8),
    })
}
