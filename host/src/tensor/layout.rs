//! Layouts of every usual order, and their extent in memory.

use crate::error::ProblemError;
use crate::terms::Layout;

impl Layout {
    /// `[batch, seqlen, heads, head_dim]` with these strides of batch entries, rows and heads, in elements. Their extent is checked when the memory is known.
    pub const fn strided(shape: [usize; 4], strides: [usize; 3]) -> Layout {
        let [batch, seqlen, heads, head_dim] = shape;
        let [batch_stride, row_stride, head_stride] = strides;
        Layout {
            batch,
            seqlen,
            heads,
            head_dim,
            batch_stride,
            row_stride,
            head_stride,
        }
    }

    /// `[batch, seqlen, heads, head_dim]`, contiguous.
    pub fn bshd(shape: [usize; 4]) -> Result<Layout, ProblemError> {
        let [batch, seqlen, heads, head_dim] = shape;
        let row_stride = product(&[heads, head_dim])?;
        let batch_stride = product(&[seqlen, row_stride])?;
        product(&[batch, batch_stride])?;
        Ok(Layout::strided(shape, [batch_stride, row_stride, head_dim]))
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
        let strides = [batch_stride, head_dim, head_stride];
        Ok(Layout::strided([batch, seqlen, heads, head_dim], strides))
    }

    /// Number of elements of the tensor; those that a stride of 0 repeats count each time.
    pub fn n_elems(&self) -> Result<usize, ProblemError> {
        product(&self.shape())
    }

    /// Elements from the first to the end of the last: the least size of the memory. 0 for an empty tensor.
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
}

/// The product, if it fits the address space.
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
