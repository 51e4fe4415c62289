//! The request of a function, and its rules: tensors × options → [`Call`].
//!
//! Checks shapes, types, strides and devices, by [`crate::rules`]. It reads no memory except lengths on the host. ferroflash checks sizes when the call runs.

use candle_core::{DType, Tensor};
use ferroflash::arguments::Argument;
use ferroflash::{Mask, Problem, ProblemBuilder};

use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::layout::aligned;
use crate::options::Options;
use crate::rules::{backend, beside, dims, dtype, has_elements, has_shape, n_sequences};

/// A call of one of the functions, as it was made.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Queries.
    pub(crate) q: &'a Tensor,
    /// Keys.
    pub(crate) k: &'a Tensor,
    /// Values.
    pub(crate) v: &'a Tensor,
    /// Factor of the scores.
    pub(crate) softmax_scale: f32,
    /// Which keys a query sees.
    pub(crate) mask: Mask,
    /// The options in addition to the mask.
    pub(crate) options: Options<'a>,
}

/// The places of sequences in packed tensors.
#[derive(Clone, Copy)]
pub(crate) struct Sequences<'a> {
    /// The first query of each sequence, and the end of the last.
    pub(crate) seqlens_q: &'a Tensor,
    /// The same for keys and values.
    pub(crate) seqlens_k: &'a Tensor,
    /// The most queries of a sequence.
    pub(crate) max_seqlen_q: usize,
    /// The most keys of a sequence.
    pub(crate) max_seqlen_k: usize,
}

/// A checked call with the tensors that it runs on.
pub(crate) struct Checked {
    /// The call.
    pub(crate) call: Call,
    /// q, k and v.
    pub(crate) inputs: [Tensor; 3],
}

impl<'a> Request<'a> {
    /// The common arguments of every function, without a mask.
    pub(crate) fn new([q, k, v]: [&'a Tensor; 3], softmax_scale: f32) -> Request<'a> {
        Request {
            q,
            k,
            v,
            softmax_scale,
            mask: Mask::Full,
            options: Options::new(),
        }
    }

    /// The same with a window; that of `None` and `Some(0)` is a causal mask.
    pub(crate) fn window(self, left: Option<usize>, right: Option<usize>) -> Request<'a> {
        let mask = match (left, right) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        };
        Request { mask, ..self }
    }

    /// The same with options.
    pub(crate) fn with(self, options: Options<'a>) -> Request<'a> {
        Request { options, ..self }
    }

    /// Tensors `[batch, seqlen, heads, head_dim]`.
    pub(crate) fn dense(self) -> candle_core::Result<Checked> {
        self.tensors(4, 4)?;
        let [batch, seqlen_q, _, head_dim] = dims(self.q);
        let [_, seqlen_k, heads_k, _] = dims(self.k);
        self.shapes([batch, seqlen_k, heads_k, head_dim])?;
        let problem = self
            .problem()?
            .batch(batch)
            .seqlen_q(seqlen_q)
            .seqlen_k(seqlen_k);
        self.checked(problem, |given| given)
    }

    /// Packed tensors, `[total, heads, head_dim]`.
    pub(crate) fn packed(self, sequences: Sequences) -> candle_core::Result<Checked> {
        self.tensors(3, 3)?;
        let [total_q, _, head_dim] = dims(self.q);
        let [total_k, heads_k, _] = dims(self.k);
        self.shapes([total_k, heads_k, head_dim])?;
        let batch = sequences.batch()?;
        let lengths = |argument, tensor| Source::lengths(argument, tensor, self.q);
        let of_q = lengths("seqlens_q", sequences.seqlens_q)?;
        let of_k = lengths("seqlens_k", sequences.seqlens_k)?;
        let problem = self
            .problem()?
            .batch(batch)
            .seqlen_q(sequences.max_seqlen_q)
            .seqlen_k(sequences.max_seqlen_k)
            .packed_q(total_q)
            .packed_k(total_k);
        self.checked(problem, |given| {
            let given = given.with(Argument::CuSeqlensQ, of_q);
            given.with(Argument::CuSeqlensK, of_k)
        })
    }

    /// The rules for each of q, k and v, and that they have one device and one type.
    pub(crate) fn tensors(&self, rank_q: usize, rank_k: usize) -> Result<(), Error> {
        self.tensors_of(rank_q, rank_k, self.q.dtype())
    }

    /// The same, but k and v have their own type.
    pub(crate) fn tensors_of(
        &self,
        rank_q: usize,
        rank_k: usize,
        of_kv: DType,
    ) -> Result<(), Error> {
        backend("q", self.q)?;
        dtype("q", self.q)?;
        beside("q", self.q, rank_q, self.q, self.q.dtype())?;
        beside("k", self.k, rank_k, self.q, of_kv)?;
        beside("v", self.v, rank_k, self.q, of_kv)
    }

    /// Checks that k and v have this shape, part of which comes from q.
    pub(crate) fn shapes<const RANK: usize>(&self, allowed: [usize; RANK]) -> Result<(), Error> {
        has_shape("k", self.k, &allowed)?;
        has_shape("v", self.v, &allowed)
    }

    /// All but the numbers of rows.
    pub(crate) fn problem(&self) -> Result<ProblemBuilder, Error> {
        let of_row = |tensor: &Tensor, from_the_last| {
            let dims = tensor.dims();
            let index = dims.len().checked_sub(from_the_last);
            index.map_or(0, |index| dims[index])
        };
        let problem = Problem::builder(dtype("q", self.q)?)
            .heads_q(of_row(self.q, 2))
            .heads_k(of_row(self.k, 2))
            .head_dim(of_row(self.q, 1))
            .softmax_scale(self.softmax_scale)
            .mask(self.mask);
        Ok(self.options.put(problem))
    }

    fn checked(
        &self,
        problem: ProblemBuilder,
        with_lengths: impl FnOnce(Given) -> Given,
    ) -> candle_core::Result<Checked> {
        Ok(Checked {
            call: self.call(problem, with_lengths)?,
            inputs: [aligned(self.q)?, aligned(self.k)?, aligned(self.v)?],
        })
    }

    /// The call of a problem, with the options' arguments and these others.
    pub(crate) fn call(
        &self,
        problem: ProblemBuilder,
        with_others: impl FnOnce(Given) -> Given,
    ) -> candle_core::Result<Call> {
        let problem = problem.build().map_err(Error::from)?;
        let given = self.options.given(self.q, &problem)?;
        Ok(Call::new(problem, with_others(given)))
    }
}

impl Sequences<'_> {
    /// The number of sequences.
    pub(crate) fn batch(&self) -> Result<usize, Error> {
        let batch = n_sequences("seqlens_q", self.seqlens_q)?;
        let why = "as many as of seqlens_q";
        has_elements("seqlens_k", self.seqlens_k, batch + 1, why)?;
        Ok(batch)
    }
}
