//! The mask of options and a file's metadata.

use std::str::FromStr;

use clap::Args;
use ferroflash::Mask;

/// Options of the mask; `None` if not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct MaskWords {
    /// Row i sees key j only if j ≤ i + seqlen_k − seqlen_q. Unless given: from the file's metadata, if there is a file.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub causal: Option<bool>,
    /// Keys that a query sees before its own position; -1: all. Unless given: from the file's metadata, if there is a file.
    #[arg(long, allow_negative_numbers = true)]
    pub window_left: Option<Side>,
    /// Keys that a query sees after its own position; -1: all. 0 with --causal. Unless given: from the file's metadata, if there is a file.
    #[arg(long, allow_negative_numbers = true)]
    pub window_right: Option<Side>,
    /// Prefix-LM: the number of first keys of a sequence that every query sees, in addition to a causal mask. Unless given: from the file's
    /// metadata, if there is a file.
    #[arg(long)]
    pub prefix: Option<usize>,
}

impl MaskWords {
    /// These options or, if not given, those.
    pub fn or(self, others: MaskWords) -> MaskWords {
        MaskWords {
            causal: self.causal.or(others.causal),
            window_left: self.window_left.or(others.window_left),
            window_right: self.window_right.or(others.window_right),
            prefix: self.prefix.or(others.prefix),
        }
    }

    /// Their mask: a causal one ends a window at the query's own position, or has a prefix in addition.
    pub fn mask(self) -> Result<Mask, String> {
        let limit = |side: Option<Side>| side.and_then(|Side(limit)| limit);
        let (left, right) = (limit(self.window_left), limit(self.window_right));
        match (self.causal.unwrap_or(false), self.prefix) {
            (_, Some(prefix)) if prefix > 0 => {
                if self.causal == Some(false) {
                    return Err(format!(
                        "prefix {prefix} is for a causal mask, and causal is false"
                    ));
                }
                if left.is_some() || right.is_some_and(|right| right > 0) {
                    return Err(format!(
                        "prefix {prefix} is for a causal mask without a window: window_left -1, window_right -1 or 0"
                    ));
                }
                Ok(Mask::PrefixLm { prefix })
            }
            (true, _) if left.is_none() => Ok(Mask::Causal),
            (true, _) => Ok(Mask::Window {
                left,
                right: Some(0),
            }),
            (false, _) if left.is_none() && right.is_none() => Ok(Mask::Full),
            (false, _) => Ok(Mask::Window { left, right }),
        }
    }

    /// The metadata of this mask.
    pub fn metadata(mask: Mask) -> [(&'static str, String); 4] {
        let (left, right) = mask.window();
        let side = |side: Option<usize>| side.map_or("-1".into(), |n| n.to_string());
        [
            ("causal", (right == Some(0)).to_string()),
            ("window_left", side(left)),
            ("window_right", side(right)),
            ("prefix", mask.prefix().to_string()),
        ]
    }
}

/// One side of a window; -1 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side(pub Option<usize>);

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Side, String> {
        match text {
            "-1" => Ok(Side(None)),
            _ => match text.parse() {
                Ok(n) => Ok(Side(Some(n))),
                Err(_) => Err("a number of keys, or -1 for all, is needed".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mask that is written is the same when it is read again.
    #[test]
    fn a_mask_is_read_as_it_was_written() {
        let window = |left, right| Mask::Window { left, right };
        let masks = [
            Mask::Full,
            Mask::Causal,
            Mask::PrefixLm { prefix: 7 },
            window(Some(3), Some(0)),
            window(Some(3), None),
            window(None, Some(2)),
        ];
        for mask in masks {
            let [causal, left, right, prefix] = MaskWords::metadata(mask).map(|(_, word)| word);
            let words = MaskWords {
                causal: Some(causal.parse().unwrap()),
                window_left: Some(left.parse().unwrap()),
                window_right: Some(right.parse().unwrap()),
                prefix: Some(prefix.parse().unwrap()),
            };
            assert_eq!(words.mask(), Ok(mask));
        }
    }

    #[test]
    fn a_prefix_beside_another_mask_is_refused() {
        let prefix = MaskWords {
            prefix: Some(4),
            ..MaskWords::default()
        };
        assert_eq!(prefix.mask(), Ok(Mask::PrefixLm { prefix: 4 }));
        let not_causal = MaskWords {
            causal: Some(false),
            ..prefix
        };
        let left = MaskWords {
            window_left: Some(Side(Some(9))),
            ..prefix
        };
        let right = MaskWords {
            window_right: Some(Side(Some(1))),
            ..prefix
        };
        for words in [not_causal, left, right] {
            assert!(words.mask().is_err(), "{words:?}");
        }
    }
}
