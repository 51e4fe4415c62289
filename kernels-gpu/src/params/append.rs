//! Parameters of the kernel that appends rows to a cache of keys and values, and rotates rows by their positions.

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
    /// Positions of the tables. A row at another position is not written.
    pub n_positions: u32,
    /// Pairs of a row; 0: rows are not rotated.
    pub n_pairs: u32,
    /// [`HALVES`] or [`INTERLEAVED`].
    pub pairs: u32,
    /// 1: rows are rotated forward; −1: backward, by the negative angle.
    pub sin_sign: f32,
}

/// The new rows. The numbers in device memory are unchecked: rows that do not exist are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NewRows {
    /// `i32 [batch + 1]`: the first row of each sequence, and the end of the last. 0: rows are padded.
    pub cu_seqlens: u64,
    /// `i32 [batch]`: the position of a sequence's first row, its length so far. 0: position 0.
    pub first: u64,
    /// Sequences.
    pub batch: u32,
    /// Rows of a sequence if padded; of all sequences if packed.
    pub seqlen: u32,
    /// Rows of all sequences.
    pub n_rows: u32,
    /// 1: every row of q has the position of its sequence's first one.
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
    /// Rows of a sequence. A row beyond them is not written.
    pub seqlen: u32,
    /// 1: the scales are those of pages, `[n_pages, heads_k]`. 0: of sequences, `[batch, heads_k]`.
    pub scales_per_page: u32,
    /// f32: the scales of keys, if the cache is in 8 bits.
    pub k_descale: u64,
    /// The same of values.
    pub v_descale: u64,
    /// Their pages, if they are in pages. A row of a page that the pool does not have is not written.
    pub pages: Pages,
}

/// Parameters of the kernel that appends rows to a cache, and rotates rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AppendParams {
    /// Rows to be rotated: those of q, or of a tensor alone. Without an address, those of `q_out` are rotated in place.
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
    /// Output, `i32 [batch]`: lengths of the sequences in the cache; 0 if not wanted.
    pub seqused_out: u64,
    /// Heads of `q`.
    pub heads_q: u32,
    /// Heads of `k_new` and `v_new`; 0 if nothing is appended.
    pub heads_k: u32,
    /// Columns: a multiple of 8; of 4 in f32, of 16 with a cache in 8 bits.
    pub head_dim: u32,
    /// 1: rows are appended to a cache. 0: a tensor is only rotated.
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
        let [k, v] = [&mut self.cache.k_descale, &mut self.cache.v_descale];
        f(Slot::Vector(Argument::KDescale, k));
        f(Slot::Vector(Argument::VDescale, v));
        let cu_seqlens = &mut self.rows.cu_seqlens;
        f(Slot::Vector(Argument::CuSeqlensNew, cu_seqlens));
        f(Slot::Vector(Argument::SeqUsedK, &mut self.rows.first));
        f(Slot::Vector(Argument::SeqUsedOut, &mut self.seqused_out));
    }
}

const _: () = assert!(size_of::<AppendParams>() == 4 * 32 + 72 + 16 + 24 + 32 + 32 + 8 + 4 * 4);
