//! One problem of a set.

use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::{Backend, Dtype, Mask, Precision, Problem};

use crate::blocks::{self as of_blocks, Blocks};
use crate::buffer::Arrangement;
use crate::dropout::Dropout;
use crate::inputs::{Fill, LseGradient, Values};
use crate::lengths::Lengths;
use crate::oracle::{self, Sizes};
use crate::sinks::Sinks;
use crate::tolerance::Arithmetic;

/// One problem with everything that decides its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Sizes.
    pub sizes: Sizes,
    /// Element type.
    pub dtype: Dtype,
    /// Precision of f32.
    pub precision: Precision,
    /// Mask.
    pub mask: Mask,
    /// Factor of the scores; `None`: 1/√head_dim.
    pub softmax_scale: Option<f32>,
    /// Where the sequences' rows lie, where they are of different lengths; then `sizes` has their number and the longest ones.
    pub lengths: Option<Lengths>,
    /// Block mask.
    pub blocks: Option<Blocks>,
    /// Keys of a split, where the forward pass divides them.
    pub split_kv: Option<usize>,
    /// Whether heads have sinks.
    pub sinks: Sinks,
    /// Which weights are dropped, if some are.
    pub dropout: Option<Dropout>,
    /// What the numbers look like.
    pub fill: Fill,
    /// How every tensor lies in memory.
    pub arrangement: Arrangement,
    /// Whether the backward pass is given a gradient of lse.
    pub lse_gradient: LseGradient,
    /// Of the random numbers.
    pub seed: u64,
}

impl Case {
    /// Two heads of normally distributed numbers in contiguous memory.
    pub fn new(
        dtype: Dtype,
        mask: Mask,
        head_dim: usize,
        seqlen_q: usize,
        seqlen_k: usize,
    ) -> Case {
        Case {
            sizes: Sizes {
                batch: 1,
                seqlen_q,
                seqlen_k,
                heads_q: 2,
                heads_k: 2,
                head_dim,
                head_dim_v: head_dim,
            },
            dtype,
            precision: Precision::Tensor,
            mask,
            softmax_scale: None,
            lengths: None,
            blocks: None,
            split_kv: None,
            sinks: Sinks::Absent,
            dropout: None,
            fill: Fill::Normal,
            arrangement: Arrangement::Bshd,
            lse_gradient: LseGradient::Absent,
            seed: 1,
        }
    }

    /// With this batch and these numbers of heads.
    pub fn heads(self, batch: usize, heads_q: usize, heads_k: usize) -> Case {
        Case {
            sizes: Sizes {
                batch,
                heads_q,
                heads_k,
                ..self.sizes
            },
            ..self
        }
    }

    /// With so many columns of q and k, and of v and o.
    pub fn columns(self, head_dim: usize, head_dim_v: usize) -> Case {
        Case {
            sizes: Sizes {
                head_dim,
                head_dim_v,
                ..self.sizes
            },
            ..self
        }
    }

    /// What a backend's products are made of.
    pub fn arithmetic(&self, backend: Backend) -> Arithmetic {
        Arithmetic::on(backend, self.dtype, self.precision)
    }

    /// Its numbers.
    pub fn values(&self) -> Values {
        if let Some(lengths) = &self.lengths {
            return self.values_of_lengths(lengths);
        }
        let sizes = self.sizes;
        let mut values = Values::new(self.fill, sizes, self.dtype, self.seed)
            .repeated(self.arrangement.repeats(), sizes);
        if let Some(blocks) = &self.blocks {
            values.spoil_keys(sizes, blocks.nobodys_keys(sizes));
        }
        match self.lse_gradient {
            LseGradient::Absent => values,
            LseGradient::Given => {
                let some_key = self.rows_that_see();
                let sinks = self.sinks_count();
                let head = |row: usize| row / sizes.seqlen_q % sizes.heads_q;
                let sees = |row: usize| some_key[row] || sinks[head(row)];
                values.with_d_lse(sizes, sees, self.seed)
            }
        }
    }

    /// The sink of each head, if there are some.
    pub fn sink_values(&self) -> Option<Vec<f64>> {
        self.sinks.of_heads(self.sizes.heads_q, self.seed)
    }

    /// What says its lengths to a call.
    pub fn vectors(&self) -> Vec<(Argument, Vec<i32>)> {
        self.lengths.map_or(Vec::new(), |lengths| lengths.vectors())
    }

    /// Whether each head has a sink that is not −∞: then all of its rows have an lse.
    pub(super) fn sinks_count(&self) -> Vec<bool> {
        let none = || vec![f64::NEG_INFINITY; self.sizes.heads_q];
        let sinks = self.sink_values().unwrap_or_else(none);
        sinks.into_iter().map(f64::is_finite).collect()
    }

    /// Whether each row, in the order of lse, sees a key.
    pub(super) fn rows_that_see(&self) -> Vec<bool> {
        let Sizes {
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            ..
        } = self.sizes;
        let visible = oracle::visible(self.sizes, self.mask.window(), self.mask.prefix());
        let table = self.block_table();
        let sees = |row: usize| {
            let (b, h, i) = (
                row / seqlen_q / heads_q,
                row / seqlen_q % heads_q,
                row % seqlen_q,
            );
            let block = |j| {
                let of = |table: &of_blocks::Table| table.at(b, h, i, j);
                table.as_ref().map_or(of_blocks::PARTIAL, of)
            };
            (0..seqlen_k).any(|j| oracle::keep(block(j), visible(i, j)))
        };
        (0..batch * heads_q * seqlen_q).map(sees).collect()
    }

    /// The map of its block mask.
    pub fn block_table(&self) -> Option<of_blocks::Table> {
        Some(self.blocks?.table(self.sizes, self.seed))
    }

    /// The library's view of it.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let Sizes {
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            head_dim,
            head_dim_v,
        } = self.sizes;
        let builder = Problem::builder(self.dtype)
            .batch(batch)
            .seqlen_q(seqlen_q)
            .seqlen_k(seqlen_k)
            .heads_q(heads_q)
            .heads_k(heads_k)
            .head_dim(head_dim)
            .head_dim_v(head_dim_v)
            .precision(self.precision)
            .mask(self.mask);
        let builder = self.of_lengths(builder);
        let builder = match &self.blocks {
            Some(blocks) => builder.block_mask(blocks.mask()),
            None => builder,
        };
        let builder = match self.split_kv {
            Some(keys) => builder.split_kv(keys),
            None => builder,
        };
        let builder = match self.sinks {
            Sinks::Absent => builder,
            _ => builder.sinks(),
        };
        let builder = match self.dropout {
            Some(dropout) => builder.dropout(dropout.p),
            None => builder,
        };
        match self.softmax_scale {
            Some(scale) => builder.softmax_scale(scale).build(),
            None => builder.build(),
        }
    }
}
