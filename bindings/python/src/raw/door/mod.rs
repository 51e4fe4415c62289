//! The door: the fast path of PyTorch's eager calls. A call on plain tensors goes from Python to its kernels through one native function.
//!
//! | file | contents |
//! |---|---|
//! | `torch` | questions to PyTorch at every call |
//! | `view` | views of tensors in place |
//! | `words` | a call without its memory: the key of plans |
//! | `read` | Python arguments as numbers, if they are plain |
//! | `planned` | a planned call; both its passes |
//! | `room` | the stream and the memory of a pass |
//! | `aten` | memory for results |
//! | `boxed` | native kernels of operators |
//! | `operator` | the operators that have them |
//! | `stable` | PyTorch's functions for them |
//!
//! A call is plain if only its caller has to see it, its tensors are PyTorch tensors and not of a subclass, and its numbers are numbers. For any
//! other call the door returns `None`, and Python continues with the operators. It does the same for anything unknown: the door itself refuses
//! nothing. Python checks the rules of a call when a combination of shapes is first seen, and the door keeps its plan.
//!
//! Operators whose calls are plain have native kernels (`boxed`), if PyTorch supports them: they find plans among those of the door, and pass calls
//! without a plan on to Python.
//!
//! A call whose gradients are wanted is a node of autograd's graph. If only o is wanted, it is the native node of a PyTorch operator that is made
//! for external kernels, with the door's kernels (`graph_forward`, `graph_backward`): neither pass is a Python function. With lengths or a gradient
//! of lse, which that node cannot save, it is an `autograd.Function`.
//!
//! `unsafe` relies on this: a pass runs on addresses that were read from tensors in the same function, which keeps them alive; their types, shapes,
//! strides and devices, compared word by word, are those of the plan; and the alignment of the addresses is checked.

mod aten;
mod boxed;
mod operator;
mod planned;
mod read;
mod room;
mod stable;
mod torch;
mod view;
mod words;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroflash::arguments::Argument;
use ferroflash::raw::Addresses;
use lru::LruCache;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use aten::Memory;
use boxed::OfSdpa;
pub(crate) use boxed::{Kernels, refuse};
use planned::OfOutputs;
pub(crate) use planned::Planned;
pub(crate) use planned::forward_of_graph;
use read::{is_zero, real, sides, truth, whole};
use room::Objects;
use torch::Torch;
use view::{View, Viewer};
use words::{Codes, Numbers, Words};

/// How many combinations of shapes are kept.
const N_PLANS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The lengths that a call may give, and its page table.
const LENGTHS: [Argument; 6] = [
    Argument::CuSeqlensQ,
    Argument::CuSeqlensK,
    Argument::SeqUsedQ,
    Argument::SeqUsedK,
    Argument::LeftpadK,
    Argument::PageTable,
];

const N_LENGTHS: usize = LENGTHS.len();

/// The PyTorch functions that calls use.
struct Means {
    torch: Torch,
    viewer: Viewer,
    memory: Memory,
}

/// softmax_scale, the window's keys before and after, and num_splits.
type OfCode = (Option<f64>, Option<i64>, Option<i64>, i64);

/// Plans by the words of their calls. They have their own reference counts, since those of Python objects need Python's lock.
type Plans = LruCache<Box<[i64]>, Arc<Py<Planned>>>;

/// The part of a door that kernels of operators use as well.
struct Shared {
    means: Arc<Means>,
    plans: Mutex<Plans>,
    codes: Codes,
    /// PyTorch's library.
    path: Option<PathBuf>,
}

impl Shared {
    /// The plan of a call that was made earlier.
    fn kept(&self, words: &[i64]) -> Option<Arc<Py<Planned>>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.get(words).map(Arc::clone)
    }

    /// Keeps the plan of a call.
    fn keep(&self, words: &[i64], planned: &Arc<Py<Planned>>) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        // What falls out is let go when the lock is.
        let fallen = plans.push(words.into(), Arc::clone(planned));
        drop(plans);
        drop(fallen);
    }
}

