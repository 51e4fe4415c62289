//! Who a thread is.

use super::cluster;
use super::machine::{LANES, Machine};
use super::shared;
use crate::spec::Spec;

/// `%tid.x`
pub(crate) fn thread_idx() -> u32 {
    let who = Machine::current().current.get();
    (who.warp * LANES + who.lane) as u32
}

/// `%laneid`
pub(crate) fn lane_idx() -> u32 {
    Machine::current().current.get().lane as u32
}

/// `%ctaid.x`
pub(crate) fn block_idx() -> u32 {
    Machine::current().current.get().block
}

/// `%ntid.x`
pub(crate) fn block_dim() -> u32 {
    Machine::current().launch.threads
}

/// `%nctaid.x`
pub(crate) fn grid_dim() -> u32 {
    Machine::current().launch.grid
}

/// `%smid`: the first blocks fill the first multiprocessor, and who comes later takes the place of one that has ended.
pub(crate) fn sm_id() -> u32 {
    let machine = Machine::current();
    machine.current.get().slot as u32 / machine.launch.blocks_per_sm.max(1)
}

/// `%globaltimer`: a nanosecond for each time that a thread got the processor, and for each look at a clock, from 1 on. A run's order is its seed's, and so
/// are its times.
pub(crate) fn global_timer() -> u64 {
    tick()
}

/// `%clock64`: the same, of one clock for all multiprocessors.
pub(crate) fn clock64() -> u64 {
    tick()
}

fn tick() -> u64 {
    let machine = Machine::current();
    let looks = machine.looks.get() + 1;
    machine.looks.set(looks);
    machine.stats.get().resumes + looks
}

/// What the kernel is compiled for.
pub(crate) fn spec() -> Spec {
    Machine::current().launch.spec
}

/// Address of the block's dynamic shared memory.
pub(crate) fn shared_base() -> u32 {
    cluster::with_rank(shared::BASE, cluster::rank())
}
