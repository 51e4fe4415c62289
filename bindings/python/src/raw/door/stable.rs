//! PyTorch's C functions for kernels of operators, and the arguments of such a kernel. From torch 2.10 on.
//!
//! PyTorch passes a kernel its arguments as words of 64 bits, and expects its results in their place. A tensor is an owned handle, a number its
//! bits, a boolean a byte. For an argument that may be None the word is 0, or the address of another word, which is owned, too. A list is an owned handle.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::slice;

use libloading::{Library, Symbol};

use super::aten::{self, Aten};
use super::operator::Signature;
use super::view::{MOST_DIMS, View};

/// The version of PyTorch's boxed calls that this file is written for: 2.10, as PyTorch encodes it.
pub(super) const VERSION: u64 = 2 << 56 | 10 << 48;

/// A kernel, as PyTorch calls it: arguments and then results, how many arguments there are, and how many results.
pub(super) type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// Reads one number of a tensor.
type Read = unsafe extern "C" fn(*mut c_void, *mut i32) -> i32;

/// Reads one number for each dimension of a tensor.
type ReadAll = unsafe extern "C" fn(*mut c_void, *mut *mut i64) -> i32;

/// PyTorch's C functions for kernels. An error is a number other than 0.
pub(super) struct Stable {
    is_defined: unsafe extern "C" fn(*mut c_void, *mut bool) -> i32,
    n_dims: unsafe extern "C" fn(*mut c_void, *mut i64) -> i32,
    sizes: ReadAll,
    strides: ReadAll,
    dtype: Read,
    device: Read,
    index: Read,
    /// Frees the word of an argument that may be None.
    free: Free,
    /// Frees an argument that is a list.
    free_list: unsafe extern "C" fn(*mut c_void) -> i32,
    pub(super) check:
        unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char),
    pub(super) call: unsafe extern "C" fn(*const c_char, *const c_char, *mut u64, u64) -> i32,
    pub(super) open: unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        *const c_char,
        u32,
        *mut *mut c_void,
    ) -> i32,
    pub(super) implement: unsafe extern "C" fn(*mut c_void, *const c_char, Boxed, u64) -> i32,
    pub(super) close: unsafe extern "C" fn(*mut c_void) -> i32,
    pub(super) undefined: unsafe extern "C" fn(*mut *mut c_void) -> i32,
    /// `None` if PyTorch is built without CUDA.
    pub(super) stream: Option<Stream>,
}

/// The function that frees a word.
enum Free {
    /// PyTorch, from 2.13 on.
    PyTorch(unsafe extern "C" fn(*mut u64) -> i32),
    /// C++'s `operator delete`, as in PyTorch's headers before that.
    Cpp(unsafe extern "C" fn(*mut c_void)),
}

/// Returns the current stream of a CUDA device.
pub(super) struct Stream {
    pub(super) ask: unsafe extern "C" fn(i32, *mut *mut c_void) -> i32,
    _library: Library,
}

impl Stable {
    /// The functions of PyTorch's library at this path, if it has them all.
    pub(super) fn of(library: &Library, path: &Path) -> Option<Stable> {
        // SAFETY: the signatures are those of `torch/csrc/inductor/aoti_torch/c/shim.h` and `torch/csrc/stable/c/shim.h`, which PyTorch keeps; that of
        // C++'s operator is the standard's.
        unsafe {
            let free = match library.get(b"torch_delete_stable_ivalue\0") {
                Ok(found) => Free::PyTorch(*found),
                Err(_) => Free::Cpp(*library.get(b"_ZdlPv\0").ok()?),
            };
            Some(Stable {
                is_defined: *library.get(b"aoti_torch_is_defined\0").ok()?,
                n_dims: *library.get(b"aoti_torch_get_dim\0").ok()?,
                sizes: *library.get(b"aoti_torch_get_sizes\0").ok()?,
                strides: *library.get(b"aoti_torch_get_strides\0").ok()?,
                dtype: *library.get(b"aoti_torch_get_dtype\0").ok()?,
                device: *library.get(b"aoti_torch_get_device_type\0").ok()?,
                index: *library.get(b"aoti_torch_get_device_index\0").ok()?,
                free,
                free_list: *library.get(b"torch_delete_list\0").ok()?,
                check: *library.get(b"aoti_torch_check\0").ok()?,
                call: *library.get(b"torch_call_dispatcher\0").ok()?,
                open: *library.get(b"aoti_torch_library_init_impl\0").ok()?,
                implement: *library.get(b"torch_library_impl\0").ok()?,
                close: *library.get(b"aoti_torch_delete_library_object\0").ok()?,
                undefined: *library.get(b"aoti_torch_new_uninitialized_tensor\0").ok()?,
                stream: Stream::of(path),
            })
        }
    }

