//! A tensor of a CPU backend as ferroflash reads it: where it lies if its strides allow that, or a copy without gaps.

use std::borrow::Cow;

use ferroflash::error::Argument;
use ferroflash::{Layout, Tensor};

use super::HostElement;
use crate::error::Error;

/// Elements with a shape and strides, both in elements. The last dimension is contiguous, no stride is negative.
pub(crate) struct View<'a, T: Clone> {
    elements: Cow<'a, [T]>,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<'a, T: HostElement> View<'a, T> {
    /// Elements without gaps, in the order of the shape.
    #[cfg(any(feature = "ndarray", test))]
    pub(crate) fn gapless(elements: Vec<T>, shape: &[usize]) -> View<'a, T> {
        View {
            elements: Cow::Owned(elements),
            strides: gapless_strides(shape),
            shape: shape.to_vec(),
        }
    }

    /// A tensor whose first element is `elements[start]`. It is copied where ferroflash cannot read its strides: where the
    /// last dimension is not contiguous, or a stride is negative.
    pub(crate) fn strided(
        elements: &'a [T],
        shape: &[usize],
        strides: &[isize],
        start: usize,
    ) -> View<'a, T> {
        match readable_strides(shape, strides) {
            Some(strides) => View {
                elements: Cow::Borrowed(elements.get(start..).unwrap_or_default()),
                shape: shape.to_vec(),
                strides,
            },
            None => View {
                elements: Cow::Owned(gathered(elements, shape, strides, start)),
                strides: gapless_strides(shape),
                shape: shape.to_vec(),
            },
        }
    }

    /// The view of a tensor `[batch, heads, seqlen, head_dim]`, with ferroflash's order of dimensions.
    pub(crate) fn tensor(&self, argument: Argument) -> Result<Tensor<'_>, Error> {
        let (&[batch, heads, seqlen, head_dim], &[batch_stride, head_stride, row_stride, _]) =
            (self.shape.as_slice(), self.strides.as_slice())
        else {
            return Err(Error::Rank {
                argument,
                given: self.shape.len(),
                needed: 4,
            });
        };
        let layout = Layout {
            batch,
            seqlen,
            heads,
            head_dim,
            batch_stride,
            row_stride,
            head_stride,
        };
        Ok(Tensor::strided(&self.elements, layout)?)
    }

    /// The elements without gaps, in the order of the shape.
    pub(crate) fn into_gapless(self) -> Cow<'a, [T]> {
        let n_elems = self.shape.iter().product();
        if n_elems == 0 {
            return Cow::Owned(Vec::new());
        }
        let gapless = gapless_strides(&self.shape);
        let n_used = self.shape.iter().zip(&self.strides).zip(&gapless);
        if n_used
            .filter(|((size, _), _)| **size > 1)
            .all(|((_, stride), gapless)| stride == gapless)
        {
            return match self.elements {
                Cow::Borrowed(elements) => Cow::Borrowed(&elements[..n_elems]),
                Cow::Owned(mut elements) => {
                    elements.truncate(n_elems);
                    Cow::Owned(elements)
                }
            };
        }
        let strides: Vec<isize> = self.strides.iter().map(|&stride| stride as isize).collect();
        Cow::Owned(gathered(&self.elements, &self.shape, &strides, 0))
    }
}

/// The strides, if ferroflash can read a tensor that has them. Strides of dimensions that are not stepped along do not
/// count and become 0.
fn readable_strides(shape: &[usize], strides: &[isize]) -> Option<Vec<usize>> {
    if shape.contains(&0) {
        return Some(vec![0; shape.len()]);
    }
    if let (Some(&size), Some(&stride)) = (shape.last(), strides.last())
        && size > 1
        && stride != 1
    {
        return None;
    }
    let strides = shape
        .iter()
        .zip(strides)
        .map(|(&size, &stride)| match size {
            1 => Some(0),
            _ => usize::try_from(stride).ok(),
        });
    strides.collect()
}

/// Strides of a tensor without gaps.
fn gapless_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// A copy in the order of the shape.
fn gathered<T: Copy>(elements: &[T], shape: &[usize], strides: &[isize], start: usize) -> Vec<T> {
    let mut offsets = vec![start as isize];
    for (&size, &stride) in shape.iter().zip(strides) {
        let steps = |offset: isize| (0..size as isize).map(move |idx| offset + idx * stride);
        offsets = offsets.into_iter().flat_map(steps).collect();
    }
    offsets
        .into_iter()
        .map(|offset| elements[offset as usize])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_strides_are_borrowed() {
        let elements: Vec<f32> = (0..48).map(|n| n as f32).collect();
        // [1, 2, 3, 4] out of rows of 8, and the same with heads and rows exchanged.
        let view = View::strided(&elements, &[1, 2, 3, 4], &[-7, 24, 8, 1], 0);
        assert!(matches!(view.elements, Cow::Borrowed(_)));
        assert_eq!(view.tensor(Argument::Q).unwrap().layout().row_stride, 8);
        assert_eq!(view.into_gapless()[4..8], [8.0, 9.0, 10.0, 11.0]);
        let shared = View::strided(&elements, &[1, 2, 3, 4], &[0, 0, 4, 1], 12);
        assert!(matches!(shared.elements, Cow::Borrowed(_)));
        assert_eq!(shared.into_gapless()[12..14], [12.0, 13.0]);
    }

    #[test]
    fn other_strides_are_copied() {
        let elements: Vec<f32> = (0..24).map(|n| n as f32).collect();
        let transposed = View::strided(&elements, &[1, 2, 4, 3], &[24, 12, 1, 4], 0);
        assert!(matches!(transposed.elements, Cow::Owned(_)));
        assert_eq!(
            transposed.into_gapless()[..6],
            [0.0, 4.0, 8.0, 1.0, 5.0, 9.0]
        );
        let flipped = View::strided(&elements, &[1, 2, 3, 4], &[24, 12, -4, 1], 8);
        assert!(matches!(flipped.elements, Cow::Owned(_)));
        assert_eq!(flipped.into_gapless()[..5], [8.0, 9.0, 10.0, 11.0, 4.0]);
    }

    #[test]
    fn empty_tensors_and_other_ranks() {
        let none: [f32; 0] = [];
        let empty = View::strided(&none, &[2, 0, 3, 4], &[0, 12, 4, 1], 0);
        assert_eq!(empty.tensor(Argument::Q).unwrap().layout().heads, 0);
        assert!(empty.into_gapless().is_empty());
        let rank_3 = View::gapless(vec![0.0f32; 6], &[1, 2, 3]);
        let error = rank_3.tensor(Argument::K).unwrap_err();
        assert_eq!(error.to_string(), "k has 3 dimensions; allowed: 4");
    }
}
