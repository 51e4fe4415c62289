//! Packed and padded sequences, and each of them alone.

use super::*;

/// Sequences of lengths of their own: q and k packed or padded, with rows between and behind them that are nobody's.
pub struct Problem {
    pub lens: Vec<(i32, i32)>,
    pub q: Side,
    pub k: Side,
    pub random: Random,
    pub f16: bool,
    pub head_dim: u32,
}

impl Problem {
    /// Of a variant's elements and head_dim.
    pub fn of(variant: &Variant, seed: u64, packed: (bool, bool)) -> Problem {
        let f16 = variant.name.contains("_f16");
        Problem::new(f16, variant.head_dim.unwrap(), seed, packed)
    }

    /// How many numbers lse has.
    pub fn n_lse(&self, heads: u32) -> usize {
        self.entries(&self.q) * self.q.rows as usize * heads as usize
    }

    pub fn new(f16: bool, head_dim: u32, seed: u64, packed: (bool, bool)) -> Problem {
        let mut random = Random(seed);
        let lens = vec![
            (70, 200),
            (0, 60),
            (33, 0),
            (130, 129),
            (1, 1),
            (0, 0),
            (150, 40),
            (64, 128),
        ];
        let mut side = |packed: bool, lens: Vec<i32>, leftpad: bool| {
            let max = *lens.iter().max().unwrap() as u32;
            if packed {
                let gap = |i: usize| if i.is_multiple_of(3) { 5 } else { 0 };
                let mut cu_seqlens = vec![3];
                for (i, len) in lens.iter().enumerate() {
                    cu_seqlens.push(cu_seqlens[i] + len + gap(i));
                }
                Side {
                    rows: *cu_seqlens.last().unwrap() as u32 + 9,
                    cu_seqlens: Some(cu_seqlens),
                    seqused: Some(lens),
                    leftpad: None,
                    max: max + 5,
                }
            } else {
                let pad = |_: &i32| if leftpad { random.below(7) as i32 } else { 0 };
                let pad: Vec<i32> = lens.iter().map(pad).collect();
                let used = lens.iter().zip(&pad).map(|(len, pad)| len + pad).collect();
                Side {
                    rows: max + 11,
                    cu_seqlens: None,
                    seqused: Some(used),
                    leftpad: Some(pad).filter(|_| leftpad),
                    max: max + 11,
                }
            }
        };
        let q = side(packed.0, lens.iter().map(|len| len.0).collect(), false);
        let k = side(packed.1, lens.iter().map(|len| len.1).collect(), true);
        Problem {
            lens,
            q,
            k,
            random,
            f16,
            head_dim,
        }
    }

    pub fn width(&self, heads: u32) -> usize {
        (heads * self.head_dim) as usize
    }

    pub fn entries(&self, side: &Side) -> usize {
        if side.cu_seqlens.is_some() {
            1
        } else {
            self.lens.len()
        }
    }

    /// Random numbers in the sequences' rows, NaN in all others.
    pub fn tensor(&mut self, of_q: bool, heads: u32) -> Vec<u16> {
        let side = if of_q { self.q.clone() } else { self.k.clone() };
        let width = self.width(heads);
        let nan = if self.f16 { 0x7e00 } else { 0x7fc0 };
        let mut data = vec![nan; self.entries(&side) * side.rows as usize * width];
        for s in 0..self.lens.len() {
            let (entry, first, len) = self.rows(&side, s);
            let begin = (entry * side.rows as usize + first) * width;
            for x in &mut data[begin..begin + len * width] {
                *x = element(&mut self.random, self.f16);
            }
        }
        data
    }

    /// The batch entry of a sequence, its first row there and its length.
    pub fn rows(&self, side: &Side, s: usize) -> (usize, usize, usize) {
        let (first, len) = side.of(s);
        let entry = if side.cu_seqlens.is_some() { 0 } else { s };
        (entry, first as usize, len as usize)
    }

    /// A sequence's rows of a tensor, as one of their own.
    pub fn cut(&self, side: &Side, heads: u32, tensor: &[u16], s: usize) -> Vec<u16> {
        let (entry, first, len) = self.rows(side, s);
        let width = self.width(heads);
        let begin = (entry * side.rows as usize + first) * width;
        tensor[begin..begin + len * width].to_vec()
    }

    /// Puts a sequence's rows where they are in the whole tensor.
    pub fn paste(&self, side: &Side, heads: u32, own: &[u16], whole: &mut [u16], s: usize) {
        let (entry, first, _) = self.rows(side, s);
        let begin = (entry * side.rows as usize + first) * self.width(heads);
        whole[begin..begin + own.len()].copy_from_slice(own);
    }

    /// Where a sequence's rows of lse of a head lie.
    pub fn lse_rows(&self, heads: u32, head: usize, s: usize) -> std::ops::Range<usize> {
        let (entry, first, len) = self.rows(&self.q, s);
        let begin = (entry * heads as usize + head) * self.q.rows as usize + first;
        begin..begin + len
    }

    /// The two sides of a sequence alone.
    pub fn alone(&self, s: usize) -> (Side, Side) {
        let side = |len: i32| Side {
            rows: len as u32,
            max: len as u32,
            ..Side::default()
        };
        (side(self.lens[s].0), side(self.lens[s].1))
    }
}
