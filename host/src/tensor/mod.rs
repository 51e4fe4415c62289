//! Borrowed tensors: a layout over memory that the caller owns, on the host or on a device.
//!
//! Host tensors keep Rust's borrow rules: [`Tensor`] holds a shared slice, [`TensorMut`] an exclusive one. The constructors check that the layout
//! stays inside the memory, so nothing after them needs to.

mod device;
mod layout;
mod memory;
mod read;
mod vector;

use std::fmt;

pub(crate) use device::{Allocation, Share};
pub use device::{DeviceSlice, DeviceSliceMut};
pub(crate) use memory::{Memory, MemoryMut};
pub use read::ReadTensor;
pub use vector::{Vector, VectorDescription, VectorMut};

use crate::dtype::{Dtype, Scalar, ScalarType};
use crate::error::ProblemError;
pub use crate::terms::{Layout, Location};

/// A tensor without its memory: the part that validation and planning look at.
///
/// [`Tensor`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Shape and strides.
    pub layout: Layout,
    /// Type of its elements.
    pub dtype: ScalarType,
    /// The memory in which it is.
    pub location: Location,
    /// Address of the first element; planning reads its alignment only.
    pub address: u64,
}

impl Description {
    /// A contiguous, aligned tensor of this shape, without an address: for plans made before the memory exists.
    pub fn contiguous(
        shape: [usize; 4],
        dtype: Dtype,
        location: Location,
    ) -> Result<Description, ProblemError> {
        Ok(Description {
            layout: Layout::bshd(shape)?,
            dtype: dtype.into(),
            location,
            address: 0,
        })
    }

    /// A tensor of its shape and of this type, contiguous and aligned.
    pub(crate) fn dense(self, dtype: ScalarType) -> Description {
        let shape @ [_, rows, heads, columns] = self.layout.shape();
        // What is too large is refused where its memory is laid out.
        let row = heads.saturating_mul(columns);
        Description {
            layout: Layout::strided(shape, [rows.saturating_mul(row), row, columns]),
            dtype,
            location: self.location,
            address: 0,
        }
    }

    /// The same tensor as it will be in another memory: aligned, with its strides.
    pub fn moved_to(self, location: Location) -> Description {
        Description {
            location,
            address: 0,
            ..self
        }
    }
}

/// A tensor to read.
///
/// The [crate's documentation](crate) has an example.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    memory: Memory<'a>,
    layout: Layout,
}

/// A tensor to write.
///
/// The [crate's documentation](crate) has an example.
pub struct TensorMut<'a> {
    memory: MemoryMut<'a>,
    layout: Layout,
}

