//! Kernels of operators in native code: boxed, as PyTorch calls them, without Python and its lock. From torch 2.10 on.
//!
//! A kernel reads its tensors, finds the plan of the call among those that the door keeps, and runs a pass. Whatever it cannot serve, it hands on as it is
//! to another operator of the same arguments, whose kernel is a function of Python: a call that has no plan yet, tensors that no kernel reads where they
//! lie, float32 on a GPU, which asks Python how exact it is to be, and memory that is not to be had.
//!
//! PyTorch gives a kernel its arguments as words of 64 bits, and takes its results in their place. A tensor is an owned handle, a number its bits, a truth
//! value a byte; of an argument that may be None the word is 0, or the address of another word, which is owned, too. An error is text: what PyTorch
//! makes of it is a RuntimeError.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use libloading::{Library, Symbol};
use pyo3::prelude::*;

use super::aten::{self, Aten, Handle, Unfinished, Wanted};
use super::planned::Outputs;
use super::room::{Room, Stuck};
use super::view::{MOST_DIMS, View};
use super::words::Numbers;
use super::{Call, Order, Shared};

/// The version of PyTorch's boxed calls that this file is written for: 2.10, as PyTorch encodes it.
const VERSION: u64 = 2 << 56 | 10 << 48;

/// A kernel, as PyTorch calls it: arguments and then results, how many arguments there are, and how many results.
type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// Reads one number of a tensor.
type Read = unsafe extern "C" fn(*mut c_void, *mut i32) -> i32;

/// Reads as many numbers of a tensor as it has dimensions.
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
    check: unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char),
    call: unsafe extern "C" fn(*const c_char, *const c_char, *mut u64, u64) -> i32,
    open: unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        *const c_char,
        u32,
        *mut *mut c_void,
    ) -> i32,
    implement: unsafe extern "C" fn(*mut c_void, *const c_char, Boxed, u64) -> i32,
    close: unsafe extern "C" fn(*mut c_void) -> i32,
    /// `None` where PyTorch is built without CUDA.
    stream: Option<Stream>,
}

/// Who frees a word.
enum Free {
    /// PyTorch, from 2.13 on.
    PyTorch(unsafe extern "C" fn(*mut u64) -> i32),
    /// C++'s `operator delete`, as PyTorch's headers do before.
    Cpp(unsafe extern "C" fn(*mut c_void)),
}

/// Says which stream of a CUDA device is current.
struct Stream {
    ask: unsafe extern "C" fn(i32, *mut *mut c_void) -> i32,
    _library: Library,
}

