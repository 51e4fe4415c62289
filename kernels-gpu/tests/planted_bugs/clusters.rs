//! Two blocks of a cluster that load tiles for each other and exchange what they make of them, as a backward kernel does that
//! divides the keys among them: tiles by multicast, the exchange through each other's shared memory.

mod caught;
mod small;

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Launch, Options};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{barrier, cluster, global, mbarrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NoFirstMeeting,
    BarriersMadeAfterMeeting,
    BarriersNotFenced,
    NoLastMeeting,
    RankOutOfCluster,
    OwnRank,
    NoMapa,
    BarrierOfSender,
    FewBytes,
    ManyBytes,
    NoBlockInMask,
    ThirdBlockInMask,
    OwnBlockInMask,
    TileNotReleased,
    TileReleasedByOwnBlock,
    TileReleasedEarly,
    SendsUnreleased,
    ReleasesEarly,
    WaitsForBlockOnly,
    SendsForReuse,
    NoFence,
    ArrivesTwice,
    WaitsWithoutArriving,
    OneWarpMeets,
}

/// How a block sends.
#[derive(Clone, Copy, PartialEq)]
enum Via {
    BulkStore,
    AsyncStore,
    Store,
}

/// How a block releases what it has read.
#[derive(Clone, Copy, PartialEq)]
enum Arrive {
    /// With all that it did.
    Cluster,
    /// To be overwritten.
    Reuse,
}

/// How the blocks tell each other.
#[derive(Clone, Copy)]
struct How {
    via: Via,
    arrive: Arrive,
}

const STEPS: u32 = 4;
/// Bytes of the part of a tile that a block loads: rows of 128.
const HALF: u32 = 1024;
const ROWS: u32 = 2 * HALF / 128;
/// What is sent: 16 bytes of each lane.
const SENT: u32 = 512;

/// Places in shared memory.
const TILE: u32 = 0;
const SEND: u32 = 2 * HALF;
const RECEIVE: u32 = SEND + SENT;
const FULL: u32 = RECEIVE + SENT;
const EMPTY: u32 = FULL + 8;
const RECEIVED: u32 = FULL + 16;
const READ: u32 = FULL + 24;
const SHARED: u32 = FULL + 32;

/// An address in shared memory.
fn at(offset: u32) -> u32 {
    special::shared_base() + offset
}

struct Exchange<'a> {
    tiles: &'a TensorMap,
    sums: u64,
    via: Via,
    arrive: Arrive,
    bug: Bug,
}

