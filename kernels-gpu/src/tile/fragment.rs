//! Which lane's register holds which element of a `mma.m16n8k16` (PTX ISA, "Matrix Fragments for mma.m16n8k16"),
//! and which row of shared memory each lane points `ldmatrix` at to get there.
//!
//! The accumulator `C[16 × 8]`: lane `l` holds `C[l/4][2(l%4)]`, its right neighbour, and the same eight rows below.

/// A place in a fragment or tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coord {
    /// Row.
    pub row: u32,
    /// Column.
    pub col: u32,
}

/// The position of the accumulator's element `idx` (0 .. 4) of this lane in its 16 × 8 tile.
#[inline(always)]
pub const fn accumulator(lane: u32, idx: u32) -> Coord {
    Coord {
        row: lane / 4 + (idx / 2) * 8,
        col: (lane % 4) * 2 + idx % 2,
    }
}

/// The lane and element that hold this place of a 16 × 8 accumulator tile: the inverse of [`accumulator`].
pub const fn accumulator_holder(place: Coord) -> (u32, u32) {
    (
        place.row % 8 * 4 + place.col / 2,
        place.row / 8 * 2 + place.col % 2,
    )
}

/// For `ldmatrix.x4` of four 8 × 8 matrices that make a 16 × 16 tile of a row-major matrix: the row this lane
/// points at, and which half of the columns. Gives the A operand of `mma` from `A[m][k]` (registers in order), and,
/// transposed, the B operand of two `mma` from `B[k][n]`: registers 0 and 1 for columns 0 .. 8, 2 and 3 for 8 .. 16.
#[inline(always)]
pub const fn rows_then_columns(lane: u32) -> Coord {
    Coord {
        row: lane % 16,
        col: lane / 16,
    }
}

/// As [`rows_then_columns`] with the second and third matrix exchanged. Gives the B operand of two `mma` from
/// `B[n][k]`: registers 0 and 1 for rows 0 .. 8, 2 and 3 for 8 .. 16; and, transposed, the A operand from `A[k][m]`.
#[inline(always)]
pub const fn columns_then_rows(lane: u32) -> Coord {
    Coord {
        row: lane % 8 + lane / 16 * 8,
        col: lane / 8 % 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_accumulator_covers_its_tile_once() {
        let mut seen = HashSet::new();
        for lane in 0..32 {
            for idx in 0..4 {
                let place = accumulator(lane, idx);
                assert!(place.row < 16 && place.col < 8);
                assert!(seen.insert(place));
                assert_eq!(accumulator_holder(place), (lane, idx));
            }
        }
        assert_eq!(seen.len(), 128);
    }

    #[test]
    fn every_row_of_the_four_matrices_is_pointed_at_once() {
        for order in [rows_then_columns, columns_then_rows] {
            let places: HashSet<_> = (0..32).map(order).collect();
            assert_eq!(places.len(), 32);
            assert!(places.iter().all(|place| place.row < 16 && place.col < 2));
        }
    }
}
