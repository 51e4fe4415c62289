//! Native kernels of operators: boxed, as PyTorch calls them, without Python and its lock. From torch 2.10 on.
//!
//! A kernel reads its tensors, finds the plan of the call among those that the door keeps, and runs a pass. A call that it cannot run it passes on
//! unchanged to another operator with the same arguments, whose kernel is a Python function: a call without a plan yet, tensors that no kernel can
//! read in place, float32 on a GPU, whose precision is a setting in Python, and a failed allocation.
//!
//! An error is text; PyTorch raises it as a RuntimeError.

use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

use super::aten::{Aten, Handle, Kind, Unfinished, Wanted};
use super::operator::{N_OPERATORS, Operator};
use super::planned::Outputs;
use super::room::{Room, Stuck};
use super::stable::{Boxed, Stable, Stream, VERSION, optional, pointer, truth};
use super::view::MOST_DIMS;
use super::words::Numbers;
use super::{Call, Order, Shared};

/// The kernel of one of [`Operator::ALL`].
unsafe extern "C-unwind" fn kernel<const AT: usize>(
    stack: *mut u64,
    n_arguments: u64,
    n_results: u64,
) {
    // SAFETY: as PyTorch promises.
    unsafe { enter(Operator::ALL[AT], stack, n_arguments, n_results) }
}

/// In the order of [`Operator::ALL`].
const KERNELS: [Boxed; N_OPERATORS] = [
    kernel::<0>,
    kernel::<1>,
    kernel::<2>,
    kernel::<3>,
    kernel::<4>,
    kernel::<5>,
];

/// What SDPA's operators return and take in addition to attention.
struct Sdpa {
    /// A call with a greater head_dim is passed on.
    most_head_dim: i64,
    /// Shapes and types of the tensors for the state of dropout.
    states: [(Vec<i64>, Kind); 2],
}

/// Python's settings for SDPA: the greatest head_dim, and shape and type of two tensors.
pub(super) type OfSdpa = (i64, [(Vec<i64>, String); 2]);

impl Sdpa {
    /// `None` for unknown types.
    fn of((most_head_dim, states): OfSdpa) -> Option<Sdpa> {
        let [first, second] = states.map(|(shape, kind)| Some((shape, Kind::whole(&kind)?)));
        let states = [first?, second?];
        let is_known = |(shape, _): &(Vec<i64>, Kind)| shape.len() <= MOST_DIMS;
        states.iter().all(is_known).then_some(Sdpa {
            most_head_dim,
            states,
        })
    }
}

/// The kernels' global state: they are plain functions, and get no other.
static SERVING: OnceLock<Serving> = OnceLock::new();

/// The kernels' door, and the PyTorch functions that they use.
struct Serving {
    shared: Arc<Shared>,
    stable: Stable,
    /// Set if SDPA's operators have kernels.
    sdpa: OnceLock<Sdpa>,
    n_served: [AtomicU64; N_OPERATORS],
}

thread_local! {
    /// The refusal by a Python function of a call that was passed on to it.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Refuses a call that was passed on to Python, with this text.
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
    let ((function, _), file, line) = (operator.of_python(), c"ferroflash", 0);
    // SAFETY: the texts end with 0. It throws C++'s exception, which goes through this function and those of the same ABI to PyTorch, which reads the text before.
    unsafe {
        (serving.stable.check)(false, function.as_ptr(), file.as_ptr(), line, text.as_ptr());
    }
}

/// The errors of a pass.
enum Failure {
    /// The Python kernel finds memory, or says why there is none.
    NoMemory,
    Text(String),
}

impl From<Stuck> for Failure {
    fn from(Stuck(text): Stuck) -> Failure {
        Failure::Text(text.to_owned())
    }
}

