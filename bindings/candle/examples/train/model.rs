//! A decoder over bytes: RMSNorm, causal attention with rotary positions, SwiGLU.
//!
//! Weights are f32 variables, the master weights. Matrix products and attention run in the compute type: every forward pass
//! converts the weights, and the gradients come back through that conversion as f32. Norms, the residual stream and the
//! loss stay f32.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::attention::Attention;

/// Bytes are the tokens.
pub const VOCABULARY: usize = 256;

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct Config {
    pub layers: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// Rows of the table of rotary positions: the longest text that the model meets.
    pub positions: usize,
    pub dtype: DType,
}

impl Config {
    /// Width of the residual stream.
    pub fn dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width inside the MLP: 8/3 of the stream's, in whole 32s. Three matrices then hold what two of a classic MLP hold.
    fn hidden(&self) -> usize {
        (self.dim() * 8 / 3).next_multiple_of(32)
    }
}

/// The weights, and how they are applied.
pub struct Model {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    cos: Tensor,
    sin: Tensor,
}

struct Layer {
    attention_norm: Tensor,
    qkv: Tensor,
    out: Tensor,
    mlp_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

/// The keys and values of all tokens so far, by layer.
#[derive(Default)]
pub struct Cache {
    layers: Vec<(Tensor, Tensor)>,
}

impl Cache {
    /// Number of tokens.
    fn length(&self) -> Result<usize> {
        self.layers.first().map_or(Ok(0), |(k, _)| k.dim(1))
    }
}

impl Model {
    /// A model with random weights, and these as variables. One seed gives the same numbers on every device.
    pub fn new(config: Config, seed: u64, device: &Device) -> Result<(Model, Vec<Var>)> {
        let mut weights = Weights {
            rng: StdRng::seed_from_u64(seed),
            device,
            variables: Vec::new(),
        };
        let (dim, hidden) = (config.dim(), config.hidden());
        // What is added to the stream is scaled down by the number of additions, as in GPT-2.
        let narrow = 0.02 / (2.0 * config.layers as f64).sqrt();
        let embedding = weights.matrix([VOCABULARY, dim], 0.02)?;
        let mut layers = Vec::with_capacity(config.layers);
        for _ in 0..config.layers {
            layers.push(Layer {
                attention_norm: weights.ones(dim)?,
                qkv: weights.matrix([dim, 3 * dim], 0.02)?,
                out: weights.matrix([dim, dim], narrow)?,
                mlp_norm: weights.ones(dim)?,
                gate_up: weights.matrix([dim, 2 * hidden], 0.02)?,
                down: weights.matrix([hidden, dim], narrow)?,
            });
        }
        let norm = weights.ones(dim)?;
        let head = weights.matrix([dim, VOCABULARY], 0.02)?;
        let (cos, sin) = rotations(&config, device)?;
        let model = Model {
            config,
            embedding,
            layers,
            norm,
            head,
            cos,
            sin,
        };
        Ok((model, weights.variables))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The same weights out of reach of gradients, converted once: for validation and generation.
    pub fn frozen(&self) -> Result<Model> {
        let plain = |x: &Tensor| Ok::<_, candle_core::Error>(x.detach());
        let computed = |x: &Tensor| x.detach().to_dtype(self.config.dtype);
        let layer = |layer: &Layer| {
            Ok(Layer {
                attention_norm: plain(&layer.attention_norm)?,
                qkv: computed(&layer.qkv)?,
                out: computed(&layer.out)?,
                mlp_norm: plain(&layer.mlp_norm)?,
                gate_up: computed(&layer.gate_up)?,
                down: computed(&layer.down)?,
            })
        };
        Ok(Model {
            config: self.config.clone(),
            embedding: plain(&self.embedding)?,
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            norm: plain(&self.norm)?,
            head: computed(&self.head)?,
            cos: self.cos.clone(),
            sin: self.sin.clone(),
        })
    }

    /// Scores of the next byte, f32 `[batch, seqlen, VOCABULARY]`, for tokens u32 `[batch, seqlen]`.
    pub fn forward(&self, tokens: &Tensor, attention: &Attention) -> Result<Tensor> {
        self.run(tokens, attention, None)
    }

    /// The same for tokens that follow those of the cache, which takes up their keys and values.
    pub fn forward_cached(
        &self,
        tokens: &Tensor,
        attention: &Attention,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        self.run(tokens, attention, Some(cache))
    }

    fn run(
        &self,
        tokens: &Tensor,
        attention: &Attention,
        mut cache: Option<&mut Cache>,
    ) -> Result<Tensor> {
        let (batch, seqlen) = tokens.dims2()?;
        let past = cache.as_ref().map_or(Ok(0), |cache| cache.length())?;
        let rotary = |table: &Tensor| table.narrow(0, past, seqlen)?.unsqueeze(1);
        let (cos, sin) = (rotary(&self.cos)?, rotary(&self.sin)?);
        // Rows of the stream, one a token.
        let mut x = self.embedding.index_select(&tokens.flatten_all()?, 0)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normal = self.normal(&x, &layer.attention_norm)?;
            let qkv = self.product(&normal, &layer.qkv)?.reshape((
                batch,
                seqlen,
                3 * self.config.heads,
                self.config.head_dim,
            ))?;
            let part = |i: usize| qkv.narrow(2, i * self.config.heads, self.config.heads);
            let q = rotate(&part(0)?, &cos, &sin)?;
            let (k, v) = (rotate(&part(1)?, &cos, &sin)?, part(2)?);
            let (k, v) = match cache.as_deref_mut() {
                Some(cache) => cache.append(index, k, v)?,
                None => (k, v),
            };
            let o = attention.call(&q, &k, &v)?;
            let o = o.reshape((batch * seqlen, self.config.dim()))?;
            x = (x + self.product(&o, &layer.out)?.to_dtype(DType::F32)?)?;

            let normal = self.normal(&x, &layer.mlp_norm)?;
            let hidden = candle_nn::ops::swiglu(&self.product(&normal, &layer.gate_up)?)?;
            x = (x + self.product(&hidden, &layer.down)?.to_dtype(DType::F32)?)?;
        }
        let scores = self.product(&self.normal(&x, &self.norm)?, &self.head)?;
        scores
            .to_dtype(DType::F32)?
            .reshape((batch, seqlen, VOCABULARY))
    }

