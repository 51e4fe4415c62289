//! Gradients, with P computed again.

use super::{Attended, Head, Row, add, dot, tiles};

// ANCHOR: program
/// dQ, dK and dV from dO. P is not read: it is computed again from S and L.
pub fn backward<const D: usize>(
    head: &Head<D>,
    (o, lse): &Attended<D>,
    d_o: &[Row<D>],
    [block_q, block_k]: [usize; 2],
) -> [Vec<Row<D>>; 3] {
    let zeros = |n| vec![[0.0; D]; n];
    let [mut d_q, mut d_k, mut d_v] = [head.q, head.k, head.v].map(|x| zeros(x.len()));
    // Δ = rowsum(dO ∘ O)
    let delta: Vec<f64> = o.iter().zip(d_o).map(|(o, d_o)| dot(o, d_o)).collect();
    for keys in tiles(head.k.len(), block_k) {
        // A block of threads each: dK_j and dV_j are in its registers.
        for queries in tiles(head.q.len(), block_q) {
            for i in queries {
                let s = head.scores(i, keys.clone());
                for (j, s) in keys.clone().zip(s) {
                    let p = (s - lse[i]).exp();
                    add(&mut d_v[j], p, &d_o[i]);
                    let d_p = dot(&d_o[i], &head.v[j]);
                    let d_s = p * (d_p - delta[i]);
                    add(&mut d_k[j], head.scale * d_s, &head.q[i]);
                    add(&mut d_q[i], head.scale * d_s, &head.k[j]);
                }
            }
        }
    }
    [d_q, d_k, d_v]
}
// ANCHOR_END: program
