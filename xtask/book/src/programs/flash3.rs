//! The schedule of the third paper: the steps of flash2 in another order, by two consumers at a time.

use std::ops::Range;

use super::{Attended, Head, add, greatest, tiles};

// ANCHOR: consumer
/// A consumer: a tile of queries, and what its registers hold.
struct Consumer<const D: usize> {
    queries: Range<usize>,
    s: Vec<Vec<f64>>, // scores of the newest block of keys
    p: Vec<Vec<f64>>, // weights of the block before
    o: Vec<[f64; D]>,
    m: Vec<f64>,
    l: Vec<f64>,
}

impl<const D: usize> Consumer<D> {
    /// S = scale · Q K_jᵀ: tensor cores.
    fn scores(&mut self, head: &Head<D>, keys: Range<usize>) {
        let queries = self.queries.clone();
        self.s = queries.map(|i| head.scores(i, keys.clone())).collect();
    }

    /// O ← O + P V_j: tensor cores.
    fn add_values(&mut self, head: &Head<D>, keys: Range<usize>) {
        for (o, p) in self.o.iter_mut().zip(&self.p) {
            let terms = p.iter().zip(&head.v[keys.clone()]);
            terms.for_each(|(p, v)| add(o, *p, v));
        }
    }

    /// P ← exp(S − m), and l and O rescaled: exponentials and arithmetic.
    fn softmax(&mut self) {
        for (row, s) in self.s.iter_mut().enumerate() {
            let m_new = self.m[row].max(greatest(s));
            let alpha = (self.m[row] - m_new).exp();
            s.iter_mut().for_each(|s| *s = (*s - m_new).exp());
            self.l[row] = alpha * self.l[row] + s.iter().sum::<f64>();
            self.o[row] = self.o[row].map(|o| alpha * o);
            self.m[row] = m_new;
        }
        self.p = std::mem::take(&mut self.s);
    }
}
// ANCHOR_END: consumer

impl<const D: usize> Consumer<D> {
    fn new(queries: Range<usize>) -> Self {
        let n = queries.len();
        Consumer {
            queries,
            s: Vec::new(),
            p: Vec::new(),
            o: vec![[0.0; D]; n],
            m: vec![f64::NEG_INFINITY; n],
            l: vec![0.0; n],
        }
    }

    /// O ← diag(l)⁻¹ O, and L, after those of the tiles before.
    fn store(&self, (o, lse): &mut Attended<D>) {
        o.extend(self.o.iter().zip(&self.l).map(|(o, l)| o.map(|o| o / l)));
        lse.extend(self.m.iter().zip(&self.l).map(|(m, l)| m + l.ln()));
    }
}

// ANCHOR: program
/// FlashAttention-3: two consumers, each with a tile of queries. `log` is told which
/// consumer begins what with which block.
pub fn flash3<const D: usize>(
    head: &Head<D>,
    [block_q, block_k]: [usize; 2],
    mut log: impl FnMut(usize, char, usize),
) -> Attended<D> {
    let mut stored = (Vec::new(), Vec::new());
    let blocks: Vec<_> = tiles(head.k.len(), block_k).rev().collect();
    let all: Vec<_> = tiles(head.q.len(), block_q).collect();
    for pair in all.chunks(2) {
        let mut consumers: Vec<_> = pair.iter().cloned().map(Consumer::new).collect();
        for j in 0..=blocks.len() {
            for (idx, c) in consumers.iter_mut().enumerate() {
                // Ping-pong: one consumer after the other begins its products.
                if j < blocks.len() {
                    log(idx, 'S', j);
                    c.scores(head, blocks[j].clone());
                }
                if j > 0 {
                    log(idx, 'O', j - 1);
                    c.add_values(head, blocks[j - 1].clone());
                }
                // On a GPU this runs during the other consumer's products.
                if j < blocks.len() {
                    log(idx, 'P', j);
                    c.softmax();
                }
            }
        }
        consumers.iter().for_each(|c| c.store(&mut stored));
    }
    stored
}
// ANCHOR_END: program
