//! The schedule of the second paper: queries outside, keys inside.

use super::{Attended, Head, add, greatest, tiles};

// ANCHOR: program
/// FlashAttention-2, Algorithm 1. On a GPU each tile of queries is a block of threads
/// of its own.
pub fn flash2<const D: usize>(head: &Head<D>, [block_q, block_k]: [usize; 2]) -> Attended<D> {
    let (mut all_o, mut lse) = (Vec::new(), Vec::new());
    for queries in tiles(head.q.len(), block_q) {
        // Registers, until the tile is done.
        let mut o = vec![[0.0; D]; queries.len()];
        let mut m = vec![f64::NEG_INFINITY; queries.len()];
        let mut l = vec![0.0; queries.len()];
        for keys in tiles(head.k.len(), block_k).rev() {
            // K_j and V_j are loaded here.
            for (row, i) in queries.clone().enumerate() {
                let s = head.scores(i, keys.clone());
                let m_new = m[row].max(greatest(&s));
                let alpha = (m[row] - m_new).exp();
                o[row] = o[row].map(|o| alpha * o);
                l[row] *= alpha;
                for (s, v) in s.iter().zip(&head.v[keys.clone()]) {
                    let p = (s - m_new).exp();
                    l[row] += p;
                    add(&mut o[row], p, v);
                }
                m[row] = m_new;
            }
        }
        // The only division, and the only store.
        all_o.extend(o.iter().zip(&l).map(|(o, l)| o.map(|o| o / l)));
        lse.extend(m.iter().zip(&l).map(|(m, l)| m + l.ln()));
    }
    (all_o, lse)
}
// ANCHOR_END: program
