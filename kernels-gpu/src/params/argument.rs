//! What a call is given by address, and how a parameter struct names its places for it.

use core::fmt;

use super::{TensorMap, TensorView};

/// One argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Argument {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output.
    O,
    /// Row statistics.
    Lse,
    /// Weights: softmax of the scores.
    Weights,
    /// Gradient of the output.
    DO,
    /// Gradient of the row statistics.
    DLse,
    /// Gradient of the queries.
    DQ,
    /// Gradient of the keys.
    DK,
    /// Gradient of the values.
    DV,
    /// Gradient of the sinks.
    DSinks,
    /// Gradient of the first tensor that an expression of scores reads.
    DScoreTensor0,
    /// Of the second one.
    DScoreTensor1,
    /// Of the third one.
    DScoreTensor2,
    /// Of the fourth one.
    DScoreTensor3,
    /// Where each sequence's rows of q begin, and where the last one's end.
    CuSeqlensQ,
    /// Where each sequence's rows of k and v begin, and where the last one's end.
    CuSeqlensK,
    /// How many of its rows of q each sequence uses.
    SeqUsedQ,
    /// How many of its rows of k and v each sequence uses.
    SeqUsedK,
    /// At which of its rows of k and v each sequence begins.
    LeftpadK,
    /// Which page of the pool each page of a sequence's keys and values is.
    PageTable,
    /// Scales of keys in 8 bits.
    KDescale,
    /// Scales of values in 8 bits.
    VDescale,
    /// The map of a block mask.
    BlockMask,
    /// The sinks of the heads.
    Sinks,
    /// Seed and offset of dropout.
    DropoutState,
    /// The first tensor that an expression of scores reads.
    ScoreTensor0,
    /// The second one.
    ScoreTensor1,
    /// The third one.
    ScoreTensor2,
    /// The fourth one.
    ScoreTensor3,
    /// Output over the first part of the keys.
    O1,
    /// Row statistics of the first part of the keys.
    Lse1,
    /// Output over the second part of the keys.
    O2,
    /// Row statistics of the second part of the keys.
    Lse2,
    /// Rows to be rotated by their positions; of the backward pass, the gradient of the rotated rows.
    X,
    /// The same rows, rotated.
    Y,
    /// Where each sequence's rows of x begin, and where the last one's end.
    CuSeqlens,
    /// At which position each sequence's first row of x stands.
    SeqlenOffsets,
    /// Rows of k that are appended to a cache.
    KNew,
    /// Rows of v that are appended to a cache.
    VNew,
    /// Queries rotated by their positions.
    QOut,
    /// Cache of keys.
    KCache,
    /// Cache of values.
    VCache,
    /// Where each sequence's new rows begin, and where the last one's end.
    CuSeqlensNew,
    /// How many rows of the cache each sequence uses when its new rows have been appended.
    SeqUsedOut,
    /// Cosines by position.
    Cos,
    /// Sines by position.
    Sin,
}

impl Argument {
    /// All of them, in their order.
    pub const ALL: [Argument; 48] = [
        Argument::Q,
        Argument::K,
        Argument::V,
        Argument::O,
        Argument::Lse,
        Argument::Weights,
        Argument::DO,
        Argument::DLse,
        Argument::DQ,
        Argument::DK,
        Argument::DV,
        Argument::DSinks,
        Argument::DScoreTensor0,
        Argument::DScoreTensor1,
        Argument::DScoreTensor2,
        Argument::DScoreTensor3,
        Argument::CuSeqlensQ,
        Argument::CuSeqlensK,
        Argument::SeqUsedQ,
        Argument::SeqUsedK,
        Argument::LeftpadK,
        Argument::PageTable,
        Argument::KDescale,
        Argument::VDescale,
        Argument::BlockMask,
        Argument::Sinks,
        Argument::DropoutState,
        Argument::ScoreTensor0,
        Argument::ScoreTensor1,
        Argument::ScoreTensor2,
        Argument::ScoreTensor3,
        Argument::O1,
        Argument::Lse1,
        Argument::O2,
        Argument::Lse2,
        Argument::X,
        Argument::Y,
        Argument::CuSeqlens,
        Argument::SeqlenOffsets,
        Argument::KNew,
        Argument::VNew,
        Argument::QOut,
        Argument::KCache,
        Argument::VCache,
        Argument::CuSeqlensNew,
        Argument::SeqUsedOut,
        Argument::Cos,
        Argument::Sin,
    ];

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

