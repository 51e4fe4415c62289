//! Clusters: blocks that run side by side and reach each other's shared memory.
//!
//! An address of shared memory names the block, too: a thread's own addresses are those of its own block, and [`mapa`] gives
//! the same place of another. A block may touch another's memory from when it knows that the other has started until the
//! other ends: [`barrier_cluster_arrive`] and [`barrier_cluster_wait`] stand before the first access and after the last.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::{cluster, shared_access, tma};

/// `mov.u32 r, %cluster_ctarank`: this block's rank in its cluster.
///
/// PTX 7.8, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn cluster_ctarank() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %cluster_ctarank;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: cluster::rank()
    }
}

/// `mov.u32 r, %cluster_nctarank`: blocks of the cluster.
///
/// PTX 7.8, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn cluster_nctarank() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %cluster_nctarank;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: cluster::size()
    }
}

/// `mapa.shared::cluster.u32`: the address, in the block of this rank, of what lies at `address` in this one.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// `address` is in the block's shared memory; `rank` is less than the number of blocks of the cluster.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mapa(address: u32, rank: u32) -> u32 {
    bodies! {
        x: u32 = ptx!(
            "mapa.shared::cluster.u32 {x}, {a}, {r};",
            x = out(reg32) x, a = in(reg32) address, r = in(reg32) rank,
            options(pure, nomem, nostack)
        );
        cpu: cluster::mapa("mapa.shared::cluster", address, rank)
    }
}

/// `barrier.cluster.arrive.release.aligned`: this warp has come, and releases what it did before to those who wait.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// All 32 lanes of the warp reach it together, and [`barrier_cluster_wait`] before they reach it again.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_cluster_arrive() {
    bodies! {
        ptx!("barrier.cluster.arrive.release.aligned;", options(nostack));
        cpu: cluster::arrive("barrier.cluster.arrive")
    }
}

/// `barrier.cluster.wait.acquire.aligned`: waits until all threads of the cluster that have not ended have come.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// All 32 lanes of the warp reach it together, after [`barrier_cluster_arrive`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_cluster_wait() {
    bodies! {
        ptx!("barrier.cluster.wait.acquire.aligned;", options(nostack));
        cpu: cluster::wait("barrier.cluster.wait")
    }
}

/// `st.shared::cluster.v4.b32`: 16 bytes to the shared memory of a block of the cluster.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// The address is in the shared memory of a block of the cluster that has started and does not end before, aligned to 16
/// bytes; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_cluster_x4(address: u32, x: [u32; 4]) {
    bodies! {
        ptx!(
            "st.shared::cluster.v4.b32 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg32) address, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: shared_access::store_cluster("st.shared::cluster.v4.b32", address, x)
    }
}

/// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32`: begins a store of 8 bytes to the shared memory of a
/// block of the cluster; they count on the barrier at `mbarrier`, in the same block.
///
/// PTX 8.1, sm_90.
///
/// # Safety
/// As [`st_cluster_x4`], aligned to 8 bytes; nothing else reads or writes there until the barrier's phase is over. What
/// acts by the asynchronous proxy sees the bytes after a fence of a thread that has waited for that.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_async_x2(address: u32, x: [u32; 2], mbarrier: u32) {
    bodies! {
        ptx!(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [{a}], {{{x0}, {x1}}}, [{bar}];",
            a = in(reg32) address, x0 = in(reg32) x[0], x1 = in(reg32) x[1], bar = in(reg32) mbarrier,
            options(nostack)
        );
        cpu: tma::store_words("st.async.v2.b32", address, x, mbarrier)
    }
}

/// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32`: the same of 16 bytes.
///
/// PTX 8.1, sm_90.
///
/// # Safety
/// As [`st_async_x2`], aligned to 16 bytes.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_async_x4(address: u32, x: [u32; 4], mbarrier: u32) {
    bodies! {
        ptx!(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{a}], {{{x0}, {x1}, {x2}, {x3}}}, [{bar}];",
            a = in(reg32) address, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3], bar = in(reg32) mbarrier,
            options(nostack)
        );
        cpu: tma::store_words("st.async.v4.b32", address, x, mbarrier)
    }
}
