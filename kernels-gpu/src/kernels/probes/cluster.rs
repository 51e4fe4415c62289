//! Probes of what blocks of a cluster do with each other's shared memory: two blocks of one warpgroup, each of which does the
//! same with the other.
//!
//! The input is `input_words` words for each thread of both, word `k` of thread `t` of both at index `k · 256 + t`.

use super::hopper::{BOX, first_thread};
use crate::config::PROBE_CLUSTER;
use crate::ptx::{barrier, cluster, global, mbarrier, shared, special, tma};

/// Threads of a block.
const THREADS: u32 = 128;

/// Address of word `k` of this thread.
fn word(base: u64, k: u32) -> u64 {
    let thread = special::block_idx_x() * THREADS + special::thread_idx_x();
    base + u64::from(k * PROBE_CLUSTER * THREADS + thread) * 4
}

unsafe fn get(input: u64, k: u32) -> u32 {
    global::ld_global_u32(word(input, k))
}

unsafe fn put(output: u64, k: u32, x: u32) {
    global::st_global_u32(word(output, k), x)
}

unsafe fn put_all(output: u64, first: u32, x: &[u32]) {
    let mut k = 0;
    while k < x.len() {
        put(output, first + k as u32, x[k]);
        k += 1;
    }
}

unsafe fn get_x4(input: u64) -> [u32; 4] {
    [get(input, 0), get(input, 1), get(input, 2), get(input, 3)]
}

/// Both blocks meet.
unsafe fn meet() {
    cluster::barrier_cluster_arrive();
    cluster::barrier_cluster_wait();
}

/// The same place in the other block's memory.
unsafe fn peer(address: u32) -> u32 {
    cluster::mapa(address, 1 - cluster::cluster_ctarank())
}

/// Makes barriers side by side, one for each count, and meets the other block.
unsafe fn make_barriers(first: u32, counts: [u32; 2]) {
    if first_thread() {
        mbarrier::mbarrier_init(first, counts[0]);
        mbarrier::mbarrier_init(first + 8, counts[1]);
        mbarrier::fence_mbarrier_init();
    }
    meet();
}

/// Where this thread's 16 bytes are among those of the block.
fn at(base: u32) -> u32 {
    base + special::thread_idx_x() * 16
}

/// Where another thread's are.
fn at_other(base: u32) -> u32 {
    base + (special::thread_idx_x() * 5 + 3) % THREADS * 16
}

pub(super) unsafe fn ranks(_: u64, output: u64, _: u64) {
    let base = special::shared_base();
    let (there, next) = (peer(base), peer(base + 16));
    let words = [
        cluster::cluster_ctarank(),
        cluster::cluster_nctarank(),
        // The addresses themselves are each machine's own.
        next - there,
        (there != base) as u32,
    ];
    put_all(output, 0, &words);
}

/// Stores to the other block's memory between two barriers of the cluster.
pub(super) unsafe fn stores(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    meet();
    cluster::st_cluster_x4(peer(at(base)), get_x4(input));
    meet();
    put_all(output, 0, &shared::ld_shared_x4(at_other(base)));
}

/// Stores to the other block's memory, and arrivals on its barriers: of all threads, and of every other one for both lanes of
/// its pair.
pub(super) unsafe fn arrivals(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    let (second, bar) = (base + 2048, base + 4096);
    let x = get_x4(input);
    make_barriers(bar, [THREADS, THREADS / 2]);
    cluster::st_cluster_x4(peer(at(base)), x);
    mbarrier::mbarrier_arrive_cluster(peer(bar));
    mbarrier::mbarrier_wait_cluster(bar, 0);
    put_all(output, 0, &shared::ld_shared_x4(at_other(base)));
    cluster::st_cluster_x4(peer(at(second)), x.map(|x| !x));
    barrier::warp_sync();
    mbarrier::mbarrier_arrive_cluster_if(peer(bar + 8), special::thread_idx_x() & 1);
    mbarrier::mbarrier_wait_cluster(bar + 8, 0);
    put_all(output, 4, &shared::ld_shared_x4(at_other(second)));
    meet();
}

