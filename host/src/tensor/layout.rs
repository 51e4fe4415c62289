//! Where the elements of a tensor lie relative to its first one: shape and strides.

use std::fmt;

use crate::error::ProblemError;

/// Shape and strides, in elements, of a tensor `[batch, seqlen, heads, head_dim]` whose last dimension is contiguous.
///
/// Any strides are possible, so `[batch, heads, seqlen, head_dim]` and packed q, k, v need no copy. A stride of 0
/// repeats one entry, for inputs.
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
    /// `[batch, seqlen, heads, head_dim]`, contiguous.
    pub fn bshd(shape: [usize; 4]) -> Result<Layout, ProblemError> {
        let [batch, seqlen, heads, head_dim] = shape;
        let row_stride = product(&[heads, head_dim])?;
        let batch_stride = product(&[seqlen, row_stride])?;
        product(&[batch, batch_stride])?;
        Ok(Layout {
            batch,
            seqlen,
            heads,
            head_dim,
            batch_stride,
            row_stride,
            head_stride: head_dim,
        })
    }

    /// `[total, heads, head_dim]`, contiguous: packed sequences, as one batch entry of `total` rows.
    pub fn thd(shape: [usize; 3]) -> Result<Layout, ProblemError> {
        let [total, heads, head_dim] = shape;
        Layout::bshd([1, total, heads, head_dim])
    }

    /// `[batch, heads, seqlen, head_dim]`, contiguous: the shape is given in this order.
    pub fn bhsd(shape: [usize; 4]) -> Result<Layout, ProblemError> {
        let [batch, heads, seqlen, head_dim] = shape;
        let head_stride = product(&[seqlen, head_dim])?;
        let batch_stride = product(&[heads, head_stride])?;
        product(&[batch, batch_stride])?;
        Ok(Layout {
            batch,
            seqlen,
            heads,
            head_dim,
            batch_stride,
            row_stride: head_dim,
            head_stride,
        })
    }

    /// `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen, self.heads, self.head_dim]
    }

    /// Number of elements of the tensor, those that a stride of 0 repeats counted each time.
    pub fn n_elems(&self) -> Result<usize, ProblemError> {
        product(&self.shape())
    }

    /// Elements from the first one to the end of the last one: what the memory must hold. 0 for an empty tensor.
    pub fn extent_elems(&self) -> Result<usize, ProblemError> {
        if self.shape().contains(&0) {
            return Ok(0);
        }
        let steps = [
            (self.batch, self.batch_stride),
            (self.seqlen, self.row_stride),
            (self.heads, self.head_stride),
        ];
        steps
            .iter()
            .try_fold(self.head_dim, |extent, &(n, stride)| {
                (n - 1).checked_mul(stride)?.checked_add(extent)
            })
            .filter(|&extent| isize::try_from(extent).is_ok())
            .ok_or(ProblemError::SizeOverflow {
                what: "the extent of a strided tensor",
            })
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

/// The product, as far as the address space goes.
fn product(factors: &[usize]) -> Result<usize, ProblemError> {
    if factors.contains(&0) {
        return Ok(0);
    }
    factors
        .iter()
        .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        .filter(|&product| isize::try_from(product).is_ok())
        .ok_or(ProblemError::SizeOverflow {
            what: "the number of elements of a tensor",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_layouts_cover_their_elements_once() {
        let bshd = Layout::bshd([2, 3, 5, 8]).unwrap();
        assert_eq!(
            (bshd.batch_stride, bshd.row_stride, bshd.head_stride),
            (120, 40, 8)
        );
        let bhsd = Layout::bhsd([2, 5, 3, 8]).unwrap();
        assert_eq!(
            (bhsd.batch_stride, bhsd.row_stride, bhsd.head_stride),
            (120, 8, 24)
        );
        for layout in [bshd, bhsd] {
            assert_eq!(layout.shape(), [2, 3, 5, 8]);
            assert_eq!(layout.extent_elems(), Ok(240));
            assert_eq!(layout.n_elems(), Ok(240));
            assert!(layout.nests());
        }
    }

    #[test]
    fn a_stride_shorter_than_what_it_steps_over_does_not_nest() {
        let nested = Layout::bshd([2, 3, 5, 8]).unwrap();
        assert!(
            !Layout {
                head_stride: 7,
                ..nested
            }
            .nests()
        );
        assert!(
            !Layout {
                row_stride: 39,
                ..nested
            }
            .nests()
        );
        assert!(
            !Layout {
                batch_stride: 0,
                ..nested
            }
            .nests()
        );
        assert!(
            Layout {
                batch_stride: 0,
                batch: 1,
                ..nested
            }
            .nests()
        );
        assert!(
            Layout {
                row_stride: 3 * 40,
                batch_stride: 3 * 120,
                ..nested
            }
            .nests()
        );
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let huge = [usize::MAX / 2, 3, 1, 1];
        assert!(matches!(
            Layout::bshd(huge),
            Err(ProblemError::SizeOverflow { .. })
        ));
        assert!(matches!(
            Layout::bhsd(huge),
            Err(ProblemError::SizeOverflow { .. })
        ));
        let strided = Layout {
            batch_stride: usize::MAX,
            ..Layout::bshd([3, 1, 1, 1]).unwrap()
        };
        assert!(matches!(
            strided.extent_elems(),
            Err(ProblemError::SizeOverflow { .. })
        ));
        assert_eq!(
            Layout::bshd([usize::MAX, 0, 4, 64]).unwrap().extent_elems(),
            Ok(0)
        );
    }
}
