//! The arguments of a call with addresses, and the declaration of their fields in parameter structs.

use core::fmt;

use super::{TensorMap, TensorView};

/// The optional inputs of attention: each is declared once, here.
///
/// A row is a vector: its variant and its name, the type and the number of its elements, what it affects, whether kernels are compiled with or
/// without it, its gradient if it has one. The row generates the variant of [`Argument`] and the [`Constant`](crate::spec::Constant) of the same
/// name; the field and the method of the host's `Inputs` (and `Gradients`), with this documentation; the checks of calls; the binding of its
/// address; and the inputs of bindings. A kernel that reads it names the constant among its capabilities, and has a field for the address among its parameters.
///
/// The macro `$with` gets the tokens in parentheses, then the rows.
#[macro_export]
macro_rules! optional_inputs {
    ($with:ident!($($before:tt)*)) => {
        $with! {
            $($before)*
            /// How many of its queries each sequence uses, from the first on: i32 `[batch]`. If left out, all.
            SeqUsedQ seqused_q: I32 [Batch], of Rows;
            /// How many of its keys and values each sequence uses, from the first on: i32 `[batch]`. If left out, all.
            SeqUsedK seqused_k: I32 [Batch], of Rows;
            /// The first key and value of each sequence, after left padding: i32 `[batch]`. The used keys (`seqused_k`) count from the first row on,
            /// including the padding. If left out, 0.
            LeftpadK leftpad_k: I32 [Batch], of Rows;
            /// The sinks of the heads: f32 `[heads_q]`. The softmax of each query head has an additional term in its denominator, exp of the head's
            /// sink, a learned number:
            ///
            /// ```text
            /// o   = Σ exp(s_j) v_j / (Σ exp(s_j) + exp(sink))        s_j = q·k_j · softmax_scale
            /// lse = ln(Σ exp(s_j) + exp(sink))
            /// ```
            ///
            /// So a head's weights may add up to less than 1. A sink is finite or −∞, which makes no difference; it is not
            /// multiplied by the scale. A row of a sequence that sees no key has o = 0 and lse = sink. The gradients of q, k and v include its
            /// effect, and that of the sinks, `d_sink = Σ over rows of exp(sink − lse) (d_lse − rowsum(d_o ∘ o))`, is written if `d_sinks` asks for
            /// it. Every backend has it, with every mask, expressions, lengths, pages and split keys.
            ///
            /// GPT-OSS has such sinks (gpt-oss model card, OpenAI 2025, arXiv:2508.10925, section 2.2); the term goes back to
            /// Miller 2023, "Attention is off by one", and the word to StreamingLLM (Xiao et al. 2023, arXiv:2309.17453).
            Sinks sinks: F32 [HeadsQ], of Sums compiled "sinks", gradient DSinks d_sinks;
            /// The factor of the scores of each query head, in addition to softmax_scale: f32 `[heads_q]`, finite. If left out, 1. A learned
            /// temperature of each head, as in Swin Transformer V2 (Liu et al. 2022, arXiv:2111.09883, section 3.3).
            HeadScale head_scale: F32 [HeadsQ], of Scores compiled "head_scale";
        }
    };
}

/// The number of elements of a vector, in terms of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// One for each sequence of the batch.
    Batch,
    /// One for each query head.
    HeadsQ,
}

/// Type of a vector's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VectorType {
    /// Lengths.
    I32,
    /// Numbers.
    F32,
}

/// What an input affects, and so which kernels have to support it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The rows of sequences: kernels that read lengths.
    Rows,
    /// The sums of exponentials: forward kernels. In the backward pass lse includes it.
    Sums,
    /// The scores: kernels of every pass.
    Scores,
}

/// A row of [`optional_inputs`](crate::optional_inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionalInput {
    /// Type of its elements.
    pub dtype: VectorType,
    /// Their number.
    pub extent: Extent,
    /// What it affects.
    pub effect: Effect,
    /// Its gradient, of the same type and number; `None`: it has none.
    pub gradient: Option<Argument>,
}

