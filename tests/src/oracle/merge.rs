//! Two parts of the keys merged, from the definition.

use super::Output;

/// o and lse over the keys of both parts, and what the errors of o are measured against.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeReference {
    /// o and lse.
    pub output: Output,
    /// `Σᵢ wᵢ|oᵢ| (1 + |lseᵢ − m|)` of each element: an f32 difference of two lse errs by a share of its size, and a weight by as much.
    pub terms: Vec<f64>,
    /// Of each row: the one part that has all the weight, if one has it by far.
    pub alone: Vec<Option<usize>>,
}

/// The weight of a part is lost beside the other's, in any type, where lse lies so far below.
const FAR_BELOW: f64 = 200.0;

/// Merges dense o, `[batch, seqlen, heads, head_dim]`, and lse, `[batch, heads, seqlen]`.
pub fn merge(shape: [usize; 4], parts: [&Output; 2]) -> MergeReference {
    let [_, seqlen, heads, head_dim] = shape;
    let n_rows = parts[0].lse.len();
    let mut merged = MergeReference {
        output: Output {
            o: vec![0.0; n_rows * head_dim],
            lse: Vec::with_capacity(n_rows),
        },
        terms: vec![0.0; n_rows * head_dim],
        alone: Vec::with_capacity(n_rows),
    };
    for row in 0..n_rows {
        let lse = parts.map(|part| part.lse[row]);
        let most = lse[0].max(lse[1]);
        let weights = lse.map(|lse| match lse {
            f64::NEG_INFINITY => 0.0,
            lse if lse == most => 1.0,
            lse => (lse - most).exp(),
        });
        let sum = weights[0] + weights[1];
        let (batch, head, i) = (row / seqlen / heads, row / seqlen % heads, row % seqlen);
        let first = ((batch * seqlen + i) * heads + head) * head_dim;
        for at in first..first + head_dim {
            for part in 0..2 {
                // Not read: it may be anything.
                if weights[part] > 0.0 {
                    let term = weights[part] / sum * parts[part].o[at];
                    let distance = if lse[part] == most {
                        0.0
                    } else {
                        most - lse[part]
                    };
                    merged.output.o[at] += term;
                    merged.terms[at] += term.abs() * (1.0 + distance);
                }
            }
        }
        let alone = (0..2)
            .find(|&part| lse[part] > f64::NEG_INFINITY && lse[1 - part] < lse[part] - FAR_BELOW);
        merged.alone.push(alone);
        merged.output.lse.push(match sum {
            0.0 => f64::NEG_INFINITY,
            sum => most + sum.ln(),
        });
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{self, Inputs, Sizes};

    fn part(o: f64, lse: f64) -> Output {
        let (o, lse) = (vec![o], vec![lse]);
        Output { o, lse }
    }

    #[test]
    fn a_part_weighs_as_its_sum_of_exponentials() {
        let (first, second) = (part(4.0, 0.0), part(8.0, 3f64.ln()));
        let merged = merge([1; 4], [&first, &second]);
        assert!((merged.output.o[0] - 7.0).abs() < 1e-12);
        assert!((merged.output.lse[0] - 4f64.ln()).abs() < 1e-12);
        assert_eq!(merged.alone, [None]);
        let none = part(f64::NAN, f64::NEG_INFINITY);
        let alone = merge([1; 4], [&none, &second]);
        assert_eq!((alone.output, alone.alone), (second, vec![Some(1)]));
        let neither = merge([1; 4], [&none, &none]);
        assert_eq!(neither.output, part(0.0, f64::NEG_INFINITY));
    }

    /// The oracle of a merge and that of attention say the same.
    #[test]
    fn attention_over_parts_merges_into_attention_over_all() {
        let sizes = |seqlen_k| Sizes {
            batch: 2,
            seqlen_q: 3,
            seqlen_k,
            heads_q: 2,
            heads_k: 1,
            head_dim: 4,
            head_dim_v: 4,
        };
        let number = |at: usize| ((at * 37 % 23) as f64 - 11.0) / 7.0;
        let q: Vec<f64> = (0..sizes(7).query_elems()).map(number).collect();
        let rows: Vec<f64> = (0..sizes(7).key_elems()).map(|at| number(at + 5)).collect();
        // Rows of both batch entries: 7 keys of 4 columns.
        let of = |keys: std::ops::Range<usize>| {
            let k: Vec<f64> = (0..2)
                .flat_map(|batch| {
                    rows[(batch * 7 + keys.start) * 4..(batch * 7 + keys.end) * 4].to_vec()
                })
                .collect();
            oracle::forward(&Inputs {
                sizes: sizes(keys.len()),
                q: &q,
                k: &k,
                v: &k,
                softmax_scale: 0.7,
                visible: &oracle::full,
                block: None,
                edit: None,
                sinks: None,
                dropout: None,
            })
        };
        let (first, second, whole) = (of(0..3), of(3..7), of(0..7));
        let merged = merge([2, 3, 2, 4], [&first, &second]).output;
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near(&merged.o, &whole.o) && near(&merged.lse, &whole.lse));
    }
}
