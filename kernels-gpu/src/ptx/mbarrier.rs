//! Barriers in shared memory that count threads and the bytes of asynchronous copies.
//!
//! A phase is complete when as many threads have arrived as the barrier was made for and all expected bytes are there;
//! the next phase begins at once. Waiting is by the parity of the phase's number: 0, 1, 0, ….

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::mbarrier::{self, Releases, Scope};

/// `mbarrier.init.shared::cta.b64`: makes the 8 bytes at `address` a barrier whose phases take `count` arrivals.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// `address` is in the block's shared memory, aligned to 8 bytes; nothing uses it until the writer has fenced
/// ([`fence_mbarrier_init`]) and the block has met. `count` is at least 1.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_init(address: u32, count: u32) {
    bodies! {
        ptx!(
            "mbarrier.init.shared::cta.b64 [{a}], {n};",
            a = in(reg32) address, n = in(reg32) count,
            options(nostack)
        );
        cpu: mbarrier::init("mbarrier.init", address, count)
    }
}

/// `fence.mbarrier_init.release.cluster`: the copy engine, too, sees the barriers that this thread has made.
///
/// PTX 8.0, sm_90.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_mbarrier_init() {
    bodies! {
        ptx!("fence.mbarrier_init.release.cluster;", options(nostack));
        cpu: mbarrier::fence_init("fence.mbarrier_init")
    }
}

/// `@p mbarrier.arrive.shared::cta.b64`, where `predicate` is not 0: one arrival, which releases what the thread did before.
///
/// The predicate stands inside the instruction: with a branch, LLVM would copy what follows into both of its ways.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// A barrier lies at `address`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_arrive_if(address: u32, predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{a}]; }}",
            a = in(reg32) address, p = in(reg32) predicate,
            options(nostack)
        );
        cpu: if predicate != 0 {
            mbarrier::arrive("mbarrier.arrive", address);
        }
    }
}

/// `mbarrier.arrive.release.cluster.shared::cluster.b64`: one arrival on a barrier of any block of the cluster, which releases
/// what the thread did before to those who wait by [`mbarrier_wait_cluster`].
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// A barrier lies at `address`, in a block that has started and does not end before the arrival.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_arrive_cluster(address: u32) {
    bodies! {
        ptx!(
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{a}];",
            a = in(reg32) address,
            options(nostack)
        );
        cpu: mbarrier::arrive_cluster("mbarrier.arrive.release.cluster", address, Releases::All)
    }
}

/// `@p mbarrier.arrive.release.cluster.shared::cluster.b64`, where `predicate` is not 0: as [`mbarrier_arrive_cluster`].
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`mbarrier_arrive_cluster`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_arrive_cluster_if(address: u32, predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0; @p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{a}]; }}",
            a = in(reg32) address, p = in(reg32) predicate,
            options(nostack)
        );
        cpu: if predicate != 0 {
            mbarrier::arrive_cluster("mbarrier.arrive.release.cluster", address, Releases::All);
        }
    }
}

/// `@p mbarrier.arrive.shared::cluster.b64`, where `predicate` is not 0: one arrival on a barrier of any block of the cluster,
/// after which what this thread has read may be overwritten.
///
/// It releases within this block only. So another block may reuse a place, but must not read what this thread wrote. For
/// [`mbarrier_arrive_cluster`], ptxas makes a fence of all memory (`MEMBAR.ALL.GPU`); for this one, it makes none.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`mbarrier_arrive_cluster`]. What is overwritten afterwards was read by this thread, or written by the copy engine and
/// waited for.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_arrive_reuse_if(address: u32, predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0; @p mbarrier.arrive.shared::cluster.b64 _, [{a}]; }}",
            a = in(reg32) address, p = in(reg32) predicate,
            options(nostack)
        );
        cpu: if predicate != 0 {
            mbarrier::arrive_cluster("mbarrier.arrive.shared::cluster", address, Releases::Reuse);
        }
    }
}

/// `mbarrier.arrive.expect_tx.shared::cta.b64`: one arrival; the phase also waits for `n_bytes` of copies.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// A barrier lies at `address`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_arrive_expect_tx(address: u32, n_bytes: u32) {
    bodies! {
        ptx!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{a}], {n};",
            a = in(reg32) address, n = in(reg32) n_bytes,
            options(nostack)
        );
        cpu: mbarrier::arrive_expect_tx("mbarrier.arrive.expect_tx", address, n_bytes)
    }
}

/// `mbarrier.try_wait.parity.shared::cta.b64`, until it succeeds: waits for the end of the phase of this parity, and
/// acquires what those of this block who arrived have released, and what copies have written.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// A barrier lies at `address`; the phase waited for is its current one or the one before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_wait(address: u32, parity: u32) {
    #[cfg(target_arch = "nvptx64")]
    {
        let mut done = 0u32;
        while done == 0 {
            ptx!(
                "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{a}], {parity}; selp.u32 {done}, 1, 0, p; }}",
                done = out(reg32) done, a = in(reg32) address, parity = in(reg32) parity,
                options(nostack)
            );
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        mbarrier::wait("mbarrier.try_wait.parity", address, parity, Scope::Block);
    }
}

/// `mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64`, until it succeeds: as [`mbarrier_wait`], and acquires what threads of
/// other blocks of the cluster have released, too.
///
/// PTX 8.0, sm_90.
///
/// # Safety
/// As [`mbarrier_wait`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mbarrier_wait_cluster(address: u32, parity: u32) {
    #[cfg(target_arch = "nvptx64")]
    {
        let mut done = 0u32;
        while done == 0 {
            ptx!(
                "{{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [{a}], {parity}; selp.u32 {done}, 1, 0, p; }}",
                done = out(reg32) done, a = in(reg32) address, parity = in(reg32) parity,
                options(nostack)
            );
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        mbarrier::wait(
            "mbarrier.try_wait.parity.acquire.cluster",
            address,
            parity,
            Scope::Cluster,
        );
    }
}
