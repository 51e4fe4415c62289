//! Addresses as tensors of ferroflash, on a device or on the host: the room of `unsafe`.
//!
//! Who calls [`super::call`] answers for the addresses. Here they become borrowed tensors, for as long as one call.

use std::slice;
use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::backend::cuda::sys::CUstream;
use ferroflash::backend::cuda::{CudaDevice, Queue};
use ferroflash::dtype::ScalarType;
use ferroflash::error::{ProblemError, ScoreError};
use ferroflash::expression::ElementType;
use ferroflash::{Dtype, Element, Error, Layout, Scalar, Tensor, TensorMut, Vector, VectorMut};
use float8::F8E4M3;
use half::{bf16, f16};

/// In whose memory addresses are.
#[derive(Clone, Copy)]
pub(crate) enum Location<'a> {
    /// The host's.
    Host,
    /// A device's.
    Cuda(&'a Arc<CudaDevice>),
}

/// A tensor that is not borrowed yet.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Which tensor it is.
    pub(crate) argument: Argument,
    /// Of the first element.
    pub(crate) address: u64,
    /// Shape and strides.
    pub(crate) layout: Layout,
    /// Type of the elements.
    pub(crate) dtype: Dtype,
}

impl Span {
    /// Elements from the first to the last.
    fn n_elems(&self) -> Result<u64, Error> {
        Ok(self.layout.extent_elems()? as u64)
    }
}

impl<'a> Location<'a> {
    /// A device's, or the host's.
    pub(crate) fn of(device: Option<&'a Arc<CudaDevice>>) -> Location<'a> {
        device.map_or(Location::Host, Location::Cuda)
    }

    /// A tensor to read.
    ///
    /// # Safety
    /// The elements are there, in memory of this place, for as long as the result and the work that is enqueued with it; and nobody
    /// writes them then.
    pub(crate) unsafe fn tensor(self, span: Span) -> Result<Tensor<'a>, Error> {
        let n_elems = span.n_elems()?;
        Ok(match self {
            Location::Cuda(device) => {
                // SAFETY: as the caller promises.
                let slice = unsafe { slice_from_raw(device, span.address, n_elems, span.dtype) };
                Tensor::device(slice, span.layout)?
            }
            // SAFETY: as the caller promises.
            Location::Host => unsafe {
                match span.dtype {
                    Dtype::Bf16 => host::<bf16>(span, n_elems)?,
                    Dtype::F16 => host::<f16>(span, n_elems)?,
                    Dtype::F32 => host::<f32>(span, n_elems)?,
                }
            },
        })
    }

