//! Why a program cannot be inserted into a kernel's text.

use std::fmt;

/// The text and the program do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpliceError {
    /// The text has an instruction that begins like those of scores, but is unknown.
    Unknown {
        /// The instruction.
        instruction: String,
    },
    /// An instruction has no end, or a wrong number of operands.
    Operands {
        /// The instruction.
        instruction: String,
        /// Operands that it has to have.
        expected: usize,
        /// Operands that the text has.
        found: usize,
    },
    /// A column has to be an immediate below 4096, or a register that the entry sets once, to such an immediate.
    NoColumn {
        /// The operand.
        operand: String,
    },
    /// An instruction is outside every entry.
    NoEntry {
        /// The instruction.
        instruction: String,
    },
    /// The entry has no parameter for the launch's values.
    NoParameter {
        /// The entry.
        entry: String,
    },
    /// The expression needs an instruction that the entry does not have.
    Missing {
        /// The entry.
        entry: String,
        /// The instruction.
        instruction: &'static str,
    },
    /// The entry asks for a derivative, and the program has none.
    NoDerivative {
        /// The entry.
        entry: String,
    },
    /// The entry asks for row terms but the program puts them into the scores, or the other way round.
    RowTerms {
        /// The entry.
        entry: String,
    },
}

impl fmt::Display for SpliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpliceError::Unknown { instruction } => {
                write!(
                    f,
                    "the kernel's text has an unknown instruction {instruction}"
                )
            }
            SpliceError::Operands {
                instruction,
                expected,
                found,
            } => write!(
                f,
                "{instruction} has {expected} operands, the kernel's text gives {found}"
            ),
            SpliceError::NoColumn { operand } => {
                write!(f, "the column {operand} is no constant")
            }
            SpliceError::NoEntry { instruction } => {
                write!(f, "{instruction} stands outside of every entry")
            }
            SpliceError::NoParameter { entry } => {
                write!(f, "{entry} has no parameter {entry}_param_0")
            }
            SpliceError::Missing { entry, instruction } => {
                write!(
                    f,
                    "the expression needs {instruction}, which {entry} does not have"
                )
            }
            SpliceError::NoDerivative { entry } => {
                write!(f, "{entry} asks for a derivative, and there is none")
            }
            SpliceError::RowTerms { entry } => {
                write!(
                    f,
                    "{entry} and the program put row terms into different places"
                )
            }
        }
    }
}

impl std::error::Error for SpliceError {}
