//! The problem that a file and options pose.

use std::path::Path;

use clap::Args;
use ferroflash::arguments::Argument;
use ferroflash::expression::Expression;
use ferroflash::{Inputs, Layout, Precision, Problem, ProblemBuilder, Tensor};

use crate::expressions::{FileGiven, MaskWord, ParamWord, ScoreWord};
use crate::failure::Failure;
use crate::input::{Bytes, Input};
use crate::mask::MaskWords;

/// What options say of a file's problem.
#[derive(Debug, Args)]
pub struct ProblemWords {
    /// The mask.
    #[command(flatten)]
    pub mask: MaskWords,
    /// Factor of the scores. Unless given: as the file's metadata say, else 1/√head_dim.
    #[arg(long)]
    pub softmax_scale: Option<f32>,
    /// How exact products of f32 tensors are on a GPU: `tensor`, tf32; or `full`, three products of tf32 in place of one.
    #[arg(long, default_value = "tensor", value_name = "tensor|full")]
    pub precision: Precision,
    /// An expression in place of the scores: a name of `bench --score`, or the text of an expression. Tensors that it reads come from the
    /// file, by their names.
    #[arg(long, value_name = "NAME|TEXT")]
    pub score: Option<ScoreWord>,
    /// An expression that hides keys beside the mask: a name of `bench --mask-expression`, or the text of an expression.
    #[arg(long, value_name = "NAME|TEXT")]
    pub mask_expression: Option<MaskWord>,
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
        if let Some(ScoreWord(score)) = self.score {
            builder = builder.score(score);
        }
        if let Some(MaskWord(mask)) = self.mask_expression {
            builder = builder.mask_expression(mask);
        }
        if let Some(scale) = self.softmax_scale.or(input.softmax_scale) {
            builder = builder.softmax_scale(scale);
        }
        if let Some(map) = &input.block_mask {
            // Sizes of blocks that make no sense are the first thing to say.
            let problem = builder.build()?;
            ferroflash::validate::sizes(&problem)?;
            map.fits(&problem).map_err(|what| Failure::Contents {
                path: path.to_owned(),
                what,
            })?;
        }
        Ok(builder)
    }

    /// Whether it is another problem than that whose results the file holds.
    pub fn is_another(&self, input: &Input, problem: &Problem) -> bool {
        let stored_scale = input.softmax_scale.unwrap_or(problem.default_scale());
        input.mask.mask() != Ok(problem.mask())
            || stored_scale != problem.scale()
            || self.has_expressions()
    }

    /// Whether expressions edit the scores.
    pub fn has_expressions(&self) -> bool {
        self.score.is_some() || self.mask_expression.is_some()
    }

    /// What calls give the expressions.
    pub fn given<'a>(&'a self, input: &'a Input) -> Result<FileGiven<'a>, Failure> {
        let score = self.score.map(|ScoreWord(score)| score.expression());
        let mask = self.mask_expression.map(|MaskWord(mask)| mask.expression());
        let expressions: Vec<&Expression> = score.into_iter().chain(mask).collect();
        FileGiven::new(&expressions, &self.param, &input.others)
    }
}

/// With the lengths that the file gives: packed sides, their number of sequences and their longest one.
fn of_lengths(builder: ProblemBuilder, input: &Input) -> ProblemBuilder {
    let q = input.lengths.of_packed(Argument::CuSeqlensQ);
    let k = input.lengths.of_packed(Argument::CuSeqlensK);
    let (total_q, total_k) = (input.q.shape[1], input.k.shape[1]);
    let builder = match q {
        None => builder,
        Some((_, longest)) => builder.packed_q(total_q).seqlen_q(longest),
    };
    let builder = match k {
        None => builder,
        Some((_, longest)) => builder.packed_k(total_k).seqlen_k(longest),
    };
    // Of a side that is not packed, the batch entries count.
    match (q, k) {
        (Some((n, _)), _) => builder.batch(n),
        (None, _) => builder,
    }
}

/// q, k and v of a file.
#[derive(Debug)]
pub struct Elements<T> {
    /// Queries.
    pub q: Vec<T>,
    /// Keys.
    pub k: Vec<T>,
    /// Values.
    pub v: Vec<T>,
}

impl<T: Bytes> Elements<T> {
    /// Of this file.
    pub fn of(input: &Input) -> Elements<T> {
        let [q, k, v] = [&input.q, &input.k, &input.v];
        let [q, k, v] = [q, k, v].map(|stored| crate::input::elements(&stored.bytes));
        Elements { q, k, v }
    }

    /// What a call reads.
    pub fn inputs<'a>(
        &'a self,
        input: &'a Input,
        given: &FileGiven<'a>,
    ) -> Result<Inputs<'a>, Failure> {
        let inputs = input.lengths.put(Inputs::new(
            &Tensor::bshd(&self.q, input.q.shape)?,
            &Tensor::bshd(&self.k, input.k.shape)?,
            &Tensor::bshd(&self.v, input.v.shape)?,
        ));
        let mut inputs = match &input.block_mask {
            Some(map) => map.put(inputs),
            None => inputs,
        };
        inputs.sinks = input.sinks.as_ref().map(Into::into);
        Ok(given.put(inputs))
    }
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