/// [`Argument`]: the arguments in braces, then the optional inputs and their gradients.
macro_rules! arguments {
    (
        { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }
        $(
            $(#[$optional_doc:meta])*
            $optional:ident $field:ident: $dtype:ident [$extent:ident], of $effect:ident $(compiled $constant:literal)? $(, gradient $gradient:ident $gradient_field:ident)?;
        )*
    ) => {
        /// One argument of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Argument {
            $($(#[$doc])* $variant,)*
            $($(#[$optional_doc])* $optional,)*
            $($(#[doc = concat!("Gradient of ", stringify!($field), ".")] $gradient,)?)*
        }

        impl Argument {
            /// All of them, in their order.
            pub const ALL: [Argument; Argument::N] = [
                $(Argument::$variant,)*
                $(Argument::$optional,)*
                $($(Argument::$gradient,)?)*
            ];

            const N: usize =
                [$($name,)* $(stringify!($optional),)* $($(stringify!($gradient),)?)*].len();

            /// Its name in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Argument::$variant => $name,)*
                    $(Argument::$optional => stringify!($field),)*
                    $($(Argument::$gradient => stringify!($gradient_field),)?)*
                }
            }

            /// Its row, if it is one of the [`optional_inputs`](crate::optional_inputs).
            pub const fn optional_input(self) -> Option<OptionalInput> {
                match self {
                    $(Argument::$optional => Some(OptionalInput {
                        dtype: VectorType::$dtype,
                        extent: Extent::$extent,
                        effect: Effect::$effect,
                        gradient: arguments!(@gradient $($gradient)?),
                    }),)*
                    _ => None,
                }
            }

            /// The input of which it is the gradient, if that is one of the [`optional_inputs`](crate::optional_inputs).
            pub const fn gradient_of(self) -> Option<Argument> {
                match self {
                    $($(Argument::$gradient => Some(Argument::$optional),)?)*
                    _ => None,
                }
            }
        }
    };
    (@gradient) => { None };
    (@gradient $gradient:ident) => { Some(Argument::$gradient) };
}

optional_inputs! {
    arguments!(
        {
            /// Queries.
            Q = "q",
            /// Keys.
            K = "k",
            /// Values.
            V = "v",
            /// Output.
            O = "o",
            /// Row statistics.
            Lse = "lse",
            /// Weights: softmax of the scores.
            Weights = "weights",
            /// Gradient of the output.
            DO = "d_o",
            /// Gradient of the row statistics.
            DLse = "d_lse",
            /// Gradient of the queries.
            DQ = "d_q",
            /// Gradient of the keys.
            DK = "d_k",
            /// Gradient of the values.
            DV = "d_v",
            /// Gradient of the first tensor that an expression of scores reads.
            DScoreTensor0 = "d_score_tensors[0]",
            /// Gradient of the second one.
            DScoreTensor1 = "d_score_tensors[1]",
            /// Gradient of the third one.
            DScoreTensor2 = "d_score_tensors[2]",
            /// Gradient of the fourth one.
            DScoreTensor3 = "d_score_tensors[3]",
            /// The first row of q of each sequence, and the end of the last.
            CuSeqlensQ = "cu_seqlens_q",
            /// The first row of k and v of each sequence, and the end of the last.
            CuSeqlensK = "cu_seqlens_k",
            /// The pages of each sequence's keys and values in the pool.
            PageTable = "page_table",
            /// Scales of queries in 8 bits.
            QDescale = "q_descale",
            /// Scales of keys in 8 bits.
            KDescale = "k_descale",
            /// Scales of values in 8 bits.
            VDescale = "v_descale",
            /// The map of a block mask.
            BlockMask = "block_mask",
            /// Seed and offset of dropout.
            DropoutState = "dropout_state",
            /// The first tensor that an expression of scores reads.
            ScoreTensor0 = "score_tensors[0]",
            /// The second one.
            ScoreTensor1 = "score_tensors[1]",
            /// The third one.
            ScoreTensor2 = "score_tensors[2]",
            /// The fourth one.
            ScoreTensor3 = "score_tensors[3]",
            /// Output over the first part of the keys.
            O1 = "o_1",
            /// Row statistics of the first part of the keys.
            Lse1 = "lse_1",
            /// Output over the second part of the keys.
            O2 = "o_2",
            /// Row statistics of the second part of the keys.
            Lse2 = "lse_2",
            /// Rows to be rotated by their positions; in the backward pass, the gradient of the rotated rows.
            X = "x",
            /// A tensor in 8 bits.
            Rounded = "rounded",
            /// Scales that it is given.
            Descale = "descale",
            /// Scales that follow from it.
            DescaleOut = "descale_out",
            /// Its greatest magnitudes.
            Amax = "amax",
            /// The rotated rows.
            Y = "y",
            /// The first row of x of each sequence, and the end of the last.
            CuSeqlens = "cu_seqlens",
            /// The position of each sequence's first row of x.
            SeqlenOffsets = "seqlen_offsets",
            /// Rows of k that are appended to a cache.
            KNew = "k_new",
            /// Rows of v that are appended to a cache.
            VNew = "v_new",
            /// Queries rotated by their positions.
            QOut = "q_out",
            /// Cache of keys.
            KCache = "k_cache",
            /// Cache of values.
            VCache = "v_cache",
            /// The first new row of each sequence, and the end of the last.
            CuSeqlensNew = "cu_seqlens_new",
            /// How many rows of the cache each sequence uses after the append.
            SeqUsedOut = "seqused_out",
            /// Cosines by position.
            Cos = "cos",
            /// Sines by position.
            Sin = "sin",
        }
    )
}

impl Argument {
    /// The tensors that expressions of scores read, in their order.
    pub const SCORE_TENSORS: [Argument; 4] = [
        Argument::ScoreTensor0,
        Argument::ScoreTensor1,
        Argument::ScoreTensor2,
        Argument::ScoreTensor3,
    ];

    /// Their gradients.
    pub const SCORE_TENSOR_GRADIENTS: [Argument; 4] = [
        Argument::DScoreTensor0,
        Argument::DScoreTensor1,
        Argument::DScoreTensor2,
        Argument::DScoreTensor3,
    ];

    /// The argument of this name.
    pub fn from_name(name: &str) -> Option<Argument> {
        let mut all = Argument::ALL.into_iter();
        all.find(|argument| argument.name() == name)
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A field of a parameter struct that holds an address.
pub enum Slot<'a> {
    /// A tensor, read and written by its strides.
    Tensor(Argument, &'a mut TensorView),
    /// A tensor, copied by the TMA.
    Map(Argument, &'a mut TensorMap),
    /// A vector; 0 if the call does not have it. A plan may put a piece of the workspace here: [`in_workspace`].
    Vector(Argument, &'a mut u64),
    /// A piece of the workspace, in a plan as [`in_workspace`]; 0 if the plan has none.
    Workspace(&'a mut u64),
}

/// A parameter struct: binding, checks, tensor maps, staging and the emulator all use one walk over its fields.
pub trait KernelParams: Copy {
    /// Calls `f` with every field that holds an address.
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>));
}

/// Declares a parameter struct with its fields for addresses: `pub FIELD: TYPE = SLOT(ARGUMENT)`, as [`Slot`] names them; `Within` for a field with
/// its own such fields. The walk over them has the order of the fields.
macro_rules! parameters {
    (@ Within $within:expr, $f:expr) => { $crate::params::KernelParams::slots(&mut $within, $f) };
    (@ $slot:ident $place:expr, $f:expr $(, $argument:ident)?) => {
        $f($crate::params::Slot::$slot($($crate::params::Argument::$argument,)? &mut $place))
    };
    (
        $(#[$attribute:meta])*
        pub struct $type:ident {
            $($(#[$doc:meta])* pub $field:ident: $of:ty $(= $slot:ident $(($argument:ident))?)?,)*
        }
    ) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $type {
            $($(#[$doc])* pub $field: $of,)*
        }

        impl $crate::params::KernelParams for $type {
            fn slots(&mut self, f: &mut dyn FnMut($crate::params::Slot<'_>)) {
                $($($crate::params::argument::parameters!(@ $slot self.$field, f $(, $argument)?);)?)*
            }
        }
    };
}

pub(super) use parameters;

/// Marks an offset into the workspace in place of a vector's address.
const IN_WORKSPACE: u64 = 1 << 63;

/// The value that a plan writes in place of the address of a workspace piece at this offset: never 0, which means none.
pub const fn in_workspace(offset_bytes: u64) -> u64 {
    offset_bytes | IN_WORKSPACE
}

/// The address of a piece of the workspace; `None` if the field holds none.
const fn piece_address(place: u64, workspace: u64) -> Option<u64> {
    match place & IN_WORKSPACE {
        0 => None,
        _ => Some(workspace + (place & !IN_WORKSPACE)),
    }
}

/// Fills in every address: `address` returns that of an argument, or 0 if it is not given; a plan may have put a piece of the workspace in its place. An empty tensor also needs the address of some memory: a
/// tensor map must have one even if nothing is copied.
pub fn bind(params: &mut impl KernelParams, workspace: u64, address: impl Fn(Argument) -> u64) {
    params.slots(&mut |slot| match slot {
        Slot::Tensor(argument, TensorView { base: place, .. })
        | Slot::Map(argument, TensorMap { base: place, .. })
        | Slot::Vector(argument, place) => {
            *place = piece_address(*place, workspace).unwrap_or_else(|| address(argument))
        }
        Slot::Workspace(place) => *place = piece_address(*place, workspace).unwrap_or(0),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::TileList;

    /// A piece that a plan does not have has no address, for any address of the workspace: kernels test whether a list exists.
    #[test]
    fn a_piece_that_a_plan_lacks_has_no_address() {
        let mut list = TileList {
            tiles: in_workspace(0),
            maps: in_workspace(512),
            ..TileList::default()
        };
        bind(&mut list, 4096, |_| 0);
        assert_eq!([list.tiles, list.q_blocks, list.maps], [4096, 0, 4608]);
    }
}
