//! Calls of a kind in words: `forward bf16 128 causal`.

use std::fmt;
use std::str::FromStr;

use super::sizes::sizes;
use crate::arguments::Argument;
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::problem::{
    BlockMask, Fp8, Fp8Kv, Fp8Sums, Mask, Order, Pages, Precision, Problem, ProblemBuilder,
};
use crate::terms::Algorithm;
use crate::validate::Pass;

/// Calls of one kind: a pass, an element type, head_dim, and what a kernel is compiled for. It is parsed from words such as `backward bf16 128 causal`:
///
/// | words | |
/// |---|---|
/// | `forward`, `backward` | the pass, first |
/// | `bf16`, `f16`, `f32` | the element type, second |
/// | `128`, `192/128` | head_dim, or head_dim and head_dim_v, third |
/// | `causal`, `window`, `prefix` | a mask: causal; a sliding window, with `causal` of the last keys only; prefix-LM |
/// | `packed`, `seqused` | sequences of different lengths: packed ones; ones that use some rows of their batch entry |
/// | `pages`, `e4m3` | keys and values in pages; in 8 bits |
/// | `fp8`, `fp8-blocks`, `one-level` | q, k and v in 8 bits; with scales of blocks; with sums of one level |
/// | `values-in-keys` | the values are columns of the keys |
/// | `block-mask`, `sinks`, `dropout` | with this feature |
/// | `fastest` | gradients summed in any order, the fastest |
/// | `full` | exact products of f32 |
/// | `flash1`, `flash2`, `flash3`, `standard` | only this algorithm |
/// | `batch=8`, `heads=32/8`, `seqlen=4096`, `seqlen_k=8192`, `page_size=64` | only calls of this size |
///
/// The [module](crate::ahead) has an example.
#[derive(Clone, Copy, Debug)]
pub struct CallKind {
    pass: Pass,
    builder: ProblemBuilder,
    mask: MaskWords,
    lengths: Lengths,
    is_in_pages: bool,
    algorithm: Option<Algorithm>,
    sizes: Sizes,
}

/// Words that do not name a kind of calls.
///
/// The [module](crate::ahead) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is given for {part}; allowed: {allowed}", Quoted(given))]
pub struct WordError {
    /// The word, if there is one.
    pub given: Option<String>,
    /// The place of the word.
    pub part: &'static str,
    /// The words that are accepted there.
    pub allowed: &'static str,
}

struct Quoted<'a>(&'a Option<String>);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(word) => write!(f, "{word:?}"),
            None => f.write_str("nothing"),
        }
    }
}

/// The given sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) batch: Option<usize>,
    pub(super) heads: Option<[usize; 2]>,
    pub(super) seqlen: Option<usize>,
    pub(super) seqlen_k: Option<usize>,
    page_size: Option<usize>,
}

/// The given words of masks.
#[derive(Clone, Copy, Debug, Default)]
struct MaskWords {
    causal: bool,
    window: bool,
    prefix: bool,
}

/// Whether sequences have different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    Alike,
    Packed,
    Used,
}

/// The words that may follow head_dim.
const WORDS: &str = "causal, window, prefix, packed, seqused, pages, e4m3, fp8, fp8-blocks, one-level, values-in-keys, block-mask, sinks, dropout, fastest, full, flash1, flash2, flash3, standard, \
     batch=N, heads=N/N, seqlen=N, seqlen_k=N, page_size=N";

/// Rows of a block of a block mask; any number would do.
const BLOCK: usize = 128;

/// Rows of a page unless given.
const PAGE_SIZE: usize = 64;

impl FromStr for CallKind {
    type Err = WordError;

    fn from_str(text: &str) -> Result<CallKind, WordError> {
        let mut words = text.split_whitespace();
        let pass = read(
            words.next(),
            "the pass",
            "forward, backward",
            |word| match word {
                "forward" => Some(Pass::Forward),
                "backward" => Some(Pass::Backward),
                _ => None,
            },
        )?;
        let dtype = read(
            words.next(),
            "the element type",
            "bf16, f16, f32",
            |word| match word {
                "bf16" => Some(Dtype::Bf16),
                "f16" | "fp16" => Some(Dtype::F16),
                "f32" | "fp32" => Some(Dtype::F32),
                _ => None,
            },
        )?;
        let head_dims = "a number, or two, 128 or 192/128";
        let [head_dim, head_dim_v] = read(words.next(), "head_dim", head_dims, pair)?;
        let builder = Problem::builder(dtype)
            .head_dim(head_dim)
            .head_dim_v(head_dim_v);
        let mut calls = CallKind {
            pass,
            builder,
            mask: MaskWords::default(),
            lengths: Lengths::Alike,
            is_in_pages: false,
            algorithm: None,
            sizes: Sizes::default(),
        };
        for word in words {
            calls = read(Some(word), "calls", WORDS, |word| calls.with(word))?;
        }
        if calls.mask.prefix && calls.mask.window {
            return Err(refused(Some("prefix"), "a mask", "prefix without window"));
        }
        Ok(calls)
    }
}

/// The meaning of a word.
fn read<T>(
    word: Option<&str>,
    part: &'static str,
    allowed: &'static str,
    meaning: impl FnOnce(&str) -> Option<T>,
) -> Result<T, WordError> {
    let read = word.and_then(meaning);
    read.ok_or_else(|| refused(word, part, allowed))
}

fn refused(given: Option<&str>, part: &'static str, allowed: &'static str) -> WordError {
    WordError {
        given: given.map(str::to_owned),
        part,
        allowed,
    }
}