/// For tensors of PyTorch's C functions.
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
    /// Runs a kernel: frees the arguments and replaces them by the results, or says why there are none.
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
        if (n_arguments, n_results) != operator.arity() {
            let text = "an operator has arguments and results that ferroflash does not know";
            return Err(format!("{text}: {n_arguments} and {n_results}"));
        }
        let room = Handles {
            aten,
            stable: &self.stable,
        };
        // SAFETY: as the caller promises; SDPA's first argument is q.
        let (lengths, served) = unsafe {
            match operator {
                Operator::Forward => (None, self.plain(room, stack)),
                Operator::Backward => (None, self.plain_backward(room, stack)),
                Operator::SdpaForward => (self.lengths(stack), self.sdpa(room, stack)),
                Operator::SdpaBackward => (None, self.sdpa_backward(room, stack)),
                Operator::GraphForward => (None, self.graph(room, stack)),
                Operator::GraphBackward => (None, self.graph_backward(room, stack)),
            }
        };
        let results = match served {
            // SAFETY: as the caller promises; the arguments are as they were.
            Ok(None) | Err(Failure::NoMemory) => unsafe { self.hand_on(aten, operator, stack)? },
            Ok(Some(served)) => {
                // SAFETY: as the caller promises; nobody reads them any more.
                unsafe { self.stable.release(aten, &operator.signature(), stack, &[]) };
                self.n_served[operator as usize].fetch_add(1, Ordering::Relaxed);
                let word = |result: Handle<'_>| result.into_raw().expose_provenance() as u64;
                served.into_iter().map(word).collect()
            }
            Err(Failure::Text(text)) => {
                // SAFETY: as above.
                unsafe { self.stable.release(aten, &operator.signature(), stack, &[]) };
                return Err(text);
            }
        };
        match (operator, &results[..]) {
            (Operator::SdpaForward, &[o, lse, state, unused, mask]) => {
                let [seqlen_q, seqlen_k] = lengths.unwrap_or_default();
                let (first, second) = (self.undefined()?, self.undefined()?);
                let all = [
                    o, lse, first, second, seqlen_q, seqlen_k, state, unused, mask,
                ];
                stack[..n_results].copy_from_slice(&all);
            }
            (Operator::GraphForward, &[o, lse]) => {
                let none = || self.undefined();
                let all = [o, lse, none()?, none()?, 0, 0, none()?, none()?, none()?];
                stack[..n_results].copy_from_slice(&all);
            }
            (Operator::GraphBackward, &[d_q, d_k, d_v]) => {
                stack[..n_results].copy_from_slice(&[d_q, d_k, d_v, self.undefined()?]);
            }
            _ if results.len() == n_results => stack[..n_results].copy_from_slice(&results),
            _ => return Err("a kernel has given another number of results".to_owned()),
        }
        Ok(())
    }

    /// An undefined tensor.
    fn undefined(&self) -> Result<u64, String> {
        let mut tensor = null_mut();
        // SAFETY: PyTorch fills a handle in.
        match unsafe { (self.stable.undefined)(&raw mut tensor) } {
            0 => Ok(tensor.expose_provenance() as u64),
            _ => Err("PyTorch makes no tensor that is not there".to_owned()),
        }
    }

    /// The lengths of q and k, `[batch, heads, seqlen, head_dim]`.
    ///
    /// # Safety
    /// As for [`enter`], of SDPA's forward pass.
    unsafe fn lengths(&self, stack: &[u64]) -> Option<[u64; 2]> {
        let length = |tensor| {
            // SAFETY: as the caller promises.
            let [_, _, seqlen, _] = unsafe { self.stable.shape(pointer(tensor)) }?;
            Some(seqlen.cast_unsigned())
        };
        Some([length(stack[0])?, length(stack[1])?])
    }

    /// Lets the Python kernel run a call; returns its results.
    ///
    /// # Safety
    /// As for [`enter`]; no argument has been freed.
    unsafe fn hand_on(
        &self,
        aten: &Aten,
        operator: Operator,
        stack: &mut [u64],
    ) -> Result<Vec<u64>, String> {
        let ((name, n_results), overload) = (operator.of_python(), c"");
        let given = operator.handed_on();
        if !given.is_empty() {
            // SAFETY: as the caller promises; the others are not read any more.
            unsafe {
                self.stable
                    .release(aten, &operator.signature(), stack, given)
            };
            for (to, &from) in given.iter().enumerate() {
                stack[to] = stack[from];
            }
        }
        REFUSED.set(None);
        // SAFETY: the stack begins with the operator's arguments; PyTorch frees them, and puts results in their place, which are tensors, as many as
        // is said; there is room for them, since each operator has more arguments.
        let error = unsafe {
            let (name, overload) = (name.as_ptr(), overload.as_ptr());
            (self.stable.call)(name, overload, stack.as_mut_ptr(), VERSION)
        };
        match (REFUSED.take(), error) {
            (None, 0) => Ok(stack[..n_results].to_vec()),
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

    /// o and lse; `None` if the Python kernel is to run the call.
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

    /// The gradients of q, k and v; `None` if the Python kernel is to run the call.
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

    /// o, lse, and the other results of SDPA; `None` if the Python kernel is to run the call.
    ///
    /// # Safety
    /// As for [`enter`], of SDPA's forward pass.
    unsafe fn sdpa<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        let (dropout_p, wants_mask) = (f64::from_bits(stack[3]), truth(stack[5]));
        let qkv = [stack[0], stack[1], stack[2]].map(pointer);
        // SAFETY: as the caller promises.
        let scale = unsafe { optional(stack[6]) };
        // SAFETY: as the caller promises.
        let numbers = unsafe { self.numbers_of_sdpa(dropout_p, truth(stack[4]), scale, qkv[0]) };
        let (Some(numbers), Some(sdpa), false) = (numbers, self.sdpa.get(), wants_mask) else {
            return Ok(None);
        };
        // SAFETY: as the caller promises.
        let Some(mut results) = (unsafe { self.outputs(room, qkv, &numbers, Order::HeadsFirst) })?
        else {
            return Ok(None);
        };
        // SAFETY: as the caller promises.
        let q = unsafe { room.stable.view(room.aten, qkv[0]) };
        let Some((kind, ordinal)) = q.and_then(|q| Some((Kind::of(q.dtype()?), q.ordinal())))
        else {
            return Ok(None);
        };
        let states = sdpa.states.iter();
        let wanted = states.map(|(shape, kind)| Wanted::of(shape, *kind));
        for wanted in wanted.chain([Wanted::of(&[0], kind)]) {
            let made = room.aten.empty(&wanted, ordinal);
            results.push(made.ok_or(Failure::NoMemory)?);
        }
        Ok(Some(results))
    }

    /// The gradients of q, k and v; `None` if the Python kernel is to run the call.
    ///
    /// # Safety
    /// As for [`enter`], of SDPA's backward pass.
    unsafe fn sdpa_backward<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        let dropout_p = f64::from_bits(stack[10]);
        let qkv = [stack[1], stack[2], stack[3]].map(pointer);
        let outputs = [stack[4], stack[5], stack[0]].map(pointer);
        // SAFETY: as the caller promises.
        unsafe {
            let (causal, scale) = (truth(stack[11]), optional(stack[14]));
            match self.numbers_of_sdpa(dropout_p, causal, scale, qkv[0]) {
                None => Ok(None),
                Some(numbers) => {
                    self.gradients(room, qkv, (outputs, None), &numbers, Order::HeadsFirst)
                }
            }
        }
    }

    /// o and lse; `None` if the Python kernel is to run the call.
    ///
    /// # Safety
    /// As for [`enter`], of the forward pass of a node of autograd's graph.
    unsafe fn graph<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        let numbers = self.numbers_of_code(stack[4])?;
        let qkv = [stack[0], stack[1], stack[2]].map(pointer);
        // SAFETY: as the caller promises.
        unsafe { self.outputs(room, qkv, &numbers, Order::RowsFirst) }
    }

    /// The gradients of q, k and v; `None` if the Python kernel is to run the call.
    ///
    /// # Safety
    /// As for [`enter`], of the backward pass of a node of autograd's graph.
    unsafe fn graph_backward<'a>(
        &self,
        room: Handles<'a>,
        stack: &[u64],
    ) -> Result<Option<Vec<Handle<'a>>>, Failure> {
        let numbers = self.numbers_of_code(stack[12])?;
        let qkv = [stack[1], stack[2], stack[3]].map(pointer);
        let outputs = [stack[6], stack[7], stack[0]].map(pointer);
        // SAFETY: as the caller promises.
        unsafe { self.gradients(room, qkv, (outputs, None), &numbers, Order::RowsFirst) }
    }

    /// The numbers of a node of autograd's graph, known from the door's calls. Other callers of the operator get the error that it is not
    /// implemented, as without these kernels.
    fn numbers_of_code(&self, dropout_p: u64) -> Result<Numbers, Failure> {
        let numbers = self.shared.codes.numbers(f64::from_bits(dropout_p));
        let text = "_scaled_dot_product_fused_attention_overrideable is not implemented for these tensors: ferroflash serves its own calls by it";
        numbers.ok_or_else(|| Failure::Text(text.to_owned()))
    }

    /// The numbers of a call of SDPA; `None` for a call that PyTorch's own kernels run, for which the Python kernel finds the reason.
    ///
    /// # Safety
    /// q is a PyTorch handle that is not deleted meanwhile.
    unsafe fn numbers_of_sdpa(
        &self,
        dropout_p: f64,
        causal: bool,
        scale: Option<u64>,
        q: *mut c_void,
    ) -> Option<Numbers> {
        let softmax_scale = scale.map(f64::from_bits);
        // SAFETY: as the caller promises.
        let [.., head_dim] = unsafe { self.stable.shape(q) }?;
        let is_ours = dropout_p == 0.0
            && softmax_scale.is_none_or(|scale| scale > 0.0)
            && head_dim <= self.sdpa.get()?.most_head_dim;
        is_ours.then_some(Numbers {
            softmax_scale,
            right: causal.then_some(0),
            ..Numbers::default()
        })
    }

    /// A call of tensors that kernels can read.
    ///
    /// # Safety
    /// They are PyTorch handles that are not deleted meanwhile.
    unsafe fn call(&self, room: Handles<'_>, qkv: [*mut c_void; 3], order: Order) -> Option<Call> {
        let [q, k, v] = qkv;
        // SAFETY: as the caller promises.
        let view = |tensor| order.of_plans(unsafe { room.stable.view(room.aten, tensor) }?);
        let call = Call::new([view(q)?, view(k)?, view(v)?], None)?;
        let [q, ..] = &call.views;
        // How exact products of float32 are is Python's to say.
        (q.ordinal().is_none() || !q.is_f32()).then_some(call)
    }

    /// o, in the dimension order of q, and lse.
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

    /// The gradients of q, k and v, each in the dimension order of its tensor, from o, lse, d_o and d_lse.
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