    /// RMSNorm of the stream, in the compute type. candle's fused one has no backward pass; this is made of operations that do.
    fn normal(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm_slow(x, weight, 1e-5)?.to_dtype(self.config.dtype)
    }

    fn product(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        x.matmul(&weight.to_dtype(self.config.dtype)?)
    }
}

impl Cache {
    /// All keys and values of a layer, with these as the last.
    fn append(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<(Tensor, Tensor)> {
        match self.layers.get_mut(layer) {
            Some(held) => {
                let k = Tensor::cat(&[&held.0, &k], 1)?;
                let v = Tensor::cat(&[&held.1, &v], 1)?;
                *held = (k, v);
                Ok(held.clone())
            }
            None => {
                self.layers.push((k.clone(), v.clone()));
                Ok((k, v))
            }
        }
    }
}

/// cos and sin of every position's angles, `[positions, head_dim / 2]`, in the compute type.
fn rotations(config: &Config, device: &Device) -> Result<(Tensor, Tensor)> {
    let half = config.head_dim / 2;
    let frequency = |i: usize| 10_000f64.powf(-(i as f64) / half as f64);
    let angles: Vec<f32> = (0..config.positions)
        .flat_map(|place| (0..half).map(move |i| (place as f64 * frequency(i)) as f32))
        .collect();
    let angles = Tensor::from_vec(angles, (config.positions, half), device)?;
    Ok((
        angles.cos()?.to_dtype(config.dtype)?,
        angles.sin()?.to_dtype(config.dtype)?,
    ))
}

/// Turns pairs of elements (i, i + head_dim/2) by the angle of their position: RoPE, of operations with a backward pass.
fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let (a, b) = (
        x.narrow(D::Minus1, 0, half)?,
        x.narrow(D::Minus1, half, half)?,
    );
    let low = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let high = (a.broadcast_mul(sin)? + b.broadcast_mul(cos)?)?;
    Tensor::cat(&[low, high], D::Minus1)
}

/// Makes the variables of a model.
struct Weights<'a> {
    rng: StdRng,
    device: &'a Device,
    variables: Vec<Var>,
}

impl Weights<'_> {
    /// Uniform numbers of mean 0 and this standard deviation.
    fn matrix(&mut self, shape: [usize; 2], deviation: f64) -> Result<Tensor> {
        let bound = (3f64.sqrt() * deviation) as f32;
        let numbers: Vec<f32> = (0..shape[0] * shape[1])
            .map(|_| self.rng.random_range(-bound..bound))
            .collect();
        self.variable(Tensor::from_vec(numbers, &shape, self.device)?)
    }

    fn ones(&mut self, length: usize) -> Result<Tensor> {
        self.variable(Tensor::ones(length, DType::F32, self.device)?)
    }

    fn variable(&mut self, numbers: Tensor) -> Result<Tensor> {
        let variable = Var::from_tensor(&numbers)?;
        let tensor = variable.as_tensor().clone();
        self.variables.push(variable);
        Ok(tensor)
    }
}