/// The door of eager calls.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Door {
    shared: Arc<Shared>,
    /// Python function: plans a call of q, k, v, lengths and numbers, or refuses it.
    plan: Py<PyAny>,
    /// Runs a pass as a node of autograd's graph.
    apply: Py<PyAny>,
    /// An operator of PyTorch that has a native node, if both its passes have the door's kernels on every device.
    node: OnceLock<Py<PyAny>>,
}

#[pymethods]
impl Door {
    /// `plan` is called with q, k, v, lengths or None, and numbers, when these are first seen: it refuses them, or returns a plan, its forward pass
    /// (None if no kernel can read such tensors in place), a mask of bits that must be 0 in addresses, and the shape of lse. `apply` is that of an
    /// `autograd.Function` whose `forward` is `forward_of_graph`. `exchange` is DLPack's exchange table of tensors, and `library` the path of
    /// PyTorch's library, if they exist.
    #[new]
    #[pyo3(signature = (plan, apply, *, exchange=None, library=None))]
    fn new(
        py: Python<'_>,
        plan: Py<PyAny>,
        apply: Py<PyAny>,
        exchange: Option<Bound<'_, PyAny>>,
        library: Option<PathBuf>,
    ) -> PyResult<Door> {
        let torch = py.import("torch")?;
        let to_dlpack = torch.getattr("_C")?.getattr("_to_dlpack")?.unbind();
        let means = Means {
            torch: Torch::find(&torch)?,
            viewer: Viewer::of(exchange.as_ref(), to_dlpack),
            memory: Memory::of(&torch, library.as_deref())?,
        };
        let shared = Shared {
            means: Arc::new(means),
            plans: Mutex::new(LruCache::new(N_PLANS)),
            codes: Codes::default(),
            path: library,
        };
        Ok(Door {
            shared: Arc::new(shared),
            plan,
            apply,
            node: OnceLock::new(),
        })
    }

    /// Registers native kernels for operators of a namespace and a dispatch key: each operator's name, and its kernel: "forward",
    /// "backward", "sdpa_forward", "sdpa_backward", "graph_forward" or "graph_backward". `sdpa`, which those of SDPA need, is the greatest head_dim,
    /// and shape and type of the two results for the state of dropout. Returns None if PyTorch lacks what that needs, or if another door's kernels
    /// are registered: only one door of a process can have kernels.
    #[pyo3(signature = (namespace, key, operators, sdpa=None))]
    fn put_kernels(
        &self,
        namespace: &str,
        key: &str,
        operators: Vec<(String, String)>,
        sdpa: Option<OfSdpa>,
    ) -> Option<Kernels> {
        boxed::put(&self.shared, (namespace, key), &operators, sdpa)
    }

    /// Makes nodes of autograd's graph those of this operator, `aten::_scaled_dot_product_fused_attention_overrideable`: its kernels are the door's
    /// for tensors of every device.
    fn put_node(&self, operator: Py<PyAny>) {
        // Whoever says it says the same.
        let _ = self.node.set(operator);
    }

    /// softmax_scale, the keys to the left and to the right, and num_splits of a code.
    fn numbers_of_code(&self, code: f64) -> Option<OfCode> {
        let numbers = self.shared.codes.numbers(code)?;
        Some((
            numbers.softmax_scale,
            numbers.left,
            numbers.right,
            numbers.num_splits,
        ))
    }

    /// How many calls native kernels have run through this door, for each operator in the order of their names above.
    #[getter]
    fn n_served(&self) -> Vec<u64> {
        boxed::n_served(&self.shared).to_vec()
    }

