//! Memory for results: from PyTorch's C functions, which take a fifth of the time, or from its Python functions if the former do not exist.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;

use dlpark::ffi::{DLDataTypeCode, DLDeviceType};
use ferroflash::Dtype;
use libloading::{Library, Symbol};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::to_py;

/// The library at this path, if the process has loaded it already.
#[cfg(target_os = "linux")]
pub(super) fn loaded(path: &Path) -> Option<Library> {
    use libloading::os::unix;
    /// Finds a loaded library; does not load one.
    const RTLD_NOLOAD: i32 = 0x4;
    // SAFETY: nothing is loaded that was not there before, so nothing runs.
    let library = unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | RTLD_NOLOAD) };
    Some(library.ok()?.into())
}

/// As on Linux; other systems have no common number for it.
#[cfg(not(target_os = "linux"))]
pub(super) fn loaded(_path: &Path) -> Option<Library> {
    None
}

/// Types of elements.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Bf16,
    F16,
    F32,
    U8,
    I64,
    U64,
}

/// The number of types.
const N_KINDS: usize = 6;

/// A tensor to be created.
pub(super) struct Wanted<'a> {
    shape: &'a [i64],
    /// `None`: it is contiguous.
    strides: Option<&'a [i64]>,
    kind: Kind,
    by: By,
}

/// The Python function of PyTorch that creates it.
#[derive(Clone, Copy)]
enum By {
    EmptyLike,
    /// In the dimension order of the other tensor's memory.
    EmptyInOrder,
    NewEmpty,
}

impl Kind {
    /// By PyTorch's name, for integer types.
    pub(super) fn whole(name: &str) -> Option<Kind> {
        match name {
            "uint8" => Some(Kind::U8),
            "int64" => Some(Kind::I64),
            "uint64" => Some(Kind::U64),
            _ => None,
        }
    }

    /// For element types of attention.
    pub(super) fn of(dtype: Dtype) -> Kind {
        match dtype {
            Dtype::Bf16 => Kind::Bf16,
            Dtype::F16 => Kind::F16,
            Dtype::F32 => Kind::F32,
        }
    }
}

impl<'a> Wanted<'a> {
    /// With the shape and the type of an existing tensor; contiguous.
    pub(super) fn like(shape: &'a [i64], kind: Kind) -> Wanted<'a> {
        Wanted::by(shape, None, kind, By::EmptyLike)
    }

    /// With the shape and the type of an existing tensor, and the strides of `torch.empty_like`.
    pub(super) fn in_order(shape: &'a [i64], strides: &'a [i64], kind: Kind) -> Wanted<'a> {
        Wanted::by(shape, Some(strides), kind, By::EmptyInOrder)
    }

    /// With this shape and type; contiguous.
    pub(super) fn of(shape: &'a [i64], kind: Kind) -> Wanted<'a> {
        Wanted::by(shape, None, kind, By::NewEmpty)
    }

    fn by(shape: &'a [i64], strides: Option<&'a [i64]>, kind: Kind, by: By) -> Wanted<'a> {
        Wanted {
            shape,
            strides,
            kind,
            by,
        }
    }
}

/// PyTorch's C functions. An error is a number other than 0.
pub(super) struct Aten {
    empty_strided:
        unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut *mut c_void) -> i32,
    pub(super) address: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32,
    pub(super) delete: unsafe extern "C" fn(*mut c_void) -> i32,
    /// From torch 2.14 on.
    to_python: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> i32>,
    /// PyTorch's numbers of the kinds, in their order.
    kinds: [i32; N_KINDS],
    pub(super) cpu: i32,
    pub(super) cuda: i32,
    pub(super) library: Library,
}

/// A tensor without a Python object.
pub(super) struct Handle<'a> {
    aten: &'a Aten,
    tensor: *mut c_void,
    address: u64,
}

// SAFETY: tensors are counted atomically, and may be dropped by any thread.
unsafe impl Send for Handle<'_> {}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's own.
        unsafe { (self.aten.delete)(self.tensor) };
    }
}

/// Why nothing ran.
pub(super) enum Unfinished {
    NoMemory,
    Error(ferroflash::Error),
}

impl Aten {
    /// The functions of the library at this path, if the process has loaded it and it has them.
    pub(super) fn of(library: &Path) -> Option<Aten> {
        let library = loaded(library)?;
        // SAFETY: the signatures are those of `torch/csrc/inductor/aoti_torch/c/shim.h` and `torch/csrc/stable/c/shim.h`, which PyTorch keeps.
        unsafe {
            let number = |name: &[u8]| -> Option<i32> {
                let ask: Symbol<unsafe extern "C" fn() -> i32> = library.get(name).ok()?;
                Some(ask())
            };
            let kinds = [
                number(b"aoti_torch_dtype_bfloat16\0")?,
                number(b"aoti_torch_dtype_float16\0")?,
                number(b"aoti_torch_dtype_float32\0")?,
                number(b"aoti_torch_dtype_uint8\0")?,
                number(b"aoti_torch_dtype_int64\0")?,
                number(b"aoti_torch_dtype_uint64\0")?,
            ];
            Some(Aten {
                empty_strided: *library.get(b"aoti_torch_empty_strided\0").ok()?,
                address: *library.get(b"aoti_torch_get_data_ptr\0").ok()?,
                delete: *library.get(b"aoti_torch_delete_tensor_object\0").ok()?,
                to_python: library
                    .get(b"torch_tensor_to_pyobject\0")
                    .ok()
                    .map(|found| *found),
                kinds,
                cpu: number(b"aoti_torch_device_type_cpu\0")?,
                cuda: number(b"aoti_torch_device_type_cuda\0")?,
                library,
            })
        }
    }