impl Exchange<'_> {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// The same place in the other block's memory.
    fn peer(&self, offset: u32) -> u32 {
        let rank = match self.bug {
            Bug::RankOutOfCluster => 2,
            Bug::OwnRank => cluster::cluster_ctarank(),
            _ => 1 - cluster::cluster_ctarank(),
        };
        // SAFETY: the place is in shared memory; the rank is one of the cluster or wrong on purpose.
        unsafe { cluster::mapa(at(offset), rank) }
    }

    unsafe fn make_barriers(&self) {
        let senders = match self.via {
            Via::Store => 32,
            _ => 1,
        };
        let empty = match self.bug {
            Bug::TileReleasedByOwnBlock => 32,
            _ => 64,
        };
        // SAFETY: the places are the barriers'.
        unsafe {
            if special::thread_idx_x() == 0 {
                mbarrier::mbarrier_init(at(FULL), 1);
                mbarrier::mbarrier_init(at(EMPTY), empty);
                mbarrier::mbarrier_init(at(RECEIVED), senders);
                mbarrier::mbarrier_init(at(READ), 32);
                if !self.is(Bug::BarriersNotFenced) {
                    mbarrier::fence_mbarrier_init();
                }
            }
        }
    }

    unsafe fn meet(&self) {
        // SAFETY: all warps come by, or it is wrong on purpose.
        unsafe {
            if self.is(Bug::OneWarpMeets) && special::thread_idx_x() >= 32 {
                return;
            }
            if !self.is(Bug::WaitsWithoutArriving) {
                cluster::barrier_cluster_arrive();
            }
            if self.is(Bug::ArrivesTwice) {
                cluster::barrier_cluster_arrive();
            }
            cluster::barrier_cluster_wait();
        }
    }

    /// One thread loads this block's half of each tile, for both.
    unsafe fn load(&self) {
        let rank = cluster::cluster_ctarank();
        let bytes = match self.bug {
            Bug::FewBytes => HALF,
            Bug::ManyBytes => 3 * HALF,
            _ => 2 * HALF,
        };
        let blocks = match self.bug {
            Bug::NoBlockInMask => 0,
            Bug::ThirdBlockInMask => 0b111,
            Bug::OwnBlockInMask => 1 << rank,
            _ => 0b11,
        };
        for step in 0..STEPS {
            // SAFETY: the barriers were made; the boxes fit.
            unsafe {
                if step > 0 && !self.is(Bug::TileNotReleased) {
                    self.wait(EMPTY, (step - 1) & 1);
                }
                mbarrier::mbarrier_arrive_expect_tx(at(FULL), bytes);
                let coordinates = [0, step * ROWS + rank * ROWS / 2, 0, 0];
                let to = at(TILE + rank * HALF);
                let map = std::ptr::from_ref(self.tiles).expose_provenance() as u64;
                tma::tma_load_multicast(to, map, coordinates, at(FULL), blocks);
            }
        }
    }

    unsafe fn send(&self, x: [u32; 4]) {
        let lane = special::lane_idx();
        let to = match self.bug {
            Bug::NoMapa => at(RECEIVE),
            _ => self.peer(RECEIVE),
        };
        let received = match self.bug {
            Bug::BarrierOfSender => at(RECEIVED),
            _ => self.peer(RECEIVED),
        };
        // SAFETY: each lane has 16 bytes there; who reads has released them.
        unsafe {
            match self.via {
                Via::BulkStore => {
                    shared::st_shared_x4(at(SEND + lane * 16), x);
                    if !self.is(Bug::NoFence) {
                        tma::fence_proxy_async();
                    }
                    barrier::warp_sync();
                    if lane == 0 {
                        tma::bulk_store_cluster(to, at(SEND), SENT, received);
                    }
                }
                Via::AsyncStore => cluster::st_async_x4(to + lane * 16, x, received),
                Via::Store => {
                    cluster::st_cluster_x4(to + lane * 16, x);
                    match self.bug {
                        Bug::SendsForReuse => mbarrier::mbarrier_arrive_reuse_if(received, 1),
                        _ => mbarrier::mbarrier_arrive_cluster(received),
                    }
                }
            }
            if lane == 0 && self.via != Via::Store {
                mbarrier::mbarrier_arrive_expect_tx(at(RECEIVED), SENT);
            }
        }
    }

    /// The sum of one row of the tile.
    unsafe fn row_sum(&self) -> u32 {
        let row = at(TILE + special::lane_idx() % ROWS * 128);
        // SAFETY: the tile has arrived.
        let chunk = |chunk: u32| unsafe { shared::ld_shared_x4(row + chunk * 16) };
        let words = (0..8).flat_map(chunk);
        words.fold(0, u32::wrapping_add)
    }

    /// This warp's lanes have read the tile: the producers of both blocks may load the next one.
    unsafe fn release_tile(&self) {
        // SAFETY: the barriers were made.
        unsafe {
            let own = cluster::mapa(at(EMPTY), cluster::cluster_ctarank());
            self.release(own);
            if !self.is(Bug::TileReleasedByOwnBlock) {
                self.release(self.peer(EMPTY));
            }
        }
    }

    unsafe fn release(&self, bar: u32) {
        // SAFETY: a barrier lies there, or is missing on purpose.
        unsafe {
            match self.arrive {
                Arrive::Cluster => mbarrier::mbarrier_arrive_cluster_if(bar, 1),
                Arrive::Reuse => mbarrier::mbarrier_arrive_reuse_if(bar, 1),
            }
        }
    }

    unsafe fn wait(&self, bar: u32, parity: u32) {
        // SAFETY: the barriers were made.
        unsafe {
            match self.bug {
                Bug::WaitsForBlockOnly => mbarrier::mbarrier_wait(at(bar), parity),
                _ if self.arrive == Arrive::Reuse && bar != RECEIVED => {
                    mbarrier::mbarrier_wait(at(bar), parity)
                }
                _ => mbarrier::mbarrier_wait_cluster(at(bar), parity),
            }
        }
    }

    unsafe fn read(&self) -> u32 {
        let other = (special::lane_idx() * 5 + 3) % 32;
        // SAFETY: the bytes have arrived.
        let [first, .., last] = unsafe { shared::ld_shared_x4(at(RECEIVE + other * 16)) };
        first.wrapping_add(last)
    }

    /// One warp makes something of each tile, sends it, and adds up what it receives.
    unsafe fn consume(&self) -> u32 {
        let rank = cluster::cluster_ctarank();
        let mut sum = 0u32;
        // SAFETY: the warp comes by; the barriers were made.
        unsafe {
            for step in 0..STEPS {
                if self.is(Bug::TileReleasedEarly) {
                    self.release_tile();
                }
                mbarrier::mbarrier_wait(at(FULL), step & 1);
                let made = self.row_sum().wrapping_mul(rank + 1);
                if !self.is(Bug::TileReleasedEarly) {
                    self.release_tile();
                }
                if step > 0 && !self.is(Bug::SendsUnreleased) {
                    self.wait(READ, (step - 1) & 1);
                }
                self.send([made, 1, 2, made ^ step]);
                self.wait(RECEIVED, step & 1);
                if self.is(Bug::ReleasesEarly) {
                    self.release(self.peer(READ));
                }
                sum = sum.wrapping_add(self.read());
                if !self.is(Bug::ReleasesEarly) {
                    self.release(self.peer(READ));
                }
            }
        }
        sum
    }

    fn run(&self) {
        // SAFETY: the blocks come by; what is wrong is wrong on purpose.
        unsafe {
            if !self.is(Bug::BarriersMadeAfterMeeting) {
                self.make_barriers();
            }
            match self.bug {
                Bug::NoFirstMeeting => barrier::barrier_sync_all(),
                _ => self.meet(),
            }
            if self.is(Bug::BarriersMadeAfterMeeting) {
                self.make_barriers();
                barrier::barrier_sync_all();
            }
            if special::thread_idx_x() == 0 {
                self.load();
            } else if special::thread_idx_x() >= 32 {
                let sum = self.consume();
                let place = special::block_idx_x() * 32 + special::lane_idx();
                global::st_global_u32(self.sums + u64::from(place) * 4, sum);
            }
            if !self.is(Bug::NoLastMeeting) {
                self.meet();
            }
        }
    }
}

