//! What the kernel is given that appends rows to a cache of keys and values, and turns rows by their positions.

use super::argument::{Argument, KernelParams, Slot};
use super::{Pages, TensorView};

/// [`RotaryParams::pairs`]: elements i and i + n_pairs form pair i.
pub const HALVES: u32 = 0;
/// [`RotaryParams::pairs`]: elements 2i and 2i + 1 form pair i.
pub const INTERLEAVED: u32 = 1;

/// How rows are rotated by their positions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RotaryParams {
    /// `f32 [n_positions, n_pairs]`: cosines.
    pub cos: u64,
    /// `f32 [n_positions, n_pairs]`: sines.
    pub sin: u64,
    /// Positions that the tables have. A row that stands at none of them is not written.
    pub n_positions: u32,
    /// Pairs of a row; 0: rows are not rotated.
    pub n_pairs: u32,
    /// [`HALVES`] or [`INTERLEAVED`].
    pub pairs: u32,
    /// 1: rows are rotated forth; −1: back, by the negative angle.
    pub sin_sign: f32,
}

/// Which rows are new. Nobody has checked the numbers in device memory: what they say of rows that are not there is ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NewRows {
    /// `i32 [batch + 1]`: where each sequence's rows begin, and where the last one's end. 0: rows are padded.
    pub cu_seqlens: u64,
    /// `i32 [batch]`: at which position a sequence's first row stands, its length so far. 0: at position 0.
    pub first: u64,
    /// Sequences.
    pub batch: u32,
    /// Rows of a sequence where they are padded; of all sequences where they are packed.
    pub seqlen: u32,
    /// Rows of all sequences.
    pub n_rows: u32,
    /// 1: every row of q stands where its sequence's first one does.
    pub q_at_first: u32,
}

/// The cache that k and v are written to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvCache {
    /// Keys.
    pub k: TensorView,
    /// Values.
    pub v: TensorView,
    /// Rows of a sequence. A row behind them is not written.
    pub seqlen: u32,
    /// 0.
    pub reserved: u32,
    /// The pages in which they lie, if they do. A row of a page that the pool does not have is not written.
    pub pages: Pages,
}

/// Parameters of the kernel that appends rows to a cache, and turns rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AppendParams {
    /// Rows to be rotated: those of q, or of a tensor alone. Without an address, those of `q_out` are rotated where they lie.
    pub q: TensorView,
    /// Output: these rows rotated.
    pub q_out: TensorView,
    /// New rows of k.
    pub k_new: TensorView,
    /// New rows of v.
    pub v_new: TensorView,
    /// Output: the cache.
    pub cache: KvCache,
    /// How q and k are rotated.
    pub rotary: RotaryParams,
    /// Which rows there are.
    pub rows: NewRows,
    /// Output, `i32 [batch]`: lengths of the sequences in the cache; 0 where nobody wants them.
    pub seqused_out: u64,
    /// Heads of `q`.
    pub heads_q: u32,
    /// Heads of `k_new` and `v_new`; 0 where nothing is appended.
    pub heads_k: u32,
    /// Columns; a multiple of 8.
    pub head_dim: u32,
    /// 1: rows are appended to a cache. 0: a tensor is rotated, and that is all.
    pub appends: u32,
}

impl AppendParams {
    /// Heads of a row: of q, of k, of v, in this order.
    #[inline(always)]
    pub const fn heads(&self) -> u32 {
        self.heads_q + 2 * self.heads_k
    }
}

impl KernelParams for AppendParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        f(Slot::Vector(Argument::Cos, &mut self.rotary.cos));
        f(Slot::Vector(Argument::Sin, &mut self.rotary.sin));
        if self.appends == 0 {
            f(Slot::Tensor(Argument::X, &mut self.q));
            f(Slot::Tensor(Argument::Y, &mut self.q_out));
            f(Slot::Vector(Argument::CuSeqlens, &mut self.rows.cu_seqlens));
            f(Slot::Vector(Argument::SeqlenOffsets, &mut self.rows.first));
            return;
        }
        f(Slot::Tensor(Argument::Q, &mut self.q));
        f(Slot::Tensor(Argument::QOut, &mut self.q_out));
        f(Slot::Tensor(Argument::KNew, &mut self.k_new));
        f(Slot::Tensor(Argument::VNew, &mut self.v_new));
        f(Slot::Tensor(Argument::KCache, &mut self.cache.k));
        f(Slot::Tensor(Argument::VCache, &mut self.cache.v));
        f(Slot::Vector(
            Argument::PageTable,
            &mut self.cache.pages.table,
        ));
        let cu_seqlens = &mut self.rows.cu_seqlens;
        f(Slot::Vector(Argument::CuSeqlensNew, cu_seqlens));
        f(Slot::Vector(Argument::SeqUsedK, &mut self.rows.first));
        f(Slot::Vector(Argument::SeqUsedOut, &mut self.seqused_out));
    }
}

const _: () = assert!(size_of::<AppendParams>() == 4 * 32 + 72 + 24 + 32 + 32 + 8 + 4 * 4);
