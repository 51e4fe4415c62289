//! Copies by the tensor memory accelerator: boxes of a tensor of four dimensions, described by a tensor map, and bytes
//! that lie side by side.
//!
//! Coordinates count elements, the innermost dimension first: column, row, head, batch. What lies outside the tensor is
//! read as 0 and not written. `map` is the address of a [`crate::params::TensorMap`]: in the kernel's parameters, or in global
//! memory, where this thread has acquired it ([`super::tensor_map::fence_tensor_map_acquire`]).

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::tma;

/// `cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes`: begins the copy of a box to shared
/// memory; its bytes count on the barrier at `mbarrier`.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// `map` is a tensor map; the box fits at `to`, a multiple of 128 (its swizzle goes by shared addresses, and repeats after 1024 bytes), and
/// nothing else reads or writes there until the barrier's phase is over. What threads of this launch have written of the
/// tensor they have fenced with [`fence_proxy_async_global`], or this thread has since it heard of it.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn tma_load(to: u32, map: u64, at: [u32; 4], mbarrier: u32) {
    bodies! {
        ptx!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{bar}];",
            to = in(reg32) to, map = in(reg64) map, bar = in(reg32) mbarrier,
            c0 = in(reg32) at[0], c1 = in(reg32) at[1], c2 = in(reg32) at[2], c3 = in(reg32) at[3],
            options(nostack)
        );
        cpu: tma::load("cp.async.bulk.tensor (load)", to, map, at, mbarrier)
    }
}

/// `cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint` with a policy of
/// `createpolicy.fractional.L2::evict_first.b64`: as [`tma_load`], and the L2 cache may forget the bytes first, as nobody will read
/// them again.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`tma_load`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn tma_load_evict_first(to: u32, map: u64, at: [u32; 4], mbarrier: u32) {
    bodies! {
        ptx!(
            "{{ .reg .b64 policy;",
            "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;",
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [{to}], [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{bar}], policy; }}",
            to = in(reg32) to, map = in(reg64) map, bar = in(reg32) mbarrier,
            c0 = in(reg32) at[0], c1 = in(reg32) at[1], c2 = in(reg32) at[2], c3 = in(reg32) at[3],
            options(nostack)
        );
        cpu: tma::load(
            "cp.async.bulk.tensor.L2::cache_hint (load)",
            to,
            map,
            at,
            mbarrier,
        )
    }
}

