//! A decoder over bytes: RMSNorm, causal attention with rotary positions, SwiGLU.
//!
//! Weights are f32 variables, the master weights. Matrix products and attention run in the compute type: every forward pass
//! converts the weights, and the gradients come back through that conversion as f32. Norms, the residual stream and the
//! loss stay f32.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use crate::attention::Attention;
use crate::weights::{Random, Weights};

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
        let mut weights = Random::new(seed, device);
        let model = Model::of(config, &mut weights, device)?;
        Ok((model, weights.variables))
    }

    /// A model of weights from somewhere.
    pub fn of(config: Config, weights: &mut impl Weights, device: &Device) -> Result<Model> {
        let (dim, hidden) = (config.dim(), config.hidden());
        // What is added to the stream is scaled down by the number of additions, as in GPT-2.
        let narrow = 0.02 / (2.0 * config.layers as f64).sqrt();
        let embedding = weights.matrix("embedding", [VOCABULARY, dim], 0.02)?;
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let name = |name| format!("layers.{index}.{name}");
            layers.push(Layer {
                attention_norm: weights.ones(&name("attention_norm"), dim)?,
                qkv: weights.matrix(&name("qkv"), [dim, 3 * dim], 0.02)?,
                out: weights.matrix(&name("out"), [dim, dim], narrow)?,
                mlp_norm: weights.ones(&name("mlp_norm"), dim)?,
                gate_up: weights.matrix(&name("gate_up"), [dim, 2 * hidden], 0.02)?,
                down: weights.matrix(&name("down"), [hidden, dim], narrow)?,
            });
        }
        let norm = weights.ones("norm", dim)?;
        let head = weights.matrix("head", [dim, VOCABULARY], 0.02)?;
        let (cos, sin) = rotations(&config, device)?;
        Ok(Model {
            config,
            embedding,
            layers,
            norm,
            head,
            cos,
            sin,
        })
    }

    /// All weights, by the names under which [`Model::of`] asks for them.
    pub fn named(&self) -> Vec<(String, &Tensor)> {
        let mut named = vec![
            ("embedding".to_owned(), &self.embedding),
            ("norm".to_owned(), &self.norm),
            ("head".to_owned(), &self.head),
        ];
        for (index, layer) in self.layers.iter().enumerate() {
            let of_layer = [
                ("attention_norm", &layer.attention_norm),
                ("qkv", &layer.qkv),
                ("out", &layer.out),
                ("mlp_norm", &layer.mlp_norm),
                ("gate_up", &layer.gate_up),
                ("down", &layer.down),
            ];
            named.extend(of_layer.map(|(name, tensor)| (format!("layers.{index}.{name}"), tensor)));
        }
        named
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
        let rotary = |table: &Tensor| {
            let rows = table.narrow(0, past, seqlen)?.unsqueeze(1)?;
            rows.to_dtype(self.config.dtype)
        };
        let (cos, sin) = (rotary(&self.cos)?, rotary(&self.sin)?);
        let by_sequence = |x: &Tensor| x.reshape((batch, seqlen, (), self.config.head_dim));
        let stream = self.stream(&tokens.flatten_all()?, |layer, [q, k, v]| {
            let q = rotate(&by_sequence(&q)?, &cos, &sin)?;
            let k = rotate(&by_sequence(&k)?, &cos, &sin)?;
            let v = by_sequence(&v)?;
            let (k, v) = match cache.as_deref_mut() {
                Some(cache) => cache.append(layer, k, v)?,
                None => (k, v),
            };
            attention.call(&q, &k, &v)
        })?;
        self.scores(&stream)?.reshape((batch, seqlen, VOCABULARY))
    }

    /// The stream behind the last layer, f32 `[tokens, dim]`, for tokens u32 `[tokens]` of any sequences. What mixes them is the
    /// caller's: `attend` is given a layer and q, k and v of all tokens, `[tokens, heads, head_dim]`, not yet rotated by their
    /// positions, and gives attention's output, of as many elements as q.
    pub fn stream(
        &self,
        tokens: &Tensor,
        mut attend: impl FnMut(usize, [Tensor; 3]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let count = tokens.elem_count();
        let Config {
            heads, head_dim, ..
        } = self.config;
        let mut x = self.embedding.index_select(tokens, 0)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normal = self.normal(&x, &layer.attention_norm)?;
            let qkv = self.product(&normal, &layer.qkv)?;
            let qkv = qkv.reshape((count, 3 * heads, head_dim))?;
            let part = |i: usize| qkv.narrow(1, i * heads, heads);
            let o = attend(index, [part(0)?, part(1)?, part(2)?])?;
            let o = o.reshape((count, self.config.dim()))?;
            x = (x + self.product(&o, &layer.out)?.to_dtype(DType::F32)?)?;

            let normal = self.normal(&x, &layer.mlp_norm)?;
            let hidden = candle_nn::ops::swiglu(&self.product(&normal, &layer.gate_up)?)?;
            x = (x + self.product(&hidden, &layer.down)?.to_dtype(DType::F32)?)?;
        }
        Ok(x)
    }

    /// Scores of the next byte, f32 `[rows, VOCABULARY]`, for rows of the stream.
    pub fn scores(&self, stream: &Tensor) -> Result<Tensor> {
        let scores = self.product(&self.normal(stream, &self.norm)?, &self.head)?;
        scores.to_dtype(DType::F32)
    }

    /// cos and sin of every position's angles, f32 `[positions, head_dim / 2]`: of the elements i and i + head_dim / 2.
    pub fn rotary(&self) -> (&Tensor, &Tensor) {
        (&self.cos, &self.sin)
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

/// cos and sin of every position's angles, f32 `[positions, head_dim / 2]`.
fn rotations(config: &Config, device: &Device) -> Result<(Tensor, Tensor)> {
    let half = config.head_dim / 2;
    let frequency = |i: usize| 10_000f64.powf(-(i as f64) / half as f64);
    let angles: Vec<f32> = (0..config.positions)
        .flat_map(|place| (0..half).map(move |i| (place as f64 * frequency(i)) as f32))
        .collect();
    let angles = Tensor::from_vec(angles, (config.positions, half), device)?;
    Ok((angles.cos()?, angles.sin()?))
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
