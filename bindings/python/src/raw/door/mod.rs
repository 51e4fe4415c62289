//! The door of PyTorch's eager calls: a call on plain tensors goes from Python to its kernels by one native function.
//!
//! | file | what |
//! |---|---|
//! | `torch` | what is asked of PyTorch at every call |
//! | `view` | tensors, looked at where they lie |
//! | `words` | a call without its memory: what plans are found by |
//! | `read` | arguments of Python as numbers, where they are plain |
//! | `planned` | a call that is planned; both its passes |
//! | `aten` | memory for results |
//!
//! A call is plain where nobody but its caller has to see it, its tensors are tensors of PyTorch and nothing more, and its numbers are numbers. Whatever
//! is not makes the door answer `None`, and Python goes on by the operators. So does whatever is not known: the door refuses nothing itself. What
//! a call must keep to is checked in Python when a combination of shapes is first seen, and its plan is kept here.
//!
//! `unsafe` rests on this: a pass runs on addresses that were read from tensors in the same function, which holds them meanwhile; their types,
//! shapes, strides and devices, compared word by word, are those that the plan was made for; and the alignment of the addresses is looked at.

mod aten;
mod planned;
mod read;
mod torch;
mod view;
mod words;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use aten::Memory;
use planned::OfOutputs;
pub(crate) use planned::Planned;
pub(crate) use planned::forward_of_graph;
use read::{is_zero, real, sides, truth, whole};
use torch::Torch;
use view::{View, Viewer};
use words::{Numbers, Words};

/// How many combinations of shapes are kept.
const N_PLANS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The lengths that a call may give, and the table of its pages.
const N_LENGTHS: usize = 6;

/// What calls want of PyTorch.
struct Means {
    torch: Torch,
    viewer: Viewer,
    memory: Memory,
}

/// The door of eager calls.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Door {
    means: Arc<Means>,
    /// Of Python: plans a call of q, k, v, lengths and numbers, or refuses it.
    plan: Py<PyAny>,
    /// Runs a pass as a node of autograd's graph.
    apply: Py<PyAny>,
    plans: Mutex<LruCache<Box<[i64]>, Py<Planned>>>,
}

