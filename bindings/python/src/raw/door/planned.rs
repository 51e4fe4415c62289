//! A planned call, and both its passes on plain tensors.

use std::sync::{Arc, Mutex, PoisonError};

use ferroflash::arguments::Argument;
use ferroflash::raw::Values;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::aten::{Kind, Wanted};
use super::room::{Objects, Outcome, Room, Stuck};
use super::view::{MOST_DIMS, View};
use super::{Call, Means, N_LENGTHS, Order};
use crate::raw::Call as Pass;

/// No kernel can read the tensors of a call.
const UNREAD: Stuck = Stuck("no kernel reads tensors of these strides");

/// For how many different strides of o's gradient a plan keeps backward passes.
const MOST_STRIDES: usize = 16;

/// A backward pass, and the strides of the gradient of o that it reads; `None` if no kernel can read these.
pub(super) struct Differentiated {
    strides: Vec<i64>,
    backward: Option<Py<Pass>>,
}

/// Python's result for a plan: the plan, its forward pass or none, a mask of bits that must be 0 in addresses, and the shape of lse.
pub(super) type Found = (Py<PyAny>, Option<Py<Pass>>, u64, Vec<i64>);

/// A call of these shapes, strides, types, devices and numbers. It keeps no tensor.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Planned {
    means: Arc<Means>,
    /// The views of its tensors.
    words: Box<[i64]>,
    /// The plan that Python has made.
    #[pyo3(get)]
    plan: Py<PyAny>,
    /// `None` if no kernel can read tensors of these strides.
    forward: Option<Py<Pass>>,
    misaligned: u64,
    shape_lse: Vec<i64>,
    /// The code of its numbers (see [`Codes`](super::words::Codes)), if a native node of autograd's graph may run it.
    pub(super) code: Option<f64>,
    backward: Mutex<Vec<Arc<Differentiated>>>,
}

#[pymethods]
impl Planned {
    /// The gradients of q, k and v, and a None for each other argument of [`forward_of_graph`]: from the saved tensors, and the gradients of o and
    /// of lse (or None). None if this pass is not plain, or if the saved tensors have changed.
    fn backward(
        &self,
        saved: &Bound<'_, PyTuple>,
        d_o: Option<&Bound<'_, PyAny>>,
        d_lse: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<PyTuple>>> {
        let (py, torch) = (saved.py(), &self.means.torch);
        let Some(d_o) = d_o else {
            return Ok(None);
        };
        let given = saved.iter().collect::<Vec<_>>();
        let [q, k, v, o, lse, lengths @ ..] = &given[..] else {
            return Ok(None);
        };
        // Where a graph of this pass is wanted, the operator says that it has no derivative.
        if torch.is_grad_enabled(py)?
            || !torch.is_plain(&[q, k, v, o, lse, d_o, d_lse.unwrap_or(d_o)])?
        {
            return Ok(None);
        }
        let lengths = match lengths {
            [] => None,
            lengths => Some(PyTuple::new(py, lengths)?),
        };
        let order = Order::RowsFirst;
        let Some(call) = Call::of(&self.means, [q, k, v], lengths.as_ref(), order) else {
            return Ok(None);
        };
        if call.words.as_slice() != &*self.words || !self.reads(&call.views) {
            return Ok(None);
        }
        let given = (o, lse, d_o, d_lse);
        let Some(gradients) = self.gradients([q, k, v], &call, given, order)? else {
            return Ok(None);
        };
        let n_others = 2 + lengths.map_or(0, |_| N_LENGTHS);
        let others = (0..n_others).map(|_| None);
        let all: Vec<_> = gradients.into_iter().chain(others).collect();
        Ok(Some(PyTuple::new(py, all)?.unbind()))
    }
}

/// The forward pass of a node of autograd's graph, of q, k and v: o, or with `both` o and lse. It saves q, k, v, o, lse and the lengths.
#[pyfunction]
#[pyo3(signature = (ctx, q, k, v, planned, both, *lengths))]
pub(crate) fn forward_of_graph(
    ctx: &Bound<'_, PyAny>,
    q: &Bound<'_, PyAny>,
    k: &Bound<'_, PyAny>,
    v: &Bound<'_, PyAny>,
    planned: &Bound<'_, Planned>,
    both: bool,
    lengths: &Bound<'_, PyTuple>,
) -> PyResult<Py<PyAny>> {
    let (py, of_call, qkv) = (ctx.py(), planned.get(), [q, k, v]);
    let given = (!lengths.is_empty()).then_some(lengths);
    let order = Order::RowsFirst;
    let is_as_planned =
        |call: &Call| call.words.as_slice() == &*of_call.words && of_call.reads(&call.views);
    let call = Call::of(&of_call.means, qkv, given, order).filter(is_as_planned);
    let call = call.ok_or_else(|| {
        PyRuntimeError::new_err("the tensors are not those that were planned for")
    })?;
    let room = Objects {
        means: &of_call.means,
        like: [q; 2],
    };
    let (o, Some(lse)) = of_call.forward(&room, &call, order, 2)? else {
        return Err(PyRuntimeError::new_err("a forward pass gives lse"));
    };
    let mut saved = vec![
        q.clone(),
        k.clone(),
        v.clone(),
        o.bind(py).clone(),
        lse.bind(py).clone(),
    ];
    saved.extend(lengths.iter());
    ctx.setattr(intern!(py, "to_save"), PyTuple::new(py, saved)?)?;
    ctx.setattr(intern!(py, "planned"), planned)?;
    if !both {
        return Ok(o);
    }
    // A loss that does not depend on lse gives None for its gradient.
    ctx.setattr(intern!(py, "materialize_grads"), false)?;
    Ok((o, lse).into_pyobject(py)?.into_any().unbind())
}

/// o, lse, and the gradients of o and, or none, of lse.
pub(super) type OfOutputs<'a, 'py> = (
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    Option<&'a Bound<'py, PyAny>>,
);

/// The strides of a result like another tensor.
struct Results {
    shape: [i64; MOST_DIMS],
    n_dims: usize,
    /// `None`: contiguous.
    strides: Option<[i64; MOST_DIMS]>,
    kind: Kind,
}

impl Results {
    /// `None` if kernels cannot write a result in the dimension order of this tensor's memory.
    fn like(view: &View, order: Order) -> Option<Results> {
        let kind = Kind::of(view.dtype()?);
        let (view, strides) = match order {
            Order::RowsFirst => (*view, None),
            Order::HeadsFirst => (view.rotated()?, Some(view.strides_in_order()?)),
        };
        let n_dims = view.shape().len();
        let mut shape = [1; MOST_DIMS];
        shape[..n_dims].copy_from_slice(view.shape());
        Some(Results {
            shape,
            n_dims,
            strides,
            kind,
        })
    }

