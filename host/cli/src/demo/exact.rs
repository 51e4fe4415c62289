//! Causal attention in float64 by its definition, forward and backward, for one sequence: what the demo is checked against.

use std::collections::HashMap;

/// Sizes of the problem.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Queries, and keys.
    pub seqlen: usize,
    /// Heads of q; so many share one of k as there are for each.
    pub heads_q: usize,
    /// Heads of k and v.
    pub heads_k: usize,
    /// Columns of all.
    pub head_dim: usize,
}

/// o, lse, d_q, d_k and d_v by name, of q, k, v and d_o, `[seqlen, heads, head_dim]`.
pub fn exact(
    sizes: Sizes,
    scale: f64,
    [q, k, v, d_o]: [Vec<f64>; 4],
) -> HashMap<&'static str, Vec<f32>> {
    let Sizes {
        seqlen,
        heads_q,
        heads_k,
        head_dim,
    } = sizes;
    let mut o = vec![0.0; q.len()];
    let mut lse = vec![0.0; heads_q * seqlen];
    let (mut d_q, mut d_k, mut d_v) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for head in 0..heads_q {
        let head_k = head / (heads_q / heads_k);
        let row_q = |i: usize| (i * heads_q + head) * head_dim..(i * heads_q + head + 1) * head_dim;
        let row_k =
            |j: usize| (j * heads_k + head_k) * head_dim..(j * heads_k + head_k + 1) * head_dim;
        for i in 0..seqlen {
            let (q_i, d_o_i) = (&q[row_q(i)], &d_o[row_q(i)]);
            // A query sees the keys up to its own place.
            let s: Vec<f64> = (0..=i).map(|j| scale * dot(q_i, &k[row_k(j)])).collect();
            let m = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let l: f64 = s.iter().map(|s| (s - m).exp()).sum();
            lse[head * seqlen + i] = m + l.ln();
            let p: Vec<f64> = s.iter().map(|s| (s - m).exp() / l).collect();
            for (j, p) in p.iter().enumerate() {
                add(&mut o[row_q(i)], *p, &v[row_k(j)]);
            }
            let delta = dot(d_o_i, &o[row_q(i)]);
            for (j, p) in p.iter().enumerate() {
                let d_s = scale * p * (dot(d_o_i, &v[row_k(j)]) - delta);
                add(&mut d_q[row_q(i)], d_s, &k[row_k(j)]);
                add(&mut d_k[row_k(j)], d_s, q_i);
                add(&mut d_v[row_k(j)], *p, d_o_i);
            }
        }
    }
    let results = [
        ("o", o),
        ("lse", lse),
        ("d_q", d_q),
        ("d_k", d_k),
        ("d_v", d_v),
    ];
    let narrow = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect();
    results
        .into_iter()
        .map(|(name, values)| (name, narrow(values)))
        .collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `to += factor · row`.
fn add(to: &mut [f64], factor: f64, row: &[f64]) {
    for (to, x) in to.iter_mut().zip(row) {
        *to += factor * x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gradients are slopes: of Σ d_o · o along an element of q, k and v.
    #[test]
    fn gradients_are_slopes() {
        let sizes = Sizes {
            seqlen: 3,
            heads_q: 2,
            heads_k: 1,
            head_dim: 2,
        };
        let wave = |n: usize, phase: f64| (0..n).map(|x| (x as f64 + phase).sin()).collect();
        let given: [Vec<f64>; 4] = [wave(12, 0.1), wave(6, 0.2), wave(6, 0.3), wave(12, 0.4)];
        let loss = |given: &[Vec<f64>; 4]| {
            let results = exact(sizes, 0.7, given.clone());
            let o: Vec<f64> = results["o"].iter().map(|&x| f64::from(x)).collect();
            dot(&o, &given[3])
        };
        let results = exact(sizes, 0.7, given.clone());
        for (which, name) in ["d_q", "d_k", "d_v"].into_iter().enumerate() {
            for at in 0..given[which].len() {
                let [mut more, mut less] = [given.clone(), given.clone()];
                more[which][at] += 1e-2;
                less[which][at] -= 1e-2;
                let slope = (loss(&more) - loss(&less)) / 2e-2;
                let gradient = f64::from(results[name][at]);
                assert!(
                    (slope - gradient).abs() < 1e-4,
                    "{name} {at}: {slope}, {gradient}"
                );
            }
        }
    }
}
