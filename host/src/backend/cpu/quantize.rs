//! A tensor rounded to 8 bits, row by row: [`Quantize`](crate::Quantize) has the formulas.
//!
//! A scale follows from a maximum, and maxima do not depend on the order. So the results do not depend on the number of threads.

use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::{HeadRows, View};
use super::{cut, missing, on_host, output, output_rows, pool, vector, view};
use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Dtype, Element};
use crate::error::ProblemError;
use crate::lengths::Span;
use crate::lengths::new_rows::of_quantize;
use crate::problem::quantize::QuantizeProblem;
use crate::quantize::{Rotation, code_of, descale_of};
use crate::validate::quantize::check_quantize;

/// Rounds a tensor. The arguments have passed [`crate::validate`] for this problem and lie on the host; an error says which one has not or does not.
pub(crate) fn run(problem: &QuantizeProblem, operands: &mut Operands) -> Result<(), ProblemError> {
    on_host(check_quantize(problem, operands.describe())?.location())?;
    pool::install(|| match problem.dtype() {
        Dtype::Bf16 => typed::<bf16>(problem, operands),
        Dtype::F16 => typed::<f16>(problem, operands),
        Dtype::F32 => typed::<f32>(problem, operands),
    })
}

fn typed<T: Element>(
    problem: &QuantizeProblem,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let spans = of_quantize(problem, operands)?;
    // One for each sequence, in their order.
    let spans: Vec<Span> = spans.into_iter().map(|span| span.rows).collect();
    let [_, heads_k, head_dim] = problem.sizes();
    let source = Source {
        x: view::<T>(operands, Argument::X)?,
        group_size: problem.group_size(),
        head_dim,
        rotation: Rotation::of(problem),
    };
    let scales = problem.scale_layout();
    let wants_amax = operands.describe().get(Argument::Amax).is_some();
    let amax = match wants_amax || !problem.gives_descale() {
        true => source.amax(problem, &spans),
        false => Vec::new(),
    };
    let descale: Vec<f32> = match vector(operands, Argument::Descale) {
        Some(given) => given.to_vec(),
        None => {
            let of_amax = |&amax| descale_of(amax, problem.is_power_of_2());
            amax.iter().map(of_amax).collect()
        }
    };
    let factor = |at: usize| match problem.gives_descale() || amax[at].is_finite() {
        true => 1.0 / descale[at],
        false => f32::NAN,
    };
    let [batch, seqlen, ..] = problem.shape();
    let order = cut::Rows {
        batch,
        seqlen,
        groups: heads_k,
        group_size: source.group_size,
    };
    let mut rounded = output(operands, Argument::Rounded)?;
    let mut rows = output_rows(Argument::Rounded, &mut rounded, source.group_size)?;
    for piece in order.cut(&mut rows, &spans, |_| ()) {
        let (sequence, head_k) = (piece.sequence_idx, piece.group_idx);
        let from = source.rows(spans[sequence], head_k);
        piece.rows.par_iter_mut().enumerate().for_each_init(
            || source.buffer(),
            |x, (at, codes)| {
                source.read(from.row(at), x);
                let factor = factor(scales.place(sequence, head_k, at / source.group_size));
                for (code, x) in codes.iter_mut().zip(x) {
                    *code = code_of(*x * factor);
                }
            },
        );
    }
    write(operands, Argument::DescaleOut, &descale)?;
    write(operands, Argument::Amax, &amax)
}

/// The tensor that is rounded.
struct Source<'a, T> {
    x: View<'a, T>,
    group_size: usize,
    head_dim: usize,
    rotation: Option<Rotation>,
}

impl<'a, T: Element> Source<'a, T> {
    /// The rows of a sequence, of the heads that share one of keys.
    fn rows(&self, span: Span, head_k: usize) -> HeadRows<'a, T> {
        self.x.head_rows(span, head_k, self.group_size)
    }

    /// Room for a row.
    fn buffer(&self) -> Vec<f32> {
        vec![0.0; self.head_dim]
    }

    /// A row in f32, rotated if the problem says so.
    fn read(&self, row: &[T], x: &mut [f32]) {
        T::widen(row, x);
        if let Some(rotation) = &self.rotation {
            rotation.rotate(x);
        }
    }

    /// The greatest magnitude for each scale; 0 where there are no numbers.
    fn amax(&self, problem: &QuantizeProblem, spans: &[Span]) -> Vec<f32> {
        let ([_, heads_k, _], scales) = (problem.sizes(), problem.scale_layout());
        let mut amax = vec![0f32; problem.n_scales() as usize];
        for (sequence, span) in spans.iter().enumerate() {
            for head_k in 0..heads_k {
                for first in (0..span.len).step_by(scales.rows()) {
                    let block = Span {
                        first: span.first + first,
                        len: (span.len - first).min(scales.rows()),
                        ..*span
                    };
                    let amax = &mut amax[scales.place(sequence, head_k, first)];
                    *amax = greater(*amax, self.amax_of(block, head_k));
                }
            }
        }
        amax
    }

    /// That of some rows of a sequence, of the heads that share one of keys.
    fn amax_of(&self, span: Span, head_k: usize) -> f32 {
        let rows = self.rows(span, head_k);
        let of_row = |x: &mut Vec<f32>, at| {
            self.read(rows.row(at), x);
            x.iter().fold(0.0, |amax, &x| greater(amax, x))
        };
        let all = (0..span.len * self.group_size).into_par_iter();
        let of_rows = all.map_init(|| self.buffer(), of_row);
        of_rows.reduce(|| 0.0, greater)
    }
}

/// The greater magnitude; NaN is the greatest.
fn greater(a: f32, b: f32) -> f32 {
    let bits = [a, b].map(|x| x.abs().to_bits());
    f32::from_bits(bits[0].max(bits[1]))
}

/// Writes numbers to a vector, if it is wanted.
fn write(operands: &mut Operands, argument: Argument, from: &[f32]) -> Result<(), ProblemError> {
    if let Some(Operand::VectorMut(mut to)) = operands.take(argument) {
        to.host().ok_or(missing(argument))?.copy_from_slice(from);
    }
    Ok(())
}