    /// Its name, as messages have it.
    pub const fn name(self) -> &'static str {
        match self {
            Argument::Q => "q",
            Argument::K => "k",
            Argument::V => "v",
            Argument::O => "o",
            Argument::Lse => "lse",
            Argument::Weights => "weights",
            Argument::DO => "d_o",
            Argument::DLse => "d_lse",
            Argument::DQ => "d_q",
            Argument::DK => "d_k",
            Argument::DV => "d_v",
            Argument::DSinks => "d_sinks",
            Argument::DScoreTensor0 => "d_score_tensors[0]",
            Argument::DScoreTensor1 => "d_score_tensors[1]",
            Argument::DScoreTensor2 => "d_score_tensors[2]",
            Argument::DScoreTensor3 => "d_score_tensors[3]",
            Argument::CuSeqlensQ => "cu_seqlens_q",
            Argument::CuSeqlensK => "cu_seqlens_k",
            Argument::SeqUsedQ => "seqused_q",
            Argument::SeqUsedK => "seqused_k",
            Argument::LeftpadK => "leftpad_k",
            Argument::PageTable => "page_table",
            Argument::KDescale => "k_descale",
            Argument::VDescale => "v_descale",
            Argument::BlockMask => "block_mask",
            Argument::Sinks => "sinks",
            Argument::DropoutState => "dropout_state",
            Argument::ScoreTensor0 => "score_tensors[0]",
            Argument::ScoreTensor1 => "score_tensors[1]",
            Argument::ScoreTensor2 => "score_tensors[2]",
            Argument::ScoreTensor3 => "score_tensors[3]",
            Argument::O1 => "o_1",
            Argument::Lse1 => "lse_1",
            Argument::O2 => "o_2",
            Argument::Lse2 => "lse_2",
            Argument::X => "x",
            Argument::Y => "y",
            Argument::CuSeqlens => "cu_seqlens",
            Argument::SeqlenOffsets => "seqlen_offsets",
            Argument::KNew => "k_new",
            Argument::VNew => "v_new",
            Argument::QOut => "q_out",
            Argument::KCache => "k_cache",
            Argument::VCache => "v_cache",
            Argument::CuSeqlensNew => "cu_seqlens_new",
            Argument::SeqUsedOut => "seqused_out",
            Argument::Cos => "cos",
            Argument::Sin => "sin",
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place of a parameter struct that holds an address.
pub enum Slot<'a> {
    /// A tensor, read and written by its strides.
    Tensor(Argument, &'a mut TensorView),
    /// A tensor, copied by the TMA.
    Map(Argument, &'a mut TensorMap),
    /// A vector; 0 where the call does not have it. A plan may put a piece of the workspace here: [`in_workspace`].
    Vector(Argument, &'a mut u64),
    /// A piece of the workspace, as a plan names it: [`in_workspace`]. 0 where the plan has none, before a launch and at it.
    Workspace(&'a mut u64),
}

/// A parameter struct: one walk over its places serves binding, checks, tensor maps, staging and the emulator.
pub trait KernelParams: Copy {
    /// Calls `f` with every place that holds an address.
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>));
}

/// Marks an offset into the workspace that stands where a vector's address goes.
const IN_WORKSPACE: u64 = 1 << 63;

/// What a plan writes in the place of an address that is a piece of the workspace at this offset: never 0, which says that there is none.
pub const fn in_workspace(offset_bytes: u64) -> u64 {
    offset_bytes | IN_WORKSPACE
}

/// The address of a piece of the workspace; `None` where the place holds none.
const fn piece_address(place: u64, workspace: u64) -> Option<u64> {
    match place & IN_WORKSPACE {
        0 => None,
        _ => Some(workspace + (place & !IN_WORKSPACE)),
    }
}

/// Fills every address in: `address` says where an argument lies; 0: it is not there. An empty tensor, too, needs the address of some
/// memory: a tensor map must have one even where nothing is copied.
pub fn bind(params: &mut impl KernelParams, workspace: u64, address: impl Fn(Argument) -> u64) {
    params.slots(&mut |slot| match slot {
        Slot::Tensor(argument, view) => view.base = address(argument),
        Slot::Map(argument, map) => map.base = address(argument),
        Slot::Vector(argument, place) => {
            *place = piece_address(*place, workspace).unwrap_or_else(|| address(argument))
        }
        Slot::Workspace(place) => *place = piece_address(*place, workspace).unwrap_or(0),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::TileList;

    /// What a plan does not have has no address, wherever the workspace lies: kernels ask whether a list is there.
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
