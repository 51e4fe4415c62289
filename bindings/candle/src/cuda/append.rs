//! New rows written to a cache in the memory of a CUDA device.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Storage};
use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::prepared::Layouts;
use ferroflash::{Append, AppendInputs, AppendOutputs, TensorMut as ViewMut, Vector, VectorMut};

use super::context::CallContext;
use super::raw::{self, Reading, Writing};
use super::reading::{GuardedVectors, ReadVectors, strided};
use super::{Number, PLANS, whole, wrapped};
use crate::append_call::AppendCall;
use crate::call::by_type;
use crate::error::Error;
use crate::guarded::Guarded;
use crate::in_place::Written;
use crate::layout::layout;

/// A cache of keys or of values.
type Cache<'a> = (&'a mut CudaStorage, &'a Layout);

/// How many rows each sequence has afterwards, of the type that the cache's lengths have.
enum Lengths {
    U32(CudaSlice<u32>),
    I32(CudaSlice<i32>),
}

/// Enqueues an append to the caches of keys and of values.
pub(crate) fn append(call: &AppendCall, caches: [Cache; 2]) -> Result<Written> {
    by_type!(call.problem.dtype(), append_of(call, caches))
}

fn append_of<T: Number>(call: &AppendCall, [k_cache, v_cache]: [Cache; 2]) -> Result<Written> {
    let candle = k_cache.0.device().clone();
    let context = CallContext::of(&candle)?;
    let append = Append::new(context.device(), call.problem).map_err(Error::from)?;
    let layouts = layouts(call, [k_cache.1, v_cache.1]);
    let prepared = PLANS.append(&append, &layouts).map_err(Error::from)?;

    let mut seqused_out = Lengths::new(call, &candle)?;
    let shape_q = call.problem.shape_q();
    let mut rotated = match call.q {
        Some(_) => Some(raw::elements::<T>(&candle, &shape_q)?),
        None => None,
    };
    let mut workspace = raw::scratch(&candle, 0)?;
    {
        let given = Given::of(call);
        let read = given.read::<T>(&context)?;
        let inputs = read.inputs()?;
        let mut seqused_out = seqused_out
            .writing(&context)
            .shortened(call.problem.batch());
        let [mut k_cache, mut v_cache] = [
            Lent::of::<T>(k_cache, &context)?,
            Lent::of::<T>(v_cache, &context)?,
        ];
        let mut outputs = AppendOutputs::new(k_cache.view()?, v_cache.view()?)
            .seqused_out(VectorMut::device(seqused_out.slice()));
        let mut rotated = rotated.as_mut().map(|q| Writing::of(q, &context));
        if let Some(rotated) = &mut rotated {
            outputs = outputs.q_out(whole(rotated, shape_q)?);
        }
        let mut queue = raw::Lent::new(&mut workspace, &context)?;
        prepared
            .append(queue.queue(), &inputs, &mut outputs)
            .map_err(Error::from)?;
    }
    Ok(Written {
        q: rotated.map(|q| Storage::Cuda(wrapped(q, &candle))),
        seqused_k: Storage::Cuda(match seqused_out {
            Lengths::U32(lengths) => wrapped(lengths, &candle),
            Lengths::I32(lengths) => wrapped(lengths, &candle),
        }),
    })
}

/// The strides of all tensors but the queries rotated, which are contiguous.
fn layouts(call: &AppendCall, [k_cache, v_cache]: [&Layout; 2]) -> Layouts {
    let layouts = Layouts::contiguous()
        .with(Argument::KNew, layout(call.k.layout()))
        .with(Argument::VNew, layout(call.v.layout()))
        .with(Argument::KCache, layout(k_cache))
        .with(Argument::VCache, layout(v_cache))
        .giving(Argument::SeqUsedOut);
    match &call.q {
        Some(q) => layouts.with(Argument::Q, layout(q.layout())),
        None => layouts,
    }
}

