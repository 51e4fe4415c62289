//! Values of options on command lines.

use std::ops::Range;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ferroflash::{Algorithm, Dtype, Fp8, Fp8Sums, Order, Pass};

/// A schedule; `None`: the one that planning prefers.
pub type Schedule = Option<Algorithm>;

/// Some passes.
pub type Passes = &'static [Pass];

/// The scales and the sums of q, k and v in e4m3.
pub type InEightBits = (Fp8, Fp8Sums);

/// Several lengths.
pub type Lens = Vec<usize>;

/// Takes a value by its name; `--help` explains each. Names after the first are aliases.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static [&'static str], &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(names, help, _)| {
        PossibleValue::new(names[0])
            .aliases(&names[1..])
            .help(*help)
    });
    PossibleValuesParser::new(names).try_map(|given| {
        let named = values
            .iter()
            .find(|(names, ..)| names.contains(&given.as_str()));
        named.map(|&(.., value)| value).ok_or("unknown")
    })
}

/// Takes a schedule.
pub fn schedule() -> impl TypedValueParser<Value = Schedule> {
    one_of(&[
        (&["auto"], "The fastest that can serve", None),
        (&["standard"], "Scores in memory", Some(Algorithm::Standard)),
        (
            &["flash1"],
            "FlashAttention, the first paper's: only where it is named",
            Some(Algorithm::Flash1),
        ),
        (&["flash2"], "FlashAttention-2", Some(Algorithm::Flash2)),
        (&["flash3"], "FlashAttention-3", Some(Algorithm::Flash3)),
        (&["tiled"], "The CPU's", Some(Algorithm::Tiled)),
    ])
}

/// Takes passes of `run`, `info` and `estimate`.
pub fn passes() -> impl TypedValueParser<Value = Passes> {
    one_of(&[
        (&["forward"], "o and lse", &[Pass::Forward] as Passes),
        (
            &["both"],
            "o, lse, and the gradients",
            &[Pass::Forward, Pass::Backward],
        ),
    ])
}

/// Takes a pass to measure.
pub fn pass() -> impl TypedValueParser<Value = Pass> {
    one_of(&[
        (&["fwd"], "Forward", Pass::Forward),
        (&["bwd"], "Backward", Pass::Backward),
    ])
}

/// Takes scales and levels of sums.
pub fn fp8() -> impl TypedValueParser<Value = InEightBits> {
    one_of(&[
        (
            &["two-levels"],
            "A scale per tensor; a sum for each block of keys, added in f32",
            (Fp8::PerTensor, Fp8Sums::TwoLevels),
        ),
        (
            &["one-level"],
            "A scale per tensor; one sum, of 14 bits: faster at head_dim 192 and 256, and at 128 under a mask from 4096 queries on",
            (Fp8::PerTensor, Fp8Sums::OneLevel),
        ),
        (
            &["blocks"],
            "A scale per block of 128 rows; sums of two levels",
            (Fp8::PerBlock, Fp8Sums::TwoLevels),
        ),
    ])
}

/// The word by which [`fp8`] takes these.
pub fn fp8_word(of: InEightBits) -> &'static str {
    match of {
        (Fp8::PerBlock, _) => "blocks",
        (_, Fp8Sums::OneLevel) => "one-level",
        (_, Fp8Sums::TwoLevels) => "two-levels",
    }
}

/// Takes an order of the backward pass's sums.
pub fn order() -> impl TypedValueParser<Value = Order> {
    one_of(&[
        (
            &["deterministic"],
            "Bit-equal from run to run",
            Order::Deterministic,
        ),
        (&["fastest"], "As they come", Order::Fastest),
    ])
}

/// Takes a type of elements.
pub fn dtype() -> impl TypedValueParser<Value = Dtype> {
    one_of(&[
        (&["bf16"], "bfloat16", Dtype::Bf16),
        (&["f16", "fp16"], "IEEE binary16", Dtype::F16),
        (&["f32", "fp32"], "IEEE binary32", Dtype::F32),
    ])
}

/// Two numbers with this between them.
pub fn pair<T: FromStr>(text: &str, between: &str) -> Option<(T, T)> {
    let (one, other) = text.split_once(between)?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

/// Lengths, each twice the one before: `512..16384`.
pub fn sweep(text: &str) -> Result<Lens, String> {
    match pair(text, "..") {
        Some((first, last)) if 0 < first && first <= last => {
            let lengths =
                std::iter::successors(Some(first), |length: &usize| length.checked_mul(2));
            Ok(lengths.take_while(|&length| length <= last).collect())
        }
        _ => Err(
            "allowed: two lengths, the first at least 1 and at most the second, as 512..16384"
                .into(),
        ),
    }
}

/// A length, or a sweep of them.
pub fn lengths(text: &str) -> Result<Lens, String> {
    if text.contains("..") {
        return sweep(text);
    }
    let length = text
        .parse()
        .map_err(|error| format!("{error}; allowed: a length, or a sweep, as 512..16384"))?;
    Ok(vec![length])
}

/// Some rows: `0..64`.
pub fn rows(text: &str) -> Result<Range<usize>, String> {
    match pair(text, "..") {
        Some((from, to)) => Ok(from..to),
        None => Err("allowed: FROM..TO, two numbers of queries, as 0..64".to_owned()),
    }
}

/// A compute capability: `9.0`.
pub fn compute_capability(text: &str) -> Result<(u32, u32), String> {
    pair(text, ".").ok_or("allowed: two numbers, as 9.0".to_owned())
}

/// Heads of q, and of k and v: `32/8`; with one number, both have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Heads of q.
    pub q: usize,
    /// Heads of k and v.
    pub k: usize,
}

impl FromStr for Heads {
    type Err = String;

    fn from_str(text: &str) -> Result<Heads, String> {
        let one = || text.parse().ok().map(|heads| (heads, heads));
        match pair(text, "/").or_else(one) {
            Some((q, k)) => Ok(Heads { q, k }),
            None => {
                Err("heads of q and of k are needed, as 32/8, or one number for both".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_doubles() {
        assert_eq!(sweep("512..5000").unwrap(), [512, 1024, 2048, 4096]);
        let last = sweep(&format!("{0}..{0}", usize::MAX)).unwrap();
        assert_eq!(last, [usize::MAX]);
        for bad in ["512", "0..4", "8..4", "a..b", "..", "1..2..3"] {
            assert!(sweep(bad).is_err(), "{bad}");
        }
    }
}
