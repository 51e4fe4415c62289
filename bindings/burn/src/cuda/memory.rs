//! Memory of CubeCL's tensors, lent to ferroflash. The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::any::Any;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::future;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl_runtime::runtime::Runtime;
use ferroflash::backend::cuda::CudaDevice;
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::dtype::ScalarType;
use ferroflash::error::Argument;
use ferroflash::{Layout, Tensor, TensorMut, Vector, VectorMut};

use crate::check;
use crate::error::Error;

/// ferroflash's kernels read 16 bytes at a time.
const ALIGNMENT_BYTES: u64 = 16;

/// The memory of a tensor, which stays allocated and in place for as long as this.
pub(super) struct Lent {
    argument: Argument,
    tensor: CubeTensor,
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
    /// CubeCL's own hold on the memory.
    _resource: Box<dyn Any>,
}

impl Lent {
    /// A tensor to read, `[batch, heads, seqlen, head_dim]`: in place, or a copy where its last dimension is not contiguous, or
    /// a row does not start at a multiple of 16 bytes.
    pub(super) fn to_read(
        argument: Argument,
        tensor: &FloatTensor<CubeBackend>,
    ) -> Result<Lent, Error> {
        check::dtype(argument, tensor, check::DTYPES)?;
        check::shape(argument, tensor)?;
        let tensor = tensor.clone();
        let lent = if rows_are_aligned(&tensor) {
            Lent::new(argument, tensor)?
        } else {
            Lent::new(argument, into_contiguous(tensor))?
        };
        if lent.address.is_multiple_of(ALIGNMENT_BYTES) {
            Ok(lent)
        } else {
            Lent::new(argument, lent.tensor.copy())
        }
    }

    /// Statistics of rows, f32, to read: in place, or a copy where they have gaps.
    pub(super) fn without_gaps(
        argument: Argument,
        tensor: &FloatTensor<CubeBackend>,
    ) -> Result<Lent, Error> {
        check::dtype(argument, tensor, &[DType::F32])?;
        Lent::new(argument, into_contiguous(tensor.clone()))
    }

    /// A new tensor to write, which nobody else uses.
    pub(super) fn to_write(
        argument: Argument,
        tensor: &FloatTensor<CubeBackend>,
    ) -> Result<Lent, Error> {
        Lent::new(argument, tensor.clone())
    }

    fn new(argument: Argument, tensor: CubeTensor) -> Result<Lent, Error> {
        let handle = tensor.handle.clone();
        let resource = tensor
            .client
            .get_resource::<<CudaRuntime as Runtime>::Server>(handle)
            .map_err(|error| Error::Memory {
                argument,
                detail: error.to_string(),
            })?;
        let dtype = check::dtype(argument, &tensor, check::DTYPES)?;
        let (address, n_bytes) = (resource.resource().ptr, resource.resource().size);
        Ok(Lent {
            argument,
            address,
            n_elems: n_bytes / dtype.size_bytes() as u64,
            dtype: dtype.into(),
            tensor,
            _resource: Box::new(resource),
        })
    }

    /// As which argument it is lent.
    pub(super) fn argument(&self) -> Argument {
        self.argument
    }

    /// Shape and strides, with ferroflash's order of dimensions.
    pub(super) fn layout(&self) -> Result<Layout, Error> {
        let [batch, heads, seqlen, head_dim] = check::shape(self.argument, &self.tensor)?;
        let &[batch_stride, head_stride, row_stride, _] = self.tensor.meta.strides().as_ref()
        else {
            return Err(Error::Rank {
                argument: self.argument,
                given: self.tensor.meta.strides().len(),
                needed: 4,
            });
        };
        Ok(Layout {
            batch,
            seqlen,
            heads,
            head_dim,
            batch_stride,
            row_stride,
            head_stride,
        })
    }

    /// Waits for CubeCL's work on the stream that the memory was lent to. Lending it has made that stream wait for the work
    /// that wrote it.
    pub(super) fn wait(&self) -> Result<(), Error> {
        future::block_on(self.tensor.client.sync()).map_err(|error| Error::Synchronize {
            detail: error.to_string(),
        })
    }

    /// For ferroflash, to read.
    pub(super) fn tensor<'a>(&'a self, device: &'a CudaDevice) -> Result<Tensor<'a>, Error> {
        // SAFETY: CubeCL's hold keeps the memory in place for as long as `self` is borrowed, and with it every tensor made
        // here. CubeCL has written it (`wait`), and writes no tensor that has a second owner: `self.tensor` is one. The work
        // that reads it has been waited for (`Session::run`) when the borrow ends.
        let slice = unsafe { slice_from_raw(device, self.address, self.n_elems, self.dtype) };
        Ok(Tensor::device(slice, self.layout()?)?)
    }

    /// For ferroflash, to write.
    pub(super) fn tensor_mut<'a>(
        &'a mut self,
        device: &'a CudaDevice,
    ) -> Result<TensorMut<'a>, Error> {
        let layout = self.layout()?;
        // SAFETY: as in `tensor`; the memory is new, so nobody else reads or writes it.
        let slice = unsafe { slice_from_raw_mut(device, self.address, self.n_elems, self.dtype) };
        Ok(TensorMut::device(slice, layout)?)
    }

    /// Row statistics for ferroflash, to read.
    pub(super) fn vector<'a>(&'a self, device: &'a CudaDevice) -> Vector<'a> {
        // SAFETY: as in `tensor`.
        let slice = unsafe { slice_from_raw(device, self.address, self.n_rows(), self.dtype) };
        Vector::device(slice)
    }

    /// Row statistics for ferroflash, to write.
    pub(super) fn vector_mut<'a>(&'a mut self, device: &'a CudaDevice) -> VectorMut<'a> {
        let n_rows = self.n_rows();
        // SAFETY: as in `tensor_mut`.
        let slice = unsafe { slice_from_raw_mut(device, self.address, n_rows, self.dtype) };
        VectorMut::device(slice)
    }

    /// Elements of row statistics, which have no gaps: never more than the memory has.
    fn n_rows(&self) -> u64 {
        self.n_elems.min(self.tensor.shape().num_elements() as u64)
    }
}

/// Whether ferroflash can read a tensor's rows where they lie, if the first one does.
fn rows_are_aligned(tensor: &CubeTensor) -> bool {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let elems = (ALIGNMENT_BYTES as usize) / tensor.dtype.size();
    let Some((last, outer)) = strides.split_last() else {
        return false;
    };
    // A tensor that Burn stores in tiles has other dimensions in memory than its shape says.
    let is_plain = tensor.rank() == shape.len();
    is_plain
        && *last == 1
        && shape
            .iter()
            .zip(outer)
            .all(|(&size, stride)| size <= 1 || stride.is_multiple_of(elems))
}