    /// Keys or values in e4m3 to read; the span's type is not looked at.
    ///
    /// # Safety
    /// As for [`Location::tensor`].
    pub(crate) unsafe fn tensor_e4m3(self, span: Span) -> Result<Tensor<'a>, Error> {
        let n_elems = span.n_elems()?;
        Ok(match self {
            Location::Cuda(device) => {
                // SAFETY: as the caller promises.
                let slice =
                    unsafe { slice_from_raw(device, span.address, n_elems, ScalarType::E4m3) };
                Tensor::device(slice, span.layout)?
            }
            Location::Host => {
                // SAFETY: as the caller promises.
                unsafe { host::<F8E4M3>(span, n_elems)? }
            }
        })
    }

    /// A tensor to write.
    ///
    /// # Safety
    /// As for [`Location::tensor`]; and nobody else reads the elements then.
    pub(crate) unsafe fn tensor_mut(self, span: Span) -> Result<TensorMut<'a>, Error> {
        let n_elems = span.n_elems()?;
        Ok(match self {
            Location::Cuda(device) => {
                // SAFETY: as the caller promises.
                let slice =
                    unsafe { slice_from_raw_mut(device, span.address, n_elems, span.dtype) };
                TensorMut::device(slice, span.layout)?
            }
            // SAFETY: as the caller promises.
            Location::Host => unsafe {
                match span.dtype {
                    Dtype::Bf16 => host_mut::<bf16>(span, n_elems)?,
                    Dtype::F16 => host_mut::<f16>(span, n_elems)?,
                    Dtype::F32 => host_mut::<f32>(span, n_elems)?,
                }
            },
        })
    }

    /// Row statistics, scales, or a table of cosines or sines, to read: f32.
    ///
    /// # Safety
    /// As for [`Location::tensor`].
    pub(crate) unsafe fn statistics(
        self,
        argument: Argument,
        address: u64,
        n_elems: usize,
    ) -> Result<Vector<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe { self.vector::<f32>(address, n_elems, ScalarType::F32) };
        vector.map_err(|refused| refused.of(argument))
    }

    /// Lengths: i32.
    ///
    /// # Safety
    /// As for [`Location::tensor`].
    pub(crate) unsafe fn integers(
        self,
        argument: Argument,
        address: u64,
        n_elems: usize,
    ) -> Result<Vector<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe { self.vector::<i32>(address, n_elems, ScalarType::I32) };
        vector.map_err(|refused| refused.of(argument))
    }

    /// Seed and offset of dropout: two u64.
    ///
    /// # Safety
    /// As for [`Location::tensor`].
    pub(crate) unsafe fn state(self, address: u64) -> Result<Vector<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe { self.vector::<u64>(address, 2, ScalarType::U64) };
        vector.map_err(|refused| refused.of(Argument::DropoutState))
    }

    /// Elements of a tensor that an expression reads.
    ///
    /// # Safety
    /// As for [`Location::tensor`].
    pub(crate) unsafe fn elements(
        self,
        name: &str,
        address: u64,
        n_elems: usize,
        element: ElementType,
    ) -> Result<Vector<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe {
            match element {
                ElementType::F32 => self.vector::<f32>(address, n_elems, element.into()),
                ElementType::F16 => self.vector::<f16>(address, n_elems, element.into()),
                ElementType::Bf16 => self.vector::<bf16>(address, n_elems, element.into()),
                ElementType::I32 => self.vector::<i32>(address, n_elems, element.into()),
            }
        };
        vector.map_err(|refused| refused.of_named(name))
    }

    /// # Safety
    /// As for [`Location::tensor`]; `T` is of this type.
    unsafe fn vector<T: Scalar>(
        self,
        address: u64,
        n_elems: usize,
        dtype: ScalarType,
    ) -> Result<Vector<'a>, Misaligned> {
        Ok(match self {
            Location::Cuda(device) => {
                // SAFETY: as the caller promises.
                let slice = unsafe { slice_from_raw(device, address, n_elems as u64, dtype) };
                Vector::device(slice)
            }
            // SAFETY: as the caller promises.
            Location::Host => Vector::of(unsafe { elements::<T>(address, n_elems as u64)? }),
        })
    }

    /// Row statistics to write: f32.
    ///
    /// # Safety
    /// As for [`Location::tensor_mut`].
    pub(crate) unsafe fn statistics_mut(
        self,
        argument: Argument,
        address: u64,
        n_elems: usize,
    ) -> Result<VectorMut<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe { self.vector_mut::<f32>(address, n_elems, ScalarType::F32) };
        vector.map_err(|refused| refused.of(argument))
    }

    /// Lengths to write: i32.
    ///
    /// # Safety
    /// As for [`Location::tensor_mut`].
    pub(crate) unsafe fn integers_mut(
        self,
        argument: Argument,
        address: u64,
        n_elems: usize,
    ) -> Result<VectorMut<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe { self.vector_mut::<i32>(address, n_elems, ScalarType::I32) };
        vector.map_err(|refused| refused.of(argument))
    }

    /// Elements of the gradient of a tensor that an expression reads.
    ///
    /// # Safety
    /// As for [`Location::tensor_mut`].
    pub(crate) unsafe fn elements_mut(
        self,
        name: &str,
        address: u64,
        n_elems: usize,
        element: ElementType,
    ) -> Result<VectorMut<'a>, Error> {
        // SAFETY: as the caller promises.
        let vector = unsafe {
            match element {
                ElementType::F32 => self.vector_mut::<f32>(address, n_elems, element.into()),
                ElementType::F16 => self.vector_mut::<f16>(address, n_elems, element.into()),
                ElementType::Bf16 => self.vector_mut::<bf16>(address, n_elems, element.into()),
                ElementType::I32 => self.vector_mut::<i32>(address, n_elems, element.into()),
            }
        };
        vector.map_err(|refused| refused.of_named(name))
    }

    /// # Safety
    /// As for [`Location::tensor_mut`]; `T` is of this type.
    unsafe fn vector_mut<T: Scalar>(
        self,
        address: u64,
        n_elems: usize,
        dtype: ScalarType,
    ) -> Result<VectorMut<'a>, Misaligned> {
        Ok(match self {
            Location::Cuda(device) => {
                // SAFETY: as the caller promises.
                let slice = unsafe { slice_from_raw_mut(device, address, n_elems as u64, dtype) };
                VectorMut::device(slice)
            }
            // SAFETY: as the caller promises.
            Location::Host => VectorMut::of(unsafe { elements_mut::<T>(address, n_elems as u64)? }),
        })
    }
}