    /// The view of a tensor; `None` if it cannot be read.
    ///
    /// # Safety
    /// It is a PyTorch handle that is not deleted meanwhile.
    pub(super) unsafe fn view(&self, aten: &Aten, tensor: *mut c_void) -> Option<View> {
        let (mut is_defined, mut n_dims) = (false, 0);
        let (mut dtype, mut device, mut index) = (0, 0, 0);
        let (mut sizes, mut strides, mut first) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as the caller promises; what else is asked of a tensor is asked of one that is there.
        unsafe {
            if (self.is_defined)(tensor, &raw mut is_defined) != 0 || !is_defined {
                return None;
            }
            let errors = (self.n_dims)(tensor, &raw mut n_dims)
                | (self.dtype)(tensor, &raw mut dtype)
                | (self.device)(tensor, &raw mut device)
                | (self.index)(tensor, &raw mut index)
                | (self.sizes)(tensor, &raw mut sizes)
                | (self.strides)(tensor, &raw mut strides)
                | (aten.address)(tensor, &raw mut first);
            if errors != 0 {
                return None;
            }
        }
        let n_dims = usize::try_from(n_dims).ok()?;
        if n_dims == 0 || n_dims > MOST_DIMS || sizes.is_null() || strides.is_null() {
            return None;
        }
        // SAFETY: PyTorch has filled in as many as the tensor has dimensions.
        let (shape, strides) = unsafe {
            (
                slice::from_raw_parts(sizes, n_dims),
                slice::from_raw_parts(strides, n_dims),
            )
        };
        let device = aten.of_dlpack(device, index)?;
        View::new(first, aten.kind(dtype)?, device, (shape, strides))
    }

    /// The view of a tensor of four dimensions.
    ///
    /// # Safety
    /// As for [`Stable::view`].
    pub(super) unsafe fn shape(&self, tensor: *mut c_void) -> Option<[i64; 4]> {
        let (mut is_defined, mut n_dims, mut sizes) = (false, 0, null_mut());
        // SAFETY: as the caller promises; what else is asked of a tensor is asked of one that is there.
        unsafe {
            let is_unknown = (self.is_defined)(tensor, &raw mut is_defined) != 0 || !is_defined;
            if is_unknown || (self.n_dims)(tensor, &raw mut n_dims) != 0 || n_dims != 4 {
                return None;
            }
            let is_unknown = (self.sizes)(tensor, &raw mut sizes) != 0 || sizes.is_null();
            (!is_unknown).then(|| *sizes.cast::<[i64; 4]>())
        }
    }

    /// Frees the arguments that a kernel owns, except those at the indices to keep.
    ///
    /// # Safety
    /// The arguments are those that PyTorch has passed to the kernel, and those that are freed are not read afterwards.
    pub(super) unsafe fn release(
        &self,
        aten: &Aten,
        signature: &Signature,
        stack: &[u64],
        kept: &[usize],
    ) {
        let freed = |places: &'static [usize]| places.iter().filter(|at| !kept.contains(at));
        // SAFETY: as the caller promises; the signature says which words are handles, and which are addresses of words.
        unsafe {
            for &at in freed(signature.tensors) {
                (aten.delete)(pointer(stack[at]));
            }
            for &at in freed(signature.lists) {
                (self.free_list)(pointer(stack[at]));
            }
            for &at in freed(signature.optional_tensors) {
                if let Some(tensor) = optional(stack[at]) {
                    (aten.delete)(pointer(tensor));
                }
            }
            for &at in freed(signature.optional_tensors).chain(freed(signature.optional)) {
                match &self.free {
                    _ if stack[at] == 0 => {}
                    Free::PyTorch(free) => {
                        free(pointer(stack[at]));
                    }
                    Free::Cpp(free) => free(pointer(stack[at])),
                }
            }
        }
    }
}

impl Stream {
    /// The function of PyTorch's CUDA library, which is next to the other one.
    fn of(library: &Path) -> Option<Stream> {
        let library = aten::loaded(&library.with_file_name("libtorch_cuda.so"))?;
        let name = b"aoti_torch_get_current_cuda_stream\0";
        // SAFETY: the signature is that of `torch/csrc/inductor/aoti_torch/c/shim.h`, which PyTorch keeps.
        let ask: Option<Symbol<_>> = unsafe { library.get(name).ok() };
        let ask = ask.map(|ask| *ask)?;
        Some(Stream {
            ask,
            _library: library,
        })
    }
}

pub(super) fn pointer<T>(word: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(word as usize)
}

/// A boolean, which is a byte.
pub(super) fn truth(word: u64) -> bool {
    word & 0xff != 0
}

/// The word of an argument that may be None.
///
/// # Safety
/// It is 0, or the address of a word.
pub(super) unsafe fn optional(word: u64) -> Option<u64> {
    // SAFETY: as the caller promises.
    (word != 0).then(|| unsafe { *pointer::<u64>(word) })
}
