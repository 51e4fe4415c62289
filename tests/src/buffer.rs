//! Tensors in memory of their own, in every arrangement that callers use, with NaN in each element that is not theirs:
//! a backend that reads there gives NaN, one that writes there is found out.

use ferroflash::error::ProblemError;
use ferroflash::{Layout, Scalar, Tensor, TensorMut};
use float8::F8E4M3;
use half::{bf16, f16};

/// How a tensor `[batch, seqlen, heads, head_dim]` lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// `[batch, seqlen, heads, head_dim]`, contiguous.
    Bshd,
    /// `[batch, heads, seqlen, head_dim]`, contiguous.
    Bhsd,
    /// One of three parts of `[batch, seqlen, 3, heads, head_dim]`; the other two are NaN.
    Packed,
    /// Rows, heads and batch entries padded by NaN, each start 16-byte aligned.
    Padded,
    /// As `Padded`, but with odd strides and an odd start: nothing is aligned.
    Unaligned,
    /// Batch entries more than 2³¹ elements apart: offsets that 32 bits do not hold.
    Far,
    /// As `Padded`, and a stride of 0 repeats entries of inputs.
    Repeated(Repeats),
}

/// Which entries of a tensor a stride of 0 repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// None.
    Nothing,
    /// There is one batch entry.
    Batch,
    /// There is one row.
    Rows,
    /// There is one head.
    Heads,
}

impl Arrangement {
    /// Which entries of inputs are repeated.
    pub fn repeats(self) -> Repeats {
        match self {
            Arrangement::Repeated(repeats) => repeats,
            _ => Repeats::Nothing,
        }
    }

    /// How outputs lie where inputs lie so: nothing of theirs is repeated.
    pub fn of_outputs(self) -> Arrangement {
        match self {
            Arrangement::Repeated(_) => Arrangement::Padded,
            other => other,
        }
    }
}

/// The arrangements that every backend takes.
pub const ALIGNED: [Arrangement; 4] = [
    Arrangement::Bshd,
    Arrangement::Bhsd,
    Arrangement::Packed,
    Arrangement::Padded,
];

/// An element of a tensor.
pub trait Number: Scalar {
    /// Elements of 16 bytes or more: starts are multiples of it.
    const ALIGNMENT: usize;
    /// The nearest one.
    fn of(value: f64) -> Self;
    /// What it stands for.
    fn value(self) -> f64;
}

macro_rules! number {
    ($type:ty, $alignment:literal) => {
        impl Number for $type {
            const ALIGNMENT: usize = $alignment;
            fn of(value: f64) -> $type {
                <$type>::from_f64(value)
            }
            fn value(self) -> f64 {
                self.to_f64()
            }
        }
    };
}
number!(bf16, 8);
number!(f16, 8);
number!(F8E4M3, 16);

impl Number for f32 {
    const ALIGNMENT: usize = 8;
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn value(self) -> f64 {
        self.into()
    }
}

/// NaN on both sides of the tensor.
const MARGIN: usize = 64;

/// A tensor that owns its memory.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Vec<T>,
    first: usize,
    layout: Layout,
}

impl<T: Number> Buffer<T> {
    /// A tensor full of NaN, to be written.
    pub fn unwritten(
        shape: [usize; 4],
        arrangement: Arrangement,
    ) -> Result<Buffer<T>, ProblemError> {
        let layout = arrange(shape, arrangement, T::ALIGNMENT)?;
        let memory = vec![T::of(f64::NAN); layout.extent_elems()? + 2 * MARGIN + T::ALIGNMENT];
        let aligned = memory[MARGIN..].as_ptr().align_offset(16);
        let odd = usize::from(arrangement == Arrangement::Unaligned);
        Ok(Buffer {
            memory,
            first: MARGIN + aligned + odd,
            layout,
        })
    }

    /// A tensor with these dense values.
    pub fn filled(
        values: &[f64],
        shape: [usize; 4],
        arrangement: Arrangement,
    ) -> Result<Buffer<T>, ProblemError> {
        let mut buffer = Buffer::unwritten(shape, arrangement)?;
        for (at, &value) in buffer.places().zip(values) {
            buffer.memory[at] = T::of(value);
        }
        Ok(buffer)
    }