/// A queue on a stream of the caller's, in a workspace of this address and length.
///
/// # Safety
/// The stream is the device's and alive until the queue is dropped; the workspace is nobody else's until the work is done.
pub(crate) unsafe fn queue(
    device: &Arc<CudaDevice>,
    stream: u64,
    (address, n_bytes): (u64, u64),
) -> Result<Queue, Error> {
    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: as the caller promises.
    unsafe { Queue::with_workspace(device, stream, address, n_bytes) }
}

/// # Safety
/// As for [`Location::tensor`], on the host, of elements of the span's type.
unsafe fn host<'a, T: Scalar>(span: Span, n_elems: u64) -> Result<Tensor<'a>, Error> {
    // SAFETY: as the caller promises.
    let elements = unsafe { elements::<T>(span.address, n_elems) };
    let elements = elements.map_err(|refused| refused.of(span.argument))?;
    Ok(Tensor::strided(elements, span.layout)?)
}

/// # Safety
/// As for [`Location::tensor_mut`], on the host, of elements of the span's type.
unsafe fn host_mut<'a, T: Element>(span: Span, n_elems: u64) -> Result<TensorMut<'a>, Error> {
    // SAFETY: as the caller promises.
    let elements = unsafe { elements_mut::<T>(span.address, n_elems) };
    let elements = elements.map_err(|refused| refused.of(span.argument))?;
    Ok(TensorMut::strided(elements, span.layout)?)
}

/// An address on the host at which no element of a type may lie: buffers of other libraries begin anywhere.
struct Misaligned {
    address: u64,
    alignment: u64,
}

impl Misaligned {
    /// Refuses an address that is no multiple of this type's alignment.
    fn check<T>(address: u64) -> Result<(), Misaligned> {
        let alignment = align_of::<T>() as u64;
        match address.is_multiple_of(alignment) {
            true => Ok(()),
            false => Err(Misaligned { address, alignment }),
        }
    }

    fn of(self, argument: Argument) -> Error {
        let Misaligned { address, alignment } = self;
        let error = ProblemError::Misaligned {
            argument,
            address,
            alignment,
        };
        error.into()
    }

    /// Of a tensor that an expression reads.
    fn of_named(self, name: &str) -> Error {
        let Misaligned { address, alignment } = self;
        let error = ScoreError::TensorMisaligned {
            name: name.to_owned(),
            address,
            alignment,
        };
        ProblemError::Score(error).into()
    }
}

/// # Safety
/// As for [`Location::tensor`], on the host.
unsafe fn elements<'a, T>(address: u64, n_elems: u64) -> Result<&'a [T], Misaligned> {
    // An empty tensor has no address.
    if n_elems == 0 {
        return Ok(&[]);
    }
    Misaligned::check::<T>(address)?;
    let first = std::ptr::with_exposed_provenance::<T>(address as usize);
    // SAFETY: as the caller promises; the address has been checked.
    Ok(unsafe { slice::from_raw_parts(first, n_elems as usize) })
}

/// # Safety
/// As for [`Location::tensor_mut`], on the host.
unsafe fn elements_mut<'a, T>(address: u64, n_elems: u64) -> Result<&'a mut [T], Misaligned> {
    if n_elems == 0 {
        return Ok(&mut []);
    }
    Misaligned::check::<T>(address)?;
    let first = std::ptr::with_exposed_provenance_mut::<T>(address as usize);
    // SAFETY: as the caller promises; the address has been checked.
    Ok(unsafe { slice::from_raw_parts_mut(first, n_elems as usize) })
}
