//! What a case should give, by the oracle; and the comparison with what a device computed.

mod probabilities;
mod tensors;

use std::ops::Range;

use crate::beside::rounding;
use crate::blocks;
use crate::buffer::Repeats;
use crate::cases::Case;
use crate::compare::{Closeness, Comparison, Errors, closest};
use crate::dropout::Dropout;
use crate::edits::gradients::TensorGradient;
use crate::edits::{Edits, Precision, Sequence};
use crate::inputs::{Fill, Values};
use crate::lengths::{Lengths, Span};
use crate::oracle::{self, Condition, Inputs, Output, ScoreError, Terms};
use crate::tolerance::{Arithmetic, Quantity};
use crate::trial::Results;

pub use probabilities::Probabilities;

/// What it should have computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// o and lse.
    pub output: Output,
    /// d_q, d_k, d_v and d_sinks.
    pub gradients: oracle::Gradients,
    /// Of the tensors that a score reads, those that have one.
    pub tensors: Vec<TensorGradient>,
    /// What their errors are measured against.
    pub condition: Condition,
    /// What the products are made of whose results are compared.
    pub arithmetic: Arithmetic,
}

/// Gives `f` what the oracle takes of a case.
pub fn with_inputs<R>(
    case: &Case,
    values: &Values,
    softmax_scale: f32,
    f: impl FnOnce(&Inputs) -> R,
) -> R {
    let visible = oracle::visible(case.sizes, case.mask.window(), case.mask.prefix());
    let table = case.block_table();
    let at = |b, h, i, j| {
        table
            .as_ref()
            .map_or(blocks::PARTIAL, |table| table.at(b, h, i, j))
    };
    let Values { q, k, v, .. } = values;
    let sinks = case.sink_values();
    let dropout = case.dropout.map(Dropout::of_oracle);
    let heads_q = case.sizes.heads_q;
    let factor = |b: usize, h: usize, i: usize, j: usize| {
        dropout.map_or(1.0, |dropout| dropout.factor(b * heads_q + h, i, j))
    };
    f(&Inputs {
        sizes: case.sizes,
        q,
        k,
        v,
        softmax_scale: softmax_scale.into(),
        visible: &visible,
        block: Some(&at),
        edit: None,
        sinks: sinks.as_deref(),
        dropout: Some(&factor),
    })
}

/// What a score may be off, and what that is measured with.
fn precision(case: &Case, inputs: &Inputs) -> Precision {
    Precision {
        product: inputs.product_error(),
        unit: rounding(case.dtype).0,
    }
}

/// Gives `f` the same with scores that are edited, of a problem whose first batch entry is sequence `first`.
fn edited<R>(
    case: &Case,
    inputs: &Inputs,
    first: usize,
    edits: Option<&Edits>,
    f: impl FnOnce(&Inputs) -> R,
) -> R {
    let Some(edits) = edits else {
        return f(inputs);
    };
    let sequence = Sequence {
        first,
        sizes: inputs.sizes,
    };
    edits.with_edit(sequence, precision(case, inputs), |edit| {
        f(&Inputs {
            edit: Some(edit),
            ..*inputs
        })
    })
}

/// Elements of a sequence's rows.
fn range(span: Span, per_row: usize) -> Range<usize> {
    span.first * per_row..(span.first + span.len) * per_row
}

/// Gives `f` what the oracle takes of one sequence: its number, its queries and its keys.
fn with_sequence<R>(
    case: &Case,
    values: &Values,
    softmax_scale: f32,
    (number, (q, k)): (usize, (Span, Span)),
    edits: Option<&Edits>,
    f: impl FnOnce(&Inputs) -> R,
) -> R {
    let sizes = case.of_sequence(q, k);
    let visible = oracle::visible(sizes, case.mask.window(), case.mask.prefix());
    let sinks = case.sink_values();
    let dropout = case.dropout.map(Dropout::of_oracle);
    let factor = |_: usize, h: usize, i: usize, j: usize| {
        let head = number * sizes.heads_q + h;
        dropout.map_or(1.0, |dropout| dropout.factor(head, i, j))
    };
    let inputs = Inputs {
        sizes,
        q: &values.q[range(q, sizes.heads_q * sizes.head_dim)],
        k: &values.k[range(k, sizes.heads_k * sizes.head_dim)],
        v: &values.v[range(k, sizes.heads_k * sizes.head_dim_v)],
        softmax_scale: softmax_scale.into(),
        visible: &visible,
        block: None,
        edit: None,
        sinks: sinks.as_deref(),
        dropout: Some(&factor),
    };
    edited(case, &inputs, number, edits, f)
}

