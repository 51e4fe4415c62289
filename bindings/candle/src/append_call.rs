//! The request of an append, and its rules: tensors × options → [`AppendCall`].

use candle_core::{DType, Storage, Tensor};
use ferroflash::arguments::Argument;
use ferroflash::{AppendProblem, Pages};

use crate::append::{NewRows, Rotary};
use crate::cached::columns;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::kv_cache::KvCache;
use crate::layout::aligned;
use crate::rules::{
    backend, beside, dims, dtype, has_elements, has_rank, has_shape, has_type, n_sequences,
    same_device,
};
use crate::scales::Scales;

/// An append whose rules hold, and its tensors.
pub(crate) struct AppendCall {
    /// The problem.
    pub(crate) problem: AppendProblem,
    /// New rows.
    pub(crate) k: Tensor,
    /// New rows.
    pub(crate) v: Tensor,
    /// Queries to be rotated.
    pub(crate) q: Option<Tensor>,
    /// Lengths, pages and scales of the cache, cosines and sines.
    pub(crate) given: Given,
    /// Type of the lengths, u32 or i32.
    pub(crate) lengths: DType,
    /// Cache of keys.
    pub(crate) k_cache: Tensor,
    /// Cache of values.
    pub(crate) v_cache: Tensor,
}

impl AppendCall {
    /// Checks the arguments of an append.
    pub(crate) fn new(
        cache: &KvCache,
        new: &NewRows,
        rotary: Option<&Rotary>,
    ) -> candle_core::Result<AppendCall> {
        tensors(cache, new)?;
        lie_apart(cache, new, rotary)?;
        let (batch, cu_seqlens_new) = match new.seqlens {
            None => (dims::<4>(new.k)[0], None),
            Some(seqlens) => (
                n_sequences("seqlens", seqlens)?,
                Some(Source::lengths("seqlens", seqlens, new.k)?),
            ),
        };
        let [rows, heads_k, head_dim] = last_three(new.k);
        let mut problem = AppendProblem::builder(dtype("k", new.k)?)
            .batch(batch)
            .heads_k(heads_k)
            .head_dim(head_dim);
        problem = match new.seqlens {
            None => problem.seqlen_new(rows),
            Some(_) => problem.packed_new(rows),
        };
        if let Some(q) = new.q {
            problem = problem.heads_q(last_three(q)[1]);
        }
        let why = "one for each sequence";
        has_elements("seqused_k", cache.seqused_k, batch, why)?;
        let [entries, rows, ..] = dims::<4>(cache.k);
        let page_table = match cache.pages {
            None => {
                has_shape("k_cache", cache.k, &[batch, rows, heads_k, head_dim])?;
                problem = problem.seqlen_cache(rows);
                None
            }
            Some(table) => {
                has_shape("k_cache", cache.k, &[entries, rows, heads_k, head_dim])?;
                let columns = columns(table.block_table, batch)?;
                problem = problem
                    .seqlen_cache(table.max_seqlen_k)
                    .pages(Pages::new(entries, rows).columns(columns));
                Some(Source::pages("block_table", table.block_table, new.k)?)
            }
        };
        has_shape("v_cache", cache.v, cache.k.dims())?;
        let tables = match rotary {
            None => None,
            Some(rotary) => {
                let [positions, half] = tables(rotary, new.k)?;
                problem = problem.rotary(rotary.pairs, 2 * half, positions);
                Some([rotary.cos.contiguous()?, rotary.sin.contiguous()?].map(Source::Tensor))
            }
        };
        let [cos, sin] = tables.map_or([None, None], |tables| tables.map(Some));
        let seqused_k = Source::lengths("seqused_k", cache.seqused_k, new.k)?;
        let mut given = Given::default();
        if let Some((of, scales)) = Scales::of(cache, batch)? {
            problem = problem.fp8_kv(of);
            given = scales.put(given);
        }
        Ok(AppendCall {
            problem: problem.build().map_err(Error::from)?,
            k: aligned(new.k)?,
            v: aligned(new.v)?,
            q: new.q.map(aligned).transpose()?,
            given: given
                .with(Argument::SeqUsedK, seqused_k)
                .with_optional(Argument::CuSeqlensNew, cu_seqlens_new)
                .with_optional(Argument::PageTable, page_table)
                .with_optional(Argument::Cos, cos)
                .with_optional(Argument::Sin, sin),
            lengths: cache.seqused_k.dtype(),
            k_cache: cache.k.clone(),
            v_cache: cache.v.clone(),
        })
    }
}