/// softmax_scale, the window's keys before and after, and num_splits.
///
/// # Safety
/// The words come from PyTorch.
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

/// Registered kernels of operators; they stay registered until removed.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Kernels {
    library: AtomicU64,
}

#[pymethods]
impl Kernels {
    /// Removes them.
    fn remove(&self) {
        let library = self.library.swap(0, Ordering::AcqRel);
        if let (Some(serving), true) = (SERVING.get(), library != 0) {
            // SAFETY: the library is this one's own, and was not closed before.
            unsafe { (serving.stable.close)(pointer(library)) };
        }
    }
}

/// Registers native kernels for operators of a namespace and a dispatch key: each operator's name, and its kernel. `None` if PyTorch lacks what that
/// needs, or another door's kernels are registered.
pub(super) fn put(
    shared: &Arc<Shared>,
    (namespace, key): (&str, &str),
    operators: &[(String, String)],
    sdpa: Option<OfSdpa>,
) -> Option<Kernels> {
    let library = shared.path.as_deref()?;
    let aten = shared.means.memory.aten.as_ref()?;
    if SERVING.get().is_none() {
        let stable = Stable::of(&aten.library, library)?;
        // Where another thread has been faster, its kernels serve.
        let _ = SERVING.set(Serving {
            shared: Arc::clone(shared),
            stable,
            sdpa: OnceLock::new(),
            n_served: Default::default(),
        });
    }
    let serving = SERVING.get()?;
    let stable = &serving.stable;
    if !Arc::ptr_eq(&serving.shared, shared) || (key == "CUDA" && stable.stream.is_none()) {
        return None;
    }
    if let Some(sdpa) = sdpa {
        // Whoever says it says the same.
        let _ = serving.sdpa.set(Sdpa::of(sdpa)?);
    }
    let text = |text: &str| CString::new(text).ok();
    let mut named = Vec::new();
    for (operator, kernel) in operators {
        named.push((text(operator)?, KERNELS[Operator::named(kernel)? as usize]));
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

/// How many calls native kernels have run through this door, for each operator.
pub(super) fn n_served(shared: &Arc<Shared>) -> [u64; N_OPERATORS] {
    match SERVING.get() {
        Some(serving) if Arc::ptr_eq(&serving.shared, shared) => serving
            .n_served
            .each_ref()
            .map(|n| n.load(Ordering::Relaxed)),
        _ => [0; N_OPERATORS],
    }
}