impl Reference {
    /// By the oracle.
    pub fn new(case: &Case, values: &Values, softmax_scale: f32) -> Reference {
        Reference::edited(case, values, softmax_scale, None)
    }

    /// By the oracle, with scores that are edited.
    pub fn edited(
        case: &Case,
        values: &Values,
        softmax_scale: f32,
        edits: Option<&Edits>,
    ) -> Reference {
        if let Some(lengths) = &case.lengths {
            return Reference::of_lengths(case, lengths, values, softmax_scale, edits);
        }
        let (d_o, d_lse) = (&values.d_o, values.d_lse.as_deref());
        with_inputs(case, values, softmax_scale, |inputs| {
            edited(case, inputs, 0, edits, |inputs| {
                let mut reference = Reference::of_inputs(case, inputs, d_o, d_lse);
                let mut tensors = tensors::zero_gradients(case, edits);
                reference.add_tensors(case, (inputs, 0), edits, (d_o, d_lse), &mut tensors);
                reference.tensors = tensors;
                reference
            })
        })
    }

    /// The same, for results of products that are made so; else they are made of numbers as the tensors have them.
    pub fn of_products(self, arithmetic: Arithmetic) -> Reference {
        Reference { arithmetic, ..self }
    }

    fn of_inputs(case: &Case, inputs: &Inputs, d_o: &[f64], d_lse: Option<&[f64]>) -> Reference {
        let output = oracle::forward(inputs);
        let gradients = oracle::backward(inputs, d_o, d_lse);
        let condition = oracle::condition(inputs, &output, d_o, d_lse);
        Reference {
            output,
            gradients,
            tensors: Vec::new(),
            condition,
            arithmetic: case.dtype.into(),
        }
    }

    /// By the oracle, each sequence for itself; rows that belong to none are 0, their lse is −∞.
    fn of_lengths(
        case: &Case,
        lengths: &Lengths,
        values: &Values,
        softmax_scale: f32,
        edits: Option<&Edits>,
    ) -> Reference {
        let (rows, heads_q) = (case.lse_rows(), case.sizes.heads_q);
        let sinks = case.sink_values();
        let n_sinks = sinks.as_ref().map_or(0, Vec::len);
        let zero = |array: &[f64]| vec![0.0; array.len()];
        let no_terms = |array: &[f64]| Terms::uniform(array.len(), 0.0, 0.0);
        let mut all = Reference {
            output: Output {
                o: zero(&values.d_o),
                lse: vec![f64::NEG_INFINITY; rows.n_elems()],
            },
            gradients: oracle::Gradients {
                d_q: zero(&values.q),
                d_k: zero(&values.k),
                d_v: zero(&values.v),
                d_sinks: vec![0.0; n_sinks],
            },
            tensors: tensors::zero_gradients(case, edits),
            condition: Condition {
                o: no_terms(&values.d_o),
                d_q: no_terms(&values.q),
                d_k: no_terms(&values.k),
                d_v: no_terms(&values.v),
                d_sinks: Terms::uniform(n_sinks, 0.0, 0.0),
                score: ScoreError::default(),
            },
            arithmetic: case.dtype.into(),
        };
        let spans = lengths.q.spans(lengths.n).into_iter();
        for (number, (q, k)) in spans.zip(lengths.k.spans(lengths.n)).enumerate() {
            let sizes = case.of_sequence(q, k);
            let of_q = range(q, heads_q * sizes.head_dim);
            let of_o = range(q, heads_q * sizes.head_dim_v);
            let of_k = range(k, sizes.heads_k * sizes.head_dim);
            let of_v = range(k, sizes.heads_k * sizes.head_dim_v);
            let elements: Vec<usize> = (0..heads_q)
                .flat_map(|head| (0..q.len).map(move |i| (head, i)))
                .map(|(head, i)| rows.element(q.first + i, head))
                .collect();
            let d_o = &values.d_o[of_o.clone()];
            let d_lse = values.d_lse.as_ref().map(|d_lse| -> Vec<f64> {
                elements.iter().map(|&element| d_lse[element]).collect()
            });
            let Reference {
                output,
                gradients,
                condition,
                ..
            } = with_sequence(
                case,
                values,
                softmax_scale,
                (number, (q, k)),
                edits,
                |inputs| {
                    let reference = Reference::of_inputs(case, inputs, d_o, d_lse.as_deref());
                    let given = (d_o, d_lse.as_deref());
                    reference.add_tensors(case, (inputs, number), edits, given, &mut all.tensors);
                    reference
                },
            );
            all.output.o[of_o.clone()].copy_from_slice(&output.o);
            for (&element, lse) in elements.iter().zip(output.lse) {
                all.output.lse[element] = lse;
            }
            all.gradients.d_q[of_q.clone()].copy_from_slice(&gradients.d_q);
            all.gradients.d_k[of_k.clone()].copy_from_slice(&gradients.d_k);
            all.gradients.d_v[of_v.clone()].copy_from_slice(&gradients.d_v);
            all.condition.o.put(of_o.start, &condition.o);
            all.condition.d_q.put(of_q.start, &condition.d_q);
            all.condition.d_k.put(of_k.start, &condition.d_k);
            all.condition.d_v.put(of_v.start, &condition.d_v);
            for (all, of) in all.gradients.d_sinks.iter_mut().zip(&gradients.d_sinks) {
                *all += of;
            }
            all.condition.d_sinks.add(&condition.d_sinks);
            all.condition.score = all.condition.score.max(condition.score);
        }
        all
    }

