//! A mask as a program of few instructions, which kernels interpret on a block of scores: its parts.

use super::interval::{Binary, Compare, Index, Unary};

/// Most instructions of a mask's program.
pub const MAX_MASK_INSTRUCTIONS: usize = 64;
/// Most live values of a program.
pub const MAX_MASK_VALUES: usize = 16;
/// Most values of rows, and of columns, whose bounds a program keeps for the map.
pub const MAX_MASK_BOUNDS: usize = 8;

/// An instruction of a mask's program: a value made of others, which are in numbered places.
///
/// | word | bits 0..8 | 8..16 | 16..24 | 24..32 |
/// |---|---|---|---|---|
/// | 0 | [`MaskOp`] | place of the value | function, parameter, tensor or bound | rank of the tensor |
/// | 1 | the first operand | the second | the third | the fourth |
/// | 2 | a constant's bits | | | |
///
/// The last word is 0: kernels read 16 bytes at a time.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskInstruction {
    words: [u32; 4],
}

/// An enum by a list, and its members by their numbers.
macro_rules! operations {
    ($($(#[$doc:meta])* $op:ident = $number:literal,)*) => {
        /// The operation of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum MaskOp {
            $($(#[$doc])* $op = $number,)*
        }

        impl MaskOp {
            /// The operation of a number; [`MaskOp::Unknown`] for any other number.
            #[inline(always)]
            pub const fn of(number: u32) -> MaskOp {
                match number {
                    $($number => MaskOp::$op,)*
                    _ => MaskOp::Unknown,
                }
            }
        }
    };
}

operations! {
    /// An index of the score.
    Index = 0,
    /// A number.
    F32 = 1,
    /// An integer.
    I32 = 2,
    /// A boolean.
    Bool = 3,
    /// A parameter that is a number.
    ParamF32 = 4,
    /// A parameter that is an integer.
    ParamI32 = 5,
    /// An element of a tensor of f32.
    ReadF32 = 6,
    /// An element of a tensor of f16.
    ReadF16 = 7,
    /// An element of a tensor of bf16.
    ReadBf16 = 8,
    /// An element of a tensor of i32.
    ReadI32 = 9,
    /// A function of one value.
    Unary = 10,
    /// A function of two values.
    Binary = 11,
    /// A comparison.
    Compare = 12,
    /// One value or another.
    Select = 13,
    /// An unknown number.
    Unknown = 14,
    /// The first operand is kept: its bounds for all rows, or columns, of a block.
    Keep = 15,
    /// The kept bounds of a value of the block's rows.
    OfRows = 16,
    /// The kept bounds of a value of the block's columns.
    OfColumns = 17,
}

impl MaskInstruction {
    /// An instruction of a kind, whose value goes to a place.
    pub const fn new(op: MaskOp, to: u8) -> MaskInstruction {
        MaskInstruction {
            words: [op as u32 | (to as u32) << 8, 0, 0, 0],
        }
    }

    /// With these operands, and the function, parameter, tensor or bound.
    #[must_use]
    pub const fn with(self, which: u8, operands: [u8; 4]) -> MaskInstruction {
        let [head, _, bits, _] = self.words;
        MaskInstruction {
            words: [
                head | (which as u32) << 16,
                u32::from_le_bytes(operands),
                bits,
                0,
            ],
        }
    }

    /// With this rank of its tensor.
    #[must_use]
    pub const fn with_rank(self, rank: u8) -> MaskInstruction {
        let [head, operands, bits, _] = self.words;
        MaskInstruction {
            words: [head | (rank as u32) << 24, operands, bits, 0],
        }
    }

    /// With the bits of a constant.
    #[must_use]
    pub const fn with_bits(self, bits: u32) -> MaskInstruction {
        let [head, operands, ..] = self.words;
        MaskInstruction {
            words: [head, operands, bits, 0],
        }
    }

    /// From memory.
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> MaskInstruction {
        MaskInstruction { words }
    }

    /// Its operation.
    #[inline(always)]
    pub const fn op(self) -> MaskOp {
        MaskOp::of(self.words[0] & 255)
    }

    /// The place of its value.
    #[inline(always)]
    pub const fn to(self) -> u32 {
        self.words[0] >> 8 & 255
    }

    /// Its function, parameter, tensor or bound.
    #[inline(always)]
    pub const fn which(self) -> u32 {
        self.words[0] >> 16 & 255
    }

    /// Dimensions of its tensor.
    #[inline(always)]
    pub const fn rank(self) -> u32 {
        self.words[0] >> 24
    }

    /// The place of its `nth` operand, counted from 0 to 3.
    #[inline(always)]
    pub const fn operand(self, nth: u32) -> u32 {
        self.words[1] >> (8 * nth) & 255
    }

    /// A constant's bits.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.words[2]
    }
}

/// The functions of one value that programs have, by their numbers.
pub const MASK_UNARY: [Unary; 5] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Not,
    Unary::ToF32,
    Unary::ToI32,
];

/// The functions of two values, by their numbers.
pub const MASK_BINARY: [Binary; 12] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::Shl,
    Binary::Shr,
];

/// The comparisons, by their numbers.
pub const MASK_COMPARE: [Compare; 4] = [Compare::Lt, Compare::Le, Compare::Eq, Compare::Ne];

/// The indices, by their numbers.
pub const MASK_INDEX: [Index; 7] = [
    Index::Batch,
    Index::Head,
    Index::KvHead,
    Index::Query,
    Index::Key,
    Index::SeqlenQ,
    Index::SeqlenK,
];

/// A mask in instructions, in three parts: one that is evaluated at each row of a block and keeps bounds of values, the same for columns,
/// and one that computes the mask from these.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskProgram {
    /// All parts, one after the other.
    pub instructions: [MaskInstruction; MAX_MASK_INSTRUCTIONS],
    /// The end of the part of rows.
    pub end_of_rows: u32,
    /// The end of the part of columns.
    pub end_of_columns: u32,
    /// The end of the last part, whose last value is the mask.
    pub end: u32,
    /// How many values of rows are kept.
    pub row_bounds: u32,
    /// How many values of columns are kept.
    pub column_bounds: u32,
    /// Padding.
    pub padding: [u32; 3],
}

impl Default for MaskProgram {
    fn default() -> MaskProgram {
        MaskProgram {
            instructions: [MaskInstruction::default(); MAX_MASK_INSTRUCTIONS],
            end_of_rows: 0,
            end_of_columns: 0,
            end: 0,
            row_bounds: 0,
            column_bounds: 0,
            padding: [0; 3],
        }
    }
}

const _: () = assert!(size_of::<MaskInstruction>() == 16);
const _: () = assert!(size_of::<MaskProgram>() == MAX_MASK_INSTRUCTIONS * 16 + 32);