    /// To read.
    pub fn view(&self) -> Result<Tensor<'_>, ProblemError> {
        Tensor::strided(&self.memory[self.first..], self.layout)
    }

    /// To write.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>, ProblemError> {
        TensorMut::strided(&mut self.memory[self.first..], self.layout)
    }

    /// The tensor's elements, dense.
    pub fn values(&self) -> Vec<f64> {
        self.places().map(|at| self.memory[at].value()).collect()
    }

    /// Copies a row `[batch, row]` of every head to another place.
    pub fn copy_row(&mut self, from: [usize; 2], to: [usize; 2]) {
        for head in 0..self.layout.heads {
            let (from, to) = (self.place(from, head), self.place(to, head));
            self.memory
                .copy_within(from..from + self.layout.head_dim, to);
        }
    }

    /// Makes a row `[batch, row]` of every head NaN.
    pub fn forget_row(&mut self, row: [usize; 2]) {
        for head in 0..self.layout.heads {
            let at = self.place(row, head);
            self.memory[at..at + self.layout.head_dim].fill(T::of(f64::NAN));
        }
    }

    /// The index in memory of a row of a head.
    fn place(&self, [batch_idx, row]: [usize; 2], head: usize) -> usize {
        self.first
            + batch_idx * self.layout.batch_stride
            + row * self.layout.row_stride
            + head * self.layout.head_stride
    }

    /// An element outside the tensor that somebody wrote to, by its distance from the tensor's first element.
    pub fn strayed(&self) -> Option<isize> {
        let mut ours = vec![false; self.memory.len()];
        self.places().for_each(|at| ours[at] = true);
        let at =
            (0..self.memory.len()).find(|&at| !ours[at] && !self.memory[at].value().is_nan())?;
        Some(at as isize - self.first as isize)
    }

    /// The index in memory of each element, in the order `[batch, seqlen, heads, head_dim]`.
    fn places(&self) -> impl Iterator<Item = usize> + use<T> {
        let (first, layout) = (self.first, self.layout);
        (0..layout.batch).flat_map(move |b| {
            (0..layout.seqlen).flat_map(move |i| {
                (0..layout.heads).flat_map(move |h| {
                    let row = first
                        + b * layout.batch_stride
                        + i * layout.row_stride
                        + h * layout.head_stride;
                    row..row + layout.head_dim
                })
            })
        })
    }
}

/// The strides of an arrangement, of starts that are multiples of `alignment`.
fn arrange(
    shape: [usize; 4],
    arrangement: Arrangement,
    alignment: usize,
) -> Result<Layout, ProblemError> {
    let [batch, seqlen, heads, head_dim] = shape;
    let padded = |unit: usize| {
        let head_stride = (head_dim + unit).next_multiple_of(unit);
        let row_stride = heads * head_stride + 2 * unit;
        let batch_stride = (seqlen + 1) * row_stride + unit;
        Layout::strided(shape, [batch_stride, row_stride, head_stride])
    };
    Ok(match arrangement {
        Arrangement::Bshd => Layout::bshd(shape)?,
        Arrangement::Bhsd => Layout::bhsd([batch, heads, seqlen, head_dim])?,
        Arrangement::Packed => Layout {
            heads,
            ..Layout::bshd([batch, seqlen, 3 * heads, head_dim])?
        },
        Arrangement::Padded => padded(alignment),
        Arrangement::Repeated(repeats) => {
            let layout = padded(alignment);
            match repeats {
                Repeats::Nothing => layout,
                Repeats::Batch => Layout {
                    batch_stride: 0,
                    ..layout
                },
                Repeats::Rows => Layout {
                    row_stride: 0,
                    ..layout
                },
                Repeats::Heads => Layout {
                    head_stride: 0,
                    ..layout
                },
            }
        }
        Arrangement::Far => Layout {
            batch_stride: (1 << 31) + alignment,
            ..padded(alignment)
        },
        Arrangement::Unaligned => {
            let layout = padded(1);
            let row_stride = layout.row_stride | 1;
            Layout {
                row_stride,
                batch_stride: ((seqlen + 1) * row_stride) | 1,
                ..layout
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    const SHAPE: [usize; 4] = [2, 3, 4, 16];

    #[test]
    fn values_come_back_and_everything_else_is_nan() {
        let values: Vec<f64> = (0..384).map(f64::from).collect();
        for arrangement in ALIGNED.into_iter().chain([Arrangement::Unaligned]) {
            let buffer = Buffer::<f32>::filled(&values, SHAPE, arrangement).unwrap();
            assert_eq!(buffer.values(), values, "{arrangement:?}");
            assert_eq!(buffer.strayed(), None);
            let written = buffer.memory.iter().filter(|x| !x.is_nan()).count();
            assert_eq!(written, values.len(), "{arrangement:?}");
        }
    }

    #[test]
    fn a_write_outside_is_found() {
        let mut buffer = Buffer::<bf16>::unwritten(SHAPE, Arrangement::Padded).unwrap();
        let behind_a_head = buffer.first + 16;
        buffer.memory[behind_a_head] = bf16::ZERO;
        assert_eq!(buffer.strayed(), Some(16));
    }

    #[test]
    fn rows_are_copied_and_forgotten_in_every_head() {
        let values: Vec<f64> = (0..384).map(f64::from).collect();
        for arrangement in ALIGNED {
            let mut buffer = Buffer::<f32>::filled(&values, SHAPE, arrangement).unwrap();
            buffer.copy_row([0, 2], [1, 0]);
            buffer.forget_row([0, 2]);
            let after = buffer.values();
            let row = |n: usize| 64 * n..64 * (n + 1);
            assert_eq!(after[row(3)], values[row(2)], "{arrangement:?}");
            assert!(after[row(2)].iter().all(|x| x.is_nan()), "{arrangement:?}");
            assert_eq!(after[..128], values[..128]);
            assert_eq!(after[256..], values[256..]);
            assert_eq!(buffer.strayed(), None);
        }
    }

    #[test]
    fn starts_are_aligned_unless_they_are_not_to_be() {
        for arrangement in ALIGNED {
            let buffer = Buffer::<bf16>::unwritten(SHAPE, arrangement).unwrap();
            assert_eq!(
                buffer.view().unwrap().describe().address % 16,
                0,
                "{arrangement:?}"
            );
        }
        let buffer = Buffer::<bf16>::unwritten(SHAPE, Arrangement::Unaligned).unwrap();
        assert_ne!(buffer.view().unwrap().describe().address % 16, 0);
    }
}
