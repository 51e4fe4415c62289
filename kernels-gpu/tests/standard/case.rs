//! Attention problems for the kernels: sizes, tensors with gaps between their rows, random values.

use ferroflash_kernels::params::{Scale, Shape, StandardParams, TensorView, Window};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::Dtype;
use half::{bf16, f16};

/// What lies in the gaps of a tensor, and in outputs before a kernel ran: a NaN in both element types.
pub const GAP: u16 = 0xffff;

/// Why no case is of f32.
const NO_F32: &str = "`standard` has no kernels of f32";

/// One problem.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub dtype: Dtype,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_k: u32,
    pub seqlen_q: u32,
    pub seqlen_k: u32,
    pub head_dim: u32,
    pub causal: bool,
    /// Inputs lie between plus and minus this.
    pub size: f64,
}

/// A case that the tests change one field of.
pub const PLAIN: Case = Case {
    dtype: Dtype::Bf16,
    batch: 1,
    heads_q: 1,
    heads_k: 1,
    seqlen_q: 37,
    seqlen_k: 53,
    head_dim: 64,
    causal: false,
    size: 1.0,
};

impl Case {
    /// Columns of a row of scores or weights.
    pub fn padded_k(&self) -> usize {
        (self.seqlen_k as usize).next_multiple_of(8)
    }

    /// Rows of all heads.
    pub fn rows(&self) -> usize {
        (self.batch * self.heads_q * self.seqlen_q) as usize
    }

    pub fn softmax_scale(&self) -> f64 {
        1.0 / f64::from(self.head_dim).sqrt()
    }

    /// Whether query `i` sees key `j`, by the definition.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        let (lag, i, j) = (
            i64::from(self.seqlen_k) - i64::from(self.seqlen_q),
            i as i64,
            j as i64,
        );
        !self.causal || j <= i + lag
    }

    /// Whether query `i` sees any key.
    pub fn sees_any(&self, i: usize) -> bool {
        (0..self.seqlen_k as usize).any(|j| self.sees(i, j))
    }

    /// The heads of all batch entries: their number, batch entry, query head and key head.
    pub fn heads(&self) -> Vec<(usize, usize, usize, usize)> {
        let group_size = (self.heads_q / self.heads_k) as usize;
        (0..(self.batch * self.heads_q) as usize)
            .map(|n| {
                let (b, h) = (n / self.heads_q as usize, n % self.heads_q as usize);
                (n, b, h, h / group_size)
            })
            .collect()
    }

    /// Half the distance of neighbouring elements between 1 and 2.
    pub fn unit_roundoff(&self) -> f64 {
        match self.dtype {
            Dtype::Bf16 => 2f64.powi(-8),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::F32 | Dtype::E4m3 => panic!("{NO_F32}"),
        }
    }

    pub fn to_f64(self, bits: u16) -> f64 {
        match self.dtype {
            Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
            Dtype::F16 => f16::from_bits(bits).to_f64(),
            Dtype::F32 | Dtype::E4m3 => panic!("{NO_F32}"),
        }
    }

    pub fn to_bits(self, x: f64) -> u16 {
        match self.dtype {
            Dtype::Bf16 => bf16::from_f64(x).to_bits(),
            Dtype::F16 => f16::from_f64(x).to_bits(),
            Dtype::F32 | Dtype::E4m3 => panic!("{NO_F32}"),
        }
    }

    /// What its kernels are compiled with.
    pub fn spec(&self) -> Spec {
        if self.causal {
            Spec::PLAIN.with(Constant::RightBound)
        } else {
            Spec::PLAIN
        }
    }

    /// Everything but addresses and strides.
    pub fn params(&self) -> StandardParams {
        let scale = self.softmax_scale() as f32;
        StandardParams {
            padded_k: self.padded_k() as u64,
            shape: Shape {
                batch: self.batch,
                heads_q: self.heads_q,
                heads_k: self.heads_k,
                group_size: self.heads_q / self.heads_k,
                seqlen_q: self.seqlen_q,
                seqlen_k: self.seqlen_k,
                head_dim: self.head_dim,
                head_dim_v: self.head_dim,
            },
            window: Window::new(self.seqlen_q, self.seqlen_k, 0, 0),
            scale: Scale {
                scale,
                scale_log2: scale * std::f32::consts::LOG2_E,
            },
            ..StandardParams::default()
        }
    }
}

/// In which order rows lie in memory.
#[derive(Clone, Copy)]
pub enum Order {
    /// `[batch, seqlen, heads, head_dim]`
    HeadsInRow,
    /// `[batch, heads, seqlen, head_dim]`
    RowsInHead,
}

/// A tensor with a gap behind every row of `head_dim` elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub bits: Vec<u16>,
    pub view: TensorView,
    batch: usize,
    seqlen: usize,
    heads: usize,
    head_dim: usize,
}

/// Elements of a gap.
const GAP_COLS: usize = 8;

impl Tensor {
    /// Nothing but [`GAP`].
    pub fn new(case: &Case, heads: u32, seqlen: u32, order: Order) -> Self {
        let [batch, seqlen, heads, head_dim] =
            [case.batch, seqlen, heads, case.head_dim].map(|n| n as usize);
        let cols = head_dim + GAP_COLS;
        let (row_stride, head_stride) = match order {
            Order::HeadsInRow => (heads * cols, cols),
            Order::RowsInHead => (cols, seqlen * cols),
        };
        Tensor {
            bits: vec![GAP; batch * seqlen * heads * cols],
            view: TensorView {
                base: 0,
                batch_stride: (seqlen * heads * cols) as i64,
                row_stride: row_stride as i64,
                head_stride: head_stride as i64,
            },
            batch,
            seqlen,
            heads,
            head_dim,
        }
    }

    fn idx(&self, batch: usize, row: usize, head: usize, col: usize) -> usize {
        batch * self.view.batch_stride as usize
            + row * self.view.row_stride as usize
            + head * self.view.head_stride as usize
            + col
    }

    fn idxs(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.batch * self.seqlen * self.heads).flat_map(move |n| {
            let (b, s, h) = (
                n / (self.seqlen * self.heads),
                n / self.heads % self.seqlen,
                n % self.heads,
            );
            (0..self.head_dim).map(move |d| self.idx(b, s, h, d))
        })
    }

    /// Random elements in place of what there is.
    pub fn fill(mut self, case: &Case, random: &mut Random) -> Self {
        for i in self.idxs().collect::<Vec<_>>() {
            self.bits[i] = case.to_bits(random.draw() * case.size);
        }
        self
    }

    /// The rows of one head as numbers.
    pub fn head(&self, case: &Case, batch: usize, head: usize) -> Vec<Vec<f64>> {
        let number = |row, col| case.to_f64(self.bits[self.idx(batch, row, head, col)]);
        (0..self.seqlen)
            .map(|row| (0..self.head_dim).map(|col| number(row, col)).collect())
            .collect()
    }

    /// Whether the gaps are as they were made.
    pub fn gaps_are_untouched(&self) -> bool {
        let mut gaps = self.bits.clone();
        self.idxs().for_each(|i| gaps[i] = GAP);
        gaps.iter().all(|&bits| bits == GAP)
    }
}

/// Random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// Between −1 and 1.
    pub fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}
