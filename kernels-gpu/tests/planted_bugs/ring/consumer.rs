//! The warpgroups that empty the rings.

use ferroflash_kernels::ptx::wgmma::{Major, Wgmma, wgmma_commit_group, wgmma_fence};
use ferroflash_kernels::ptx::{barrier, convert, global, ldmatrix, mbarrier, shared, special, tma};
use ferroflash_kernels::tile::register::{Accumulator, RegisterTile};

use super::{Bug, CONSUMER_THREADS, E, HALF, Kernel, Q, Ring, STAGES, address, descriptor};

type Scores = RegisterTile<1, 8>;
type Output = RegisterTile<1, 16>;
/// Q as fragments of A.
type Fragments = [[u32; 4]; 8];

const K_MAJOR: u32 = Major::K as u32;
const MN_MAJOR: u32 = Major::Mn as u32;

/// One thread of a consumer warpgroup.
struct Consumer<'a> {
    kernel: Kernel<'a>,
    index: u32,
    q: Fragments,
}

impl Kernel<'_> {
    pub fn consume(&self, index: u32) {
        let mut consumer = Consumer {
            kernel: *self,
            index,
            q: [[0; 4]; 8],
        };
        let mut count = 0;
        for tile in 0..self.tiles() {
            let o = consumer.tile(tile, &mut count);
            consumer.store(tile, &o);
        }
        if !self.is(Bug::NoWaitBeforeExit) {
            tma::bulk_wait_group_read::<0>();
        }
    }
}

fn pack(scores: &Scores) -> [[u32; 4]; 4] {
    std::array::from_fn(|step| {
        let [a, b] = [
            scores.fragment(0, 2 * step),
            scores.fragment(0, 2 * step + 1),
        ];
        [(a[0], a[1]), (a[2], a[3]), (b[0], b[1]), (b[2], b[3])]
            .map(|(lower, upper)| convert::cvt_bf16x2(lower, upper))
    })
}

