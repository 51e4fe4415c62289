//! Specialisation: constants that are fixed when the driver compiles a kernel, and not when rustc does.
//!
//! One PTX text supports every mask and every kind of sequence. Where a kernel tests for a feature, the text has an undefined symbol
//! ([`Constant::symbol`]); the host replaces it by a number ([`Spec`]) before the driver compiles the text, and ptxas folds the branch before it
//! allocates registers. An unspecialised text cannot be assembled.
//!
//! Constants only say *whether*: sizes of windows and addresses of lengths are parameters. Otherwise the driver would compile
//! and keep a kernel for every size.

#[cfg(not(target_arch = "nvptx64"))]
pub mod text;

use core::fmt;

/// THE table of constants: calls `$callback!` with a row for each, `Name name "name"`; those of [`optional_inputs`](crate::optional_inputs) with a
/// constant come last. The enum, the names, the symbols, the reading on the device ([`crate::ptx::spec`]) and the probe are generated from it;
/// kernels that use a new constant name it in [`Kind::capabilities`](crate::variants::Kind).
macro_rules! for_each_constant {
    ($callback:ident) => {
        $crate::optional_inputs! { with_optional_inputs!($callback {
            /// A query sees no key beyond some distance after its own position: causal, or a window.
            RightBound right_bound "right_bound";
            /// A query sees no key beyond some distance before its own position: a window.
            LeftBound left_bound "left_bound";
            /// Sequences have different lengths, which are in device memory: packed rows, used lengths.
            Lengths lengths "lengths";
            /// Several tiles have the same keys, each with some of the query heads that share them: flash3's backward pass if tiles are few.
            HeadSplits head_splits "head_splits";
            /// All queries see the first keys of a sequence, in addition to a right bound: prefix-LM.
            Prefix prefix "prefix";
            /// A map says which blocks of the scores are hidden, partial or full: see [`crate::params::BlockMap`].
            BlockMask block_mask "block_mask";
            /// The keys of a sequence are divided among several tiles: see [`crate::attention::split_kv`].
            SplitKv split_kv "split_kv";
            /// Keys and values are in pages: see [`crate::attention::pages`].
            Pages pages "pages";
            /// An expression edits the scores: see [`ferroflash_expression`].
            Score score "score";
            /// Its derivative by the score is not 1: for the backward pass.
            ScoreGradient score_gradient "score_gradient";
            /// Under a block mask that is a map of the mask expression, without a score expression: full blocks need no edit.
            EditPartial edit_partial "edit_partial";
            /// Weights are dropped at random: see [`crate::attention::dropout`].
            Dropout dropout "dropout";
            /// Rows of the tensors have fewer columns than the kernel is compiled for: see [`crate::variants::Variant::pads_columns`].
            PadColumns pad_columns "pad_columns";
            /// Where q, k and v have 8 bits: o is f16, not bf16.
            OF16 o_f16 "o_f16";
            /// The same: o is f32.
            OF32 o_f32 "o_f32";
            /// In a kernel for keys and values in 8 bits: q has 8 bits, too.
            QE4m3 q_e4m3 "q_e4m3";
            /// Where q, k and v have 8 bits: scales are of blocks of rows. See [`crate::params::SCALE_ROWS`].
            ScaleBlocks scale_blocks "scale_blocks";
            /// Products of f32 are as exact as sums in f32 allow, instead of in tf32: see [`crate::tile::tf32`].
            FullPrecision full_precision "full_precision";
        }) }
    };
}

