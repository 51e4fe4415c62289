//! A tensor rounded to 8 bits, a row at a time.
//!
//! A maximum is what it is in any order, so the results do not depend on the number of threads.

use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::rows_mut;
use super::{missing, output, pool, vector};
use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Dtype, Element};
use crate::error::ProblemError;
use crate::lengths::Span;
use crate::lengths::new_rows::{NewSpan, of_quantize};
use crate::problem::quantize::QuantizeProblem;
use crate::quantize::{E4M3_MAX, Rotation};
use crate::tensor::{Layout, Location, TensorMut};
use crate::validate::quantize::check_quantize;

/// The least scale: the product of two is a number of f32.
const LEAST_DESCALE: f32 = 1.0 / (1u64 << 60) as f32;

/// The bits of a mantissa.
const MANTISSA: u32 = (1 << 23) - 1;

/// Rounds a tensor. The arguments have passed [`crate::validate`] for this problem and lie on the host; an error says which one has not or does not.
pub(crate) fn run(problem: &QuantizeProblem, operands: &mut Operands) -> Result<(), ProblemError> {
    match check_quantize(problem, operands.describe())?.location() {
        Location::Host => {}
        given => {
            let needed = Location::Host;
            return Err(ProblemError::OtherDevice { given, needed });
        }
    }
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
    let Some(Operand::Tensor(x)) = operands.take(Argument::X) else {
        return Err(missing(Argument::X));
    };
    let [heads, heads_k, head_dim] = problem.sizes();
    let rows = Rows {
        data: x.host::<T>().ok_or(missing(Argument::X))?,
        layout: x.layout(),
        group_size: heads.checked_div(heads_k).unwrap_or(1),
        rotation: problem.rotation().map(|seed| Rotation::new(seed, head_dim)),
    };
    let scales = problem.scale_layout();
    let sets = (0..spans.len()).flat_map(|at| (0..heads_k).map(move |head_k| (at, head_k)));
    let mut amax = vec![0f32; problem.n_scales() as usize];
    for (at, head_k) in sets {
        let NewSpan {
            sequence,
            rows: span,
            ..
        } = spans[at];
        for first in (0..span.len).step_by(scales.rows()) {
            let of_block = Span {
                first: span.first + first,
                len: (span.len - first).min(scales.rows()),
                ..span
            };
            let amax = &mut amax[scales.place(sequence, head_k, first)];
            *amax = greater(*amax, rows.amax(of_block, head_k));
        }
    }
    let descale: Vec<f32> = match vector(operands, Argument::Descale) {
        Some(given) => given.to_vec(),
        None => {
            let of_amax = |&amax| descale(amax, problem.is_power_of_2());
            amax.iter().map(of_amax).collect()
        }
    };
    let factor = |at: usize| match problem.gives_descale() || amax[at].is_finite() {
        true => 1.0 / descale[at],
        false => f32::NAN,
    };
    let mut rounded = output(operands, Argument::Rounded)?;
    for (set, span) in sets_of(&mut rounded, &spans, rows.group_size)? {
        let (sequence, head_k) = (span.sequence, set.head_k);
        set.rows
            .into_par_iter()
            .enumerate()
            .for_each_init(Vec::new, |x, (at, codes)| {
                rows.read(span.rows, head_k, at, x);
                let factor = factor(scales.place(sequence, head_k, at / rows.group_size));
                for (code, x) in codes.iter_mut().zip(x) {
                    *code = code_of(*x * factor);
                }
            });
    }
    write(operands, Argument::DescaleOut, &descale)?;
    write(operands, Argument::Amax, &amax)
}

/// The rows that are read.
struct Rows<'a, T> {
    data: &'a [T],
    layout: Layout,
    group_size: usize,
    rotation: Option<Rotation>,
}

