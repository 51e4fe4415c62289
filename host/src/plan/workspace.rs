//! Memory for intermediate results: its size, and the place of each piece.

use std::fmt;

use ferroflash_kernels::params::in_workspace;

use super::Reason;

/// Every piece starts at a multiple of this many bytes; so must the workspace itself.
pub const ALIGNMENT_BYTES: u64 = 256;

/// The first bytes of every workspace are counters, which are 0 whenever no kernel runs. The owner of a workspace clears them once (in a lent one
/// they are cleared before each call that counts), kernels that count reset them to 0, and no other piece of any plan is there, so plans may share a workspace.
pub const COUNTER_BYTES: u64 = ARRIVALS_OFFSET + 4 * MOST_ARRIVALS;

/// The first counter of arrivals: after the one that every plan may have.
const ARRIVALS_OFFSET: u64 = ALIGNMENT_BYTES;

/// The number of counters of arrivals: enough for a batch of 2048 with 32 heads and one query each. Without them decode takes nearly
/// twice as long: 257 sequences of 1024 keys 0.464 ms, where 256 took 0.245 (H200).
pub const MOST_ARRIVALS: u64 = 1 << 16;

/// One piece of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name of the parameter.
    pub name: &'static str,
    /// Bytes from the start of the workspace.
    pub offset_bytes: u64,
    /// Its length.
    pub n_bytes: u64,
}

/// The pieces of a plan's workspace, one after another, following the counters. Empty if a plan needs none.
///
/// The functions that place a piece return the value that a parameter has until it is bound ([`in_workspace`]): never 0, which means no piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    pieces: Vec<Piece>,
    n_bytes: u64,
}

impl Piece {
    /// Whether it is a counter: 0 before and after the launch. Other pieces are uninitialised.
    pub fn is_counter(&self) -> bool {
        self.offset_bytes < COUNTER_BYTES
    }
}

impl WorkspaceLayout {
    /// Total bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes from the start of the workspace to the end of the counters of the plan's kernels; 0 if none counts.
    pub fn counter_bytes(&self) -> u64 {
        let counters = self.pieces.iter().filter(|piece| piece.is_counter());
        let ends = counters.map(|piece| piece.offset_bytes + piece.n_bytes);
        ends.max().unwrap_or(0)
    }

    /// Whether a kernel of the plan counts.
    pub fn has_counter(&self) -> bool {
        self.pieces.iter().any(Piece::is_counter)
    }

    /// Places a counter, a `u32`. A plan has at most one: plans that run one after another share its place.
    pub(crate) fn place_counter(&mut self, name: &'static str) -> u64 {
        self.pieces.push(Piece {
            name,
            offset_bytes: 0,
            n_bytes: size_of::<u32>() as u64,
        });
        self.n_bytes = self.n_bytes.max(ARRIVALS_OFFSET);
        in_workspace(0)
    }

    /// Places `n` further counters; `None` if there is no room for them. Plans share their place, too.
    pub(crate) fn place_arrivals(&mut self, name: &'static str, n: u64) -> Option<u64> {
        if n > MOST_ARRIVALS {
            return None;
        }
        let piece = Piece {
            name,
            offset_bytes: ARRIVALS_OFFSET,
            n_bytes: n * size_of::<u32>() as u64,
        };
        let before = self.pieces.partition_point(Piece::is_counter);
        self.pieces.insert(before, piece);
        self.n_bytes = self.n_bytes.max(COUNTER_BYTES);
        Some(in_workspace(ARRIVALS_OFFSET))
    }

    /// Appends a piece whose size in bytes is the product of `factors`, or returns the reason why it is impossible.
    pub(crate) fn place(&mut self, name: &'static str, factors: &[u64]) -> Result<u64, Reason> {
        self.push(name, factors)
            .map(in_workspace)
            .ok_or(Reason::TooLarge {
                what: name,
                given: u64::MAX,
                limit: i64::MAX as u64,
            })
    }

    /// The same, returning the offset; `None` if it exceeds 64 bits.
    fn push(&mut self, name: &'static str, factors: &[u64]) -> Option<u64> {
        let n_bytes = factors
            .iter()
            .try_fold(1u64, |product, &factor| product.checked_mul(factor))?;
        let offset_bytes = self.n_bytes.max(COUNTER_BYTES);
        self.n_bytes = offset_bytes
            .checked_add(n_bytes)?
            .checked_next_multiple_of(ALIGNMENT_BYTES)
            .filter(|&total| i64::try_from(total).is_ok())?;
        self.pieces.push(Piece {
            name,
            offset_bytes,
            n_bytes,
        });
        Some(offset_bytes)
    }
}

impl fmt::Display for WorkspaceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.n_bytes)?;
        for piece in &self.pieces {
            write!(
                f,
                "\n  {:<13} at {:>12}, {} bytes",
                piece.name, piece.offset_bytes, piece.n_bytes
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let mut layout = WorkspaceLayout::default();
        let begin = COUNTER_BYTES;
        assert_eq!(layout.push("a", &[3, 4]), Some(begin));
        assert_eq!(layout.push("b", &[257]), Some(begin + 256));
        assert_eq!(layout.push("c", &[4]), Some(begin + 768));
        assert_eq!(layout.n_bytes(), begin + 1024);
        assert_eq!(layout.push("none", &[0, 7]), Some(begin + 1024));
        assert!(!layout.has_counter());
    }

    #[test]
    fn counters_lie_where_no_other_piece_does() {
        let mut layout = WorkspaceLayout::default();
        assert_eq!(layout.n_bytes(), 0);
        assert_eq!(layout.place_counter("tile_counter"), in_workspace(0));
        assert_eq!(layout.n_bytes(), ALIGNMENT_BYTES);
        assert_eq!(layout.counter_bytes(), 4);
        assert_eq!(layout.push("a", &[4]), Some(COUNTER_BYTES));
        assert_eq!(layout.place_arrivals("too many", MOST_ARRIVALS + 1), None);
        let place = layout.place_arrivals("arrivals", MOST_ARRIVALS);
        assert_eq!(place, Some(in_workspace(256)));
        assert_eq!(layout.counter_bytes(), COUNTER_BYTES);
        let counters: Vec<bool> = layout.pieces().iter().map(Piece::is_counter).collect();
        assert_eq!(counters, [true, true, false]);
    }

    #[test]
    fn what_64_bits_do_not_hold_is_refused() {
        let mut layout = WorkspaceLayout::default();
        assert_eq!(layout.push("product", &[1 << 40, 1 << 40]), None);
        assert_eq!(layout.push("first", &[1 << 62]), Some(COUNTER_BYTES));
        assert_eq!(layout.push("sum", &[1 << 62]), None);
    }
}
