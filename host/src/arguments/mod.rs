//! The arguments of calls, by name: inputs and outputs as the caller writes them, and one array of all of them.
//!
//! | file | contents |
//! |---|---|
//! | `declare.rs` | the macro that declares such a struct: its fields generate its methods and its conversion into a call's operands |
//! | `given.rs` | [`Inputs`], [`Outputs`], [`Saved`], [`OutputGradients`], [`Gradients`] |
//! | `needs.rs` | THE table: the arguments of each pass, with shape and type, read or written |
//! | `described.rs` | [`Arguments`]: all given arguments, without their memory, for validation and planning |
//! | `operands.rs` | all given arguments, with their memory, for backends |
//! | `operation.rs` | the description of operations other than attention |
//! | `merge.rs` | [`MergeInputs`], and the table of a merge |
//! | `append.rs` | [`AppendInputs`], [`AppendOutputs`], and the table of an append |
//! | `rotate.rs` | [`RotateInputs`], and the table of a rotation |
//! | `quantize.rs` | [`QuantizeInputs`], [`QuantizeOutputs`], and the table of a rounding to 8 bits |
//! | `dropout.rs` | [`DropoutRng`]: seed and offset |
//! | `score.rs` | [`ScoreInputs`]: parameters and tensors of expressions, by name; [`ScoreGradients`] |
//! | `by_argument.rs` | [`ByArgument`]: one value for every [`Argument`] |
//!
//! A new optional input of attention is a row of [`ferroflash_kernels::optional_inputs`]: its field, its method, its checks, its copies, its address
//! and its part in the emulator follow from the row. Any other new argument is a variant of [`Argument`], a field of one of the
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
mod quantize;
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
pub use quantize::{QuantizeInputs, QuantizeOutputs};
pub use rotate::RotateInputs;
pub(crate) use score::Named;
pub use score::{ScoreGradients, ScoreInputs};