impl<T: Element> Rows<'_, T> {
    /// A row of a sequence and its heads that share one of keys, in the order (position, head).
    fn read(&self, span: Span, head_k: usize, at: usize, x: &mut Vec<f32>) {
        let (row, head) = (at / self.group_size, at % self.group_size);
        let first = span.batch_idx * self.layout.batch_stride
            + (span.first + row) * self.layout.row_stride
            + (head_k * self.group_size + head) * self.layout.head_stride;
        x.resize(self.layout.head_dim, 0.0);
        T::widen(&self.data[first..][..self.layout.head_dim], x);
        if let Some(rotation) = &self.rotation {
            rotation.rotate(x);
        }
    }

    fn amax(&self, span: Span, head_k: usize) -> f32 {
        let rows = 0..span.len * self.group_size;
        let of_row = |x: &mut Vec<f32>, at| {
            self.read(span, head_k, at, x);
            x.iter().fold(0.0, |amax, &x| greater(amax, x))
        };
        let of_rows = rows.into_par_iter().map_init(Vec::new, of_row);
        of_rows.reduce(|| 0.0, greater)
    }
}

/// The greater magnitude; NaN is the greatest.
fn greater(a: f32, b: f32) -> f32 {
    let bits = [a, b].map(|x| x.abs().to_bits());
    f32::from_bits(bits[0].max(bits[1]))
}

/// The scale of numbers up to amax.
fn descale(amax: f32, to_power_of_2: bool) -> f32 {
    if amax == 0.0 || !amax.is_finite() {
        return 1.0;
    }
    let descale = (amax / E4M3_MAX).max(LEAST_DESCALE);
    match to_power_of_2 {
        // A power of 2 has no mantissa.
        true => f32::from_bits((descale.to_bits() + MANTISSA) & !MANTISSA),
        false => descale,
    }
}

/// The nearest number of e4m3.
fn code_of(x: f32) -> F8E4M3 {
    match x.is_nan() {
        true => F8E4M3::NAN,
        false => F8E4M3::from_f32(x),
    }
}

/// The rows of a sequence that share a head of keys, to write.
struct Set<'o> {
    head_k: usize,
    rows: Vec<&'o mut [F8E4M3]>,
}

/// Those of every sequence and head of keys.
fn sets_of<'o, 's>(
    rounded: &'o mut TensorMut,
    spans: &'s [NewSpan],
    group_size: usize,
) -> Result<Vec<(Set<'o>, &'s NewSpan)>, ProblemError> {
    let (argument, layout) = (Argument::Rounded, rounded.layout());
    let data = rounded.host::<F8E4M3>().ok_or(missing(argument))?;
    let rows = rows_mut(data, layout, group_size);
    let rows = rows.ok_or(ProblemError::OutputAliases { argument, layout })?;
    let heads_k = layout.heads / group_size.max(1);
    let mut rows = rows.into_iter();
    let mut sets = Vec::new();
    for (batch_idx, head_k) in
        (0..layout.batch).flat_map(|batch_idx| (0..heads_k).map(move |head_k| (batch_idx, head_k)))
    {
        let mut rows = rows.by_ref().take(layout.seqlen * group_size);
        // Those of a tensor follow one another.
        let mut passed = 0;
        for span in spans.iter().filter(|span| span.rows.batch_idx == batch_idx) {
            let skipped = (span.rows.first - passed) * group_size;
            passed = span.rows.first + span.rows.len;
            rows.by_ref().take(skipped).for_each(drop);
            let rows = rows.by_ref().take(span.rows.len * group_size).collect();
            sets.push((Set { head_k, rows }, span));
        }
        rows.for_each(drop);
    }
    Ok(sets)
}

/// Writes numbers to a vector, if it is wanted.
fn write(operands: &mut Operands, argument: Argument, from: &[f32]) -> Result<(), ProblemError> {
    if let Some(Operand::VectorMut(mut to)) = operands.take(argument) {
        to.host().ok_or(missing(argument))?.copy_from_slice(from);
    }
    Ok(())
}
