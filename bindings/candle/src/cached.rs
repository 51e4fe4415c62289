//! Attention over a cache: what it is asked for, its rules, and the node of candle's graph, which has no backward pass.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Shape, Tensor};
use ferroflash::error::{Argument, ProblemError};
use ferroflash::{Pages, ProblemBuilder};

use crate::call::Call;
use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::Error;
use crate::kv_cache::{KvCache, PageTable};
use crate::layout::aligned;
use crate::request::{Checked, Request, Sequences};
use crate::rules::{dims, has_elements, has_rank, has_shape, has_type, n_sequences, same_device};
use crate::scales::Scales;
use crate::vectors::{Ints, Vectors};

/// How errors call it.
const NAME: &str = "attention over a cache";

/// How queries lie.
#[derive(Clone, Copy)]
pub(crate) enum Queries<'a> {
    /// `[batch, seqlen_q, heads_q, head_dim]`.
    Padded,
    /// `[total_q, heads_q, head_dim]`.
    Packed {
        /// Where each sequence's queries begin, and where the last one's end.
        seqlens_q: &'a Tensor,
        /// The most queries of a sequence.
        max_seqlen_q: usize,
    },
}

/// q, k and v → o.
struct CachedAttention(Call);

/// Runs a forward pass: o, shaped as q.
pub(crate) fn attention(checked: Checked) -> candle_core::Result<Tensor> {
    let [q, k, v] = &checked.inputs;
    q.apply_op3(k, v, CachedAttention(checked.call))
}

impl Request<'_> {
    /// Over a cache whose lengths are a vector.
    pub(crate) fn cached(self, cache: &KvCache, queries: Queries) -> candle_core::Result<Checked> {
        let rank_q = match queries {
            Queries::Padded => 4,
            Queries::Packed { .. } => 3,
        };
        let of_kv = match cache.k.dtype() {
            DType::F8E4M3 => DType::F8E4M3,
            _ => self.q.dtype(),
        };
        self.tensors_of(rank_q, 4, of_kv)?;
        let (problem, batch, cu_seqlens_q) = self.queries(queries)?;
        let (problem, scales) = Scales::of(cache, batch, problem)?;
        let why = "one for each sequence of q";
        has_elements("seqused_k", cache.seqused_k, batch, why)?;
        let vectors = Vectors {
            cu_seqlens_q,
            seqused_k: Some(Ints::lengths("seqused_k", cache.seqused_k, self.q)?),
            ..Vectors::NONE
        };
        let Checked { call, inputs } = match cache.pages {
            Some(table) => self.in_pages(problem, batch, table, vectors)?,
            None => {
                let [_, seqlen_k, heads_k, _] = dims(self.k);
                let [head_dim] = last_dim(self.q);
                self.shapes([batch, seqlen_k, heads_k, head_dim])?;
                self.forward_only(problem.seqlen_k(seqlen_k), vectors)?
            }
        };
        let call = call.with_scales(scales);
        Ok(Checked { call, inputs })
    }

    /// Over pages whose lengths are those of packed keys, as candle-flash-attn has them.
    pub(crate) fn paged(
        self,
        sequences: Sequences,
        block_table: &Tensor,
        page_block_size: usize,
    ) -> candle_core::Result<Checked> {
        self.tensors(3, 4)?;
        let [_, allowed, ..] = dims::<4>(self.k);
        if page_block_size != allowed {
            let given = page_block_size;
            return Err(Error::PageBlockSize { given, allowed }.into());
        }
        sequences.batch()?;
        let queries = Queries::Packed {
            seqlens_q: sequences.seqlens_q,
            max_seqlen_q: sequences.max_seqlen_q,
        };
        let (problem, batch, cu_seqlens_q) = self.queries(queries)?;
        let vectors = Vectors {
            cu_seqlens_q,
            seqused_k: Some(differences(&sequences, self.q)?),
            ..Vectors::NONE
        };
        let table = PageTable {
            block_table,
            max_seqlen_k: sequences.max_seqlen_k,
        };
        self.in_pages(problem, batch, table, vectors)
    }

    /// What the queries say of the problem, how many sequences there are, and where packed ones begin.
    fn queries(
        &self,
        queries: Queries,
    ) -> candle_core::Result<(ProblemBuilder, usize, Option<Ints>)> {
        let problem = self.problem()?;
        match queries {
            Queries::Padded => {
                let [batch, seqlen_q, ..] = dims::<4>(self.q);
                Ok((problem.batch(batch).seqlen_q(seqlen_q), batch, None))
            }
            Queries::Packed {
                seqlens_q,
                max_seqlen_q,
            } => {
                let [total_q, ..] = dims::<3>(self.q);
                let batch = n_sequences("seqlens_q", seqlens_q)?;
                let ends = Ints::lengths("seqlens_q", seqlens_q, self.q)?;
                let problem = problem.batch(batch).seqlen_q(max_seqlen_q);
                Ok((problem.packed_q(total_q), batch, Some(ends)))
            }
        }
    }

    fn in_pages(
        &self,
        problem: ProblemBuilder,
        batch: usize,
        table: PageTable,
        vectors: Vectors<Ints>,
    ) -> candle_core::Result<Checked> {
        let [n_pages, page_size, heads_k, _] = dims(self.k);
        let [head_dim] = last_dim(self.q);
        self.shapes([n_pages, page_size, heads_k, head_dim])?;
        let columns = columns(table.block_table, batch)?;
        let vectors = Vectors {
            page_table: Some(Ints::pages("block_table", table.block_table, self.q)?),
            ..vectors
        };
        let pages = Pages::new(n_pages, page_size).columns(columns);
        let problem = problem.seqlen_k(table.max_seqlen_k).pages(pages);
        self.forward_only(problem, vectors)
    }

    /// The cache is read where it lies, or not at all: a copy could be as large as the memory.
    fn forward_only(
        &self,
        problem: ProblemBuilder,
        vectors: Vectors<Ints>,
    ) -> candle_core::Result<Checked> {
        Ok(Checked {
            call: Call::new(problem.build().map_err(Error::from)?, vectors)
                .with_beside(self.beside()?),
            inputs: [aligned(self.q)?, self.k.clone(), self.v.clone()],
        })
    }
}

