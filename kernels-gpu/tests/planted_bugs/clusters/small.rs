//! Wrong kernels of a few lines, and launches.

use ferroflash_kernels::emu::{
    self, Asynchronous, Cluster, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options, Stats,
};
use ferroflash_kernels::ptx::{barrier, cluster, mbarrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;

use super::at;
use crate::SEEDS;

const LAUNCH: Launch = Launch {
    grid: 4,
    threads: 32,
    shared_bytes: 2048,
    resident_blocks: 4,
    blocks_per_sm: 1,
    cluster: 2,
    spec: Spec::PLAIN,
};

const BAR: u32 = 512;

fn run(launch: Launch, seed: u64, kernel: &dyn Fn()) -> Result<Stats, Fault> {
    emu::run(
        &launch,
        &Options::seeded(seed),
        &mut GlobalMemory::new(),
        kernel,
    )
}

fn found(accepts: impl Fn(&Kind) -> bool, kernel: impl Fn(u32)) {
    for seed in SEEDS {
        match run(LAUNCH, seed, &|| kernel(cluster::cluster_ctarank())) {
            Ok(_) => panic!("seed {seed}: nothing was found"),
            Err(fault) => assert!(accepts(fault.kind()), "seed {seed}: {fault}"),
        }
    }
}

fn accepted(kernel: impl Fn(u32)) {
    for seed in SEEDS {
        if let Err(fault) = run(LAUNCH, seed, &|| kernel(cluster::cluster_ctarank())) {
            panic!("seed {seed}: a false alarm: {fault}");
        }
    }
}

fn meet() {
    // SAFETY: all threads come by.
    unsafe {
        cluster::barrier_cluster_arrive();
        cluster::barrier_cluster_wait();
    }
}

fn peer(offset: u32) -> u32 {
    // SAFETY: the rank is one of the cluster.
    unsafe { cluster::mapa(at(offset), 1 - cluster::cluster_ctarank()) }
}

fn lane() -> u32 {
    special::lane_idx()
}

fn store(address: u32) {
    // SAFETY: 16 bytes for each lane; what is wrong is wrong on purpose.
    unsafe { cluster::st_cluster_x4(address, [lane(); 4]) }
}

#[test]
fn clusters_that_are_none_are_refused() {
    let refused = [
        Launch {
            cluster: 0,
            ..LAUNCH
        },
        Launch {
            cluster: 3,
            ..LAUNCH
        },
        Launch {
            cluster: 16,
            grid: 16,
            ..LAUNCH
        },
    ];
    for launch in refused {
        let fault = run(launch, 1, &|| panic!("it runs")).unwrap_err();
        assert!(matches!(fault.kind(), Kind::BadLaunch { .. }), "{fault}");
    }
}

/// However many blocks have room, the blocks of a cluster run side by side.
#[test]
fn the_blocks_of_a_cluster_run_together() {
    for resident_blocks in [1, 2, 3, 4, 9] {
        let launch = Launch {
            grid: 12,
            cluster: 4,
            resident_blocks,
            ..LAUNCH
        };
        let kernel = || {
            assert_eq!(cluster::cluster_nctarank(), 4);
            assert_eq!(cluster::cluster_ctarank(), special::block_idx_x() % 4);
            meet();
        };
        for seed in SEEDS {
            assert_eq!(run(launch, seed, &kernel).unwrap().blocks, 12);
        }
    }
}

#[test]
fn what_a_block_stores_to_another_is_there_after_a_meeting() {
    accepted(|_| {
        meet();
        store(peer(lane() * 16));
        meet();
        // SAFETY: the other block has written it.
        let words = unsafe { shared::ld_shared_x4(at((31 - lane()) * 16)) };
        assert_eq!(words, [31 - lane(); 4]);
    });
}

/// Threads that have ended are not waited for.
#[test]
fn a_block_that_ended_has_come() {
    accepted(|rank| {
        if rank == 0 {
            meet();
        }
    });
}

#[test]
fn a_block_may_not_end_before_the_last_access() {
    found(
        |kind| matches!(kind, Kind::Cluster(Cluster::Ended { .. })),
        |rank| {
            meet();
            if rank == 1 {
                store(peer(lane() * 16));
            }
        },
    );
}

#[test]
fn a_block_may_not_end_before_its_copy_has_landed() {
    let send = |last_meeting: bool| {
        move |rank: u32| {
            // SAFETY: the bytes fit; what is wrong is wrong on purpose.
            unsafe {
                shared::st_shared_x4(at(lane() * 16), [lane(); 4]);
                tma::fence_proxy_async();
                if lane() == 0 {
                    mbarrier::mbarrier_init(at(BAR), 1);
                    mbarrier::fence_mbarrier_init();
                    mbarrier::mbarrier_arrive_expect_tx(at(BAR), 256 * rank);
                }
                meet();
                if rank == 0 && lane() == 0 {
                    tma::bulk_store_cluster(peer(528), at(0), 256, peer(BAR));
                }
                if rank == 1 {
                    mbarrier::mbarrier_wait(at(BAR), 0);
                }
                if last_meeting {
                    meet();
                }
            }
        }
    };
    accepted(send(true));
    found(
        |kind| matches!(kind, Kind::Cluster(Cluster::EndedSending { .. })),
        send(false),
    );
}

#[test]
fn a_copy_to_a_block_that_does_not_wait_for_it() {
    let unfinished = |kind: &Kind| {
        matches!(
            kind,
            Kind::CopiesUnfinished { .. } | Kind::Cluster(Cluster::Ended { .. })
        )
    };
    found(unfinished, |rank| {
        // SAFETY: wrong on purpose.
        unsafe {
            if lane() == 0 {
                mbarrier::mbarrier_init(at(BAR), 1);
                mbarrier::fence_mbarrier_init();
            }
            meet();
            if rank == 0 {
                cluster::st_async_x2(peer(lane() * 8), [1, 2], peer(BAR));
            }
        }
    });
}

#[test]
fn two_blocks_race_for_ones_memory() {
    let race = |kind: &Kind| {
        matches!(
            kind,
            Kind::Race {
                place: MemoryLocation::Shared(_) | MemoryLocation::Peer { .. },
                ..
            }
        )
    };
    found(race, |_| {
        meet();
        store(peer(lane() * 16));
        store(at(lane() * 16));
        meet();
    });
    // SAFETY: wrong on purpose.
    let read = || unsafe { shared::ld_shared_x4(at(lane() * 16)) };
    found(race, |_| {
        store(at(lane() * 16));
        meet();
        read();
        store(peer(lane() * 16));
        meet();
    });
}

#[test]
fn places_in_other_blocks_are_checked() {
    found(
        |kind| {
            matches!(
                kind,
                Kind::OutOfBounds {
                    place: MemoryLocation::Peer { .. },
                    ..
                }
            )
        },
        |_| {
            meet();
            store(peer(2048));
            meet();
        },
    );
    found(
        |kind| matches!(kind, Kind::Misaligned { alignment: 16, .. }),
        |_| {
            meet();
            store(peer(8));
            meet();
        },
    );
    found(
        |kind| matches!(kind, Kind::OutOfBounds { .. }),
        |_| {
            // SAFETY: wrong on purpose: another block's memory is not stored to as the own one is.
            unsafe { shared::st_shared_x4(peer(lane() * 16), [0; 4]) };
        },
    );
    found(
        |kind| matches!(kind, Kind::Asynchronous(Asynchronous::NoMbarrier { .. })),
        |_| {
            meet();
            // SAFETY: wrong on purpose: there is no barrier.
            unsafe { mbarrier::mbarrier_arrive_cluster(peer(BAR)) };
            meet();
        },
    );
}

/// What another block or `st.async` has written is seen by the copy engine after a fence: of who wrote, where that is a
/// plain store, or of who comes after.
#[derive(Clone, Copy, PartialEq)]
enum Fence {
    Nobody,
    /// The writer, of its own block's memory alone.
    WritersBlock,
    Writer,
    Reader,
}

fn copy_on(fence: Fence, asynchronously: bool) -> impl Fn(u32) {
    move |rank| {
        // SAFETY: the bytes fit; what is wrong is wrong on purpose.
        unsafe {
            let bars = [at(BAR), at(BAR + 8)];
            if lane() == 0 {
                for bar in bars {
                    mbarrier::mbarrier_init(bar, 1);
                }
                mbarrier::fence_mbarrier_init();
                mbarrier::mbarrier_arrive_expect_tx(bars[0], 512);
                mbarrier::mbarrier_arrive_expect_tx(bars[1], 512 * rank);
            }
            meet();
            match asynchronously {
                true => cluster::st_async_x4(peer(lane() * 16), [lane(); 4], peer(BAR)),
                false => store(peer(lane() * 16)),
            }
            match fence {
                Fence::WritersBlock => tma::fence_proxy_async(),
                Fence::Writer => tma::fence_proxy_async_cluster(),
                _ => {}
            }
            meet();
            if asynchronously {
                mbarrier::mbarrier_wait_cluster(bars[0], 0);
            }
            if fence == Fence::Reader {
                tma::fence_proxy_async();
            }
            barrier::warp_sync();
            if rank == 0 && lane() == 0 {
                tma::bulk_store_cluster(peer(528), at(0), 512, peer(BAR + 8));
            }
            if rank == 1 {
                mbarrier::mbarrier_wait(bars[1], 0);
            }
            meet();
        }
    }
}

#[test]
fn the_copy_engine_sees_other_blocks_stores_after_a_fence() {
    let unfenced = |kind: &Kind| {
        matches!(
            kind,
            Kind::Asynchronous(Asynchronous::Unfenced {
                fence: "fence.proxy.async",
                ..
            })
        )
    };
    accepted(copy_on(Fence::Writer, false));
    accepted(copy_on(Fence::Reader, false));
    found(unfenced, copy_on(Fence::Nobody, false));
    found(unfenced, copy_on(Fence::WritersBlock, false));
    accepted(copy_on(Fence::Reader, true));
    found(unfenced, copy_on(Fence::Nobody, true));
    found(unfenced, copy_on(Fence::Writer, true));
}
