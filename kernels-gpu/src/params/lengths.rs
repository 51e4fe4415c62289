//! Parameters of kernels if sequences have different lengths: see [`crate::attention::lengths`].

use super::argument::{Argument, KernelParams, Slot};
use super::{Shape, TensorMap, TensorView, Window, parameters};

parameters! {
    /// The caller's lengths: addresses of `i32`, 0 if not given.
    pub struct Lengths {
        /// `i32 [batch + 1]`: the first row of q of each sequence, and the end of the last. 0: q is padded.
        pub cu_seqlens_q: u64 = Vector(CuSeqlensQ),
        /// `i32 [batch + 1]`: the same for k and v. 0: k and v are padded.
        pub cu_seqlens_k: u64 = Vector(CuSeqlensK),
        /// `i32 [batch]`: how many of its rows of q a sequence uses.
        pub seqused_q: u64 = Vector(SeqUsedQ),
        /// `i32 [batch]`: how many of its rows of k and v a sequence uses.
        pub seqused_k: u64 = Vector(SeqUsedK),
        /// `i32 [batch]`: how many of the used rows of k and v come before the sequence's first key.
        pub leftpad_k: u64 = Vector(LeftpadK),
        /// Rows of q: of a batch entry, or of all sequences together.
        pub rows_q: u32,
        /// Rows of k and v: of a batch entry, or of all sequences together.
        pub rows_k: u32,
    }
}

parameters! {
    /// The main kernels' parameters for a list of tiles.
    pub struct TileList {
        /// Workspace: the tiles of all sequences, those of the longest first: see [`crate::attention::lengths::ListedTile`].
        pub tiles: u64 = Workspace,
        /// Workspace: in the backward pass, the query blocks of all sequences, in their order.
        pub q_blocks: u64 = Workspace,
        /// Workspace: in flash3, the tensor maps of each sequence, in the order of the main kernel's parameters.
        pub maps: u64 = Workspace,
        /// Rows of q: of a batch entry, or of all sequences together.
        pub rows_q: u32,
        /// 1 if q is packed.
        pub packed_q: u32,
        /// 1 if k and v are packed.
        pub packed_k: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// Parameters of the kernel that lists the tiles of sequences, makes their tensor maps, and writes results of rows outside every sequence. A tensor
/// with address 0 does not exist.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileListParams {
    /// Tensor maps of whole tensors, in the order of the main kernel's parameters: q, k, v, then o; or dO, dK and dV.
    pub maps: [TensorMap; 6],
    /// The tensors of the maps.
    pub mapped: [TensorView; 6],
    /// Output, to be cleared.
    pub o: TensorView,
    /// Gradient of the queries, to be cleared.
    pub d_q: TensorView,
    /// Gradient of the keys, to be cleared.
    pub d_k: TensorView,
    /// Gradient of the values, to be cleared.
    pub d_v: TensorView,
    /// `f32 [batch, heads_q, rows]`, packed `f32 [heads_q, rows]`; to be cleared.
    pub lse: u64,
    /// Lengths.
    pub lengths: Lengths,
    /// The list.
    pub list: TileList,
    /// Workspace, `u32 [batch, 4]`: the rows of the sequences, then `u32 [3, batch]`: their order, and the cumulative numbers of tiles and query
    /// blocks. Used if there are more sequences than shared memory has room for.
    pub scratch: u64,
    /// Sizes; lengths are the longest possible.
    pub shape: Shape,
    /// Window of a sequence without rows.
    pub window: Window,
    /// The number of maps: 4 in the forward pass of flash3, 6 in its backward pass, else 0.
    pub n_maps: u32,
    /// Rows of a tile: of q in the forward pass, of k in the backward pass.
    pub tile_rows: u32,
    /// Rows of a query block, in the backward pass; else 0.
    pub block_q: u32,
    /// How many tiles the list has room for.
    pub max_tiles: u32,
    /// How many query blocks the list has room for.
    pub max_q_blocks: u32,
    /// Keys of a split, if they are divided among tiles; else 0. See [`crate::attention::split_kv`].
    pub split_keys: u32,
    /// As in [`SplitKv`](super::SplitKv).
    pub split_parts: u32,
    /// Heads of q whose tiles read their own keys, if keys are divided.
    pub split_heads: u32,
    /// Rows of a KV block, if keys are divided.
    pub block_k: u32,
    /// Rows of a page, if keys and values are in pages; else 0.
    pub page_size: u32,
    /// As [`SplitKv::whole_tiles`](super::SplitKv::whole_tiles).
    pub whole_tiles: u32,
}

impl TileListParams {
    /// Whether the pass is the backward pass: then tiles are of keys.
    #[inline(always)]
    pub const fn is_backward(&self) -> bool {
        self.block_q > 0
    }
}

/// The tensors of the maps.
const fn mapped(is_backward: bool) -> [Argument; 6] {
    use Argument::{DK, DO, DV, K, O, Q, V};
    [Q, K, V, if is_backward { DO } else { O }, DK, DV]
}

impl KernelParams for TileListParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        let n_maps = self.n_maps as usize;
        let mapped = mapped(self.is_backward());
        for (argument, map) in mapped.into_iter().zip(&mut self.maps).take(n_maps) {
            f(Slot::Map(argument, map));
        }
        for (argument, view) in mapped.into_iter().zip(&mut self.mapped).take(n_maps) {
            f(Slot::Tensor(argument, view));
        }
        if self.is_backward() {
            f(Slot::Tensor(Argument::DQ, &mut self.d_q));
            f(Slot::Tensor(Argument::DK, &mut self.d_k));
            f(Slot::Tensor(Argument::DV, &mut self.d_v));
        } else {
            f(Slot::Tensor(Argument::O, &mut self.o));
            f(Slot::Vector(Argument::Lse, &mut self.lse));
        }
        self.lengths.slots(f);
        self.list.slots(f);
        f(Slot::Workspace(&mut self.scratch));
    }
}

const _: () =
    assert!(size_of::<TileListParams>() == 6 * 128 + 10 * 32 + 8 + 48 + 40 + 8 + 32 + 12 + 11 * 4);
const _: () = assert!(size_of::<TileList>() == 3 * 8 + 4 * 4);
const _: () = assert!(size_of::<Lengths>() == 5 * 8 + 2 * 4);