/// `$callback!` with these rows, and with one of each optional input that has a constant.
macro_rules! with_optional_inputs {
    (
        $callback:ident { $($rows:tt)* }
        $(
            $(#[$doc:meta])*
            $input:ident $field:ident: $dtype:ident [$extent:ident], of $effect:ident $(compiled $name:literal)? $(, gradient $gradient:ident $of_field:ident)?;
        )*
    ) => {
        $callback! {
            $($rows)*
            $($(
                #[doc = concat!("A call gives `", $name, "`: see [`Argument::", stringify!($input), "`](crate::params::Argument::", stringify!($input), ").")]
                $input $field $name;
            )?)*
        }
    };
}

#[cfg(any(target_arch = "nvptx64", feature = "emulator"))]
pub(crate) use {for_each_constant, with_optional_inputs};

macro_rules! constants {
    ($($(#[$doc:meta])* $constant:ident $reader:ident $name:literal;)*) => {
        /// A feature that a kernel is compiled with or without.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Constant {
            $($(#[$doc])* $constant,)*
        }

        impl Constant {
            /// All of them, in the order of their bits in a [`Spec`].
            pub const ALL: [Constant; [$($name),*].len()] = [$(Constant::$constant),*];

            /// Its name, as plans print it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Constant::$constant => $name,)*
                }
            }

            /// Its symbol in the PTX: [`PLACEHOLDER`], then its name.
            pub const fn symbol(self) -> &'static str {
                match self {
                    $(Constant::$constant => concat!("ferroflash_spec_", $name),)*
                }
            }

            const fn bit(self) -> u32 {
                1 << self as u32
            }
        }
    };
}

for_each_constant!(constants);

/// The prefix of the symbols of all constants.
pub const PLACEHOLDER: &str = "ferroflash_spec_";

/// The constants of the probes of `ptx`: of both values.
pub const PROBE_SPEC: Spec = Spec::PLAIN.with(Constant::RightBound);

/// A set of constants: for a launch those that are 1, for a kernel those that it supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spec {
    bits: u32,
}

impl Spec {
    /// The empty set: every query sees every key of sequences of equal lengths.
    pub const PLAIN: Spec = Spec { bits: 0 };

    /// The set with this constant.
    pub const fn with(self, constant: Constant) -> Spec {
        Spec {
            bits: self.bits | constant.bit(),
        }
    }

    /// Whether this constant is 1.
    pub const fn has(self, constant: Constant) -> bool {
        self.bits & constant.bit() != 0
    }

    /// The set of a list.
    pub const fn of(constants: &[Constant]) -> Spec {
        match constants {
            [] => Spec::PLAIN,
            [first, others @ ..] => Spec::of(others).with(*first),
        }
    }

    /// The union with another set.
    pub const fn and(self, other: Spec) -> Spec {
        Spec {
            bits: self.bits | other.bits,
        }
    }

    /// The intersection with another set.
    pub const fn among(self, other: Spec) -> Spec {
        Spec {
            bits: self.bits & other.bits,
        }
    }

    /// The set without this constant.
    pub const fn without(self, constant: Constant) -> Spec {
        Spec {
            bits: self.bits & !constant.bit(),
        }
    }

    /// The constants that are 1.
    pub fn constants(self) -> impl Iterator<Item = Constant> {
        Constant::ALL
            .into_iter()
            .filter(move |&constant| self.has(constant))
    }
}

/// `right_bound+left_bound`; `plain` if no constant is 1.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Spec::PLAIN {
            return f.write_str("plain");
        }
        for (nth, constant) in self.constants().enumerate() {
            if nth > 0 {
                f.write_str("+")?;
            }
            f.write_str(constant.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_symbols_are_the_constants_own() {
        for (nth, constant) in Constant::ALL.into_iter().enumerate() {
            assert_eq!(constant.bit(), 1 << nth);
            assert_eq!(
                constant.symbol(),
                format!("{PLACEHOLDER}{}", constant.name())
            );
            let spec = Spec::PLAIN.with(constant);
            assert!(spec.constants().eq([constant]));
            assert_eq!(spec.among(Spec::PLAIN), Spec::PLAIN);
            assert_eq!(spec.among(Spec::of(&Constant::ALL)), spec);
        }
    }

    #[test]
    fn a_spec_is_written_by_its_names() {
        let causal = Spec::PLAIN.with(Constant::RightBound);
        assert_eq!(Spec::PLAIN.to_string(), "plain");
        assert_eq!(causal.to_string(), "right_bound");
        assert_eq!(
            causal.with(Constant::LeftBound).to_string(),
            "right_bound+left_bound"
        );
    }
}
