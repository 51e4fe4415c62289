//! Where the elements of a tensor lie relative to its first one: shape and strides.

use std::fmt;

/// Shape and strides, in elements, of a tensor `[batch, seqlen, heads, head_dim]` whose last dimension is contiguous.
///
/// Any strides are possible, so `[batch, heads, seqlen, head_dim]` and packed q, k, v need no copy. A stride of 0
/// repeats one entry, for inputs.
///
/// [`Problem`](crate::Problem) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Number of batch entries.
    pub batch: usize,
    /// Rows: positions in the sequence.
    pub seqlen: usize,
    /// Number of heads.
    pub heads: usize,
    /// Columns; contiguous.
    pub head_dim: usize,
    /// Elements from one batch entry to the next.
    pub batch_stride: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
}

impl Layout {
    /// `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen, self.heads, self.head_dim]
    }

    /// Whether no two index tuples can name one element: the dimensions nest, each stride steps over the whole of
    /// the dimensions inside it. Needed of outputs. (Interleavings that do not nest are refused though some of them
    /// would not alias.)
    pub fn nests(&self) -> bool {
        if self.shape().contains(&0) {
            return true;
        }
        let mut steps = [
            (self.batch_stride, self.batch),
            (self.row_stride, self.seqlen),
            (self.head_stride, self.heads),
        ];
        steps.sort_unstable();
        let mut inner = Some(self.head_dim);
        for (stride, n) in steps {
            if n > 1 {
                let Some(covered) = inner else { return false };
                if stride < covered {
                    return false;
                }
                inner = stride
                    .checked_mul(n - 1)
                    .and_then(|steps| steps.checked_add(covered));
            }
        }
        true
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}, {}, {}, {}] strides [{}, {}, {}, 1]",
            self.batch,
            self.seqlen,
            self.heads,
            self.head_dim,
            self.batch_stride,
            self.row_stride,
            self.head_stride
        )
    }
}
