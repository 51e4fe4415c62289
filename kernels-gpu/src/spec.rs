//! Specialisation: what is fixed when the driver compiles a kernel, and not when rustc does.
//!
//! One PTX text serves every mask and every kind of sequence. Where a kernel asks whether it has a feature, the text names
//! an undefined symbol ([`Constant::symbol`]); the host puts a number in its place ([`Spec`]) before the driver compiles the
//! text, and ptxas folds the branch before it allocates registers. A text that was not specialised cannot be assembled.
//!
//! Constants only say *whether*: sizes of windows and addresses of lengths are parameters. Otherwise the driver would compile
//! and keep a kernel for every size.

#[cfg(not(target_arch = "nvptx64"))]
pub mod text;

use core::fmt;

/// THE table of constants: calls `$callback!` with a row for each, `Name name "name"`; those of [`optional_inputs`](crate::optional_inputs) that kernels
/// are compiled with or without come last. The enum, the names, the symbols, what reads a constant on the
/// device ([`crate::ptx::spec`]) and its probe are made from it; kernels that ask for a new one name it in [`Kind::capabilities`](crate::variants::Kind).
macro_rules! for_each_constant {
    ($callback:ident) => {
        $crate::optional_inputs! { with_optional_inputs!($callback {
            /// A query sees no key beyond some distance to the right of its own place: causal, or a window.
            RightBound right_bound "right_bound";
            /// A query sees no key beyond some distance to the left of its own place: a window.
            LeftBound left_bound "left_bound";
            /// Sequences have lengths of their own, which lie in device memory: packed rows, used lengths.
            Lengths lengths "lengths";
            /// Several tiles of keys have the same keys, each with a share of the query heads that share them: flash3's backward pass
            /// where tiles are few.
            HeadSplits head_splits "head_splits";
            /// All queries see the first keys of a sequence, beside a right bound: prefix-LM.
            Prefix prefix "prefix";
            /// A map says which blocks of the scores are hidden, partial or full: see [`crate::params::BlockMap`].
            BlockMask block_mask "block_mask";
            /// The keys of a sequence are divided among several tiles: see [`crate::attention::split_kv`].
            SplitKv split_kv "split_kv";
            /// Keys and values lie in pages: see [`crate::attention::pages`].
            Pages pages "pages";
            /// An expression edits the scores: see [`ferroflash_expression`].
            Score score "score";
            /// Its derivative by the score is not 1: of the backward pass.
            ScoreGradient score_gradient "score_gradient";
            /// Under a block mask that is a map of the mask expression, with no score beside it: in full blocks there is nothing to edit.
            EditPartial edit_partial "edit_partial";
            /// Weights are dropped at random: see [`crate::attention::dropout`].
            Dropout dropout "dropout";
            /// Rows of the tensors have fewer columns than the kernel is compiled for: see [`crate::variants::Variant::pads_columns`].
            PadColumns pad_columns "pad_columns";
            /// Products of f32 are as exact as sums in f32 let them be, and not those of tf32: see [`crate::tile::tf32`].
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

            /// The symbol that stands for it in the PTX: [`PLACEHOLDER`], then its name.
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

/// What the symbols of all constants begin with.
pub const PLACEHOLDER: &str = "ferroflash_spec_";

/// What the probes of `ptx` are compiled with: constants of both values.
pub const PROBE_SPEC: Spec = Spec::PLAIN.with(Constant::RightBound);

/// A set of constants: of a launch those that are 1, of a kernel those that it may be compiled with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spec {
    bits: u32,
}

impl Spec {
    /// None: every query sees every key of sequences of equal lengths.
    pub const PLAIN: Spec = Spec { bits: 0 };

    /// With this constant too.
    pub const fn with(self, constant: Constant) -> Spec {
        Spec {
            bits: self.bits | constant.bit(),
        }
    }

    /// Whether this constant is 1.
    pub const fn has(self, constant: Constant) -> bool {
        self.bits & constant.bit() != 0
    }

    /// Those of a list.
    pub const fn of(constants: &[Constant]) -> Spec {
        match constants {
            [] => Spec::PLAIN,
            [first, others @ ..] => Spec::of(others).with(*first),
        }
    }

    /// With those of another one, too.
    pub const fn and(self, other: Spec) -> Spec {
        Spec {
            bits: self.bits | other.bits,
        }
    }

    /// Those that are of another one, too.
    pub const fn among(self, other: Spec) -> Spec {
        Spec {
            bits: self.bits & other.bits,
        }
    }

    /// Without this constant.
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

/// `right_bound+left_bound`; `plain` where no constant is 1.
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
