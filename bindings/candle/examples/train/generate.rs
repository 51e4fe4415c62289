//! Text from a trained model: the prompt at once, then byte by byte.

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::attention::Attention;
use crate::model::{Cache, Model};

/// How the next byte is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// The likeliest.
    Greedy,
    /// By chance, with probabilities softmax(scores / temperature).
    Sampled { temperature: f32, seed: u64 },
}

/// What a step keeps of the steps before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// Keys and values: a step computes one token, with a q of length 1.
    Cached,
    /// Nothing: every step computes all tokens.
    Recomputed,
}

/// `count` bytes that follow the prompt.
pub fn generate(
    model: &Model,
    attention: &Attention,
    prompt: &[u8],
    count: usize,
    choice: Choice,
    past: Past,
    device: &Device,
) -> Result<Vec<u8>> {
    let longest = model.config().positions;
    let length = prompt.len() + count;
    ensure!(
        !prompt.is_empty(),
        "the prompt is empty; allowed: 1 byte or more"
    );
    ensure!(
        length <= longest,
        "the text gets {length} bytes; allowed: {longest}"
    );
    let mut chooser = Chooser::new(choice);
    let mut cache = Cache::default();
    let mut text = prompt.to_vec();
    let mut new = 0;
    for _ in 0..count {
        let scores = match past {
            Past::Cached => {
                let tokens = tokens(&text[new..], device)?;
                model.forward_cached(&tokens, attention, &mut cache)?
            }
            Past::Recomputed => model.forward(&tokens(&text, device)?, attention)?,
        };
        let last = scores.dim(1)? - 1;
        let scores = scores.get(0)?.get(last)?.to_vec1::<f32>()?;
        new = text.len();
        text.push(chooser.choose(&scores));
    }
    Ok(text.split_off(prompt.len()))
}

fn tokens(bytes: &[u8], device: &Device) -> candle_core::Result<Tensor> {
    let bytes: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
    Tensor::new(bytes, device)?.unsqueeze(0)
}

struct Chooser {
    choice: Choice,
    rng: StdRng,
}

impl Chooser {
    fn new(choice: Choice) -> Chooser {
        let seed = match choice {
            Choice::Greedy => 0,
            Choice::Sampled { seed, .. } => seed,
        };
        Chooser {
            choice,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn choose(&mut self, scores: &[f32]) -> u8 {
        let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let best = best.unwrap_or(0);
        let temperature = match self.choice {
            Choice::Greedy => return best as u8,
            Choice::Sampled { temperature, .. } => temperature,
        };
        let weights: Vec<f32> = scores
            .iter()
            .map(|score| ((score - scores[best]) / temperature).exp())
            .collect();
        let mut rest = self.rng.random_range(0.0..1.0) * weights.iter().sum::<f32>();
        for (byte, weight) in weights.iter().enumerate() {
            rest -= weight;
            if rest < 0.0 {
                return byte as u8;
            }
        }
        best as u8
    }
}
