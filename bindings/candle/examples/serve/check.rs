//! The check: what was served, byte by byte beside plain generation.
//!
//! Plain generation takes one sequence at a time, with a contiguous cache, by candle's own operations. It chooses the likeliest byte,
//! as the engine does, so in f32 both give the same text: sums in another order move scores by a millionth of their size, and the two
//! best scores nearly always lie farther apart than that. In bf16 and f16 scores are rounded to a few hundredths, and two bytes may
//! come to be equally likely. So plain generation is led along the text that was served, and each byte of this has to be the
//! likeliest, or less likely than that by no more than a margin.

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};

use crate::attention::{Attention, Backend};
use crate::model::{Cache, Model};
use crate::sequence::Sequence;

/// What the check has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    /// Bytes compared.
    pub bytes: usize,
    /// Those that plain generation would have chosen otherwise, by a margin that is allowed.
    pub others: usize,
    /// The largest such margin.
    pub widest: f32,
}

/// Compares all texts. An error names the first byte that plain generation does not give, with the scores of both.
pub fn check(
    model: &Model,
    sequences: &[Sequence],
    margin: f32,
    device: &Device,
) -> Result<Checked> {
    let attention = Attention::new(Backend::Candle);
    let mut checked = Checked::default();
    for sequence in sequences {
        let mut cache = Cache::default();
        let mut next = sequence.request.prompt.clone();
        for (index, &served) in sequence.generated().iter().enumerate() {
            let tokens: Vec<u32> = next.iter().map(|&byte| byte.into()).collect();
            let tokens = Tensor::new(tokens, device)?.unsqueeze(0)?;
            let scores = model.forward_cached(&tokens, &attention, &mut cache)?;
            let last = scores.dim(1)? - 1;
            let scores = scores.get(0)?.get(last)?.to_vec1::<f32>()?;
            let best = likeliest(&scores);
            let gap = scores[usize::from(best)] - scores[usize::from(served)];
            // Not `gap > margin`: a score may be NaN.
            if !(served == best || gap <= margin) {
                bail!(
                    "request {}, byte {index}: {served} was served; plain generation gives {best}, whose score is higher by {gap}; \
                     allowed: {margin}",
                    sequence.request.id
                );
            }
            checked.bytes += 1;
            if served != best {
                checked.others += 1;
                checked.widest = checked.widest.max(gap);
            }
            next = vec![served];
        }
    }
    Ok(checked)
}

fn likeliest(scores: &[f32]) -> u8 {
    let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    best.unwrap_or(0) as u8
}
