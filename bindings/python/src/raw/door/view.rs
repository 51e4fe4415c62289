//! Views of PyTorch tensors in place: of Python objects by DLPack's exchange table, or by a DLPack capsule if PyTorch has no table (before 2.10).
//! The arguments of operators' kernels are read in `boxed`.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::slice;

use dlpark::ffi::{
    DLDataTypeCode, DLDeviceType, DLManagedTensor, DLPackDLTensorFromPyObjectNoSync,
    DLPackExchangeAPI, DLTensor,
};
use ferroflash::Dtype;
use pyo3::ffi;
use pyo3::prelude::*;

use super::words::Words;

/// The most dimensions of a call's tensor.
pub(super) const MOST_DIMS: usize = 4;

/// The major version of DLPack whose tables are read here.
const MAJOR: u32 = 1;

/// The description of a tensor for a call. It does not own the tensor: the user keeps it alive.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// Address of the first element; never 0.
    pub(super) address: u64,
    /// DLPack's code, and the bits of an element.
    dtype: (u8, u8),
    /// DLPack's kind, and the device's ordinal.
    device: (u32, i32),
    n_dims: usize,
    shape: [i64; MOST_DIMS],
    strides: [i64; MOST_DIMS],
}

impl View {
    /// `None` if it has more dimensions, no memory, or is neither on the host nor on a CUDA device.
    ///
    /// # Safety
    /// Shape and strides have one number for each dimension of the tensor.
    unsafe fn of(tensor: &DLTensor) -> Option<View> {
        let n_dims = usize::try_from(tensor.ndim).ok()?;
        let is_without = tensor.shape.is_null() || tensor.strides.is_null();
        if tensor.data.is_null() || (n_dims > 0 && is_without) {
            return None;
        }
        let (shape, strides): (&[i64], &[i64]) = match n_dims {
            0 => (&[], &[]),
            // SAFETY: as the caller promises.
            _ => unsafe {
                (
                    slice::from_raw_parts(tensor.shape, n_dims),
                    slice::from_raw_parts(tensor.strides, n_dims),
                )
            },
        };
        let first = tensor.data.wrapping_byte_add(tensor.byte_offset as usize);
        let dtype = (tensor.dtype.code.0, tensor.dtype.bits);
        let device = (tensor.device.device_type.0, tensor.device.device_id);
        View::new(first, dtype, device, (shape, strides))
    }

    /// The view of a tensor with this address of its first element, DLPack's type and device, this shape and these strides. `None` as for [`View::of`].
    pub(super) fn new(
        first: *mut c_void,
        dtype: (u8, u8),
        device: (u32, i32),
        (shape, strides): (&[i64], &[i64]),
    ) -> Option<View> {
        let n_dims = shape.len();
        let is_known = [DLDeviceType::CPU, DLDeviceType::CUDA].contains(&DLDeviceType(device.0));
        if n_dims > MOST_DIMS || strides.len() != n_dims || first.is_null() || !is_known {
            return None;
        }
        let mut view = View {
            address: first.expose_provenance() as u64,
            dtype,
            device,
            n_dims,
            shape: [1; MOST_DIMS],
            strides: [0; MOST_DIMS],
        };
        view.shape[..n_dims].copy_from_slice(shape);
        view.strides[..n_dims].copy_from_slice(strides);
        Some(view)
    }

    /// The type of the elements, if attention has kernels for it.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        match (DLDataTypeCode(self.dtype.0), self.dtype.1) {
            (DLDataTypeCode::FLOAT, 32) => Some(Dtype::F32),
            (DLDataTypeCode::FLOAT, 16) => Some(Dtype::F16),
            (DLDataTypeCode::BFLOAT, 16) => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// Whether both have the same type and device.
    pub(super) fn is_beside(&self, other: &View) -> bool {
        self.dtype == other.dtype && self.device == other.device
    }

    /// Whether the elements are contiguous, the last dimension fastest.
    pub(super) fn is_contiguous(&self) -> bool {
        let (shape, strides) = (self.shape(), self.strides());
        let mut needed = 1;
        shape.iter().zip(strides).rev().all(|(&n, &stride)| {
            let as_needed = n == 1 || stride == needed;
            needed *= n;
            as_needed
        })
    }

    pub(super) fn shape(&self) -> &[i64] {
        &self.shape[..self.n_dims]
    }

    pub(super) fn strides(&self) -> &[i64] {
        &self.strides[..self.n_dims]
    }

    /// `[batch, heads, seqlen, head_dim]` as `[batch, seqlen, heads, head_dim]`, or the other way round; `None` for other dimensions.
    pub(super) fn rotated(mut self) -> Option<View> {
        self.shape.swap(1, 2);
        self.strides.swap(1, 2);
        (self.n_dims == MOST_DIMS).then_some(self)
    }

    /// For `[batch, seqlen, heads, head_dim]`, transposed: the strides that `torch.empty_like` gives a tensor like that one. `None` if rows of a
    /// sequence would not follow each other with all their heads.
    pub(super) fn strides_in_order(&self) -> Option<[i64; MOST_DIMS]> {
        let rotated = |[batch, row, head, column]: [i64; MOST_DIMS]| [batch, head, row, column];
        if self.is_contiguous() {
            return Some(rotated(self.strides));
        }
        let [batch, row, head, column] = self.strides;
        // PyTorch sorts dimensions by their strides; of equal ones it decides otherwise.
        if !(batch > row && row > head && head > column) {
            return None;
        }
        let [_, seqlen, heads, head_dim] = self.shape;
        Some(rotated([
            seqlen * heads * head_dim,
            heads * head_dim,
            head_dim,
            1,
        ]))
    }