impl Consumer<'_> {
    fn is(&self, bug: Bug) -> bool {
        self.kernel.is(bug)
    }

    fn wait_full(&self, ring: Ring, stage: u32, round: u32) {
        let parity = round & 1 ^ u32::from(self.is(Bug::WrongParity));
        if !self.is(Bug::NoWaitForFull) {
            // SAFETY: the barrier was made.
            unsafe { mbarrier::mbarrier_wait(self.kernel.barrier(ring, stage), parity) };
        }
    }

    /// Lane 0 arrives for its warp.
    fn release(&self, ring: Ring, stage: u32) {
        let first = u32::from(special::lane_idx() == 0);
        // SAFETY: the barrier was made.
        unsafe { mbarrier::mbarrier_arrive_if(self.kernel.barrier(ring, stage), first) };
    }

    fn fence(&self) {
        if !self.is(Bug::NoWgmmaFence) {
            // SAFETY: the warpgroup comes by.
            unsafe { wgmma_fence() };
        }
    }

    /// This warp's 16 rows of Q as fragments.
    fn load_q(&mut self) {
        let lane = special::lane_idx();
        let row = special::thread_idx_x() / 32 % 4 * 16 + (lane & 15);
        for step in 0..8 {
            let chunk = (step % 4 * 2 + (lane >> 4)) ^ (row & 7);
            let at = self.kernel.q_tile(self.index) + step / 4 * HALF + row * 128 + chunk * 16;
            // SAFETY: Q was waited for.
            self.q[step as usize] = unsafe { ldmatrix::ldmatrix_x4(at) };
        }
        if self.is(Bug::ReleasesAfterLdmatrix) {
            self.release(Ring::EmptyQ, 0);
        }
    }

    fn scores(&self, s: &mut Scores, stage: u32) {
        let along = if self.is(Bug::WrongStep) { 16 } else { 32 };
        let stride = if self.is(Bug::WrongStride) { 512 } else { 1024 };
        let steps = match self.kernel.bug {
            Bug::OneWarpMultipliesLess if special::thread_idx_x() / 32 % 4 == 3 => 7,
            _ => 8,
        };
        for step in 0..steps {
            let offset = step / 4 * HALF + step % 4 * along;
            let k = descriptor(self.kernel.k_tile(stage) + offset, 0, stride);
            let q = descriptor(self.kernel.q_tile(self.index) + offset, 0, 1024);
            let fragments = self.q[step as usize];
            // SAFETY: Q and K were waited for; what is wrong is wrong on purpose.
            unsafe {
                let s = s.fragments_mut();
                match self.kernel.q_from {
                    Q::Shared => s.multiply_ss::<E, K_MAJOR, K_MAJOR>(q, k, u32::from(step > 0)),
                    Q::Registers => s.multiply_rs::<E, K_MAJOR>(fragments, k, u32::from(step > 0)),
                }
            }
        }
        // SAFETY: the warpgroup comes by.
        unsafe { wgmma_commit_group() };
    }

    fn output(&self, o: &mut Output, p: &[[u32; 4]; 4], stage: u32) {
        let leading = if self.is(Bug::WrongLeading) {
            HALF / 2
        } else {
            HALF
        };
        for (step, p) in (0..).zip(p) {
            let v = descriptor(self.kernel.v_tile(stage) + step * 2048, leading, 1024);
            // SAFETY: V was waited for.
            unsafe { o.fragments_mut().multiply_rs::<E, MN_MAJOR>(*p, v, 1) };
        }
        if !self.is(Bug::NoCommit) {
            // SAFETY: the warpgroup comes by.
            unsafe { wgmma_commit_group() };
        }
    }

    /// What goes wrong while `o` is in flight.
    fn disturb(&self, o: &mut Output) {
        if self.is(Bug::ClearsAccumulatorInFlight) {
            *o = Output::zero();
        }
        if self.is(Bug::ScalesAccumulatorInFlight) {
            for n in 0..16 {
                o.fragment_mut(0, n).iter_mut().for_each(|x| *x *= 2.0);
            }
        }
    }

    fn wait_scores(&self, s: &mut Scores) {
        // SAFETY: the warpgroup comes by.
        unsafe {
            match self.kernel.bug {
                Bug::NoWaitForProducts => {}
                Bug::WaitsForOneTooFew => s.fragments_mut().wait::<1>(),
                _ => s.fragments_mut().wait::<0>(),
            }
        }
    }

    /// All blocks of keys: the next block's scores and this block's output are in flight together.
    fn tile(&mut self, tile: u32, count: &mut u32) -> Output {
        let (mut s, mut o) = (Scores::zero(), Output::zero());
        self.wait_full(Ring::FullQ, 0, tile);
        self.wait_full(Ring::FullK, *count % STAGES, *count / STAGES);
        if self.kernel.q_from == Q::Registers {
            self.load_q();
        }
        self.fence();
        self.scores(&mut s, *count % STAGES);
        self.wait_scores(&mut s);
        self.release(Ring::EmptyK, *count % STAGES);
        let mut p = pack(&s);
        for _ in 1..self.kernel.blocks() {
            let (this, next) = (*count % STAGES, (*count + 1) % STAGES);
            self.wait_full(Ring::FullK, next, (*count + 1) / STAGES);
            self.fence();
            self.scores(&mut s, next);
            self.wait_full(Ring::FullV, this, *count / STAGES);
            self.output(&mut o, &p, this);
            self.disturb(&mut o);
            if self.is(Bug::ReleasesBeforeWait) {
                self.release(Ring::EmptyV, this);
            }
            let early = pack(&s);
            // SAFETY: the warpgroup comes by.
            unsafe { s.fragments_mut().wait::<1>() };
            self.release(Ring::EmptyK, next);
            let late = pack(&s);
            // SAFETY: the warpgroup comes by.
            unsafe { o.fragments_mut().wait::<0>() };
            if !self.is(Bug::ReleasesBeforeWait) {
                self.release(Ring::EmptyV, this);
            }
            let in_flight = self.is(Bug::ReadsAccumulatorInFlight);
            p = if in_flight { early } else { late };
            *count += 1;
        }
        if !self.is(Bug::ReleasesAfterLdmatrix) {
            self.release(Ring::EmptyQ, 0);
        }
        let last = *count % STAGES;
        self.wait_full(Ring::FullV, last, *count / STAGES);
        self.fence();
        self.output(&mut o, &p, last);
        // SAFETY: the warpgroup comes by.
        unsafe { o.fragments_mut().wait::<0>() };
        self.release(Ring::EmptyV, last);
        *count += 1;
        o
    }

    fn meet(&self) {
        let (id, threads) = match self.kernel.bug {
            Bug::WrongBarrierId => (1 + special::thread_idx_x() / 32 % 2, CONSUMER_THREADS),
            Bug::WrongBarrierCount => (1 + self.index, CONSUMER_THREADS + 32),
            _ => (1 + self.index, CONSUMER_THREADS),
        };
        // SAFETY: the warpgroup comes by.
        unsafe { barrier::barrier_sync(id, threads) };
    }

    fn write_staging(&self, o: &Output) {
        let (lane, warp) = (special::lane_idx(), special::thread_idx_x() / 32 % 4);
        for n in 0..16 {
            let fragment = o.fragment(0, n as usize);
            for half in 0..2 {
                let row = warp * 16 + lane / 4 + 8 * half;
                let at = n / 8 * HALF + row * 128 + (((n % 8) ^ (row & 7)) << 4) + lane % 4 * 4;
                let i = 2 * half as usize;
                let pair = convert::cvt_bf16x2(fragment[i], fragment[i + 1]);
                // SAFETY: inside this warpgroup's staging memory.
                unsafe { shared::st_shared_u32(self.kernel.staging(self.index) + at, pair) };
            }
        }
    }

    fn store(&self, tile: u32, o: &Output) {
        if !self.is(Bug::OverwritesStaging) {
            tma::bulk_wait_group_read::<0>();
        }
        self.meet();
        self.write_staging(o);
        if !self.is(Bug::NoProxyFence) && !self.is(Bug::FencesAfterBarrier) {
            tma::fence_proxy_async();
        }
        if !self.is(Bug::NoBarrierBeforeStore) {
            self.meet();
        }
        if self.is(Bug::FencesAfterBarrier) {
            tma::fence_proxy_async();
        }
        let row = (tile * self.kernel.consumers + self.index) * 64;
        let first = u32::from(special::thread_idx_x().is_multiple_of(CONSUMER_THREADS));
        let map = address(self.kernel.o);
        for half in 0..2 {
            let from = self.kernel.staging(self.index) + half * HALF;
            // SAFETY: the staging memory holds the tile.
            unsafe { tma::tma_store_if(map, [half * 64, row, 0, 0], from, first) };
        }
        if !self.is(Bug::NoStoreCommit) {
            tma::bulk_commit_group();
        }
        if self.is(Bug::ReadsOutputBack) {
            // SAFETY: wrong on purpose.
            unsafe { global::ld_global_u32(self.kernel.o_address + u64::from(row) * 256) };
        }
    }
}