/// `32/8`, or `16` for both.
fn pair(text: &str) -> Option<[usize; 2]> {
    let (a, b) = text.split_once('/').unwrap_or((text, text));
    Some([a.parse().ok()?, b.parse().ok()?])
}

impl CallKind {
    /// With this word, if it is one.
    fn with(mut self, word: &str) -> Option<CallKind> {
        if let Some((name, value)) = word.split_once('=') {
            let number = value.parse().ok();
            match name {
                "batch" => self.sizes.batch = Some(number?),
                "heads" => self.sizes.heads = Some(pair(value)?),
                "seqlen" => self.sizes.seqlen = Some(number?),
                "seqlen_k" => self.sizes.seqlen_k = Some(number?),
                "page_size" => self.sizes.page_size = Some(number?),
                _ => return None,
            }
            return Some(self);
        }
        let builder = self.builder;
        match word {
            "causal" => self.mask.causal = true,
            "window" => self.mask.window = true,
            "prefix" => self.mask.prefix = true,
            "packed" => self.lengths = Lengths::Packed,
            "seqused" => self.lengths = Lengths::Used,
            "pages" => self.is_in_pages = true,
            "e4m3" => self.builder = builder.fp8_kv(Fp8Kv::PerSequence),
            "fp8" => self.builder = builder.fp8(Fp8::PerHead),
            "fp8-blocks" => self.builder = builder.fp8(Fp8::PerBlock),
            "one-level" => self.builder = builder.fp8_sums(Fp8Sums::OneLevel),
            "values-in-keys" => self.builder = builder.values_in_keys(),
            "block-mask" => self.builder = builder.block_mask(BlockMask::new(BLOCK, BLOCK)),
            "sinks" => self.builder = builder.sinks(),
            "dropout" => self.builder = builder.dropout(0.1),
            "fastest" => self.builder = builder.order(Order::Fastest),
            "full" => self.builder = builder.precision(Precision::Full),
            "flash1" => self.algorithm = Some(Algorithm::Flash1),
            "flash2" => self.algorithm = Some(Algorithm::Flash2),
            "flash3" => self.algorithm = Some(Algorithm::Flash3),
            "standard" => self.algorithm = Some(Algorithm::Standard),
            _ => return None,
        }
        Some(self)
    }

    pub(super) fn pass(&self) -> Pass {
        self.pass
    }

    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// The lengths that calls give.
    pub(super) fn lengths(&self) -> &'static [Argument] {
        match self.lengths {
            Lengths::Used => &[Argument::SeqUsedK],
            // The problem asks for the others itself.
            Lengths::Packed | Lengths::Alike => &[],
        }
    }

    /// The problems of all sizes.
    pub(super) fn problems(&self) -> impl Iterator<Item = Result<Problem, ProblemError>> {
        sizes(self.pass, &self.sizes).into_iter().map(|size| {
            let [seqlen_q, seqlen_k] = size.seqlens;
            let [heads_q, heads_k] = size.heads;
            let builder = self
                .builder
                .batch(size.batch)
                .heads_q(heads_q)
                .heads_k(heads_k)
                .seqlen_q(seqlen_q)
                .seqlen_k(seqlen_k)
                .mask(self.mask.of(seqlen_k));
            let total = |seqlen: usize| seqlen.saturating_mul(size.batch);
            let builder = match (self.lengths, self.is_in_pages) {
                (Lengths::Packed, false) => {
                    builder.packed_q(total(seqlen_q)).packed_k(total(seqlen_k))
                }
                (Lengths::Packed, true) => builder.packed_q(total(seqlen_q)),
                _ => builder,
            };
            let page_size = self.sizes.page_size.unwrap_or(PAGE_SIZE);
            let n_pages = total(seqlen_k.div_ceil(page_size.max(1)));
            match self.is_in_pages {
                true => builder.pages(Pages::new(n_pages, page_size)),
                false => builder,
            }
            .build()
        })
    }
}

impl MaskWords {
    /// The mask over this many keys; its window and its prefix hide some of them if there are several.
    fn of(self, seqlen_k: usize) -> Mask {
        let some = Some((seqlen_k / 4).max(1));
        match self {
            MaskWords {
                window: true,
                causal,
                ..
            } => Mask::Window {
                left: some,
                right: if causal { Some(0) } else { some },
            },
            MaskWords { prefix: true, .. } => Mask::PrefixLm {
                prefix: (seqlen_k / 4).max(1),
            },
            MaskWords { causal: true, .. } => Mask::Causal,
            _ => Mask::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_none_are_named_with_those_that_are() {
        let message = |text: &str| text.parse::<CallKind>().unwrap_err().to_string();
        assert_eq!(
            message(""),
            "nothing is given for the pass; allowed: forward, backward"
        );
        for (text, said) in [
            ("sideways bf16 128", "\"sideways\" is given for the pass"),
            ("forward bf17 128", "\"bf17\" is given for the element type"),
            ("forward bf16", "nothing is given for head_dim"),
            ("forward bf16 12x", "\"12x\" is given for head_dim"),
            ("forward bf16 128 casual", "\"casual\" is given for calls"),
            ("forward bf16 128 batch=x", "\"batch=x\" is given for calls"),
            (
                "forward bf16 128 prefix window",
                "\"prefix\" is given for a mask",
            ),
        ] {
            assert!(message(text).starts_with(said), "{}", message(text));
        }
    }

    #[test]
    fn every_word_is_documented_and_allowed() {
        let allowed = WORDS.split(',').map(str::trim);
        for word in allowed {
            let word = word.replace("N/N", "4/2").replace('N', "4");
            let text = format!("forward bf16 128 {word}");
            assert!(text.parse::<CallKind>().is_ok(), "{text}");
        }
    }
}