impl Stable {
    /// Those of PyTorch's library, which lies at this path, if it has them all.
    fn of(library: &Library, path: &Path) -> Option<Stable> {
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
                check: *library.get(b"aoti_torch_check\0").ok()?,
                call: *library.get(b"torch_call_dispatcher\0").ok()?,
                open: *library.get(b"aoti_torch_library_init_impl\0").ok()?,
                implement: *library.get(b"torch_library_impl\0").ok()?,
                close: *library.get(b"aoti_torch_delete_library_object\0").ok()?,
                stream: Stream::of(path),
            })
        }
    }

    /// What a call reads of a tensor; `None` where there is nothing that it could.
    ///
    /// # Safety
    /// It is a handle of PyTorch's that nobody deletes meanwhile.
    unsafe fn view(&self, aten: &Aten, tensor: *mut c_void) -> Option<View> {
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

    /// Frees what belongs to a kernel of its arguments.
    ///
    /// # Safety
    /// The arguments are those that PyTorch has given the kernel, and nobody reads them afterwards.
    unsafe fn release(&self, aten: &Aten, signature: &Signature, stack: &[u64]) {
        // SAFETY: as the caller promises; the signature says which words are handles, and which are addresses of words.
        unsafe {
            for &at in signature.tensors {
                (aten.delete)(pointer(stack[at]));
            }
            for &at in signature.optional_tensors {
                if let Some(tensor) = optional(stack[at]) {
                    (aten.delete)(pointer(tensor));
                }
            }
            for &at in signature.optional_tensors.iter().chain(signature.optional) {
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
    /// Of PyTorch's library for CUDA, which lies beside the other one.
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

fn pointer<T>(word: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(word as usize)
}

/// The word of an argument that may be None.
///
/// # Safety
/// It is 0, or the address of a word.
unsafe fn optional(word: u64) -> Option<u64> {
    // SAFETY: as the caller promises.
    (word != 0).then(|| unsafe { *pointer::<u64>(word) })
}

/// Where an operator's arguments are that belong to its kernel.
struct Signature {
    tensors: &'static [usize],
    optional_tensors: &'static [usize],
    /// Numbers that may be None.
    optional: &'static [usize],
}

/// An operator with native kernels.
#[derive(Clone, Copy)]
enum Operator {
    /// `plain`, or `plain_forward`: q, k, v, softmax_scale, left, right, num_splits.
    Forward,
    /// `plain_backward`: d_o, d_lse, q, k, v, o, lse; then the same numbers.
    Backward,
}

/// How many operators there are.
const N_OPERATORS: usize = 2;

impl Operator {
    /// By its name among those that Python registers kernels of.
    fn named(name: &str) -> Option<Operator> {
        match name {
            "forward" => Some(Operator::Forward),
            "backward" => Some(Operator::Backward),
            _ => None,
        }
    }

    fn kernel(self) -> Boxed {
        match self {
            Operator::Forward => forward,
            Operator::Backward => backward,
        }
    }

    fn signature(self) -> Signature {
        match self {
            Operator::Forward => Signature {
                tensors: &[0, 1, 2],
                optional_tensors: &[],
                optional: &[4, 5],
            },
            Operator::Backward => Signature {
                tensors: &[0, 2, 3, 4, 5, 6],
                optional_tensors: &[1],
                optional: &[8, 9],
            },
        }
    }

    /// The operator of the same arguments whose kernel is a function of Python.
    fn of_python(self) -> &'static CStr {
        match self {
            Operator::Forward => c"ferroflash::plain_by_python",
            Operator::Backward => c"ferroflash::plain_backward_by_python",
        }
    }

    fn n_arguments(self) -> usize {
        match self {
            Operator::Forward => 7,
            Operator::Backward => 11,
        }
    }
}

unsafe extern "C-unwind" fn forward(stack: *mut u64, n_arguments: u64, n_results: u64) {
    // SAFETY: as PyTorch promises.
    unsafe { enter(Operator::Forward, stack, n_arguments, n_results) }
}

unsafe extern "C-unwind" fn backward(stack: *mut u64, n_arguments: u64, n_results: u64) {
    // SAFETY: as PyTorch promises.
    unsafe { enter(Operator::Backward, stack, n_arguments, n_results) }
}

/// What kernels serve by: they are plain functions, and get nothing else.
static SERVING: OnceLock<Serving> = OnceLock::new();

/// The door that kernels serve by, and what they want of PyTorch.
struct Serving {
    shared: Arc<Shared>,
    stable: Stable,
    n_served: [AtomicU64; N_OPERATORS],
}

thread_local! {
    /// What a function of Python has refused a call with that was handed on to it.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A call that was handed on to Python is refused with this text.
#[pyfunction]
pub(crate) fn refuse(text: String) {
    REFUSED.set(Some(text));
}

/// # Safety
/// PyTorch calls this: the stack has as many words as there are arguments, and as there are results, and the arguments are those of the operator's schema.
unsafe fn enter(operator: Operator, stack: *mut u64, n_arguments: u64, n_results: u64) {
    let Some(serving) = SERVING.get() else {
        // Kernels are registered when this is there.
        std::process::abort();
    };
    let n_words = n_arguments.max(n_results) as usize;
    // SAFETY: as the caller promises.
    let stack = unsafe { slice::from_raw_parts_mut(stack, n_words) };
    // SAFETY: as the caller promises.
    let run = || unsafe { serving.run(operator, n_arguments as usize, n_results as usize, stack) };
    let text = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return,
        Ok(Err(text)) => text,
        Err(_) => "ferroflash panicked; this is a bug".to_owned(),
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (function, file, line) = (operator.of_python(), c"ferroflash", 0);
    // SAFETY: the texts end with 0. It throws C++'s exception, which goes through this function and those of the same ABI to PyTorch, which reads the text before.
    unsafe {
        (serving.stable.check)(false, function.as_ptr(), file.as_ptr(), line, text.as_ptr());
    }
}

/// What a pass fails with.
enum Failure {
    /// Python's way finds memory, or says why there is none.
    NoMemory,
    Text(String),
}

impl From<Stuck> for Failure {
    fn from(Stuck(text): Stuck) -> Failure {
        Failure::Text(text.to_owned())
    }
}

/// Beside tensors of PyTorch's C functions.
#[derive(Clone, Copy)]
struct Handles<'a> {
    aten: &'a Aten,
    stable: &'a Stable,
}

impl<'a, const N: usize> Room<N> for Handles<'a> {
    type Tensor = Handle<'a>;
    type Error = Failure;

    fn stream(&self, ordinal: i32) -> Result<u64, Failure> {
        let none = Stuck("PyTorch does not say which stream is current");
        let Some(Stream { ask, .. }) = &self.stable.stream else {
            return Err(none.into());
        };
        let mut stream = null_mut();
        // SAFETY: the device is one that a tensor lies on.
        match unsafe { ask(ordinal, &raw mut stream) } {
            0 => Ok(stream.expose_provenance() as u64),
            _ => Err(none.into()),
        }
    }

    fn run(
        &self,
        wanted: [Wanted<'_>; N],
        _n_kept: usize,
        workspace: (Option<i32>, u64),
        pass: impl Fn([u64; N], (u64, u64)) -> Result<(), ferroflash::Error> + Sync,
    ) -> Result<[Option<Handle<'a>>; N], Failure> {
        let ran = self.aten.run([0; N], &wanted, workspace, &pass);
        ran.map_err(|unfinished| match unfinished {
            Unfinished::NoMemory => Failure::NoMemory,
            Unfinished::Error(error) => Failure::Text(error.to_string()),
        })
    }
}

impl Serving {
    /// Runs a kernel: frees the arguments and puts results in their place, or says why there are none.
    ///
    /// # Safety
    /// As for [`enter`].
    unsafe fn run(
        &self,
        operator: Operator,
        n_arguments: usize,
        n_results: usize,
        stack: &mut [u64],
    ) -> Result<(), String> {
        let Some(aten) = self.shared.means.memory.aten.as_ref() else {
            return Err("the door has no functions of PyTorch".to_owned());
        };
        if n_arguments != operator.n_arguments() {
            return Err(format!("an operator has {n_arguments} arguments"));
        }
        let room = Handles {
            aten,
            stable: &self.stable,
        };
        // SAFETY: as the caller promises.
        let served = unsafe {
            match operator {
                Operator::Forward => self.plain(room, stack),
                Operator::Backward => self.plain_backward(room, stack),
            }
        };
        let served = match served {
            Ok(None) | Err(Failure::NoMemory) => {
                // SAFETY: as the caller promises; the arguments are as they were.
                return unsafe { self.hand_on(aten, operator, n_results, stack) };
            }
            Ok(Some(served)) => Ok(served),
            Err(Failure::Text(text)) => Err(text),
        };
        // SAFETY: as the caller promises; nobody reads them any more.
        unsafe { self.stable.release(aten, &operator.signature(), stack) };
        for (word, result) in stack.iter_mut().zip(served?) {
            *word = result.into_raw().expose_provenance() as u64;
        }
        self.n_served[operator as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Has Python's way serve a call.
    ///
    /// # Safety
    /// As for [`enter`]; nobody has freed an argument.
    unsafe fn hand_on(
        &self,
        aten: &Aten,
        operator: Operator,
        n_results: usize,
        stack: &mut [u64],
    ) -> Result<(), String> {
        let (name, overload) = (operator.of_python(), c"");
        REFUSED.set(None);
        // SAFETY: the operator has the arguments of this one; PyTorch frees them, and puts results in their place, which are tensors, as many as
        // those of this one.
        let error = unsafe {
            let (name, overload) = (name.as_ptr(), overload.as_ptr());
            (self.stable.call)(name, overload, stack.as_mut_ptr(), VERSION)
        };
        match (REFUSED.take(), error) {
            (None, 0) => Ok(()),
            (Some(text), 0) => {
                for &result in &stack[..n_results] {
                    // SAFETY: as above.
                    unsafe { (aten.delete)(pointer(result)) };
                }
                Err(text)
            }
            (Some(text), _) => Err(text),
            (None, _) => Err(format!(
                "PyTorch refuses a call of {}",
                name.to_string_lossy()
            )),
        }
    }

    /// o and lse; `None` where Python's way is to serve the call.
    ///
    /// # Safety
    /// As for [`enter`], of `plain`.
    unsafe fn plain<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        // SAFETY: as the caller promises.
        unsafe {
            let numbers = numbers_of(&stack[3..]);
            let qkv = [stack[0], stack[1], stack[2]].map(pointer);
            self.outputs(room, qkv, &numbers, Order::RowsFirst)
        }
    }

    /// The gradients of q, k and v; `None` where Python's way is to serve the call.
    ///
    /// # Safety
    /// As for [`enter`], of `plain_backward`.
    unsafe fn plain_backward<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        // SAFETY: as the caller promises.
        unsafe {
            let numbers = numbers_of(&stack[7..]);
            let qkv = [stack[2], stack[3], stack[4]].map(pointer);
            let outputs = [stack[5], stack[6], stack[0]].map(pointer);
            let d_lse = optional(stack[1]).map(pointer);
            self.gradients(room, qkv, (outputs, d_lse), &numbers, Order::RowsFirst)
        }
    }

    /// A call of tensors that are as kernels read them.
    ///
    /// # Safety
    /// They are handles of PyTorch's that nobody deletes meanwhile.
    unsafe fn call(&self, room: Handles<'_>, qkv: [*mut c_void; 3], order: Order) -> Option<Call> {
        let [q, k, v] = qkv;
        // SAFETY: as the caller promises.
        let view = |tensor| order.of_plans(unsafe { room.stable.view(room.aten, tensor) }?);
        let call = Call::new([view(q)?, view(k)?, view(v)?], None)?;
        let [q, ..] = &call.views;
        // How exact products of float32 are is Python's to say.
        (q.ordinal().is_none() || !q.is_f32()).then_some(call)
    }

    /// o, in the order of q, and lse.
    ///
    /// # Safety
    /// As for [`Serving::call`].
    unsafe fn outputs<'a>(
        &self,
        room: Handles<'a>,
        qkv: [*mut c_void; 3],
        numbers: &Numbers,
        order: Order,
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        // SAFETY: as the caller promises.
        let Some(call) = (unsafe { self.call(room, qkv, order) }) else {
            return Ok(None);
        };
        let Some(planned) = self.shared.kept(call.spelled(numbers, false).as_slice()) else {
            return Ok(None);
        };
        let planned = planned.get();
        if !planned.reads(&call.views) || !call.orders_o(order) {
            return Ok(None);
        }
        let (o, lse) = planned.forward(&room, &call, order, 2)?;
        Ok(lse.map(|lse| vec![o, lse]))
    }

    /// The gradients of q, k and v, each in its order, from o, lse, d_o and d_lse.
    ///
    /// # Safety
    /// As for [`Serving::call`].
    unsafe fn gradients<'a>(
        &self,
        room: Handles<'a>,
        qkv: [*mut c_void; 3],
        (outputs, d_lse): ([*mut c_void; 3], Option<*mut c_void>),
        numbers: &Numbers,
        order: Order,
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        // SAFETY: as the caller promises.
        let Some(call) = (unsafe { self.call(room, qkv, order) }) else {
            return Ok(None);
        };
        let Some(planned) = self.shared.kept(call.spelled(numbers, false).as_slice()) else {
            return Ok(None);
        };
        let planned = planned.get();
        // SAFETY: as the caller promises.
        let view = |tensor| unsafe { room.stable.view(room.aten, tensor) };
        let look = || {
            let [o, lse, d_o] = outputs;
            Some(Outputs {
                o: order.of_plans(view(o)?)?,
                lse: view(lse)?,
                d_o: order.of_plans(view(d_o)?)?,
                d_lse: match d_lse {
                    None => None,
                    Some(d_lse) => Some(view(d_lse)?),
                },
            })
        };
        let fit = look().filter(|outputs| planned.fits(&call.views[0], outputs));
        let Some(outputs) = fit.filter(|_| planned.reads(&call.views)) else {
            return Ok(None);
        };
        let Some(differentiated) = planned.kept(outputs.d_o.strides()) else {
            return Ok(None);
        };
        let gradients = planned.differentiate(&room, &call, &outputs, &differentiated, order)?;
        Ok(gradients.map(|gradients| gradients.into_iter().flatten().collect()))
    }
}

/// softmax_scale, the keys to the left and to the right, and num_splits.
///
/// # Safety
/// They are words as PyTorch gives them.
unsafe fn numbers_of(words: &[u64]) -> Numbers {
    // SAFETY: as the caller promises.
    let side = |word| unsafe { optional(word) }.map(u64::cast_signed);
    Numbers {
        softmax_scale: Some(f64::from_bits(words[0])),
        left: side(words[1]),
        right: side(words[2]),
        num_splits: words[3].cast_signed(),
        ..Numbers::default()
    }
}

/// Kernels that were put behind operators; they stay there until they are removed.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Kernels {
    library: AtomicU64,
}

#[pymethods]
impl Kernels {
    /// Takes them away again.
    fn remove(&self) {
        let library = self.library.swap(0, Ordering::AcqRel);
        if let (Some(serving), true) = (SERVING.get(), library != 0) {
            // SAFETY: the library is this one's own, and was not closed before.
            unsafe { (serving.stable.close)(pointer(library)) };
        }
    }
}

/// Puts native kernels behind operators of a namespace, for tensors of a dispatch key: each operator's name, and which kernel it gets. `None`
/// where PyTorch has not what that needs, or another door's kernels are there.
pub(super) fn put(
    shared: &Arc<Shared>,
    (namespace, key): (&str, &str),
    operators: &[(String, String)],
) -> Option<Kernels> {
    let library = shared.path.as_deref()?;
    let aten = shared.means.memory.aten.as_ref()?;
    if SERVING.get().is_none() {
        let stable = Stable::of(&aten.library, library)?;
        // Where another thread has been faster, its kernels serve.
        let _ = SERVING.set(Serving {
            shared: Arc::clone(shared),
            stable,
            n_served: Default::default(),
        });
    }
    let serving = SERVING.get()?;
    let stable = &serving.stable;
    if !Arc::ptr_eq(&serving.shared, shared) || (key == "CUDA" && stable.stream.is_none()) {
        return None;
    }
    let text = |text: &str| CString::new(text).ok();
    let mut named = Vec::new();
    for (operator, kernel) in operators {
        named.push((text(operator)?, Operator::named(kernel)?.kernel()));
    }
    let (namespace, key, mut opened) = (text(namespace)?, text(key)?, null_mut());
    // SAFETY: the texts end with 0, and the kernels have the signatures of the operators that Python names.
    unsafe {
        let (file, line) = (c"ferroflash", 0);
        if (stable.open)(
            namespace.as_ptr(),
            key.as_ptr(),
            file.as_ptr(),
            line,
            &raw mut opened,
        ) != 0
        {
            return None;
        }
        for (operator, kernel) in &named {
            if (stable.implement)(opened, operator.as_ptr(), *kernel, VERSION) != 0 {
                (stable.close)(opened);
                return None;
            }
        }
    }
    Some(Kernels {
        library: AtomicU64::new(opened.expose_provenance() as u64),
    })
}

/// How many calls native kernels have served by this door, of each operator.
pub(super) fn n_served(shared: &Arc<Shared>) -> [u64; N_OPERATORS] {
    match SERVING.get() {
        Some(serving) if Arc::ptr_eq(&serving.shared, shared) => serving
            .n_served
            .each_ref()
            .map(|n| n.load(Ordering::Relaxed)),
        _ => [0; N_OPERATORS],
    }
}
