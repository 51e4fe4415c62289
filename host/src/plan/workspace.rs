//! Memory for intermediate results: how many bytes, and where each piece lies.

use std::fmt;

use super::reason::Reason;

/// Every piece starts at a multiple of this many bytes; so must the workspace itself.
pub const ALIGNMENT_BYTES: u64 = 256;

/// One piece of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it holds: the name of the parameter.
    pub name: &'static str,
    /// Bytes from the start of the workspace.
    pub offset_bytes: u64,
    /// Its length.
    pub n_bytes: u64,
}

/// The pieces of a plan's workspace, one after another. Empty where a plan needs none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    pieces: Vec<Piece>,
    n_bytes: u64,
}

impl WorkspaceLayout {
    /// Bytes of the whole.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Appends a piece of `factors` multiplied bytes and gives its offset, or the reason why it cannot be.
    pub(crate) fn place(&mut self, name: &'static str, factors: &[u64]) -> Result<u64, Reason> {
        self.push(name, factors).ok_or(Reason::TooLarge {
            what: name,
            given: u64::MAX,
            limit: i64::MAX as u64,
        })
    }

    /// The same; `None` where 64 bits do not hold it.
    fn push(&mut self, name: &'static str, factors: &[u64]) -> Option<u64> {
        let n_bytes = factors
            .iter()
            .try_fold(1u64, |product, &factor| product.checked_mul(factor))?;
        let offset_bytes = self.n_bytes;
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
                "\n  {:<10} at {:>12}, {} bytes",
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
        assert_eq!(layout.push("a", &[3, 4]), Some(0));
        assert_eq!(layout.push("b", &[257]), Some(256));
        assert_eq!(layout.push("c", &[4]), Some(768));
        assert_eq!(layout.n_bytes(), 1024);
        assert_eq!(layout.push("none", &[0, 7]), Some(1024));
    }

    #[test]
    fn what_64_bits_do_not_hold_is_refused() {
        let mut layout = WorkspaceLayout::default();
        assert_eq!(layout.push("product", &[1 << 40, 1 << 40]), None);
        assert_eq!(layout.push("first", &[1 << 62]), Some(0));
        assert_eq!(layout.push("sum", &[1 << 62]), None);
    }
}
