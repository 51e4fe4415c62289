//! Rows of sequences, for operations that need the position of each.

/// The rows of a tensor, by sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NewRows {
    /// `[batch, seqlen, heads, head_dim]`.
    Padded { seqlen: usize },
    /// `[total, heads, head_dim]`, one sequence after the other.
    Packed { total: usize },
}

impl NewRows {
    /// Shape of a tensor of these rows, for `batch` sequences.
    pub(crate) fn shape(self, batch: usize, heads: usize, head_dim: usize) -> [usize; 4] {
        match self {
            NewRows::Padded { seqlen } => [batch, seqlen, heads, head_dim],
            NewRows::Packed { total } => [1, total, heads, head_dim],
        }
    }

    /// Rows of a sequence if padded; of all sequences if packed.
    pub(crate) fn seqlen(self) -> usize {
        match self {
            NewRows::Padded { seqlen } => seqlen,
            NewRows::Packed { total } => total,
        }
    }

    /// Rows of all sequences. Saturates.
    pub(crate) fn n_rows(self, batch: usize) -> u64 {
        match self {
            NewRows::Padded { seqlen } => (batch as u64).saturating_mul(seqlen as u64),
            NewRows::Packed { total } => total as u64,
        }
    }

    pub(crate) fn is_packed(self) -> bool {
        matches!(self, NewRows::Packed { .. })
    }
}
