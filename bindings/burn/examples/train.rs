//! Trains one layer of attention to copy: the second half of every sequence repeats the first.
//!
//! ```text
//! FERROFLASH_KERNELS=off cargo run --release --example train
//! ```
//!
//! At each place of the second half the model has to name the next token. It stands one length of the first half
//! back, so the layer learns to look there. The loss falls from ln(vocabulary) towards 0.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ferroflash::{Error, Mask, Options, flash_attention};

/// How many tokens there are.
pub const VOCABULARY: usize = 16;
/// Tokens of the first half of a sequence.
const HALF: usize = 12;
/// Tokens that the model reads: all but the last one.
const SEQLEN: usize = 2 * HALF - 1;
/// Sequences of one step.
const BATCH: usize = 16;
/// Query heads, and key and value heads.
const HEADS: (usize, usize) = (4, 2);
/// Columns of a head.
const HEAD_DIM: usize = 16;
/// Columns of the model.
const WIDTH: usize = HEADS.0 * HEAD_DIM;

/// Embeddings, one layer of causal attention, logits.
#[derive(Module, Debug)]
pub struct Model {
    tokens: Embedding,
    places: Embedding,
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    logits: Linear,
}

impl Model {
    /// A model with random weights.
    pub fn new(device: &Device) -> Model {
        let width_kv = HEADS.1 * HEAD_DIM;
        Model {
            tokens: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            places: EmbeddingConfig::new(SEQLEN, WIDTH).init(device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            query: LinearConfig::new(WIDTH, WIDTH).init(device),
            key: LinearConfig::new(WIDTH, width_kv).init(device),
            value: LinearConfig::new(WIDTH, width_kv).init(device),
            output: LinearConfig::new(WIDTH, WIDTH).init(device),
            logits: LinearConfig::new(WIDTH, VOCABULARY).init(device),
        }
    }

    /// Logits of the next token at the places of the second half: `[BATCH · HALF, VOCABULARY]` of `[BATCH, SEQLEN]` tokens.
    fn forward(&self, tokens: Tensor<2, Int>) -> Result<Tensor<2>, Error> {
        let device = tokens.device();
        let places = Tensor::<1, Int>::arange(0..SEQLEN as i64, &device).unsqueeze();
        let x = self.tokens.forward(tokens) + self.places.forward(places);
        let x = x.clone() + self.attention(self.norm.forward(x))?;
        let second_half = x.narrow(1, HALF - 1, HALF);
        Ok(self
            .logits
            .forward(second_half)
            .reshape([BATCH * HALF, VOCABULARY]))
    }

    /// Causal attention of `[BATCH, SEQLEN, WIDTH]`, with fewer heads of keys and values than of queries. Exchanging rows and
    /// heads only changes strides: nothing is copied.
    fn attention(&self, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let heads = |x: Tensor<3>, n_heads| {
            x.reshape([BATCH, SEQLEN, n_heads, HEAD_DIM])
                .swap_dims(1, 2)
        };
        let q = heads(self.query.forward(x.clone()), HEADS.0);
        let k = heads(self.key.forward(x.clone()), HEADS.1);
        let v = heads(self.value.forward(x), HEADS.1);
        let o = flash_attention(q, k, v, Options::new(Mask::Causal))?;
        let o = o.swap_dims(1, 2).reshape([BATCH, SEQLEN, WIDTH]);
        Ok(self.output.forward(o))
    }
}

/// Trains a new model; the loss of each step.
pub fn train(n_steps: usize, mut report: impl FnMut(usize, f32)) -> Result<Vec<f32>, Error> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Model::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    let mut seed = 1;
    let mut losses = Vec::with_capacity(n_steps);
    for step in 0..n_steps {
        let (tokens, next) = batch(&mut seed, &device);
        let loss = cross_entropy.forward(model.forward(tokens)?, next);
        losses.push(loss.clone().into_scalar::<f32>());
        report(step, losses[step]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }
    Ok(losses)
}

/// Random sequences: `[BATCH, SEQLEN]` tokens, and the `[BATCH · HALF]` tokens that follow those of the second half.
fn batch(seed: &mut u64, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let (mut tokens, mut next) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let half: Vec<i32> = (0..HALF).map(|_| token(seed)).collect();
        let sequence = half.iter().chain(&half).copied();
        tokens.extend(sequence.take(SEQLEN));
        next.extend(half);
    }
    (
        Tensor::from_data(TensorData::new(tokens, [BATCH, SEQLEN]), device),
        Tensor::from_data(TensorData::new(next, [BATCH * HALF]), device),
    )
}

/// A random token: xorshift64*.
fn token(seed: &mut u64) -> i32 {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    (seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as i32 & (VOCABULARY as i32 - 1)
}

/// Trains, and prints every twentieth loss.
#[allow(dead_code)]
fn main() -> Result<(), Error> {
    println!("ln(vocabulary) = {:.3}", (VOCABULARY as f32).ln());
    let losses = train(200, |step, loss| {
        if step % 20 == 0 {
            println!("step {step:3}: loss {loss:.4}");
        }
    })?;
    let last = losses.last().copied().unwrap_or(f32::NAN);
    println!("last step: loss {last:.4}");
    Ok(())
}
