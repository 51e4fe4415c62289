//! Tensor maps that a kernel makes in global memory: changed where they lie, and fenced before the copy engine uses them.
//!
//! A map is 128 bytes, aligned to as many. It begins as a copy of another one, from the parameters or from global memory.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::tensor_map;

/// `tensormap.replace.tile.global_address.global.b1024.b64 [map], address`: the tensor of the map begins at `address`.
///
/// PTX 8.3, sm_90a.
///
/// # Safety
/// A tensor map lies at `map` in global memory, which nothing else reads or writes; `address` is a multiple of 16, and of memory that is
/// there: at 0 a copy is an illegal access even where its box lies outside the tensor (H200).
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn replace_address(map: u64, address: u64) {
    bodies! {
        ptx!(
            "tensormap.replace.tile.global_address.global.b1024.b64 [{m}], {a};",
            m = in(reg64) map, a = in(reg64) address,
            options(nostack)
        );
        cpu: tensor_map::replace_address("tensormap.replace.global_address", map, address)
    }
}

/// `tensormap.replace.tile.global_dim.global.b1024.b32 [map], 1, rows`: the tensor of the map has this many rows, which are
/// its dimension 1.
///
/// PTX 8.3, sm_90a.
///
/// # Safety
/// A tensor map lies at `map` in global memory, which nothing else reads or writes; there is at least one row.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn replace_rows(map: u64, rows: u32) {
    bodies! {
        ptx!(
            "tensormap.replace.tile.global_dim.global.b1024.b32 [{m}], 1, {n};",
            m = in(reg64) map, n = in(reg32) rows,
            options(nostack)
        );
        cpu: tensor_map::replace_rows("tensormap.replace.global_dim", map, rows)
    }
}

/// `prefetch.tensormap [map]`: the copy engine will want the map.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// A tensor map lies at `map`, in global memory or among the parameters.
#[inline(always)]
pub unsafe fn prefetch(map: u64) {
    #[cfg(target_arch = "nvptx64")]
    {
        ptx!("prefetch.tensormap [{m}];", m = in(reg64) map, options(nostack));
    }
    // The emulator's copies do not wait for their maps.
    #[cfg(not(target_arch = "nvptx64"))]
    let _ = map;
}

/// `fence.proxy.tensormap::generic.release.gpu`: the tensor maps that this thread has written, or heard of, may be acquired.
///
/// PTX 8.3, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_tensor_map_release() {
    #[cfg(target_arch = "nvptx64")]
    {
        ptx!(
            "fence.proxy.tensormap::generic.release.gpu;",
            options(nostack)
        );
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        tensor_map::release("fence.proxy.tensormap (release)");
    }
}

/// `fence.proxy.tensormap::generic.acquire.gpu [map], 128`: the copy engine, where it acts for this thread, sees the tensor
/// map as it was released before.
///
/// Wanted once after every change of the map, by each thread that has it used: also where an earlier kernel or the host has
/// written it.
///
/// PTX 8.3, sm_90.
///
/// # Safety
/// A tensor map lies at `map` in global memory.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fence_tensor_map_acquire(map: u64) {
    bodies! {
        ptx!("fence.proxy.tensormap::generic.acquire.gpu [{m}], 128;", m = in(reg64) map, options(nostack));
        cpu: tensor_map::acquire("fence.proxy.tensormap (acquire)", map)
    }
}

/// `@p fence.proxy.tensormap::generic.acquire.gpu [map], 128`: [`fence_tensor_map_acquire`] where `predicate` is not 0, and no branch
/// for the compiler to see.
///
/// PTX 8.3, sm_90.
///
/// # Safety
/// A tensor map lies at `map` in global memory, where `predicate` is not 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn fence_tensor_map_acquire_if(map: u64, predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0;",
            "@p fence.proxy.tensormap::generic.acquire.gpu [{m}], 128; }}",
            m = in(reg64) map, p = in(reg32) predicate,
            options(nostack)
        );
        cpu: if predicate != 0 {
            tensor_map::acquire("fence.proxy.tensormap (acquire)", map);
        }
    }
}
