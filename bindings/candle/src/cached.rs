//! Attention over a cache: the request, its rules, and the node of candle's graph, which has no backward pass.

use candle_core::{CustomOp3, DType, Device, Shape, Tensor};
use ferroflash::error::{Argument, ProblemError};
use ferroflash::{Pages, ProblemBuilder};

use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::kv_cache::{KvCache, PageTable};
use crate::layout::aligned;
use crate::memory::{Place, Stored};
use crate::operation::on_three;
use crate::passes;
use crate::request::{Checked, Request, Sequences};
use crate::rules::{dims, has_elements, has_rank, has_shape, has_type, n_sequences, same_device};
use crate::scales::Scales;

/// The function's name in errors.
const NAME: &str = "attention over a cache";

/// The layout of queries.
#[derive(Clone, Copy)]
pub(crate) enum Queries<'a> {
    /// `[batch, seqlen_q, heads_q, head_dim]`.
    Padded,
    /// `[total_q, heads_q, head_dim]`.
    Packed {
        /// The first query of each sequence, and the end of the last.
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
        let (problem, scales) = match Scales::of(cache, batch)? {
            Some((of, scales)) => (problem.fp8_kv(of), Some(scales)),
            None => (problem, None),
        };
        let why = "one for each sequence of q";
        has_elements("seqused_k", cache.seqused_k, batch, why)?;
        let seqused_k = Source::lengths("seqused_k", cache.seqused_k, self.q)?;
        let with_lengths = |given: Given| {
            let given = given.with_optional(Argument::CuSeqlensQ, cu_seqlens_q);
            let given = given.with(Argument::SeqUsedK, seqused_k);
            match scales {
                Some(scales) => scales.put(given),
                None => given,
            }
        };
        match cache.pages {
            Some(table) => self.in_pages(problem, batch, table, with_lengths),
            None => {
                let [_, seqlen_k, heads_k, _] = dims(self.k);
                let [head_dim] = last_dim(self.q);
                self.shapes([batch, seqlen_k, heads_k, head_dim])?;
                self.forward_only(problem.seqlen_k(seqlen_k), with_lengths)
            }
        }
    }

    /// Over pages, with lengths as those of packed keys, as in candle-flash-attn.
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
        let seqused_k = differences(&sequences, self.q)?;
        let table = PageTable {
            block_table,
            max_seqlen_k: sequences.max_seqlen_k,
        };
        self.in_pages(problem, batch, table, |given| {
            let given = given.with_optional(Argument::CuSeqlensQ, cu_seqlens_q);
            given.with(Argument::SeqUsedK, seqused_k)
        })
    }

    /// The problem as far as the queries define it, the number of sequences, and the first rows of packed ones.
    fn queries(
        &self,
        queries: Queries,
    ) -> candle_core::Result<(ProblemBuilder, usize, Option<Source>)> {
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
                let ends = Source::lengths("seqlens_q", seqlens_q, self.q)?;
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
        with_lengths: impl FnOnce(Given) -> Given,
    ) -> candle_core::Result<Checked> {
        let [n_pages, page_size, heads_k, _] = dims(self.k);
        let [head_dim] = last_dim(self.q);
        self.shapes([n_pages, page_size, heads_k, head_dim])?;
        let columns = columns(table.block_table, batch)?;
        let pages_of_table = Source::pages("block_table", table.block_table, self.q)?;
        let pages = Pages::new(n_pages, page_size).columns(columns);
        let problem = problem.seqlen_k(table.max_seqlen_k).pages(pages);
        self.forward_only(problem, |given| {
            with_lengths(given).with(Argument::PageTable, pages_of_table)
        })
    }

    /// The cache is read in place, or refused: a copy could be as large as the memory.
    fn forward_only(
        &self,
        problem: ProblemBuilder,
        with_others: impl FnOnce(Given) -> Given,
    ) -> candle_core::Result<Checked> {
        Ok(Checked {
            call: self.call(problem, with_others)?,
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

/// How many keys each sequence has, from the offsets that packed keys would have.
fn differences(sequences: &Sequences, q: &Tensor) -> candle_core::Result<Source> {
    let (argument, seqlens_k) = ("seqlens_k", sequences.seqlens_k);
    if let Device::Cpu = q.device() {
        let ends = Source::lengths(argument, seqlens_k, q)?;
        let lengths = ends.host().windows(2).enumerate();
        return Ok(Source::Host(
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
    Ok(Source::Tensor(ends.sub(&starts)?))
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

impl CachedAttention {
    fn forward<P: Place>(
        &self,
        inputs: [Stored<P>; 3],
    ) -> candle_core::Result<(P::Storage, Shape)> {
        let (o, _) = passes::forward::<P>(&self.0, inputs, false)?;
        Ok((o, inputs[0].1.shape().clone()))
    }
}

impl CustomOp3 for CachedAttention {
    fn name(&self) -> &'static str {
        "ferroflash-cached"
    }

    on_three!(forward);

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