    fn wanted(&self) -> Wanted<'_> {
        let shape = &self.shape[..self.n_dims];
        match &self.strides {
            None => Wanted::like(shape, self.kind),
            Some(strides) => Wanted::in_order(shape, strides, self.kind),
        }
    }
}

/// The views of a backward pass's inputs other than q, k and v, in the order of plans.
pub(super) struct Outputs {
    pub(super) o: View,
    pub(super) lse: View,
    pub(super) d_o: View,
    pub(super) d_lse: Option<View>,
}

impl Outputs {
    /// `None` if one of them is not plain.
    fn of(means: &Means, (o, lse, d_o, d_lse): OfOutputs<'_, '_>, order: Order) -> Option<Outputs> {
        let of_rows = |tensor| means.view(tensor, Order::RowsFirst);
        Some(Outputs {
            o: means.view(o, order)?,
            lse: of_rows(lse)?,
            d_o: means.view(d_o, order)?,
            d_lse: match d_lse {
                None => None,
                Some(d_lse) => Some(of_rows(d_lse)?),
            },
        })
    }
}

impl Planned {
    pub(super) fn new(
        means: &Arc<Means>,
        words: &[i64],
        code: Option<f64>,
        found: Found,
    ) -> Planned {
        let (plan, forward, misaligned, shape_lse) = found;
        Planned {
            means: Arc::clone(means),
            words: words.into(),
            plan,
            forward,
            misaligned,
            shape_lse,
            code,
            backward: Mutex::default(),
        }
    }

    /// Whether kernels can read q, k and v in place.
    pub(super) fn reads(&self, views: &[View; 3]) -> bool {
        let bits = views.iter().fold(0, |bits, view| bits | view.address);
        self.forward.is_some() && bits & self.misaligned == 0
    }

    /// o and, if two tensors are kept, lse, of a call with this key. o is in the dimension order of q.
    pub(super) fn forward<R: Room<2>>(
        &self,
        room: &R,
        call: &Call,
        order: Order,
        n_kept: usize,
    ) -> Outcome<R, 2, (R::Tensor, Option<R::Tensor>)> {
        let forward = self.forward.as_ref().ok_or(UNREAD)?.get();
        let [q, ..] = &call.views;
        let stream = q.ordinal().map_or(Ok(0), |ordinal| room.stream(ordinal))?;
        let of_o = Results::like(q, order).ok_or(UNREAD)?;
        let wanted = [of_o.wanted(), Wanted::of(&self.shape_lse, Kind::F32)];
        let workspace = (q.ordinal(), forward.workspace_bytes());
        let pass = |[o, lse]: [u64; 2], workspace| {
            let addresses = call.addresses.with(Argument::O, o).with(Argument::Lse, lse);
            // SAFETY: as the module says; the tensors are held by the caller's arguments.
            unsafe { forward.enqueue(stream, workspace, &addresses, &Values::default()) }
        };
        match room.run(wanted, n_kept, workspace, pass)? {
            [Some(o), lse] => Ok((o, lse.filter(|_| n_kept == 2))),
            _ => Err(Stuck("a forward pass gives o").into()),
        }
    }

