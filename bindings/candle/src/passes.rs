//! Passes and appends on tensors of candle, in any memory.

use std::sync::LazyLock;

use candle_core::{DType, Layout, Result};
use ferroflash::arguments::Argument;
use ferroflash::prepared::Layouts;
use ferroflash::raw;
use ferroflash::{Append, Attention, Dtype, PlanCache, Quantize, QuantizeProblem};

use crate::append_call::AppendCall;
use crate::call::{AllGradients, Call, Results};
use crate::carried::Of;
use crate::error::Error;
use crate::given::Given;
use crate::in_place::Written;
use crate::layout::layout;
use crate::memory::{Held, Place, Run, Stored};

/// How many prepared calls are kept: a model has a few shapes for each kind of layer.
const N_PLANS: usize = 256;

/// The prepared calls of all devices.
static PLANS: LazyLock<PlanCache> = LazyLock::new(|| PlanCache::new(N_PLANS));

/// candle's name of a type.
fn dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::Bf16 => DType::BF16,
        Dtype::F16 => DType::F16,
        Dtype::F32 => DType::F32,
    }
}

/// o from q, k and v and, if wanted, lse.
pub(crate) fn forward<P: Place>(
    call: &Call,
    inputs: [Stored<P>; 3],
    with_lse: bool,
) -> Result<(P::Storage, Option<P::Storage>)> {
    let (problem, place) = (call.problem, P::of(inputs[0].0)?);
    let attention = Attention::new(place.device(), problem).map_err(Error::from)?;
    let layouts = layouts(call, inputs.map(|(_, layout)| layout));
    let layouts = match with_lse {
        true => layouts,
        false => layouts.without(Argument::Lse),
    };
    let planned = raw::Call::forward(&attention, &layouts, &PLANS).map_err(Error::from)?;
    let mut o = place.room(dtype(problem.dtype()), problem.shape_o().iter().product())?;
    let mut lse = match with_lse {
        true => Some(place.room(DType::F32, problem.shape_lse().iter().product())?),
        false => None,
    };
    let held = Held::of(&call.given, &[]);
    let mut run = Run::new(&place, &held)?;
    read(&mut run, call, inputs)?;
    run.write(Argument::O, &mut o, 0)?;
    if let Some(lse) = &mut lse {
        run.write(Argument::Lse, lse, 0)?;
    }
    run.run(&planned)?;
    Ok((o, lse))
}

/// The gradients of q, k, v and the carried tensors.
pub(crate) fn backward<P: Place>(
    call: &Call,
    inputs: [Stored<P>; 3],
    results: &Results,
) -> Result<AllGradients<P::Storage>> {
    let (problem, place) = (call.problem, P::of(inputs[0].0)?);
    let attention = Attention::new(place.device(), problem).map_err(Error::from)?;
    let layouts = layouts(call, inputs.map(|(_, layout)| layout));
    let layouts = call.gradients(layouts);
    let planned = raw::Call::backward(&attention, &layouts, &PLANS).map_err(Error::from)?;

    let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()];
    let room = |shape: &[usize], dtype| place.room(dtype, shape.iter().product());
    let of_inputs = shapes
        .each_ref()
        .map(|shape| room(shape, dtype(problem.dtype())));
    let [d_q, d_k, d_v] = of_inputs;
    let mut of_inputs = [d_q?, d_k?, d_v?];
    let of_carried = call.carried.iter();
    let of_carried = of_carried.map(|carried| room(&carried.shape, carried.tensor.dtype()));
    let mut of_carried = of_carried.collect::<Result<Vec<P::Storage>>>()?;

    let mut saved = vec![
        (Argument::O, results.o),
        (Argument::Lse, results.lse),
        (Argument::DO, results.d_o),
    ];
    saved.extend(results.d_lse.map(|d_lse| (Argument::DLse, d_lse)));
    let held = Held::of(&call.given, &saved);
    let mut run = Run::new(&place, &held)?;
    read(&mut run, call, inputs)?;
    let [d_q, d_k, d_v] = &mut of_inputs;
    run.write(Argument::DQ, d_q, 0)?;
    run.write(Argument::DK, d_k, 0)?;
    run.write(Argument::DV, d_v, 0)?;
    for (carried, gradient) in call.carried.iter().zip(&mut of_carried) {
        match carried.of {
            Of::Input(gradient_of) => run.write(gradient_of, gradient, 0)?,
            Of::Tensor(name, _) => run.write_gradient(name, gradient)?,
        }
    }
    run.run(&planned)?;
    Ok(AllGradients {
        of_inputs,
        of_carried,
    })
}

