//! Which rows of the tensors are a sequence's, read from device memory: see [`crate::attention::lengths`].

pub mod tile_list;

use crate::attention::lengths::{Given, ListedTile, rows_of_sequence};
use crate::attention::mask::{Band, Rows, Work};
use crate::attention::schedule::{self, ForwardTile};
use crate::kernels::bounds;
use crate::params::{Lengths, MAX_ROWS, Schedule, Shape, SplitKv, TensorMap, TileList, Window};
use crate::ptx::tensor_map::fence_tensor_map_acquire;
use crate::ptx::{global, shared, spec};

/// An entry of a vector of `i32`, if the caller has given it.
///
/// # Safety
/// A vector that is there has the entry.
#[inline(always)]
pub(crate) unsafe fn entry(vector: u64, idx: u32, otherwise: i32) -> i32 {
    if vector == 0 {
        return otherwise;
    }
    // SAFETY: the caller's contract.
    unsafe { global::ld_global_u32(vector + u64::from(idx) * 4) as i32 }
}

/// The caller's lengths of a sequence on one side.
#[inline(always)]
unsafe fn given(cu_seqlens: u64, seqused: u64, leftpad: u64, rows: u32, idx: u32) -> Given {
    // SAFETY: the caller's contract.
    unsafe {
        Given {
            begin: entry(cu_seqlens, idx, 0),
            end: entry(cu_seqlens, idx + 1, rows as i32),
            used: entry(seqused, idx, i32::MAX),
            leftpad: entry(leftpad, idx, 0),
        }
    }
}

/// The rows of a sequence among packed ones, of which there are `rows`.
///
/// # Safety
/// The sequence exists, and with it its entries of `cu_seqlens`.
#[inline(always)]
pub(crate) unsafe fn packed_rows(cu_seqlens: u64, rows: u32, idx: u32) -> Rows {
    // SAFETY: the caller's contract.
    let given = unsafe { given(cu_seqlens, 0, 0, rows, idx) };
    rows_of_sequence(given, rows, rows)
}

/// A sequence's rows of q.
///
/// # Safety
/// The sequence exists, and with it its entries in `lengths`.
#[inline(always)]
pub(crate) unsafe fn rows_q(lengths: &Lengths, shape: &Shape, idx: u32) -> Rows {
    let Lengths {
        cu_seqlens_q,
        seqused_q,
        rows_q,
        ..
    } = *lengths;
    // SAFETY: the caller's contract.
    let given = unsafe { given(cu_seqlens_q, seqused_q, 0, rows_q, idx) };
    rows_of_sequence(given, rows_q, shape.seqlen_q)
}

/// A sequence's rows of k and v.
///
/// # Safety
/// As [`rows_q`].
#[inline(always)]
pub(crate) unsafe fn rows_k(lengths: &Lengths, shape: &Shape, idx: u32) -> Rows {
    let Lengths {
        cu_seqlens_k,
        seqused_k,
        leftpad_k,
        rows_k,
        ..
    } = *lengths;
    // SAFETY: the caller's contract.
    let given = unsafe { given(cu_seqlens_k, seqused_k, leftpad_k, rows_k, idx) };
    rows_of_sequence(given, rows_k, shape.seqlen_k)
}

/// The mask of a sequence of these lengths, where `window` is that of a sequence without rows.
#[inline(always)]
pub(crate) fn band_of_sequence(seqlen_q: u32, seqlen_k: u32, window: Window) -> Band {
    let window = window.of_sequence(seqlen_q, seqlen_k);
    Band::new(seqlen_q, seqlen_k, window, bounds())
}

/// How many entries a list has.
///
/// # Safety
/// A list lies at `list`.
#[inline(always)]
pub(crate) unsafe fn n_listed(list: u64) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { global::ld_global_u32(list) }
}

/// Keys of a split, where keys are divided: the list says, if there is one.
///
/// # Safety
/// If sequences have different lengths, their list has been made.
#[inline(always)]
pub(crate) unsafe fn split_keys(split: &SplitKv, list: &TileList) -> u32 {
    if spec::lengths() && list.tiles != 0 {
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_u32(list.tiles + 4) }
    } else {
        split.keys
    }
}

/// The address of the `idx`-th entry of a list. The entries' number takes the place of one.
#[inline(always)]
fn entry_address(list: u64, idx: u32) -> u64 {
    list + u64::from(idx + 1) * u64::from(ListedTile::N_BYTES)
}

/// Writes the `idx`-th entry of a list.
///
/// # Safety
/// The list has room for the entry; no other thread uses it now.
#[inline(always)]
pub(crate) unsafe fn write_listed(list: u64, idx: u32, tile: ListedTile) {
    let at = entry_address(list, idx);
    let [a, b] = tile.words();
    // SAFETY: the caller's contract.
    unsafe {
        global::st_global_x4(at, a);
        global::st_global_x4(at + 16, b);
    }
}