    /// Compares all results; the error lists every one that is beyond tolerance.
    pub fn judge(&self, case: &Case, results: &Results) -> Result<Closeness, String> {
        let sizes = case.sizes;
        let problem = case.problem().map_err(|error| error.to_string())?;
        let of_column = sizes.seqlen_q * sizes.heads_q.checked_div(sizes.heads_k).unwrap_or(0);
        let (ours, theirs, condition) = (&results.gradients, &self.gradients, &self.condition);
        let gradient = |quantity, shape, n_terms, actual, reference, terms| {
            self.comparison(case, quantity, shape, n_terms, actual, reference, terms)
                .check()
        };
        let checks = [
            gradient(
                Quantity::DQ,
                problem.shape_q(),
                sizes.seqlen_k,
                &ours.d_q,
                &theirs.d_q,
                &condition.d_q,
            ),
            gradient(
                Quantity::DK,
                problem.shape_k(),
                of_column,
                &ours.d_k,
                &theirs.d_k,
                &condition.d_k,
            ),
            gradient(
                Quantity::DV,
                problem.shape_v(),
                of_column,
                &ours.d_v,
                &theirs.d_v,
                &condition.d_v,
            ),
            gradient(
                Quantity::DSinks,
                [1, 1, theirs.d_sinks.len(), 1],
                sizes.batch * sizes.seqlen_q,
                &ours.d_sinks,
                &theirs.d_sinks,
                &condition.d_sinks,
            ),
        ];
        let gradients = closest(checks).and_then(|close| self.judge_tensors(case, results, close));
        match (self.judge_output(case, &results.output), gradients) {
            (Ok(a), Ok(b)) => Ok(a.and(b)),
            (Err(a), Err(b)) => Err(format!("{a}\n{b}")),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        }
    }

    /// Compares o and lse.
    pub fn judge_output(&self, case: &Case, output: &Output) -> Result<Closeness, String> {
        let problem = case.problem().map_err(|error| error.to_string())?;
        let [batch, heads, rows] = problem.shape_lse();
        let of_lse = Terms::uniform(self.output.lse.len(), 1.0, 0.0);
        let of_row = case.sizes.seqlen_k;
        let o = self.comparison(
            case,
            Quantity::O,
            problem.shape_o(),
            of_row,
            &output.o,
            &self.output.o,
            &self.condition.o,
        );
        let lse = self.comparison(
            case,
            Quantity::Lse,
            [batch, heads, rows, 1],
            of_row,
            &output.lse,
            &self.output.lse,
            &of_lse,
        );
        closest([o.check(), lse.check()])
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a comparison")]
    fn comparison<'a>(
        &self,
        case: &Case,
        quantity: Quantity,
        shape: [usize; 4],
        n_terms: usize,
        actual: &'a [f64],
        reference: &'a [f64],
        terms: &'a Terms,
    ) -> Comparison<'a> {
        let rows_are_equal =
            case.fill == Fill::EqualRows || case.arrangement.repeats() == Repeats::Rows;
        Comparison {
            quantity,
            arithmetic: self.arithmetic,
            shape,
            actual,
            reference,
            terms,
            n_terms,
            score: self.condition.score,
            errors: if rows_are_equal {
                Errors::Shared
            } else {
                Errors::Independent
            },
        }
    }
}