/// Clusters of the grid.
const CLUSTERS: u32 = 3;

/// Runs the kernel; whether its result is right.
fn run(how: How, bug: Bug, options: Options) -> Result<bool, Fault> {
    let words: Vec<u32> = (0..STEPS * ROWS * 32)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    let mut sums = vec![0u32; (CLUSTERS * 2 * 32) as usize];
    let mut memory = GlobalMemory::new();
    let tiles = TensorMap {
        base: memory.input("tiles", &words),
        sizes: [64, u64::from(STEPS * ROWS), 1, 1],
        strides: [128; 3],
        box_rows: u64::from(ROWS / 2),
        box_heads: 1,
        ..TensorMap::default()
    };
    let exchange = Exchange {
        tiles: &tiles,
        sums: memory.output("sums", &mut sums),
        via: how.via,
        arrive: how.arrive,
        bug,
    };
    let launch = Launch {
        grid: CLUSTERS * 2,
        threads: 64,
        shared_bytes: SHARED,
        resident_blocks: 5,
        blocks_per_sm: 1,
        cluster: 2,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| exchange.run())?;
    drop(memory);
    Ok(sums == expected(&words))
}

/// What each lane of each block gets from the other block.
fn expected(words: &[u32]) -> Vec<u32> {
    let sum = |row: u32| {
        let row = &words[row as usize * 32..][..32];
        row.iter().copied().fold(0, u32::wrapping_add)
    };
    let of_block = |block: u32| {
        let sender = 1 - block % 2;
        (0..32).map(move |lane: u32| {
            let row = (lane * 5 + 3) % 32 % ROWS;
            (0..STEPS).fold(0u32, |all, step| {
                let made = sum(step * ROWS + row).wrapping_mul(sender + 1);
                all.wrapping_add(made).wrapping_add(made ^ step)
            })
        })
    };
    (0..CLUSTERS * 2).flat_map(of_block).collect()
}