    /// Attention as in flash-attn's functions: o, or, unless `lse` is None, o and lse, which has a gradient if `lse` is true. `None` if the call is
    /// not plain, for instance if dropout_p or softcap is not 0 or None. In the window, None and negative numbers are no limit.
    #[expect(clippy::too_many_arguments, reason = "Python's functions have as many")]
    fn flash(
        &self,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        softmax_scale: &Bound<'_, PyAny>,
        causal: &Bound<'_, PyAny>,
        window: &Bound<'_, PyAny>,
        num_splits: &Bound<'_, PyAny>,
        lse: Option<bool>,
        dropout_p: &Bound<'_, PyAny>,
        softcap: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let read = || {
            if !(is_zero(dropout_p) && is_zero(softcap)) {
                return None;
            }
            let (left, right) = sides(window)?;
            Some(Numbers {
                softmax_scale: real(softmax_scale)?,
                left,
                right: if truth(causal)? { Some(0) } else { right },
                num_splits: whole(num_splits)??,
                ..Numbers::default()
            })
        };
        match read() {
            Some(read) => self.attend(q.py(), [q, k, v], None, &read, lse),
            None => Ok(None),
        }
    }

    /// Attention: o and lse; `None` if the call is not plain. Lengths are None, or cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k
    /// and page_table; numbers are max_seqlen_q, max_seqlen_k, softmax_scale, the window's keys before and after, and num_splits.
    fn attention(
        &self,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        lengths: Option<Bound<'_, PyTuple>>,
        numbers: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<Py<PyAny>>> {
        match numbers_of(numbers) {
            Some(read) => self.attend(q.py(), [q, k, v], lengths.as_ref(), &read, Some(true)),
            None => Ok(None),
        }
    }

    /// The results of the operator `ferroflash::forward`: o and lse, contiguous. `None` if the door does not support the call.
    fn behind_operator(
        &self,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        lengths: Option<Bound<'_, PyTuple>>,
        numbers: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
        let given = ([q, k, v], lengths.as_ref(), Order::RowsFirst);
        self.outputs(given, numbers_of(numbers))
    }

    /// The results of the operator `ferroflash::backward`: the gradients of q, k and v, contiguous. `saved` are q, k, v, o and lse. `None` if the
    /// door does not support the call.
    fn behind_operator_backward(
        &self,
        saved: &Bound<'_, PyTuple>,
        d_o: &Bound<'_, PyAny>,
        d_lse: Option<&Bound<'_, PyAny>>,
        lengths: Option<Bound<'_, PyTuple>>,
        numbers: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<[Option<Py<PyAny>>; 3]>> {
        let saved = saved.iter().collect::<Vec<_>>();
        let [q, k, v, o, lse] = &saved[..] else {
            return Ok(None);
        };
        let given = ([q, k, v], lengths.as_ref(), Order::RowsFirst);
        self.gradients(given, (o, lse, d_o, d_lse), numbers_of(numbers))
    }

    /// The results of `aten::_scaled_dot_product_flash_attention`, without dropout: o and lse, for tensors `[batch, heads, seqlen, head_dim]`. o is
    /// like q, in the dimension order of its memory. None if the door does not support the call.
    fn behind_sdpa(
        &self,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        causal: &Bound<'_, PyAny>,
        scale: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
        let given = ([q, k, v], None, Order::HeadsFirst);
        self.outputs(given, numbers_of_sdpa(causal, scale))
    }

    /// The results of `aten::_scaled_dot_product_flash_attention_backward`, without dropout: the gradients of q, k and v, each like its tensor, in
    /// the dimension order of its memory. None if the door does not support the call.
    #[expect(clippy::too_many_arguments, reason = "PyTorch's operator has as many")]
    fn behind_sdpa_backward(
        &self,
        d_o: &Bound<'_, PyAny>,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        o: &Bound<'_, PyAny>,
        lse: &Bound<'_, PyAny>,
        causal: &Bound<'_, PyAny>,
        scale: &Bound<'_, PyAny>,
    ) -> PyResult<Option<[Option<Py<PyAny>>; 3]>> {
        let given = ([q, k, v], None, Order::HeadsFirst);
        self.gradients(given, (o, lse, d_o, None), numbers_of_sdpa(causal, scale))
    }
}

impl Door {
    /// o, or o and lse, as in [`Door::flash`].
    fn attend(
        &self,
        py: Python<'_>,
        qkv: [&Bound<'_, PyAny>; 3],
        lengths: Option<&Bound<'_, PyTuple>>,
        numbers: &Numbers,
        lse: Option<bool>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let means = &self.shared.means;
        if !means.torch.is_plain(&qkv)? {
            return Ok(None);
        }
        let Some(call) = Call::of(means, qkv, lengths, Order::RowsFirst) else {
            return Ok(None);
        };
        let on_cuda = call.views[0].ordinal().is_some();
        if !means.torch.is_cast_already(qkv[0], on_cuda)? {
            return Ok(None);
        }
        let given = (qkv, lengths, Order::RowsFirst);
        let planned = self.plan_of(py, &call, given, numbers)?;
        let of_call = planned.get();
        if !of_call.reads(&call.views) {
            return Ok(None);
        }
        if means.torch.is_grad_enabled(py)? && means.torch.asks_for_gradients(&qkv)? {
            return self.in_graph(py, qkv, lengths, &planned, lse).map(Some);
        }
        let n_kept = if lse.is_some() { 2 } else { 1 };
        let room = Objects {
            means,
            like: [qkv[0]; 2],
        };
        match of_call.forward(&room, &call, Order::RowsFirst, n_kept)? {
            (o, Some(lse)) => Ok(Some((o, lse).into_pyobject(py)?.into_any().unbind())),
            (o, None) => Ok(Some(o)),
        }
    }

    /// As a node of autograd's graph.
    fn in_graph(
        &self,
        py: Python<'_>,
        [q, k, v]: [&Bound<'_, PyAny>; 3],
        lengths: Option<&Bound<'_, PyTuple>>,
        planned: &Py<Planned>,
        lse: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        // A native node gives no gradient to lse, and keeps no lengths.
        let is_native = lse != Some(true) && lengths.is_none();
        let code = planned.get().code.filter(|_| is_native);
        if let (Some(code), Some(node)) = (code, self.node.get()) {
            match node.bind(py).call1((q, k, v, py.None(), code)) {
                Ok(results) => {
                    let results = results.cast::<PyTuple>()?;
                    return Ok(match lse {
                        None => results.get_item(0)?.unbind(),
                        Some(_) => results.get_slice(0, 2).into_any().unbind(),
                    });
                }
                // All that a native kernel says is text: what follows raises the exception, or finds memory.
                Err(error) if error.is_instance_of::<PyRuntimeError>(py) => {}
                Err(error) => return Err(error),
            }
        }
        let lengths = lengths.map(|lengths| lengths.clone().into_any());
        let arguments = (q, k, v, planned, lse.is_some());
        let result = match lengths {
            None => self.apply.bind(py).call1(arguments),
            Some(lengths) => {
                let arguments = arguments.into_pyobject(py)?.into_any();
                let all = arguments.add(lengths)?;
                self.apply.bind(py).call1(all.cast::<PyTuple>()?.clone())
            }
        };
        result.map(Bound::unbind)
    }

    /// The plan of a call, or why it is refused.
    fn plan_of(
        &self,
        py: Python<'_>,
        call: &Call,
        given: Given<'_, '_>,
        numbers: &Numbers,
    ) -> PyResult<Arc<Py<Planned>>> {
        let [q, ..] = &call.views;
        let torch = &self.shared.means.torch;
        let exact = q.ordinal().is_some() && q.is_f32() && torch.is_exact(py)?;
        let words = call.spelled(numbers, exact);
        match self.shared.kept(words.as_slice()) {
            Some(planned) => Ok(planned),
            None => self.planned(py, call, given, numbers, words.as_slice()),
        }
    }

    /// Plans a call that is seen for the first time.
    fn planned(
        &self,
        py: Python<'_>,
        call: &Call,
        ([q, k, v], lengths, order): Given<'_, '_>,
        numbers: &Numbers,
        words: &[i64],
    ) -> PyResult<Arc<Py<Planned>>> {
        let [of_q, ..] = &call.views;
        // How exact products of float32 are on a GPU is no number of the call's.
        let is_plain = lengths.is_none()
            && numbers.max_seqlen_q.is_none()
            && numbers.max_seqlen_k.is_none()
            && !(of_q.ordinal().is_some() && of_q.is_f32());
        let code = is_plain.then(|| self.shared.codes.code(numbers)).flatten();
        let numbers = (
            numbers.max_seqlen_q,
            numbers.max_seqlen_k,
            numbers.softmax_scale,
            numbers.left,
            numbers.right,
            numbers.num_splits,
        );
        let tensors = (
            order.rows_first(q)?,
            order.rows_first(k)?,
            order.rows_first(v)?,
        );
        let (q, k, v) = tensors;
        let found = self.plan.bind(py).call1((q, k, v, lengths, numbers))?;
        let means = &self.shared.means;
        let planned = Planned::new(means, call.words.as_slice(), code, found.extract()?);
        let planned = Arc::new(Py::new(py, planned)?);
        self.shared.keep(words, &planned);
        Ok(planned)
    }

    /// A call of an operator, and its plan. It need not be checked for being plain: everything that has to see a call has seen it before PyTorch
    /// calls an operator's kernel.
    fn behind(
        &self,
        given: Given<'_, '_>,
        numbers: Option<Numbers>,
    ) -> PyResult<Option<(Call, Arc<Py<Planned>>)>> {
        let (qkv, lengths, order) = given;
        let Some(numbers) = numbers else {
            return Ok(None);
        };
        let Some(call) = Call::of(&self.shared.means, qkv, lengths, order) else {
            return Ok(None);
        };
        let planned = self.plan_of(qkv[0].py(), &call, given, &numbers)?;
        let is_read = planned.get().reads(&call.views);
        Ok(is_read.then_some((call, planned)))
    }

    /// o and lse of an operator's call.
    fn outputs(
        &self,
        given: Given<'_, '_>,
        numbers: Option<Numbers>,
    ) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
        let Some((call, planned)) = self.behind(given, numbers)? else {
            return Ok(None);
        };
        let (qkv, _, order) = given;
        if !call.orders_o(order) {
            return Ok(None);
        }
        let room = Objects {
            means: &self.shared.means,
            like: [qkv[0]; 2],
        };
        let (o, lse) = planned.get().forward(&room, &call, order, 2)?;
        Ok(lse.map(|lse| (o, lse)))
    }

    /// The gradients of q, k and v of an operator's call.
    fn gradients(
        &self,
        given: Given<'_, '_>,
        outputs: OfOutputs<'_, '_>,
        numbers: Option<Numbers>,
    ) -> PyResult<Option<[Option<Py<PyAny>>; 3]>> {
        let Some((call, planned)) = self.behind(given, numbers)? else {
            return Ok(None);
        };
        let (qkv, _, order) = given;
        planned.get().gradients(qkv, &call, outputs, order)
    }
}

/// max_seqlen_q, max_seqlen_k, softmax_scale, the window's keys before and after, and num_splits, if they are plain.
fn numbers_of(numbers: &Bound<'_, PyTuple>) -> Option<Numbers> {
    let at = |index: usize| numbers.get_item(index).ok();
    Some(Numbers {
        max_seqlen_q: whole(&at(0)?)?,
        max_seqlen_k: whole(&at(1)?)?,
        softmax_scale: real(&at(2)?)?,
        left: whole(&at(3)?)?,
        right: whole(&at(4)?)?,
        num_splits: whole(&at(5)?)??,
    })
}

/// The numbers of SDPA's operators.
fn numbers_of_sdpa(causal: &Bound<'_, PyAny>, scale: &Bound<'_, PyAny>) -> Option<Numbers> {
    Some(Numbers {
        softmax_scale: real(scale)?,
        right: truth(causal)?.then_some(0),
        ..Numbers::default()
    })
}

/// q, k and v, lengths, and the dimension order of the three.
type Given<'a, 'py> = (
    [&'a Bound<'py, PyAny>; 3],
    Option<&'a Bound<'py, PyTuple>>,
    Order,
);

/// The dimension that follows the batch.
#[derive(Clone, Copy)]
enum Order {
    /// `[batch, seqlen, heads, head_dim]`, or packed.
    RowsFirst,
    /// `[batch, heads, seqlen, head_dim]`.
    HeadsFirst,
}

impl Order {
    /// The view of a tensor in this order, in the order of plans; `None` for other dimensions.
    fn of_plans(self, view: View) -> Option<View> {
        match self {
            Order::RowsFirst => Some(view),
            Order::HeadsFirst => view.rotated(),
        }
    }

    /// A tensor in this order, transposed if it is not that of plans.
    fn rows_first<'py>(self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Order::RowsFirst => Ok(tensor.clone()),
            Order::HeadsFirst => tensor.call_method1(intern!(tensor.py(), "transpose"), (1, 2)),
        }
    }
}

impl Means {
    /// The view of a plain tensor, in the order of plans; `None` for anything else.
    fn view(&self, tensor: &Bound<'_, PyAny>, order: Order) -> Option<View> {
        if !self.torch.is_tensor(tensor) {
            return None;
        }
        // SAFETY: its type has been looked at.
        order.of_plans(unsafe { self.viewer.view(tensor) }?)
    }
}

/// The views of a call's tensors.
struct Call {
    views: [View; 3],
    /// The views of these, and of the given lengths.
    addresses: Addresses,
    words: Words,
}

impl Call {
    /// `None` if one of them is not plain.
    fn of(
        means: &Means,
        qkv: [&Bound<'_, PyAny>; 3],
        lengths: Option<&Bound<'_, PyTuple>>,
        order: Order,
    ) -> Option<Call> {
        let [q, k, v] = qkv;
        let view = |tensor| means.view(tensor, order);
        let views = [view(q)?, view(k)?, view(v)?];
        let lengths = match lengths {
            None => None,
            Some(lengths) if lengths.len() != N_LENGTHS => return None,
            Some(lengths) => {
                let mut seen = [None; N_LENGTHS];
                for (seen, length) in seen.iter_mut().zip(lengths.iter()) {
                    if !length.is_none() {
                        *seen = Some(means.view(&length, Order::RowsFirst)?);
                    }
                }
                Some(seen)
            }
        };
        Call::new(views, lengths)
    }

    /// The key of q, k and v, in the order of plans, and lengths; `None` unless q, k and v have one type with kernels, and one device.
    fn new(views: [View; 3], lengths: Option<[Option<View>; N_LENGTHS]>) -> Option<Call> {
        let [q, ..] = &views;
        let known = |view: &View| view.dtype().is_some() && view.is_beside(q);
        if !views.iter().all(known) {
            return None;
        }
        let mut words = Words::new();
        for view in &views {
            view.spell(&mut words);
        }
        let mut addresses = Addresses::default();
        for (argument, view) in [Argument::Q, Argument::K, Argument::V]
            .into_iter()
            .zip(&views)
        {
            addresses.set(argument, view.address);
        }
        if let Some(lengths) = lengths {
            let mut given = 0;
            for (at, length) in lengths.iter().enumerate() {
                if let Some(length) = length {
                    length.spell(&mut words);
                    addresses.set(LENGTHS[at], length.address);
                    given |= 1 << at;
                }
            }
            words.push(given);
        }
        Some(Call {
            views,
            addresses,
            words,
        })
    }

    /// The words that are the key of a call's plan. `exact`: products of f32 are exact.
    fn spelled(&self, numbers: &Numbers, exact: bool) -> Words {
        let mut words = self.words;
        numbers.spell(exact, &mut words);
        words
    }

    /// Whether kernels can write o as wanted: contiguous, or, with heads first, in the dimension order of q's memory.
    fn orders_o(&self, order: Order) -> bool {
        match order {
            Order::RowsFirst => true,
            Order::HeadsFirst => self.views[0].strides_in_order().is_some(),
        }
    }
}