    pub(super) fn is_f32(&self) -> bool {
        self.dtype() == Some(Dtype::F32)
    }

    /// The ordinal of its CUDA device; `None` on the host.
    pub(super) fn ordinal(&self) -> Option<i32> {
        let (kind, ordinal) = self.device;
        (DLDeviceType(kind) == DLDeviceType::CUDA).then_some(ordinal)
    }

    /// All that plans depend on: everything but the address.
    pub(super) fn spell(&self, words: &mut Words) {
        let (code, bits) = self.dtype;
        let (kind, ordinal) = self.device;
        let n_dims = self.n_dims as i64;
        words.push(n_dims | i64::from(code) << 8 | i64::from(bits) << 16);
        words.push(i64::from(kind) | i64::from(ordinal) << 32);
        words.extend(self.shape());
        words.extend(self.strides());
    }
}

/// The way of reading tensors.
pub(super) enum Viewer {
    /// By PyTorch's exchange table.
    Table {
        view: unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> i32,
        table: Table,
    },
    /// By `torch._C._to_dlpack`.
    Capsules(Py<PyAny>),
}

/// A table of DLPack's exchange, which lives as long as the process.
pub(super) struct Table(NonNull<DLPackExchangeAPI>);

// SAFETY: nobody writes the table, and its functions may be called by any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Viewer {
    /// By the table in a capsule of this name, if it has a known version and the needed functions; otherwise by capsules of tensors.
    pub(super) fn of(table: Option<&Bound<'_, PyAny>>, to_dlpack: Py<PyAny>) -> Viewer {
        table
            .and_then(Viewer::by)
            .unwrap_or(Viewer::Capsules(to_dlpack))
    }

    fn by(capsule: &Bound<'_, PyAny>) -> Option<Viewer> {
        // SAFETY: any object may be asked; the name is text of C.
        let pointer =
            unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
        let Some(table) = NonNull::new(pointer.cast::<DLPackExchangeAPI>()) else {
            // SAFETY: the thread is attached. It forgets the error.
            unsafe { ffi::PyErr_Clear() };
            return None;
        };
        // SAFETY: a capsule of this name holds such a table, for as long as the process lives; its first field is the same in all versions.
        let version = unsafe { (*table.as_ptr()).header.version };
        if version.major != MAJOR {
            return None;
        }
        // SAFETY: the version says that the layout is this one.
        let view: DLPackDLTensorFromPyObjectNoSync =
            unsafe { (*table.as_ptr()).dltensor_from_py_object_no_sync };
        Some(Viewer::Table {
            view: view?,
            table: Table(table),
        })
    }

    /// The view of a PyTorch tensor; `None` if it cannot be read.
    ///
    /// # Safety
    /// The object's type is `torch.Tensor`, or `torch.nn.Parameter`.
    pub(super) unsafe fn view(&self, tensor: &Bound<'_, PyAny>) -> Option<View> {
        match self {
            Viewer::Table { view, .. } => {
                // SAFETY: all zeros are a value of this type.
                let mut found = unsafe { std::mem::zeroed::<DLTensor>() };
                // SAFETY: the type is one of those that the table is for. What is found is read before the thread does anything else.
                if unsafe { view(tensor.as_ptr().cast(), &raw mut found) } == 0 {
                    // SAFETY: the table's function has filled shape and strides in.
                    return unsafe { View::of(&found) };
                }
                // SAFETY: the thread is attached. It forgets the error.
                unsafe { ffi::PyErr_Clear() };
                None
            }
            Viewer::Capsules(to_dlpack) => {
                let capsule = to_dlpack.bind(tensor.py()).call1((tensor,)).ok()?;
                // SAFETY: any object may be asked; the name is text of C.
                let pointer =
                    unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()) };
                let Some(managed) = NonNull::new(pointer.cast::<DLManagedTensor>()) else {
                    // SAFETY: as above.
                    unsafe { ffi::PyErr_Clear() };
                    return None;
                };
                // SAFETY: the capsule, which holds shape and strides, is still there.
                unsafe { View::of(&managed.as_ref().dl_tensor) }
            }
        }
    }

    /// The current stream of a CUDA device; `None` if the table does not have it.
    pub(super) fn stream(&self, ordinal: i32) -> Option<u64> {
        let Viewer::Table { table, .. } = self else {
            return None;
        };
        // SAFETY: the table lives as long as the process.
        let ask = unsafe { (*table.0.as_ptr()).current_work_stream }?;
        let mut stream = null_mut();
        // SAFETY: the device is one that a tensor lies on.
        match unsafe { ask(DLDeviceType::CUDA, ordinal, &raw mut stream) } {
            0 => Some(stream.expose_provenance() as u64),
            _ => {
                // SAFETY: the thread is attached. It forgets the error.
                unsafe { ffi::PyErr_Clear() };
                None
            }
        }
    }
}