impl<'a> Tensor<'a> {
    /// Contiguous `[batch, seqlen, heads, head_dim]`; the slice has exactly as many elements.
    pub fn bshd<T: Scalar>(data: &'a [T], shape: [usize; 4]) -> Result<Tensor<'a>, ProblemError> {
        let layout = exact(Layout::bshd(shape)?, data.len())?;
        Tensor::strided(data, layout)
    }

    /// Contiguous `[batch, heads, seqlen, head_dim]`, shape in this order; the slice has exactly as many elements.
    pub fn bhsd<T: Scalar>(data: &'a [T], shape: [usize; 4]) -> Result<Tensor<'a>, ProblemError> {
        let layout = exact(Layout::bhsd(shape)?, data.len())?;
        Tensor::strided(data, layout)
    }

    /// Contiguous `[total, heads, head_dim]`: packed sequences; the slice has exactly as many elements.
    pub fn thd<T: Scalar>(data: &'a [T], shape: [usize; 3]) -> Result<Tensor<'a>, ProblemError> {
        let layout = exact(Layout::thd(shape)?, data.len())?;
        Tensor::strided(data, layout)
    }

    /// Any layout whose first element is the first of the slice.
    pub fn strided<T: Scalar>(data: &'a [T], layout: Layout) -> Result<Tensor<'a>, ProblemError> {
        Tensor::over(Memory::Host(T::wrap(data)), layout)
    }

    /// q, k and v out of one contiguous `[batch, seqlen, 3, heads, head_dim]`.
    pub fn packed_qkv<T: Scalar>(
        data: &'a [T],
        shape: [usize; 5],
    ) -> Result<[Tensor<'a>; 3], ProblemError> {
        let [batch, seqlen, n_parts, heads, head_dim] = shape;
        if n_parts != 3 {
            return Err(ProblemError::PackedParts { given: n_parts });
        }
        let three_heads = heads.checked_mul(3).ok_or(ProblemError::SizeOverflow {
            what: "packed q, k, v",
        })?;
        let all = exact(
            Layout::bshd([batch, seqlen, three_heads, head_dim])?,
            data.len(),
        )?;
        let part_elems = if all.extent_elems()? == 0 {
            0
        } else {
            heads * head_dim
        };
        let part =
            |index: usize| Tensor::strided(&data[index * part_elems..], Layout { heads, ..all });
        Ok([part(0)?, part(1)?, part(2)?])
    }

    /// Any layout over memory of a device.
    pub fn device(slice: DeviceSlice<'a>, layout: Layout) -> Result<Tensor<'a>, ProblemError> {
        Tensor::over(Memory::Device(slice), layout)
    }

    /// Any layout over any memory.
    pub(crate) fn over(memory: Memory<'a>, layout: Layout) -> Result<Tensor<'a>, ProblemError> {
        inside(layout, memory.n_elems())?;
        Ok(Tensor { memory, layout })
    }

    /// Shape and strides.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All but the memory.
    pub fn describe(&self) -> Description {
        Description {
            layout: self.layout,
            dtype: self.memory.scalar(),
            location: self.memory.location(),
            address: self.memory.address(),
        }
    }

    /// The slice that the layout starts in; `None` if it has another type or is on a device.
    pub fn host<T: Scalar>(&self) -> Option<&'a [T]> {
        self.memory.host()
    }

    pub(crate) fn memory(&self) -> &Memory<'a> {
        &self.memory
    }
}

impl<'a> From<&Tensor<'a>> for Tensor<'a> {
    fn from(tensor: &Tensor<'a>) -> Tensor<'a> {
        *tensor
    }
}

impl<'a> TensorMut<'a> {
    /// As [`Tensor::bshd`].
    pub fn bshd<T: Scalar>(
        data: &'a mut [T],
        shape: [usize; 4],
    ) -> Result<TensorMut<'a>, ProblemError> {
        let layout = exact(Layout::bshd(shape)?, data.len())?;
        TensorMut::strided(data, layout)
    }

    /// As [`Tensor::bhsd`].
    pub fn bhsd<T: Scalar>(
        data: &'a mut [T],
        shape: [usize; 4],
    ) -> Result<TensorMut<'a>, ProblemError> {
        let layout = exact(Layout::bhsd(shape)?, data.len())?;
        TensorMut::strided(data, layout)
    }

    /// As [`Tensor::thd`].
    pub fn thd<T: Scalar>(
        data: &'a mut [T],
        shape: [usize; 3],
    ) -> Result<TensorMut<'a>, ProblemError> {
        let layout = exact(Layout::thd(shape)?, data.len())?;
        TensorMut::strided(data, layout)
    }

    /// As [`Tensor::strided`].
    pub fn strided<T: Scalar>(
        data: &'a mut [T],
        layout: Layout,
    ) -> Result<TensorMut<'a>, ProblemError> {
        TensorMut::over(MemoryMut::Host(T::wrap_mut(data)), layout)
    }

    /// As [`Tensor::device`].
    pub fn device(
        slice: DeviceSliceMut<'a>,
        layout: Layout,
    ) -> Result<TensorMut<'a>, ProblemError> {
        TensorMut::over(MemoryMut::Device(slice), layout)
    }

    /// As [`Tensor::over`].
    pub(crate) fn over(
        memory: MemoryMut<'a>,
        layout: Layout,
    ) -> Result<TensorMut<'a>, ProblemError> {
        inside(layout, memory.n_elems())?;
        Ok(TensorMut { memory, layout })
    }

    /// Shape and strides.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All but the memory.
    pub fn describe(&self) -> Description {
        Description {
            layout: self.layout,
            dtype: self.memory.scalar(),
            location: self.memory.location(),
            address: self.memory.address(),
        }
    }

    /// The slice that the layout starts in; `None` if it has another type or is on a device.
    pub fn host<T: Scalar>(&mut self) -> Option<&mut [T]> {
        self.memory.host()
    }

    /// The same tensor for a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut {
            memory: self.memory.reborrow(),
            layout: self.layout,
        }
    }

    pub(crate) fn memory(&self) -> &MemoryMut<'a> {
        &self.memory
    }

    pub(crate) fn memory_mut(&mut self) -> &mut MemoryMut<'a> {
        &mut self.memory
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?})", self.describe())
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut({:?})", self.describe())
    }
}

/// The layout, if it has exactly as many elements as the slice.
fn exact(layout: Layout, n_elems: usize) -> Result<Layout, ProblemError> {
    let needed = layout.n_elems()?;
    if needed == n_elems {
        Ok(layout)
    } else {
        Err(ProblemError::LengthMismatch {
            shape: layout.shape(),
            needed,
            given: n_elems,
        })
    }
}

/// Refuses a layout that exceeds its memory.
fn inside(layout: Layout, n_elems: u64) -> Result<(), ProblemError> {
    let needed = layout.extent_elems()? as u64;
    if needed <= n_elems {
        Ok(())
    } else {
        Err(ProblemError::OutOfBounds {
            layout,
            needed,
            given: n_elems,
        })
    }
}
