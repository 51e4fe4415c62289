//! The schedule of the first paper: keys outside, queries inside.

use super::{Attended, Head, add, greatest, tiles};

// ANCHOR: program
/// FlashAttention, Algorithm 1. Between two blocks of keys, O, m and l of all queries
/// lie in memory.
pub fn flash1<const D: usize>(head: &Head<D>, [block_q, block_k]: [usize; 2]) -> Attended<D> {
    let n = head.q.len();
    let mut o = vec![[0.0; D]; n];
    let (mut m, mut l) = (vec![f64::NEG_INFINITY; n], vec![0.0; n]);
    for keys in tiles(head.k.len(), block_k) {
        // K_j and V_j are loaded here, and stay while all queries pass.
        for queries in tiles(n, block_q) {
            // Q_i, O_i, m_i and l_i are loaded. The last three are stored at the end.
            for i in queries {
                let s = head.scores(i, keys.clone());
                let m_new = m[i].max(greatest(&s));
                let p: Vec<f64> = s.iter().map(|s| (s - m_new).exp()).collect();
                let l_old = (m[i] - m_new).exp() * l[i];
                let l_new = l_old + p.iter().sum::<f64>();
                // O is divided by l every time: it is the attention over the keys so far.
                o[i] = o[i].map(|o| l_old / l_new * o);
                for (p, v) in p.iter().zip(&head.v[keys.clone()]) {
                    add(&mut o[i], p / l_new, v);
                }
                (m[i], l[i]) = (m_new, l_new);
            }
        }
    }
    let lse = m.iter().zip(&l).map(|(m, l)| m + l.ln()).collect();
    (o, lse)
}
// ANCHOR_END: program
