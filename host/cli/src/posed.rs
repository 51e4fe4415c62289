//! The problem of options, alone or with a file.

use std::path::Path;

use clap::Args;
use ferroflash::arguments::Argument;
use ferroflash::expression::Expression;
use ferroflash::{Dtype, Layout, MaskExpression, Precision, Problem, ProblemBuilder, Score};

use crate::expressions::{Given, ParamWord, mask, score};
use crate::failure::Failure;
use crate::input::Input;
use crate::mask::MaskWords;

/// A problem in numbers: its sizes and its mask.
#[derive(Debug, Args)]
pub struct SizeWords {
    /// Number of batch entries.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Rows of q and, without --seqlen-k, of k and v.
    #[arg(long, default_value_t = 4096)]
    pub seqlen: usize,
    /// Rows of k and v.
    #[arg(long)]
    pub seqlen_k: Option<usize>,
    /// Heads of q and, without --heads-k, of k and v.
    #[arg(long, default_value_t = 16)]
    pub heads: usize,
    /// Heads of k and v.
    #[arg(long)]
    pub heads_k: Option<usize>,
    /// Columns of q and k and, without --head-dim-v, of v and o.
    #[arg(long, default_value_t = 128)]
    pub head_dim: usize,
    /// Columns of v and o.
    #[arg(long)]
    pub head_dim_v: Option<usize>,
    /// How exact products of f32 tensors are on a GPU: `tensor`, tf32; or `full`, three products of tf32 in place of one.
    #[arg(long, default_value = "tensor", value_name = "tensor|full")]
    pub precision: Precision,
    /// The mask.
    #[command(flatten)]
    pub mask: MaskWords,
}

impl SizeWords {
    /// The problem of these sizes, in this type.
    pub fn problem(&self, dtype: Dtype) -> Result<ProblemBuilder, Failure> {
        Ok(Problem::builder(dtype)
            .batch(self.batch)
            .seqlen_q(self.seqlen)
            .seqlen_k(self.seqlen_k.unwrap_or(self.seqlen))
            .heads_q(self.heads)
            .heads_k(self.heads_k.unwrap_or(self.heads))
            .head_dim(self.head_dim)
            .head_dim_v(self.head_dim_v.unwrap_or(self.head_dim))
            .precision(self.precision)
            .mask(self.mask.mask().map_err(Failure::Option)?))
    }
}

/// Expressions.
#[derive(Debug, Args)]
pub struct EditWords {
    /// An expression in place of the scores: a name of `bench --score`, or the text of an expression.
    #[arg(long, value_name = "NAME|TEXT", value_parser = score)]
    pub score: Option<Score>,
    /// An expression that hides keys, in addition to the mask: a name of `bench --mask-expression`, or the text of an expression.
    #[arg(long, value_name = "NAME|TEXT", value_parser = mask)]
    pub mask_expression: Option<MaskExpression>,
}

impl EditWords {
    /// The problem with them.
    pub fn put(&self, mut builder: ProblemBuilder) -> ProblemBuilder {
        if let Some(score) = self.score {
            builder = builder.score(score);
        }
        if let Some(mask) = self.mask_expression {
            builder = builder.mask_expression(mask);
        }
        builder
    }
}

/// Options for a file's problem.
#[derive(Debug, Args)]
pub struct ProblemWords {
    /// The mask.
    #[command(flatten)]
    pub mask: MaskWords,
    /// Factor of the scores. Unless given: from the file's metadata, else 1/√head_dim.
    #[arg(long)]
    pub softmax_scale: Option<f32>,
    /// How exact products of f32 tensors are on a GPU: `tensor`, tf32; or `full`, three products of tf32 in place of one.
    #[arg(long, default_value = "tensor", value_name = "tensor|full")]
    pub precision: Precision,
    /// Its expressions. The tensors that they read come from the file, by name.
    #[command(flatten)]
    pub edit: EditWords,
    /// A parameter of an expression; once for each.
    #[arg(long, value_name = "NAME=VALUE")]
    pub param: Vec<ParamWord>,
}

impl ProblemWords {
    /// The problem.
    pub fn problem(&self, input: &Input, path: &Path) -> Result<ProblemBuilder, Failure> {
        let mask = self.mask.or(input.mask).mask();
        let builder = Problem::of(
            input.dtype,
            Layout::bshd(input.q.shape)?,
            Layout::bshd(input.k.shape)?,
        )
        .head_dim_v(input.v.shape[3])
        .precision(self.precision)
        .mask(mask.map_err(Failure::Option)?);
        let mut builder = of_lengths(builder, input);
        if let Some(map) = &input.block_mask {
            builder = builder.block_mask(map.mask());
        }
        if input.sinks.is_some() {
            builder = builder.sinks();
        }
        builder = self.edit.put(builder);
        if let Some(scale) = self.softmax_scale.or(input.softmax_scale) {
            builder = builder.softmax_scale(scale);
        }
        if let Some(map) = &input.block_mask {
            // Sizes of blocks that make no sense are the first thing to say.
            let problem = builder.build()?;
            ferroflash::validate::sizes(&problem)?;
            map.fits(&problem).map_err(Failure::of_file(path))?;
        }
        Ok(builder)
    }

    /// Whether it differs from the problem whose results the file has.
    pub fn is_another(&self, input: &Input, problem: &Problem) -> bool {
        let stored_scale = input.softmax_scale.unwrap_or(problem.default_scale());
        input.mask.mask() != Ok(problem.mask())
            || stored_scale != problem.scale()
            || self.edit.score.is_some()
            || self.edit.mask_expression.is_some()
    }

    /// The inputs of the expressions.
    pub fn given(&self, input: &Input) -> Result<Given, Failure> {
        let score = self.edit.score.map(Score::expression);
        let mask = self.edit.mask_expression.map(MaskExpression::expression);
        let expressions: Vec<&Expression> = score.into_iter().chain(mask).collect();
        Given::new(&expressions, &self.param, &input.others)
    }
}

/// With the lengths that the file gives: packed sides, their number of sequences and their longest one. For a side that is not packed, the number of
/// batch entries.
fn of_lengths(mut builder: ProblemBuilder, input: &Input) -> ProblemBuilder {
    if let Some((n, longest)) = input.lengths.of_packed(Argument::CuSeqlensQ) {
        let total_q = input.q.shape[1];
        builder = builder.packed_q(total_q).seqlen_q(longest).batch(n);
    }
    if let Some((_, longest)) = input.lengths.of_packed(Argument::CuSeqlensK) {
        builder = builder.packed_k(input.k.shape[1]).seqlen_k(longest);
    }
    builder
}

/// The problem of a file, in a line.
pub fn in_words(problem: &Problem) -> String {
    let mask = problem.mask();
    let blocks = problem.block_mask();
    let blocks = blocks.map_or(String::new(), |blocks| format!(", {blocks}"));
    let sinks = if problem.has_sinks() { ", sinks" } else { "" };
    let values = match problem.head_dim_v() {
        columns if columns == problem.head_dim() => String::new(),
        columns => format!(", head_dim_v {columns}"),
    };
    format!(
        "{} q {:?} k {:?}{values}, {mask}{blocks}{sinks}, softmax_scale {}",
        problem.dtype(),
        problem.shape_q(),
        problem.shape_k(),
        problem.scale()
    )
}