impl Lengths {
    fn new(call: &AppendCall, candle: &CudaDevice) -> Result<Lengths> {
        let shape = [call.problem.batch()];
        Ok(match call.lengths {
            DType::I32 => Lengths::I32(raw::elements(candle, &shape)?),
            _ => Lengths::U32(raw::elements(candle, &shape)?),
        })
    }

    /// Of no sequences there is one element all the same. A length has the same bits in both types.
    fn writing<'a>(&'a mut self, context: &'a CallContext) -> Writing<'a> {
        match self {
            Lengths::U32(lengths) => Writing::from(lengths, 0, ScalarType::I32, context),
            Lengths::I32(lengths) => Writing::from(lengths, 0, ScalarType::I32, context),
        }
    }
}

/// What an append reads, held while its memory is read.
struct Given<'a> {
    rows: [Guarded<'a>; 2],
    q: Option<Guarded<'a>>,
    tables: Option<[Guarded<'a>; 2]>,
    vectors: GuardedVectors<'a>,
}

/// The same while it is read.
struct Read<'a> {
    rows: [(Reading<'a>, ferroflash::Layout); 2],
    q: Option<(Reading<'a>, ferroflash::Layout)>,
    tables: Option<[Reading<'a>; 2]>,
    vectors: ReadVectors<'a>,
}

impl<'a> Given<'a> {
    fn of(call: &'a AppendCall) -> Given<'a> {
        let tables = call.tables.as_ref();
        Given {
            rows: [Guarded::of("k", &call.k), Guarded::of("v", &call.v)],
            q: call.q.as_ref().map(|q| Guarded::of("q", q)),
            tables: tables.map(|[cos, sin]| [Guarded::of("cos", cos), Guarded::of("sin", sin)]),
            vectors: GuardedVectors::of(&call.vectors),
        }
    }

    fn read<T: Number>(&'a self, context: &'a CallContext) -> Result<Read<'a>> {
        let row = |guarded: &'a Guarded| guarded.strided::<T>(context);
        let [k, v] = &self.rows;
        Ok(Read {
            rows: [row(k)?, row(v)?],
            q: self.q.as_ref().map(row).transpose()?,
            tables: match &self.tables {
                Some([cos, sin]) => Some([cos.read::<f32>(context)?, sin.read::<f32>(context)?]),
                None => None,
            },
            vectors: self.vectors.read(context)?,
        })
    }
}

impl Read<'_> {
    fn inputs(&self) -> Result<AppendInputs<'_>> {
        let [k, v] = &self.rows;
        let vectors = self.vectors.vectors();
        // `AppendCall::new` has checked that they are there.
        let seqused_k = vectors.seqused_k.ok_or(candle_core::Error::UnwrapNone)?;
        let mut inputs = AppendInputs::new(&strided(k)?, &strided(v)?, seqused_k);
        inputs.cu_seqlens_new = vectors.cu_seqlens_q;
        inputs.page_table = vectors.page_table;
        if let Some([cos, sin]) = &self.tables {
            inputs = inputs.rotary(Vector::device(cos.slice()), Vector::device(sin.slice()));
        }
        if let Some(q) = &self.q {
            inputs = inputs.q(&strided(q)?);
        }
        Ok(inputs)
    }
}

/// A cache while it is written.
struct Lent<'a> {
    writing: Writing<'a>,
    layout: ferroflash::Layout,
}

impl<'a> Lent<'a> {
    fn of<T: Number>((storage, at): Cache<'a>, context: &'a CallContext) -> Result<Lent<'a>> {
        let elements = storage.as_cuda_slice_mut::<T>()?;
        let writing = Writing::from(elements, at.start_offset(), T::TYPE, context);
        let layout = layout(at);
        Ok(Lent { writing, layout })
    }

    fn view(&mut self) -> Result<ViewMut<'_>> {
        Ok(ViewMut::device(self.writing.slice(), self.layout).map_err(Error::from)?)
    }
}
