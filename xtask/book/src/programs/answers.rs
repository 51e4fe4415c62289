//! Answers to exercises.

use super::decode::merge;
use super::{Attended, Head, Row, add, greatest, tiles};

// ANCHOR: causal
/// flash2 under a causal mask. Two lines differ: the range of the blocks, and the
/// scores.
pub fn flash2_causal<const D: usize>(
    head: &Head<D>,
    [block_q, block_k]: [usize; 2],
) -> Attended<D> {
    let (mut all_o, mut lse) = (Vec::new(), Vec::new());
    let place = |i: usize| i + head.k.len() - head.q.len(); // no more queries than keys
    for queries in tiles(head.q.len(), block_q) {
        let mut o = vec![[0.0; D]; queries.len()];
        let mut m = vec![f64::NEG_INFINITY; queries.len()];
        let mut l = vec![0.0; queries.len()];
        let end = place(queries.end - 1) + 1; // what the tile's last query sees
        for keys in tiles(end, block_k).rev() {
            for (row, i) in queries.clone().enumerate() {
                let visible = keys.start..keys.end.min(place(i) + 1).max(keys.start);
                let s = head.scores(i, visible.clone());
                if s.is_empty() {
                    continue; // exp(−∞ − −∞) is no number
                }
                let m_new = m[row].max(greatest(&s));
                let alpha = (m[row] - m_new).exp();
                o[row] = o[row].map(|o| alpha * o);
                l[row] *= alpha;
                for (s, v) in s.iter().zip(&head.v[visible]) {
                    let p = (s - m_new).exp();
                    l[row] += p;
                    add(&mut o[row], p, v);
                }
                m[row] = m_new;
            }
        }
        all_o.extend(o.iter().zip(&l).map(|(o, l)| o.map(|o| o / l)));
        lse.extend(m.iter().zip(&l).map(|(m, l)| m + l.ln()));
    }
    (all_o, lse)
}
// ANCHOR_END: causal

// ANCHOR: flash1_bytes
/// Bytes that flash1 moves between memory and the chip, by its loops: tensors of 2
/// bytes an element, O, m and l of 4.
pub fn flash1_bytes(n: usize, d: usize, [block_q, block_k]: [usize; 2]) -> usize {
    let mut bytes = 0;
    for keys in tiles(n, block_k) {
        bytes += keys.len() * 2 * d * 2; // K_j and V_j
        for queries in tiles(n, block_q) {
            bytes += queries.len() * d * 2; // Q_i
            bytes += queries.len() * (d + 2) * 4 * 2; // O_i, m_i and l_i, read and written
        }
    }
    bytes
}
// ANCHOR_END: flash1_bytes

// ANCHOR: lazy
/// How often a row of scores makes the rescaling of O necessary, if m is renewed only
/// where a score passes it by more than `slack`.
pub fn renewals(s: &[f64], block: usize, slack: f64) -> usize {
    let mut m = f64::NEG_INFINITY;
    let mut n = 0;
    for keys in tiles(s.len(), block) {
        let most = greatest(&s[keys]);
        if most > m + slack {
            m = most;
            n += 1;
        }
    }
    n
}
// ANCHOR_END: lazy

// ANCHOR: merge_empty
/// A merge in which parts may have seen no key: their O is not read, and where no part
/// has seen one, O is 0 and L is −∞.
pub fn merge_with_empty<const D: usize>(parts: &[(Row<D>, f64)]) -> (Row<D>, f64) {
    let seen = parts.iter().filter(|(_, lse)| *lse != f64::NEG_INFINITY);
    let seen: Vec<_> = seen.copied().collect();
    match seen.is_empty() {
        true => ([0.0; D], f64::NEG_INFINITY),
        false => merge(&seen),
    }
}
// ANCHOR_END: merge_empty