    /// DLPack's form of an element type; `None` for types that q, k and v do not have.
    pub(super) fn kind(&self, dtype: i32) -> Option<(u8, u8)> {
        let [bf16, f16, f32, ..] = self.kinds;
        let (bfloat, float) = (DLDataTypeCode::BFLOAT.0, DLDataTypeCode::FLOAT.0);
        match dtype {
            _ if dtype == bf16 => Some((bfloat, 16)),
            _ if dtype == f16 => Some((float, 16)),
            _ if dtype == f32 => Some((float, 32)),
            _ => None,
        }
    }

    /// DLPack's form of a device; `None` if it is neither the host nor a CUDA device.
    pub(super) fn of_dlpack(&self, device: i32, index: i32) -> Option<(u32, i32)> {
        match device {
            _ if device == self.cpu => Some((DLDeviceType::CPU.0, 0)),
            _ if device == self.cuda => Some((DLDeviceType::CUDA.0, index)),
            _ => None,
        }
    }

    /// New contiguous memory; `None` if none is left, or PyTorch refuses for another reason.
    pub(super) fn empty(&self, wanted: &Wanted, ordinal: Option<i32>) -> Option<Handle<'_>> {
        let n_dims = wanted.shape.len();
        let mut strides = [1; super::view::MOST_DIMS];
        for at in (1..n_dims).rev() {
            strides[at - 1] = strides[at] * wanted.shape[at].max(1);
        }
        if let Some(given) = wanted.strides {
            strides[..n_dims].copy_from_slice(given);
        }
        let (kind, index) = ordinal.map_or((self.cpu, 0), |ordinal| (self.cuda, ordinal));
        let dtype = self.kinds[wanted.kind as usize];
        let (mut tensor, mut address) = (null_mut(), null_mut());
        // SAFETY: shape and strides are as many as is said.
        let error = unsafe {
            let (shape, strides) = (wanted.shape.as_ptr(), strides.as_ptr());
            (self.empty_strided)(
                n_dims as i64,
                shape,
                strides,
                dtype,
                kind,
                index,
                &raw mut tensor,
            )
        };
        if error != 0 {
            return None;
        }
        let mut handle = Handle {
            aten: self,
            tensor,
            address: 0,
        };
        // SAFETY: the tensor is there.
        let error = unsafe { (self.address)(tensor, &raw mut address) };
        handle.address = address.expose_provenance() as u64;
        (error == 0).then_some(handle)
    }
}

impl Handle<'_> {
    /// PyTorch's handle, owned by the caller from now on.
    pub(super) fn into_raw(self) -> *mut c_void {
        let tensor = self.tensor;
        std::mem::forget(self);
        tensor
    }

    /// A Python object of the tensor.
    fn into_python(
        self,
        py: Python<'_>,
        convert: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> i32,
    ) -> PyResult<Py<PyAny>> {
        let mut object = null_mut();
        // SAFETY: the thread is attached; the tensor is there, and stays this handle's.
        let error = unsafe { convert(self.tensor, null_mut(), &raw mut object) };
        if error != 0 || object.is_null() {
            let text = "PyTorch makes no object of a tensor that it has allocated";
            return Err(PyErr::take(py).unwrap_or_else(|| PyRuntimeError::new_err(text)));
        }
        // SAFETY: the reference is new, and this function's own.
        Ok(unsafe { Bound::from_owned_ptr(py, object.cast()) }.unbind())
    }
}

/// How memory is allocated.
pub(super) struct Memory {
    pub(super) aten: Option<Aten>,
    new_empty: Py<PyAny>,
    empty_like: Py<PyAny>,
    data_ptr: Py<PyAny>,
    contiguous: Py<PyDict>,
    /// `dtype=…`, of each kind in their order.
    kinds: [Py<PyDict>; N_KINDS],
}

impl Memory {
    pub(super) fn of(torch: &Bound<'_, PyModule>, library: Option<&Path>) -> PyResult<Memory> {
        let py = torch.py();
        let tensor = torch.getattr("Tensor")?;
        let contiguous = PyDict::new(py);
        contiguous.set_item("memory_format", torch.getattr("contiguous_format")?)?;
        let kind = |name: &str| -> PyResult<Py<PyDict>> {
            let kind = PyDict::new(py);
            kind.set_item("dtype", torch.getattr(name)?)?;
            Ok(kind.unbind())
        };
        Ok(Memory {
            aten: library.and_then(Aten::of),
            new_empty: tensor.getattr("new_empty")?.unbind(),
            empty_like: torch.getattr("empty_like")?.unbind(),
            data_ptr: tensor.getattr("data_ptr")?.unbind(),
            contiguous: contiguous.unbind(),
            kinds: [
                kind("bfloat16")?,
                kind("float16")?,
                kind("float32")?,
                kind("uint8")?,
                kind("int64")?,
                kind("uint64")?,
            ],
        })
    }

