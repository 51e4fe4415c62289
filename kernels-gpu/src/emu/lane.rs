//! Who a thread is.

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

/// What the kernel is compiled for.
pub(crate) fn spec() -> Spec {
    Machine::current().launch.spec
}

/// Address of the block's dynamic shared memory.
pub(crate) fn shared_base() -> u32 {
    shared::BASE
}
