//! The weights of a case by the oracle.

use super::{edited, with_inputs, with_sequence};
use crate::cases::Case;
use crate::edits::Edits;
use crate::inputs::Values;
use crate::oracle::{self, Inputs, ScoreError};

/// The weights of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Probabilities {
    /// Its queries and its keys.
    pub seqlens: [usize; 2],
    /// `[heads_q, seqlen_q, seqlen_k]`.
    pub dense: Vec<f64>,
    /// What a score may be off.
    pub score: ScoreError,
}

impl Probabilities {
    /// The weights of every sequence, by the oracle.
    pub fn of_case(
        case: &Case,
        values: &Values,
        softmax_scale: f32,
        edits: Option<&Edits>,
    ) -> Vec<Probabilities> {
        let Some(lengths) = &case.lengths else {
            return with_inputs(case, values, softmax_scale, |inputs| {
                edited(case, inputs, 0, edits, |inputs| {
                    Probabilities::of_inputs(inputs, &values.d_o)
                })
            });
        };
        let spans = lengths.q.spans(lengths.n).into_iter();
        let spans = spans.zip(lengths.k.spans(lengths.n)).enumerate();
        let of_sequence = |(number, spans)| {
            with_sequence(
                case,
                values,
                softmax_scale,
                (number, spans),
                edits,
                |inputs| Probabilities::of_inputs(inputs, &vec![0.0; inputs.sizes.output_elems()]),
            )
        };
        spans.flat_map(of_sequence).collect()
    }

    /// Of every batch entry.
    fn of_inputs(inputs: &Inputs, d_o: &[f64]) -> Vec<Probabilities> {
        let sizes = inputs.sizes;
        let score = match inputs.edit {
            None => inputs.product_error(),
            Some(_) => oracle::condition(inputs, &oracle::forward(inputs), d_o, None).score,
        };
        let dense = oracle::probabilities(inputs);
        let n = sizes.heads_q * sizes.seqlen_q * sizes.seqlen_k;
        let of_batch = |batch| Probabilities {
            seqlens: [sizes.seqlen_q, sizes.seqlen_k],
            dense: dense[batch * n..][..n].to_vec(),
            score,
        };
        (0..sizes.batch).map(of_batch).collect()
    }
}
