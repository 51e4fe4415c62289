//! Problems of the tests: their inputs, the same attention by Burn's own operations, and comparison.

use burn::tensor::{Bool, Device, Tensor, TensorData, activation};
use burn_ferroflash::{Mask, Options};

/// Sizes and mask of one problem.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    pub batch: usize,
    pub heads_q: usize,
    pub heads_k: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub head_dim: usize,
    pub mask: Mask,
    pub softmax_scale: Option<f32>,
}

/// Multi-head, equal lengths, full mask: what the tests vary.
pub const PLAIN: Problem = Problem {
    batch: 2,
    heads_q: 4,
    heads_k: 4,
    seqlen_q: 33,
    seqlen_k: 33,
    head_dim: 16,
    mask: Mask::Full,
    softmax_scale: None,
};

/// The backends of this build.
pub fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "ndarray")]
        Device::ndarray(),
    ]
}

impl Problem {
    pub fn options(&self) -> Options {
        let options = Options::new(self.mask);
        match self.softmax_scale {
            Some(scale) => options.softmax_scale(scale),
            None => options,
        }
    }

    pub fn shape_q(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seqlen_q, self.head_dim]
    }

    pub fn shape_k(&self) -> [usize; 4] {
        [self.batch, self.heads_k, self.seqlen_k, self.head_dim]
    }

    /// q, k and v.
    pub fn inputs(&self, device: &Device) -> [Tensor<4>; 3] {
        [
            random(1, self.shape_q(), device),
            random(2, self.shape_k(), device),
            random(3, self.shape_k(), device),
        ]
    }

    /// o and lse by Burn's products and softmax. Rows that see no key give o = 0; what lse says of them means nothing.
    pub fn by_burn(&self, [q, k, v]: [Tensor<4>; 3]) -> (Tensor<4>, Tensor<3>) {
        let default = 1.0 / (self.head_dim as f32).sqrt();
        let scale = self.softmax_scale.unwrap_or(default);
        let (k, v) = (self.for_each_query_head(k), self.for_each_query_head(v));
        let hidden = self.hidden(&q.device());
        let scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(scale);
        let scores = scores.mask_fill(hidden.clone(), -1e30);
        let weights = activation::softmax(scores.clone(), 3).mask_fill(hidden, 0.0);
        let max = scores.clone().detach().max_dim(3);
        let lse = (scores - max.clone()).exp().sum_dim(3).log() + max;
        (weights.matmul(v), lse.squeeze_dim(3))
    }

    fn for_each_query_head(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads_k, seqlen, head_dim] = x.dims();
        let group = self.heads_q / heads_k;
        x.unsqueeze_dim::<5>(2)
            .expand([batch, heads_k, group, seqlen, head_dim])
            .reshape([batch, self.heads_q, seqlen, head_dim])
    }

    /// Which pairs the mask hides, from its definition: `[batch, heads_q, seqlen_q, seqlen_k]`.
    fn hidden(&self, device: &Device) -> Tensor<4, Bool> {
        let (left, right) = self.mask.window();
        let mut hidden = Vec::new();
        for query in 0..self.seqlen_q as i64 {
            let place = query + self.seqlen_k as i64 - self.seqlen_q as i64;
            for key in 0..self.seqlen_k as i64 {
                let before = left.is_some_and(|left| key < place - left as i64);
                let behind = right.is_some_and(|right| place + (right as i64) < key);
                let in_prefix = key < self.mask.prefix() as i64;
                hidden.push((before || behind) && !in_prefix);
            }
        }
        let shape = [self.seqlen_q, self.seqlen_k];
        Tensor::<2, Bool>::from_data(TensorData::new(hidden, shape), device)
            .unsqueeze::<4>()
            .expand([self.batch, self.heads_q, self.seqlen_q, self.seqlen_k])
    }
}

/// Numbers between −1 and 1, the same for equal seeds and shapes.
pub fn random<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let n_elems = shape.iter().product();
    let elements: Vec<f32> = (0..n_elems).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(elements, shape), device)
}

/// The elements, exactly.
pub fn elements<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().iter::<f32>().collect()
}

/// Panics where two tensors differ by more than `tolerance` anywhere.
pub fn assert_close<const D: usize>(what: &str, a: &Tensor<D>, b: &Tensor<D>, tolerance: f32) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    for (idx, (a, b)) in elements(a).into_iter().zip(elements(b)).enumerate() {
        let is_close = (a - b).abs() <= tolerance;
        assert!(is_close, "{what}[{idx}]: {a} and {b}");
    }
}
