//! What a call is given, by name: inputs and outputs as the caller writes them, and one array of all of them.
//!
//! | file | what it holds |
//! |---|---|
//! | `declare.rs` | how such a struct is declared: from its fields follow its methods and its way into a call |
//! | `given.rs` | [`Inputs`], [`Outputs`], [`Saved`], [`OutputGradients`], [`Gradients`] |
//! | `needs.rs` | THE table: what each pass takes, of which shape and type, read or written |
//! | `described.rs` | [`Arguments`]: everything given, without its memory; what validation and planning look at |
//! | `operands.rs` | everything given, with its memory; what backends look at |
//! | `operation.rs` | what operations beside attention say of themselves |
//! | `merge.rs` | [`MergeInputs`], and the table of a merge |
//! | `append.rs` | [`AppendInputs`], [`AppendOutputs`], and the table of an append |
//! | `rotate.rs` | [`RotateInputs`], and the table of a rotation |
//! | `dropout.rs` | [`DropoutRng`]: seed and offset |
//! | `score.rs` | [`ScoreInputs`]: parameters and tensors of expressions, by name; [`ScoreGradients`] |
//! | `by_argument.rs` | [`ByArgument`]: one place for every [`Argument`] |
//!
//! A new input of attention that a call may leave out is a row of [`ferroflash_kernels::optional_inputs`]: its field, its method, its
//! checks, copies, address and the emulator follow from it. Any other new argument is a variant of [`Argument`], a field of one of the
//! structs, and a row of the table of needs.

mod append;
mod by_argument;
mod declare;
mod described;
mod dropout;
mod given;
mod merge;
mod needs;
mod operands;
mod operation;
mod rotate;
mod score;

pub(crate) use crate::terms::ArgumentSet;
pub use append::{AppendInputs, AppendOutputs};
pub use by_argument::ByArgument;
pub use described::{Arguments, Given};
pub use dropout::DropoutRng;
pub use ferroflash_kernels::params::{Argument, Extent, OptionalInput, VectorType};
pub use given::{Gradients, Inputs, OutputGradients, Outputs, Saved};
pub use merge::MergeInputs;
pub(crate) use needs::{Access, Form, Need, Presence, need};
pub(crate) use operands::{Lent, Operand, Operands, Values};
pub(crate) use operation::Operation;
pub use rotate::RotateInputs;
pub(crate) use score::Named;
pub use score::{ScoreGradients, ScoreInputs};
