//! ALiBi and soft caps of candle-flash-attn, as expressions.

use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use ferroflash::Score;

use crate::error::Error;
use crate::expressions::Expressions;
use crate::rules::{beside, has_shape};

/// The scores, each made when it is first needed: without and with a cap, by the members of [`Alibi`].
static SCORES: [[OnceLock<Score>; 3]; 2] = [const { [const { OnceLock::new() }; 3] }; 2];

/// The new score: softcap · tanh(s / softcap), minus slope · |k − (q + seqlen_k − seqlen_q)|. A soft cap of 0 is none.
pub(crate) fn expressions<'a>(
    q: &Tensor,
    alibi_slopes: Option<&'a Tensor>,
    softcap: f32,
    window_size_right: Option<usize>,
) -> Result<Expressions<'a>, Error> {
    if !(0.0..f32::INFINITY).contains(&softcap) {
        return Err(Error::NotOffered {
            argument: "softcap",
            given: softcap.to_string(),
            allowed: "0, which is none, or a number greater than 0",
        });
    }
    let is_capped = softcap > 0.0;
    let alibi = match (alibi_slopes, window_size_right) {
        (None, _) => Alibi::None,
        (Some(_), Some(0)) => Alibi::Behind,
        (Some(_), _) => Alibi::Around,
    };
    let expressions = Expressions::new();
    if !is_capped && alibi == Alibi::None {
        return Ok(expressions);
    }
    let expressions = expressions.score(score(is_capped, alibi)?);
    let expressions = match is_capped {
        true => expressions.param("softcap", softcap),
        false => expressions,
    };
    let Some(slopes) = alibi_slopes else {
        return Ok(expressions);
    };
    beside("alibi_slopes", slopes, 1, q, DType::F32)?;
    let heads = q.dims().iter().rev().nth(1).copied().unwrap_or(0);
    has_shape("alibi_slopes", slopes, &[heads])?;
    Ok(expressions.tensor("alibi_slopes", slopes))
}

/// The signs of the distances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alibi {
    None,
    /// None below 0, so that no absolute value is needed: that is cheaper, as it is linear in k.
    Behind,
    Around,
}

fn score(is_capped: bool, alibi: Alibi) -> Result<Score, Error> {
    let kept = &SCORES[usize::from(is_capped)][alibi as usize];
    if let Some(score) = kept.get() {
        return Ok(*score);
    }
    let traced = Score::new(|s, at| {
        let s = match is_capped {
            true => s.soft_cap(at.f32("softcap")),
            false => s,
        };
        let distance = match alibi {
            Alibi::None => return s,
            Alibi::Behind => at.distance(),
            Alibi::Around => at.distance().abs(),
        };
        s - at.tensor_f32("alibi_slopes", [at.head]) * distance.to_f32()
    })?;
    Ok(*kept.get_or_init(|| traced))
}