/// Columns of a table that has a row for each sequence.
pub(crate) fn columns(block_table: &Tensor, batch: usize) -> Result<usize, Error> {
    has_rank("block_table", block_table, 2)?;
    let [_, columns] = dims(block_table);
    has_shape("block_table", block_table, &[batch, columns])?;
    Ok(columns)
}

fn last_dim(tensor: &Tensor) -> [usize; 1] {
    [tensor.dims().last().copied().unwrap_or(0)]
}

/// How many keys each sequence has, of where those of packed keys would begin.
fn differences(sequences: &Sequences, q: &Tensor) -> candle_core::Result<Ints> {
    let (argument, seqlens_k) = ("seqlens_k", sequences.seqlens_k);
    if let Device::Cpu = q.device() {
        let ends = Ints::lengths(argument, seqlens_k, q)?;
        let lengths = ends.host().windows(2).enumerate();
        return Ok(Ints::Host(
            lengths
                .map(|(sequence, ends)| difference(sequence, ends, sequences.max_seqlen_k))
                .collect::<Result<_, Error>>()?,
        ));
    }
    same_device(argument, seqlens_k, q)?;
    // The type that candle subtracts.
    has_type(argument, seqlens_k, &[DType::U32])?;
    let batch = seqlens_k.elem_count() - 1;
    let (starts, ends) = (
        seqlens_k.narrow(0, 0, batch)?,
        seqlens_k.narrow(0, 1, batch)?,
    );
    Ok(Ints::Device(ends.sub(&starts)?))
}

/// The length between two ends, the second of which is at least the first.
fn difference(sequence: usize, ends: &[i32], most: usize) -> Result<i32, Error> {
    let &[start, end] = ends else { return Ok(0) };
    let first = usize::try_from(start).unwrap_or(0);
    let length = end.checked_sub(start).filter(|&length| length >= 0);
    match length.filter(|&length| usize::try_from(length).is_ok_and(|n| n <= most)) {
        Some(length) => Ok(length),
        None => Err(ProblemError::Length {
            argument: Argument::CuSeqlensK,
            sequence,
            given: end,
            min: first,
            max: first.saturating_add(most),
        }
        .into()),
    }
}

impl CustomOp3 for CachedAttention {
    fn name(&self) -> &'static str {
        "ferroflash-cached"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let o = cpu::forward_alone(&self.0, [(q, q_layout), (k, k_layout), (v, v_layout)])?;
        Ok((o, q_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let o = cuda::forward_alone(&self.0, [(q, q_layout), (k, k_layout), (v, v_layout)])?;
        Ok((o, q_layout.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        _v: &Tensor,
        _o: &Tensor,
        _d_o: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let argument = match (q.track_op(), k.track_op()) {
            (true, _) => "q",
            (_, true) => "k",
            _ => "v",
        };
        let operation = NAME;
        Err(Error::Gradient {
            argument,
            operation,
        }
        .into())
    }
}