/// `cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster`: as [`tma_load`], and the box goes to
/// each block of the cluster whose bit in `blocks` is set: to the same place in its shared memory as `to` in this one's, and
/// its bytes count on the barrier at the same place as `mbarrier`.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`tma_load`], in each of the blocks; all of them have started, and have made their barriers. `blocks` is not 0 and has no bits but
/// those of blocks of the cluster.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn tma_load_multicast(to: u32, map: u64, at: [u32; 4], mbarrier: u32, blocks: u16) {
    bodies! {
        ptx!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{to}], [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{bar}], {blocks};",
            to = in(reg32) to, map = in(reg64) map, bar = in(reg32) mbarrier, blocks = in(reg16) blocks,
            c0 = in(reg32) at[0], c1 = in(reg32) at[1], c2 = in(reg32) at[2], c3 = in(reg32) at[3],
            options(nostack)
        );
        cpu: tma::load_multicast("cp.async.bulk.tensor.multicast::cluster", to, map, at, mbarrier, blocks)
    }
}

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`: begins the copy of `n_bytes` from global to
/// shared memory; they count on the barrier at `mbarrier`.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// The bytes are in global memory and fit at `to`; both addresses and `n_bytes` are multiples of 16; nobody else reads or
/// writes at `to` until the barrier's phase is over. Fences as for [`tma_load`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn bulk_load(to: u32, from: u64, n_bytes: u32, mbarrier: u32) {
    bodies! {
        ptx!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {n}, [{bar}];",
            to = in(reg32) to, from = in(reg64) from, n = in(reg32) n_bytes, bar = in(reg32) mbarrier,
            options(nostack)
        );
        cpu: tma::load_bytes("cp.async.bulk (load)", to, (from, n_bytes), mbarrier)
    }
}

/// `@p cp.async.bulk.tensor.4d.global.shared::cta.bulk_group`, where `predicate` is not 0: begins the copy of a box from
/// shared to global memory, as part of the thread's next group.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`tma_load`], for what is overwritten; what the box holds was written before a [`fence_proxy_async`] of each writer
/// and a barrier with them.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn tma_store_if(map: u64, at: [u32; 4], from: u32, predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0;",
            "@p cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{from}]; }}",
            from = in(reg32) from, map = in(reg64) map, p = in(reg32) predicate,
            c0 = in(reg32) at[0], c1 = in(reg32) at[1], c2 = in(reg32) at[2], c3 = in(reg32) at[3],
            options(nostack)
        );
        cpu: if predicate != 0 {
            tma::store("cp.async.bulk.tensor (store)", map, at, from);
        }
    }
}

/// `cp.async.bulk.global.shared::cta.bulk_group`: begins the copy of `n_bytes` from shared to global memory, as part of the
/// thread's next group.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// The bytes fit at `to`, and nothing reads or writes them there until the group is complete; both addresses and `n_bytes`
/// are multiples of 16. They were written before a [`fence_proxy_async`] of each writer and a barrier with them; what lies
/// at `to` was fenced as for [`tma_load`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn bulk_store(to: u64, from: u32, n_bytes: u32) {
    bodies! {
        ptx!(
            "cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {n};",
            to = in(reg64) to, from = in(reg32) from, n = in(reg32) n_bytes,
            options(nostack)
        );
        cpu: tma::store_bytes("cp.async.bulk (store)", to, from, n_bytes)
    }
}

/// `cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes`: begins the copy of `n_bytes` from this block's shared
/// memory to that of a block of the cluster; they count on the barrier at `mbarrier`, in the same block as `to`.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// The bytes fit at `to`, in a block that has started and does not end before; both addresses and `n_bytes` are multiples of
/// 16. Until the barrier's phase is over nobody else reads or writes at `to`, nobody writes at `from`, and this block does
/// not end. They were written before a [`fence_proxy_async`] of each writer and a barrier with them.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn bulk_store_cluster(to: u32, from: u32, n_bytes: u32, mbarrier: u32) {
    bodies! {
        ptx!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{to}], [{from}], {n}, [{bar}];",
            to = in(reg32) to, from = in(reg32) from, n = in(reg32) n_bytes, bar = in(reg32) mbarrier,
            options(nostack)
        );
        cpu: tma::store_cluster("cp.async.bulk.shared::cluster (store)", to, from, n_bytes, mbarrier)
    }
}

/// `cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32`: the same, but adds `n_bytes` / 4 numbers to those in global
/// memory, each addition atomic by itself.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`bulk_store`]; others may add at the same time.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn bulk_add_f32(to: u64, from: u32, n_bytes: u32) {
    bodies! {
        ptx!(
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{to}], [{from}], {n};",
            to = in(reg64) to, from = in(reg32) from, n = in(reg32) n_bytes,
            options(nostack)
        );
        cpu: tma::add_bytes("cp.reduce.async.bulk (add)", to, from, n_bytes)
    }
}

/// `cp.async.bulk.commit_group`: closes the group of this thread's stores since the last.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn bulk_commit_group() {
    bodies! {
        ptx!("cp.async.bulk.commit_group;", options(nostack));
        cpu: tma::commit_group("cp.async.bulk.commit_group")
    }
}

/// `cp.async.bulk.wait_group.read N`: waits until all but the last `N` of this thread's groups have read what they
/// store, so that their shared memory may be written again.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn bulk_wait_group_read<const N: u32>() {
    bodies! {
        ptx!("cp.async.bulk.wait_group.read {n};", n = const N, options(nostack));
        cpu: tma::wait_group_read("cp.async.bulk.wait_group.read", N)
    }
}

/// `cp.async.bulk.wait_group N`: waits until all but the last `N` of this thread's groups are complete: what they store is in
/// global memory, and the thread has seen it there.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn bulk_wait_group<const N: u32>() {
    bodies! {
        ptx!("cp.async.bulk.wait_group {n};", n = const N, options(nostack));
        cpu: tma::wait_group("cp.async.bulk.wait_group", N)
    }
}

/// `fence.proxy.async.global`: what this thread has written to global memory, or acquired of it, is seen by the copy engine
/// where it acts for this thread or for one that comes after it.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_proxy_async_global() {
    bodies! {
        ptx!("fence.proxy.async.global;", options(nostack));
        cpu: tma::fence_proxy_async_global("fence.proxy.async.global")
    }
}

/// `fence.proxy.async.shared::cta`: what this thread has written to shared memory is seen by the copy engine and by
/// `wgmma`.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_proxy_async() {
    bodies! {
        ptx!("fence.proxy.async.shared::cta;", options(nostack));
        cpu: tma::fence_proxy_async("fence.proxy.async")
    }
}

/// `fence.proxy.async.shared::cluster`: what this thread has written to shared memory of any block of the cluster, or acquired of
/// it, is seen by the copy engine and by `wgmma`.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_proxy_async_cluster() {
    bodies! {
        ptx!("fence.proxy.async.shared::cluster;", options(nostack));
        cpu: tma::fence_proxy_async_cluster("fence.proxy.async.shared::cluster")
    }
}