/// The rules for the tensors of numbers: ranks, types, strides, one device for all, and no required gradients.
fn tensors(cache: &KvCache, new: &NewRows) -> Result<(), Error> {
    let rank = if new.seqlens.is_some() { 3 } else { 4 };
    backend("k", new.k)?;
    dtype("k", new.k)?;
    let numbers = [
        ("k", Some(new.k), rank),
        ("v", Some(new.v), rank),
        ("q", new.q, rank),
        ("k_cache", Some(cache.k), 4),
        ("v_cache", Some(cache.v), 4),
    ];
    let of_cache = match cache.k.dtype() {
        DType::F8E4M3 => DType::F8E4M3,
        _ => new.k.dtype(),
    };
    for (argument, tensor, rank) in numbers {
        let Some(tensor) = tensor else { continue };
        let needed = match argument {
            "k_cache" | "v_cache" => of_cache,
            _ => new.k.dtype(),
        };
        beside(argument, tensor, rank, new.k, needed)?;
        if tensor.track_op() {
            return Err(Error::Gradient {
                argument,
                operation: "an append",
            });
        }
    }
    for (argument, cache) in [("k_cache", cache.k), ("v_cache", cache.v)] {
        let mut dims = cache.dims().iter().zip(cache.stride());
        if dims.any(|(&n, &stride)| n > 1 && stride == 0) {
            let given = cache.stride().to_vec();
            return Err(Error::Repeated { argument, given });
        }
    }
    has_shape("v", new.v, new.k.dims())?;
    let Some(q) = new.q else { return Ok(()) };
    let mut allowed = new.k.dims().to_vec();
    allowed[rank - 2] = q.dims()[rank - 2];
    has_shape("q", q, &allowed)
}

/// Positions and pairs of the tables of cosines and sines.
fn tables(rotary: &Rotary, k: &Tensor) -> Result<[usize; 2], Error> {
    for (argument, table) in [("cos", rotary.cos), ("sin", rotary.sin)] {
        same_device(argument, table, k)?;
        has_rank(argument, table, 2)?;
        has_type(argument, table, &[DType::F32])?;
    }
    has_shape("sin", rotary.sin, rotary.cos.dims())?;
    Ok(dims(rotary.cos))
}

/// No other argument may use the memory of a cache: it is written.
fn lie_apart(cache: &KvCache, new: &NewRows, rotary: Option<&Rotary>) -> Result<(), Error> {
    let block_table = cache.pages.map(|table| table.block_table);
    let descale = cache.descale;
    let read = [
        ("k", Some(new.k)),
        ("v", Some(new.v)),
        ("q", new.q),
        ("seqlens", new.seqlens),
        ("seqused_k", Some(cache.seqused_k)),
        ("block_table", block_table),
        ("k_descale", descale.map(|descale| descale.k)),
        ("v_descale", descale.map(|descale| descale.v)),
        ("cos", rotary.map(|rotary| rotary.cos)),
        ("sin", rotary.map(|rotary| rotary.sin)),
    ];
    let [k, v] = [cache.k, cache.v].map(memory);
    let shared = |argument, other| Err(Error::SharedMemory { argument, other });
    if k == v {
        return shared("v_cache", "k_cache");
    }
    for (other, tensor) in read {
        match tensor.map(memory) {
            Some(there) if there == k => return shared("k_cache", other),
            Some(there) if there == v => return shared("v_cache", other),
            _ => {}
        }
    }
    Ok(())
}

/// The address of candle's storage of a tensor: tensors that share memory have the same.
fn memory(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr()
}

fn last_three(tensor: &Tensor) -> [usize; 3] {
    let dims = tensor.dims();
    let first = dims.len().saturating_sub(3);
    std::array::from_fn(|index| dims.get(first + index).copied().unwrap_or(0))
}