/// A place that the other block overwrites when all threads here have read it.
pub(super) unsafe fn reuse(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    let bar = base + 2048;
    let x = get_x4(input);
    shared::st_shared_x4(at(base), x);
    make_barriers(bar, [THREADS, THREADS]);
    put_all(output, 0, &shared::ld_shared_x4(at_other(base)));
    mbarrier::mbarrier_arrive_reuse_if(peer(bar), 1);
    mbarrier::mbarrier_wait(bar, 0);
    cluster::st_cluster_x4(peer(at(base)), x.map(|x| !x));
    meet();
    put_all(output, 4, &shared::ld_shared_x4(at_other(base)));
}

/// Asynchronous stores of 16 bytes and of 8, each on a barrier of its own.
pub(super) unsafe fn async_stores(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    let (pairs, bar) = (base + 2048, base + 3072);
    let thread = special::thread_idx_x();
    make_barriers(bar, [1, 1]);
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, THREADS * 16);
        mbarrier::mbarrier_arrive_expect_tx(bar + 8, THREADS * 8);
    }
    let x = get_x4(input);
    cluster::st_async_x4(peer(at(base)), x, peer(bar));
    cluster::st_async_x2(peer(pairs + thread * 8), [x[1], x[0]], peer(bar + 8));
    mbarrier::mbarrier_wait_cluster(bar, 0);
    put_all(output, 0, &shared::ld_shared_x4(at_other(base)));
    mbarrier::mbarrier_wait_cluster(bar + 8, 0);
    let other = pairs + (thread * 5 + 3) % THREADS * 8;
    put_all(output, 4, &shared::ld_shared_x2(other));
    meet();
}

/// Copies of this block's memory to the other's: 16 bytes, and the rest.
pub(super) unsafe fn bulk_stores(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    let (to, bar) = (base + 2048, base + 4096);
    shared::st_shared_x4(at(base), get_x4(input));
    tma::fence_proxy_async();
    make_barriers(bar, [1, 1]);
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, 2048);
        tma::bulk_store_cluster(peer(to), base + 2032, 16, peer(bar));
        tma::bulk_store_cluster(peer(to + 16), base, 2032, peer(bar));
    }
    mbarrier::mbarrier_wait_cluster(bar, 0);
    put_all(output, 0, &shared::ld_shared_x4(at_other(to)));
    meet();
}

/// Each block loads a box for both.
pub(super) unsafe fn multicast(_: u64, output: u64, maps: u64) {
    let base = special::shared_base();
    let (rank, bar) = (cluster::cluster_ctarank(), base + 2 * BOX);
    make_barriers(bar, [1, 1]);
    if first_thread() {
        mbarrier::mbarrier_arrive_expect_tx(bar, 2 * BOX);
    }
    // Bytes may come before they are expected.
    if first_thread() {
        let coordinates = [8 * rank, 3 + rank, rank, 1];
        tma::tma_load_multicast(base + rank * BOX, maps, coordinates, bar, 0b11);
    }
    mbarrier::mbarrier_wait_cluster(bar, 0);
    let mut k = 0;
    while k < 2 * BOX / (THREADS * 4) {
        let at = base + (k * THREADS + special::thread_idx_x()) * 4;
        put(output, k, shared::ld_shared_u32(at));
        k += 1;
    }
    meet();
}

/// What the other block has stored here is copied to global memory by the copy engine.
pub(super) unsafe fn fences(input: u64, output: u64, _: u64) {
    let base = special::shared_base();
    meet();
    cluster::st_cluster_x4(peer(at(base)), get_x4(input));
    tma::fence_proxy_async_cluster();
    meet();
    if first_thread() {
        let to = output + u64::from(cluster::cluster_ctarank()) * 2048;
        tma::bulk_store(to, base, 2048);
        tma::bulk_commit_group();
        tma::bulk_wait_group::<0>();
    }
}