    /// As [`super::room::Room::run`], on the device of these objects.
    pub(super) fn run<const N: usize>(
        &self,
        like: [&Bound<'_, PyAny>; N],
        wanted: [Wanted<'_>; N],
        n_kept: usize,
        (ordinal, n_bytes): (Option<i32>, u64),
        pass: impl Fn([u64; N], (u64, u64)) -> Result<(), ferroflash::Error> + Sync,
    ) -> PyResult<[Option<Py<PyAny>>; N]> {
        let py = like[0].py();
        let convert = self.aten.as_ref().and_then(|aten| aten.to_python);
        let mut made = [const { None }; N];
        if convert.is_none() {
            for at in 0..n_kept {
                made[at] = Some(self.by_python(like[at], &wanted[at])?);
            }
        }
        if let Some(aten) = &self.aten {
            let there = addresses(&made);
            match py.detach(|| aten.run(there, &wanted, (ordinal, n_bytes), &pass)) {
                Ok(handles) => {
                    let mut kept = made.map(|made| made.map(|(tensor, _)| tensor));
                    for (kept, handle) in kept.iter_mut().zip(handles).take(n_kept) {
                        if let (Some(handle), Some(convert)) = (handle, convert) {
                            *kept = Some(handle.into_python(py, convert)?);
                        }
                    }
                    return Ok(kept);
                }
                Err(Unfinished::Error(error)) => return Err(to_py(error)),
                // PyTorch's own function says why, or finds some.
                Err(Unfinished::NoMemory) => {}
            }
        }
        for (at, made) in made.iter_mut().enumerate() {
            if made.is_none() {
                *made = Some(self.by_python(like[at], &wanted[at])?);
            }
        }
        let workspace = match ordinal {
            None => None,
            Some(_) => {
                let shape = [n_bytes as i64];
                Some(self.by_python(like[0], &Wanted::of(&shape, Kind::U8))?)
            }
        };
        let workspace = workspace
            .as_ref()
            .map_or((0, 0), |&(_, address)| (address, n_bytes));
        let there = addresses(&made);
        py.detach(|| pass(there, workspace)).map_err(to_py)?;
        Ok(made.map(|made| made.map(|(tensor, _)| tensor)))
    }

    /// A new tensor from PyTorch's Python functions, on the device of another one, and its address.
    fn by_python(&self, like: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<(Py<PyAny>, u64)> {
        let py = like.py();
        let tensor = match wanted.by {
            By::EmptyLike => {
                let contiguous = self.contiguous.bind(py);
                self.empty_like.bind(py).call((like,), Some(contiguous))?
            }
            By::EmptyInOrder => self.empty_like.bind(py).call1((like,))?,
            By::NewEmpty => {
                let shape = PyTuple::new(py, wanted.shape)?;
                let kind = self.kinds[wanted.kind as usize].bind(py);
                self.new_empty.bind(py).call((like, shape), Some(kind))?
            }
        };
        let address = self.data_ptr.bind(py).call1((&tensor,))?.extract()?;
        Ok((tensor.unbind(), address))
    }
}

/// 0 if there is no tensor.
fn addresses<const N: usize>(made: &[Option<(Py<PyAny>, u64)>; N]) -> [u64; N] {
    made.each_ref()
        .map(|made| made.as_ref().map_or(0, |&(_, address)| address))
}

impl Aten {
    /// Runs a pass on tensors, creating those whose address is 0; returns the new ones.
    pub(super) fn run<const N: usize>(
        &self,
        mut there: [u64; N],
        wanted: &[Wanted<'_>; N],
        (ordinal, n_bytes): (Option<i32>, u64),
        pass: &impl Fn([u64; N], (u64, u64)) -> Result<(), ferroflash::Error>,
    ) -> Result<[Option<Handle<'_>>; N], Unfinished> {
        let new = |wanted: &Wanted<'_>| self.empty(wanted, ordinal).ok_or(Unfinished::NoMemory);
        let mut handles = [const { None }; N];
        for (at, wanted) in wanted.iter().enumerate() {
            if there[at] == 0 {
                let handle = new(wanted)?;
                there[at] = handle.address;
                handles[at] = Some(handle);
            }
        }
        let shape = [n_bytes as i64];
        let workspace = ordinal
            .map(|_| new(&Wanted::of(&shape, Kind::U8)))
            .transpose()?;
        let workspace = workspace
            .as_ref()
            .map_or((0, 0), |handle| (handle.address, n_bytes));
        pass(there, workspace).map_err(Unfinished::Error)?;
        Ok(handles)
    }
}
