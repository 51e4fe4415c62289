//! The memory of a call's data: what [`attend()`](crate::attend()) and [`KvCache`](crate::KvCache) take and return, on the host or on a GPU.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::cuda::CudaDevice;
use crate::backend::cuda::memory::DeviceBuffer;
use crate::backend::cuda::stream::StreamRef;
use crate::dtype::{Element, Scalar};
use crate::error::{Error, ProblemError};
use crate::tensor::{Layout, Tensor, TensorMut, Vector, VectorMut};

/// The shape of a tensor, and its strides.
///
/// [`attend`](crate::attend()) has an example.
pub trait Shape {
    /// In elements.
    fn layout(self) -> Result<Layout, ProblemError>;
}

impl Shape for [usize; 4] {
    fn layout(self) -> Result<Layout, ProblemError> {
        Layout::bshd(self)
    }
}

impl Shape for [usize; 3] {
    fn layout(self) -> Result<Layout, ProblemError> {
        Layout::thd(self)
    }
}

impl Shape for Layout {
    fn layout(self) -> Result<Layout, ProblemError> {
        Ok(self)
    }
}

/// Elements that a call reads: `&[T]`, `&Vec<T>`, `&[T; N]` and `&DeviceBuffer<T>`.
///
/// [`attend`](crate::attend()) has an example.
pub trait Data<'a>: Copy {
    /// Their type.
    type Element: Element;
    /// Where they lie.
    type Place: Place;
    /// Where they lie.
    fn place(self) -> Self::Place;
    /// A tensor of them.
    fn tensor(self, layout: Layout) -> Result<Tensor<'a>, ProblemError>;
}

macro_rules! of_host {
    ($($type:ty $(, $n:ident)?;)*) => {$(
        impl<'a, T: Element $(, const $n: usize)?> Data<'a> for &'a $type {
            type Element = T;
            type Place = Host;

            fn place(self) -> Host {
                Host
            }

            fn tensor(self, layout: Layout) -> Result<Tensor<'a>, ProblemError> {
                Tensor::strided(self, layout)
            }
        }
    )*};
}
of_host! { [T]; Vec<T>; [T; N], N; }

impl<'a, T: Element> Data<'a> for &'a DeviceBuffer<T> {
    type Element = T;
    type Place = Gpu;

    fn place(self) -> Gpu {
        Gpu(Arc::clone(self.device()))
    }

    fn tensor(self, layout: Layout) -> Result<Tensor<'a>, ProblemError> {
        Tensor::device(self.slice(), layout)
    }
}

/// The memory of a call's data, in which results are allocated: [`Host`] or [`Gpu`].
pub trait Place {
    /// Memory there.
    type Buffer<T: Scalar>: Debug;
    /// Memory for this many elements.
    fn room<T: Scalar>(&self, n_elems: usize) -> Result<Self::Buffer<T>, Error>;
    /// Memory with these elements.
    fn of<T: Scalar>(&self, elements: &[T]) -> Result<Self::Buffer<T>, Error>;
    /// Copies elements over others that they do not overlap, and waits.
    fn copy_within<T: Scalar>(
        buffer: &mut Self::Buffer<T>,
        from: Range<usize>,
        to: usize,
    ) -> Result<(), Error>;
    /// A tensor in such memory.
    fn tensor<T: Scalar>(
        buffer: &Self::Buffer<T>,
        layout: Layout,
    ) -> Result<Tensor<'_>, ProblemError>;
    /// A tensor in such memory, to be written.
    fn tensor_mut<T: Scalar>(
        buffer: &mut Self::Buffer<T>,
        layout: Layout,
    ) -> Result<TensorMut<'_>, ProblemError>;
    /// Such memory as a vector.
    fn vector<T: Scalar>(buffer: &Self::Buffer<T>) -> Vector<'_>;
    /// Such memory as a vector to be written.
    fn vector_mut<T: Scalar>(buffer: &mut Self::Buffer<T>) -> VectorMut<'_>;
}

/// The host's memory: results are a `Vec`.
///
/// [`attend`](crate::attend()) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Host;

/// A GPU's memory: results are a [`DeviceBuffer`].
#[derive(Clone, Debug)]
pub struct Gpu(pub(crate) Arc<CudaDevice>);

impl Place for Host {
    type Buffer<T: Scalar> = Vec<T>;

    fn room<T: Scalar>(&self, n_elems: usize) -> Result<Vec<T>, Error> {
        Ok(vec![T::default(); n_elems])
    }

    fn of<T: Scalar>(&self, elements: &[T]) -> Result<Vec<T>, Error> {
        Ok(elements.to_vec())
    }

    fn copy_within<T: Scalar>(
        buffer: &mut Vec<T>,
        from: Range<usize>,
        to: usize,
    ) -> Result<(), Error> {
        buffer.as_mut_slice().copy_within(from, to);
        Ok(())
    }

    fn tensor<T: Scalar>(buffer: &Vec<T>, layout: Layout) -> Result<Tensor<'_>, ProblemError> {
        Tensor::strided(buffer, layout)
    }

    fn tensor_mut<T: Scalar>(
        buffer: &mut Vec<T>,
        layout: Layout,
    ) -> Result<TensorMut<'_>, ProblemError> {
        TensorMut::strided(buffer, layout)
    }

    fn vector<T: Scalar>(buffer: &Vec<T>) -> Vector<'_> {
        buffer.into()
    }

    fn vector_mut<T: Scalar>(buffer: &mut Vec<T>) -> VectorMut<'_> {
        buffer.into()
    }
}

impl Place for Gpu {
    type Buffer<T: Scalar> = DeviceBuffer<T>;

    fn room<T: Scalar>(&self, n_elems: usize) -> Result<DeviceBuffer<T>, Error> {
        Ok(DeviceBuffer::new(&self.0, n_elems)?)
    }

    fn of<T: Scalar>(&self, elements: &[T]) -> Result<DeviceBuffer<T>, Error> {
        Ok(DeviceBuffer::from_slice(
            &self.0,
            elements,
            StreamRef::DEFAULT,
        )?)
    }

    fn copy_within<T: Scalar>(
        buffer: &mut DeviceBuffer<T>,
        from: Range<usize>,
        to: usize,
    ) -> Result<(), Error> {
        Ok(buffer.copy_within(from, to, StreamRef::DEFAULT)?)
    }

    fn tensor<T: Scalar>(
        buffer: &DeviceBuffer<T>,
        layout: Layout,
    ) -> Result<Tensor<'_>, ProblemError> {
        Tensor::device(buffer.slice(), layout)
    }

    fn tensor_mut<T: Scalar>(
        buffer: &mut DeviceBuffer<T>,
        layout: Layout,
    ) -> Result<TensorMut<'_>, ProblemError> {
        TensorMut::device(buffer.slice_mut(), layout)
    }

    fn vector<T: Scalar>(buffer: &DeviceBuffer<T>) -> Vector<'_> {
        buffer.slice().into()
    }

    fn vector_mut<T: Scalar>(buffer: &mut DeviceBuffer<T>) -> VectorMut<'_> {
        buffer.slice_mut().into()
    }
}