    /// The gradients of q, k and v, each in the dimension order of its tensor, of a call with this key, from o, lse, and the gradients of o and of
    /// lse (or none). `None` if kernels cannot read one of these.
    pub(super) fn gradients(
        &self,
        qkv: [&Bound<'_, PyAny>; 3],
        call: &Call,
        given: OfOutputs<'_, '_>,
        order: Order,
    ) -> PyResult<Option<[Option<Py<PyAny>>; 3]>> {
        let outputs = Outputs::of(&self.means, given, order);
        let Some(outputs) = outputs.filter(|given| self.fits(&call.views[0], given)) else {
            return Ok(None);
        };
        let differentiated = match self.kept(outputs.d_o.strides()) {
            Some(kept) => kept,
            None => self.of_strides(&order.rows_first(given.2)?, outputs.d_o.strides())?,
        };
        let room = Objects {
            means: &self.means,
            like: qkv,
        };
        self.differentiate(&room, call, &outputs, &differentiated, order)
    }

    /// The gradients of q, k and v, as in [`Planned::gradients`], for outputs that fit, by the backward pass for their strides.
    pub(super) fn differentiate<R: Room<3>>(
        &self,
        room: &R,
        call: &Call,
        outputs: &Outputs,
        differentiated: &Differentiated,
        order: Order,
    ) -> Outcome<R, 3, Option<[Option<R::Tensor>; 3]>> {
        let [q, k, v] = &call.views;
        let (Some(of_q), Some(of_k), Some(of_v), Some(backward)) = (
            Results::like(q, order),
            Results::like(k, order),
            Results::like(v, order),
            &differentiated.backward,
        ) else {
            return Ok(None);
        };
        let backward = backward.get();
        let stream = q.ordinal().map_or(Ok(0), |ordinal| room.stream(ordinal))?;
        let wanted = [of_q.wanted(), of_k.wanted(), of_v.wanted()];
        let workspace = (q.ordinal(), backward.workspace_bytes());
        let pass = |[d_q, d_k, d_v]: [u64; 3], workspace| {
            let mut addresses = call.addresses;
            let read = [
                (Argument::O, &outputs.o),
                (Argument::Lse, &outputs.lse),
                (Argument::DO, &outputs.d_o),
            ];
            let of_lse = outputs.d_lse.as_ref().map(|d_lse| (Argument::DLse, d_lse));
            for (argument, view) in read.into_iter().chain(of_lse) {
                addresses.set(argument, view.address);
            }
            let addresses = addresses
                .with(Argument::DQ, d_q)
                .with(Argument::DK, d_k)
                .with(Argument::DV, d_v);
            // SAFETY: as the module says; what has been read of tensors is held by the caller's arguments.
            unsafe { backward.enqueue(stream, workspace, &addresses, &Values::default()) }
        };
        room.run(wanted, 3, workspace, pass).map(Some)
    }

    /// Whether kernels can read o, lse and the gradients of both, with a q like this one.
    pub(super) fn fits(&self, q: &View, given: &Outputs) -> bool {
        let is_of_q =
            |x: &View| x.is_beside(q) && x.shape() == q.shape() && x.address & self.misaligned == 0;
        let is_of_rows = |x: &View| {
            let is_there = x.is_f32() && x.ordinal() == q.ordinal() && x.address.is_multiple_of(4);
            is_there && x.shape() == self.shape_lse && x.is_contiguous()
        };
        let Outputs { o, lse, d_o, d_lse } = given;
        let are_fit = is_of_q(o) && o.is_contiguous() && is_of_q(d_o) && is_of_rows(lse);
        are_fit && d_lse.as_ref().is_none_or(is_of_rows)
    }

    /// The backward pass for a gradient of o with these strides, if it has been planned.
    pub(super) fn kept(&self, strides: &[i64]) -> Option<Arc<Differentiated>> {
        let kept = self.backward.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = kept.iter();
        kept.find(|kept| kept.strides == strides).map(Arc::clone)
    }

    /// Plans the backward pass for a gradient of o with these strides.
    fn of_strides(&self, d_o: &Bound<'_, PyAny>, strides: &[i64]) -> PyResult<Arc<Differentiated>> {
        let (py, plan) = (d_o.py(), self.plan.bind(d_o.py()));
        let planned = plan.call_method1(intern!(py, "backward"), (d_o,))?;
        let planned: Option<(Py<Pass>, u64)> = planned.extract()?;
        let found = Arc::new(Differentiated {
            strides: strides.to_vec(),
            backward: planned.map(|(backward, _n_bytes)| backward),
        });
        let mut kept = self.backward.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (kept.len() >= MOST_STRIDES).then(|| kept.remove(0));
        kept.push(Arc::clone(&found));
        drop(kept);
        drop(oldest);
        Ok(found)
    }
}
