//! New rows written to a cache in memory of the host.

use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Storage, WithDType};
use ferroflash::{Append, AppendInputs, AppendOutputs, Element, TensorMut, Vector};
use half::{bf16, f16};

use super::{CPU, elements, view, whole};
use crate::append_call::AppendCall;
use crate::call::by_type;
use crate::error::{Error, elsewhere};
use crate::guarded::Guarded;
use crate::in_place::Written;
use crate::layout::layout;

/// A cache of keys or of values.
type Cache<'a> = (&'a mut CpuStorage, &'a Layout);

/// A type of elements whose memory candle lends for writing.
trait Writable: Element + WithDType {
    /// All elements; `None` where they are of another type.
    fn elements(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! writable {
    ($($element:ty => $kind:ident),*) => {$(
        impl Writable for $element {
            fn elements(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                match storage {
                    CpuStorage::$kind(elements) => Some(elements),
                    _ => None,
                }
            }
        }
    )*};
}
writable!(bf16 => BF16, f16 => F16, f32 => F32);

/// Appends to the caches of keys and of values.
pub(crate) fn append(call: &AppendCall, caches: [Cache; 2]) -> Result<Written> {
    by_type!(call.problem.dtype(), append_of(call, caches))
}

fn append_of<T: Writable>(call: &AppendCall, [k_cache, v_cache]: [Cache; 2]) -> Result<Written> {
    let problem = call.problem;
    let append = Append::new(&CPU, problem).map_err(Error::from)?;
    let guarded = |argument, tensor| Guarded::of(argument, tensor);
    let (k, v) = (guarded("k", &call.k), guarded("v", &call.v));
    let q = call.q.as_ref().map(|q| guarded("q", q));
    let tables = call.tables.as_ref();
    let tables = tables.map(|[cos, sin]| [guarded("cos", cos), guarded("sin", sin)]);
    let vectors = call.vectors.each(|ints| Some(ints.host()));

    let seqused_k = vectors.seqused_k.unwrap_or_default();
    let mut inputs = AppendInputs::new(
        &view::<T>(k.on_host()?)?,
        &view::<T>(v.on_host()?)?,
        Vector::of(seqused_k),
    );
    inputs.cu_seqlens_new = vectors.cu_seqlens_q.map(Vector::of);
    inputs.page_table = vectors.page_table.map(Vector::of);
    if let Some([cos, sin]) = &tables {
        inputs = inputs.rotary(cos.slice()?, sin.slice()?);
    }
    let mut rotated = call.q.as_ref().map(|_| elements::<T>(problem.shape_q()));
    let mut seqused_out = vec![0i32; seqused_k.len()];
    let mut outputs = AppendOutputs::new(
        lent::<T>("k_cache", &call.k, k_cache)?,
        lent::<T>("v_cache", &call.v, v_cache)?,
    )
    .seqused_out(&mut seqused_out);
    if let (Some(q), Some(rotated)) = (&q, &mut rotated) {
        inputs = inputs.q(&view::<T>(q.on_host()?)?);
        outputs = outputs.q_out(whole(rotated, problem.shape_q())?);
    }
    append.run(&inputs, &mut outputs).map_err(Error::from)?;
    let seqused_k = match call.lengths {
        DType::I32 => CpuStorage::I32(seqused_out),
        _ => CpuStorage::U32(seqused_out.into_iter().map(i32::cast_unsigned).collect()),
    };
    Ok(Written {
        q: rotated.map(|rotated| Storage::Cpu(T::to_cpu_storage_owned(rotated))),
        seqused_k: Storage::Cpu(seqused_k),
    })
}

/// A cache where it lies, to write.
fn lent<'a, T: Writable>(
    argument: &'static str,
    beside: &candle_core::Tensor,
    (storage, place): Cache<'a>,
) -> Result<TensorMut<'a>> {
    let Some(elements) = T::elements(storage) else {
        return Err(elsewhere(argument, beside, DeviceLocation::Cpu).into());
    };
    let elements = elements.get_mut(place.start_offset()..).unwrap_or_default();
    Ok(TensorMut::strided(elements, layout(place)).map_err(Error::from)?)
}
