//! Ping-pong scheduling (FlashAttention-3): barriers let consumers begin their products one after the other, so that one's softmax
//! runs beside the others' products.
//!
//! A barrier is complete when its consumer waits and the one before it has arrived. All consumers of a block take the same steps, so
//! each waits as often as the one before it arrives; consumer 0 waits once more at the end, as the last consumer arrives once more at
//! the beginning.
//!
//! Where the special-function unit binds, consumers take no turns: one that waited for another's products would leave it idle.

use super::Tiles;
use super::consumer::Consumer;
use super::expression::tanh_binds;
use crate::ptx::barrier;

/// The ping-pong barrier of consumer `i` is `PING_PONG_BARRIER + i`.
const PING_PONG_BARRIER: u32 = 1;
/// Threads that a ping-pong barrier counts: those of the consumer that waits and of the one that arrives.
const TWO_CONSUMERS: u32 = 256;

/// Whether consumers begin their products one after the other.
#[inline(always)]
fn takes_turns<T: Tiles>() -> bool {
    T::PING_PONG && !tanh_binds::<T>()
}

impl Consumer<'_> {
    /// Begins the ping-pong: the last consumer lets consumer 0 pass.
    #[inline(always)]
    pub(super) unsafe fn begin_ping_pong<T: Tiles>(&self) {
        if self.idx + 1 == T::CONSUMERS {
            // SAFETY: the last consumer's warps all come here, once; consumer 0 waits once more than it steps.
            unsafe { self.pass_ping_pong::<T>() };
        }
    }

    /// Waits until this consumer may begin its products.
    #[inline(always)]
    pub(super) unsafe fn await_ping_pong<T: Tiles>(&self) {
        if takes_turns::<T>() {
            // SAFETY: this consumer's warps all come here, as often as the consumer before it arrives.
            unsafe { barrier::barrier_sync(PING_PONG_BARRIER + self.idx, TWO_CONSUMERS) };
        }
    }

    /// Lets the next consumer begin its products.
    #[inline(always)]
    pub(super) unsafe fn pass_ping_pong<T: Tiles>(&self) {
        if takes_turns::<T>() {
            let next = if self.idx + 1 == T::CONSUMERS {
                0
            } else {
                self.idx + 1
            };
            // SAFETY: this consumer's warps all come here, as often as the next consumer waits.
            unsafe { barrier::barrier_arrive(PING_PONG_BARRIER + next, TWO_CONSUMERS) };
        }
    }

    /// Ends the ping-pong: consumer 0 waits for the last arrival at its barrier.
    #[inline(always)]
    pub(super) unsafe fn end_ping_pong<T: Tiles>(&self) {
        if self.idx == 0 {
            // SAFETY: consumer 0's warps all come here, once; the last consumer has arrived for it.
            unsafe { self.await_ping_pong::<T>() };
        }
    }
}