#[pymethods]
impl Door {
    /// `plan` is called with q, k, v, lengths or None, and numbers, when these are first seen: it refuses them, or returns a plan, its forward pass or
    /// None where no kernel reads such tensors as they lie, the bits of which none may be set in an address, and the shape of lse. `apply` is that of an `autograd.Function` whose
    /// `forward` is `forward_of_graph`. `exchange` is DLPack's exchange table of tensors, and `library` the path of PyTorch's library, where there are some.
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
        Ok(Door {
            means: Arc::new(means),
            plan,
            apply,
            plans: Mutex::new(LruCache::new(N_PLANS)),
        })
    }

    /// Attention as flash-attn's functions have it: o, or with `both` o and lse; `None` where the call is not plain, as it is where dropout_p and softcap
    /// are anything but 0 or None. Of the window None and negative numbers are no limit.
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
        both: bool,
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
            Some(read) => self.attend(q.py(), [q, k, v], None, &read, both),
            None => Ok(None),
        }
    }

    /// Attention: o and lse; `None` where the call is not plain. Lengths are None, or cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k
    /// and page_table; numbers max_seqlen_q, max_seqlen_k, softmax_scale, the keys to the left and to the right, and num_splits.
    fn attention(
        &self,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        lengths: Option<Bound<'_, PyTuple>>,
        numbers: &Bound<'_, PyTuple>,
    ) -> PyResult<Option<Py<PyAny>>> {
        match numbers_of(numbers) {
            Some(read) => self.attend(q.py(), [q, k, v], lengths.as_ref(), &read, true),
            None => Ok(None),
        }
    }

    /// What the operator `ferroflash::forward` computes of these: o and lse, contiguous. `None` where the door does not serve the call.
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

    /// What the operator `ferroflash::backward` computes of these: the gradients of q, k and v, contiguous. `saved` are q, k, v, o and lse. `None` where
    /// the door does not serve the call.
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

    /// What `aten::_scaled_dot_product_flash_attention` computes, without dropout: o and lse, of tensors `[batch, heads, seqlen, head_dim]`. o is like q, in
    /// the order of its memory. None where the door does not serve the call.
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

    /// What `aten::_scaled_dot_product_flash_attention_backward` computes, without dropout: the gradients of q, k and v, each like it, in the order
    /// of its memory. None where the door does not serve the call.
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
    /// o, or o and lse.
    fn attend(
        &self,
        py: Python<'_>,
        qkv: [&Bound<'_, PyAny>; 3],
        lengths: Option<&Bound<'_, PyTuple>>,
        numbers: &Numbers,
        both: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        let means = &self.means;
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
            return self.in_graph(py, qkv, lengths, planned, both).map(Some);
        }
        let n_kept = if both { 2 } else { 1 };
        match of_call.forward(qkv, &call, Order::RowsFirst, n_kept)? {
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
        planned: Py<Planned>,
        both: bool,
    ) -> PyResult<Py<PyAny>> {
        let lengths = lengths.map(|lengths| lengths.clone().into_any());
        let arguments = (q, k, v, planned, both);
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

    /// The plan of a call that was made before.
    fn kept(&self, py: Python<'_>, words: &[i64]) -> Option<Py<Planned>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.get(words).map(|planned| planned.clone_ref(py))
    }

    /// The plan of a call; or says why it is refused.
    fn plan_of(
        &self,
        py: Python<'_>,
        call: &Call,
        given: Given<'_, '_>,
        numbers: &Numbers,
    ) -> PyResult<Py<Planned>> {
        let [q, ..] = &call.views;
        let exact = q.ordinal().is_some() && q.is_f32() && self.means.torch.is_exact(py)?;
        let mut words = call.words;
        numbers.spell(exact, &mut words);
        match self.kept(py, words.as_slice()) {
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
    ) -> PyResult<Py<Planned>> {
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
        let planned = Planned::new(&self.means, call.words.as_slice(), found.extract()?);
        let planned = Py::new(py, planned)?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        // What falls out is let go when the lock is.
        let fallen = plans.push(words.into(), planned.clone_ref(py));
        drop(plans);
        drop(fallen);
        Ok(planned)
    }

    /// A call of an operator, and its plan. Nobody has to be asked whether it is plain: what sees calls has seen this one before PyTorch calls
    /// what is behind an operator.
    fn behind(
        &self,
        given: Given<'_, '_>,
        numbers: Option<Numbers>,
    ) -> PyResult<Option<(Call, Py<Planned>)>> {
        let (qkv, lengths, order) = given;
        let Some(numbers) = numbers else {
            return Ok(None);
        };
        let Some(call) = Call::of(&self.means, qkv, lengths, order) else {
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
        // With heads first o is in the order of q's memory, where there is one.
        let is_contiguous = matches!(order, Order::RowsFirst);
        if !is_contiguous && call.views[0].strides_in_order().is_none() {
            return Ok(None);
        }
        let (o, lse) = planned.get().forward(qkv, &call, order, 2)?;
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
        planned.get().differentiate(qkv, &call, outputs, order)
    }
}

/// max_seqlen_q, max_seqlen_k, softmax_scale, the keys to the left and to the right, and num_splits, where they are plain.
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

/// Those of SDPA's operators.
fn numbers_of_sdpa(causal: &Bound<'_, PyAny>, scale: &Bound<'_, PyAny>) -> Option<Numbers> {
    Some(Numbers {
        softmax_scale: real(scale)?,
        right: truth(causal)?.then_some(0),
        ..Numbers::default()
    })
}

/// q, k and v, lengths, and how the three lie.
type Given<'a, 'py> = (
    [&'a Bound<'py, PyAny>; 3],
    Option<&'a Bound<'py, PyTuple>>,
    Order,
);

/// Which dimension comes first behind the batch.
#[derive(Clone, Copy)]
enum Order {
    /// `[batch, seqlen, heads, head_dim]`, or packed.
    RowsFirst,
    /// `[batch, heads, seqlen, head_dim]`.
    HeadsFirst,
}

impl Order {
    /// A tensor in this order, in the other one where it is not that of plans.
    fn rows_first<'py>(self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Order::RowsFirst => Ok(tensor.clone()),
            Order::HeadsFirst => tensor.call_method1(intern!(tensor.py(), "transpose"), (1, 2)),
        }
    }
}

impl Means {
    /// A plain tensor, looked at, as plans have it; `None` of anything else.
    fn view(&self, tensor: &Bound<'_, PyAny>, order: Order) -> Option<View> {
        if !self.torch.is_tensor(tensor) {
            return None;
        }
        // SAFETY: its type has been looked at.
        let view = unsafe { self.viewer.view(tensor) }?;
        match order {
            Order::RowsFirst => Some(view),
            Order::HeadsFirst => view.turned(),
        }
    }
}

/// The tensors of a call, looked at.
struct Call {
    views: [View; 3],
    /// The addresses of the lengths that are given.
    lengths: [u64; N_LENGTHS],
    words: Words,
}

impl Call {
    /// `None` where one of them is not plain.
    fn of(
        means: &Means,
        qkv: [&Bound<'_, PyAny>; 3],
        lengths: Option<&Bound<'_, PyTuple>>,
        order: Order,
    ) -> Option<Call> {
        let mut words = Words::new();
        let mut at = |tensor: &Bound<'_, PyAny>, order: Order| {
            let seen = means.view(tensor, order)?;
            seen.spell(&mut words);
            Some(seen)
        };
        let [q, k, v] = qkv;
        let (q, k, v) = (at(q, order)?, at(k, order)?, at(v, order)?);
        let views = [q, k, v];
        let known = |view: &View| view.dtype().is_some() && view.is_beside(&q);
        if !views.iter().all(known) {
            return None;
        }
        let mut addresses = [0; N_LENGTHS];
        if let Some(lengths) = lengths {
            if lengths.len() != N_LENGTHS {
                return None;
            }
            let mut given = 0;
            for (index, length) in lengths.iter().enumerate() {
                if length.is_none() {
                    continue;
                }
                addresses[index] = at(&length, Order::RowsFirst)?.address;
                given |= 1 << index;
            }
            words.push(given);
        }
        Some(Call {
            views,
            lengths: addresses,
            words,
        })
    }
}