/// A tensor in e4m3, and its scales; amax in their place, if `given` has scales. It has the lengths of packed sequences, too.
pub(crate) fn quantize<P: Place>(
    problem: QuantizeProblem,
    given: &Given,
    x: Stored<P>,
) -> Result<(P::Storage, P::Storage)> {
    let place = P::of(x.0)?;
    let quantize = Quantize::new(place.device(), problem).map_err(Error::from)?;
    let layouts = Layouts::contiguous().with(Argument::X, layout(x.1));
    let (found, layouts) = match given.source(Argument::Descale) {
        Some(_) => (Argument::Amax, layouts.giving(Argument::Amax)),
        None => (Argument::DescaleOut, layouts),
    };
    let planned = raw::Call::quantize(&quantize, &layouts, &PLANS).map_err(Error::from)?;
    let mut rounded = place.room(DType::F8E4M3, problem.shape().iter().product())?;
    // There is memory for a number of each row of each head at least.
    let mut of_scales = place.room(DType::F32, problem.n_scales() as usize)?;
    let held = Held::of(given, &[]);
    let mut run = Run::new(&place, &held)?;
    run.read(Argument::X, x)?;
    run.write(Argument::Rounded, &mut rounded, 0)?;
    run.write(found, &mut of_scales, 0)?;
    run.run(&planned)?;
    Ok((rounded, of_scales))
}

/// A cache of keys or of values.
type Cache<'a, P> = (&'a mut <P as Place>::Storage, &'a Layout);

/// Appends to the caches of keys and of values.
pub(crate) fn append<P: Place>(
    call: &AppendCall,
    [k_cache, v_cache]: [Cache<P>; 2],
) -> Result<Written> {
    let (problem, place) = (call.problem, P::of(k_cache.0)?);
    let append = Append::new(place.device(), problem).map_err(Error::from)?;
    let rows = [
        (Argument::KNew, Some(&call.k)),
        (Argument::VNew, Some(&call.v)),
        (Argument::Q, call.q.as_ref()),
    ];
    let rows = rows.into_iter();
    let rows = rows.filter_map(|(argument, tensor)| Some((argument, tensor?)));
    let rows = rows.collect::<Vec<_>>();
    let caches = [(Argument::KCache, k_cache), (Argument::VCache, v_cache)];
    let layouts = Layouts::contiguous().giving(Argument::SeqUsedOut);
    let layouts = caches.iter().fold(layouts, |layouts, (argument, (_, at))| {
        layouts.with(*argument, layout(at))
    });
    let layouts = rows.iter().fold(layouts, |layouts, (argument, tensor)| {
        layouts.with(*argument, layout(tensor.layout()))
    });
    let planned = raw::Call::append(&append, &layouts, &PLANS).map_err(Error::from)?;

    // A length has the same bits as u32 and as i32.
    let mut seqused_out = place.room(call.lengths, problem.batch())?;
    let mut rotated = match call.q {
        Some(_) => Some(place.room(dtype(problem.dtype()), problem.shape_q().iter().product())?),
        None => None,
    };
    let held = Held::of(&call.given, &rows);
    let mut run = Run::new(&place, &held)?;
    for (argument, (storage, at)) in caches {
        run.write(argument, storage, at.start_offset())?;
    }
    run.write(Argument::SeqUsedOut, &mut seqused_out, 0)?;
    if let Some(rotated) = &mut rotated {
        run.write(Argument::QOut, rotated, 0)?;
    }
    run.run(&planned)?;
    Ok(Written {
        q: rotated.map(P::wrap),
        seqused_k: P::wrap(seqused_out),
    })
}

/// q, k and v, as the problem takes them.
fn read<'a, P: Place>(
    run: &mut Run<'a, P>,
    call: &Call,
    [q, k, v]: [Stored<'a, P>; 3],
) -> Result<()> {
    run.read(Argument::Q, q)?;
    run.read(Argument::K, k)?;
    match call.problem.values_in_keys() {
        true => Ok(()),
        false => run.read(Argument::V, v),
    }
}

/// The strides of q, k and v (all else is contiguous), and the optional arguments that the call gives.
fn layouts(call: &Call, [q, k, v]: [&Layout; 3]) -> Layouts {
    let layouts = Layouts::contiguous()
        .with(Argument::Q, layout(q))
        .with(Argument::K, layout(k));
    let layouts = match call.problem.values_in_keys() {
        true => layouts,
        false => layouts.with(Argument::V, layout(v)),
    };
    let given = call.given.read.iter().map(|(argument, _)| *argument);
    given.fold(layouts, Layouts::giving)
}