/// The `idx`-th entry of a list. Where sequences have no lengths of their own there is none: the block of this number.
///
/// # Safety
/// A list lies at `list`, and has the entry.
#[inline(always)]
pub(crate) unsafe fn listed(list: u64, idx: u32) -> ListedTile {
    if !spec::lengths() {
        return ListedTile {
            block: idx,
            ..ListedTile::default()
        };
    }
    let at = entry_address(list, idx);
    // SAFETY: the caller's contract.
    ListedTile::from_words(unsafe { [global::ld_global_x4(at), global::ld_global_x4(at + 16)] })
}

/// Writes an entry of a list to shared memory.
///
/// # Safety
/// [`ListedTile::N_BYTES`] are in the block's shared memory from `at` on, 16-byte aligned; no other thread uses them now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(crate) unsafe fn write_listed_shared(at: u32, tile: ListedTile) {
    let [a, b] = tile.words();
    // SAFETY: the caller's contract.
    unsafe {
        shared::st_shared_x4(at, a);
        shared::st_shared_x4(at + 16, b);
    }
}

/// Reads an entry of a list from shared memory.
///
/// # Safety
/// [`write_listed_shared`] has written it at `at`, and no other thread writes there now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(crate) unsafe fn read_listed_shared(at: u32) -> ListedTile {
    // SAFETY: the caller's contract.
    ListedTile::from_words(unsafe { [shared::ld_shared_x4(at), shared::ld_shared_x4(at + 16)] })
}

/// Where sequences end, as consumers of the backward pass count rows: the last query and the last key then stand at the same place in
/// every sequence, and one mask serves all of them. As far from 0 as from the most rows.
pub(crate) const END: u32 = MAX_ROWS / 2;

/// The mask of any sequence, with rows counted such that it ends at [`END`].
#[inline(always)]
pub(crate) fn band_to_end(window: Window) -> Band {
    Band::new(END, END, window, bounds())
}

impl TileList {
    /// The order of the tiles: where sequences have different lengths, the list says how many there are.
    ///
    /// # Safety
    /// There it has been made.
    #[inline(always)]
    pub(crate) unsafe fn schedule(&self, schedule: &Schedule) -> Schedule {
        if !spec::lengths() {
            return *schedule;
        }
        Schedule {
            // SAFETY: the caller's contract.
            tiles: unsafe { n_listed(self.tiles) },
            ..*schedule
        }
    }

    /// The `idx`-th tile of the forward pass, and the list's entry of it. It has the longest tiles first; else `work` says how they grow.
    ///
    /// # Safety
    /// As [`TileList::schedule`]; there are so many tiles.
    #[inline(always)]
    pub(crate) unsafe fn forward_tile(
        &self,
        schedule: &Schedule,
        work: Work,
        idx: u32,
    ) -> (ForwardTile, ListedTile) {
        let work = if spec::lengths() { Work::Even } else { work };
        let place = schedule::forward(schedule, work, idx);
        // SAFETY: the caller's contract.
        let listed = unsafe { listed(self.tiles, place.q_block) };
        let q_block = listed.block;
        (ForwardTile { q_block, ..place }, listed)
    }

    /// The batch entry of q, and of o, in which a sequence lies.
    #[inline(always)]
    pub(crate) fn batch_q(&self, sequence: u32) -> u32 {
        if self.packed_q == 1 { 0 } else { sequence }
    }

    /// The batch entry of k and v in which a sequence lies.
    #[inline(always)]
    pub(crate) fn batch_k(&self, sequence: u32) -> u32 {
        if self.packed_k == 1 { 0 } else { sequence }
    }

    /// The address of the `map`-th of a sequence's `n_maps` tensor maps. One multiplication and addition of what is known late:
    /// else ptxas would hold a part of it in registers.
    #[inline(always)]
    pub(crate) fn map_of_sequence(&self, sequence: u32, n_maps: u32, map: u32) -> u64 {
        let idx = sequence * n_maps + map;
        self.maps + u64::from(idx) * const { size_of::<TensorMap>() as u64 }
    }
}

/// Replaces `held`, the address of the tensor maps by which a thread copies, by `own`. Where that is another address, which it tells,
/// fences the maps at `acquired`, which the thread then uses.
///
/// # Safety
/// The kernel that made the list has made the maps.
#[inline(always)]
pub(crate) unsafe fn acquire_maps<const N: usize>(
    held: &mut u64,
    own: u64,
    acquired: [u64; N],
) -> bool {
    let are_new = own != *held;
    if are_new {
        *held = own;
        for map in acquired {
            // SAFETY: the caller's contract.
            unsafe { fence_tensor_map_acquire(map) };
        }
    }
    are_new
}
