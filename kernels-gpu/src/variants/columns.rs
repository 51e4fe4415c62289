//! Which columns of tensors a kernel serves.

use super::{Dtype, Kind, Variant};
use crate::config::MLA_COLUMNS;
use crate::spec::Constant;

/// Which head_dims a kernel serves: every multiple of a number up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadDims {
    /// The number: columns that are copied at a time.
    pub multiple: u32,
    /// The largest.
    pub most: u32,
}

impl HeadDims {
    /// Whether it is one of them.
    pub const fn serves(self, head_dim: u32) -> bool {
        head_dim.is_multiple_of(self.multiple) && head_dim <= self.most
    }
}

/// Kernels copy rows 16 bytes at a time: in elements of two bytes.
pub const HEAD_DIM_MULTIPLE: u32 = 8;

/// The same in elements of four bytes.
pub const HEAD_DIM_MULTIPLE_F32: u32 = 4;

/// The same in elements of one byte.
pub const HEAD_DIM_MULTIPLE_E4M3: u32 = 16;

/// The largest head_dim of merges and of appended rows, whose kernels are compiled for none.
pub const MAX_HEAD_DIM: u32 = 256;

/// The largest head_dim of other kernels that are compiled for none: of those of `standard`, which go through columns in pieces.
pub const MAX_HEAD_DIM_IN_PIECES: u32 = 576;

impl Variant {
    /// Which head_dims it serves. Columns beyond the tensor's are read as 0 and not written, so kernels serve smaller head_dims than
    /// their own too, at the price of their own. What TMA copies, in flash3, is padded on the way; flash2 pads by itself ([`Variant::pads_columns`]).
    pub const fn head_dims(&self) -> HeadDims {
        let multiple = match (self.kind, self.dtype) {
            (
                Kind::ForwardE4m3
                | Kind::AppendE4m3
                | Kind::Amax
                | Kind::Quantize
                | Kind::Dequantize,
                _,
            )
            | (_, Some(Dtype::E4m3)) => HEAD_DIM_MULTIPLE_E4M3,
            (_, Some(Dtype::F32)) => HEAD_DIM_MULTIPLE_F32,
            _ => HEAD_DIM_MULTIPLE,
        };
        let most = match (self.kind, self.head_dim) {
            (_, Some(compiled)) => compiled,
            (Kind::Combine, None) => 2 * MLA_COLUMNS,
            (Kind::Merge | Kind::Append | Kind::AppendE4m3 | Kind::Amax | Kind::Quantize, None) => {
                MAX_HEAD_DIM
            }
            (_, None) => MAX_HEAD_DIM_IN_PIECES,
        };
        HeadDims { multiple, most }
    }

    /// The same of the columns of values.
    pub const fn head_dims_v(&self) -> HeadDims {
        let of_keys = self.head_dims();
        match self.head_dim_v {
            Some(most) => HeadDims { most, ..of_keys },
            None => of_keys,
        }
    }

    /// Whether keys and values of so many columns are no wider than it is compiled for.
    pub const fn holds_columns(&self, head_dim: u32, head_dim_v: u32) -> bool {
        head_dim <= self.head_dims().most && head_dim_v <= self.head_dims_v().most
    }

    /// Whether it has to be told ([`Constant::PadColumns`]) that rows of some tensor have `columns` columns, fewer than it is compiled for.
    pub fn pads_columns(&self, columns: u32) -> bool {
        let pads = self.capabilities().has(Constant::PadColumns);
        pads && self.head_dim.is_some_and(|compiled| columns < compiled)
    }
}
