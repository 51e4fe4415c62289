//! Consumers begin their products by turns: one's softmax then runs beside the others' products (FlashAttention-3, ping-pong
//! scheduling).

use super::Tiles;
use super::consumer::Consumer;
use crate::ptx::barrier;

/// Consumers wait at ping-pong barriers `PING_PONG_BARRIER ..`, one for each.
const PING_PONG_BARRIER: u32 = 1;
/// Threads of two consumers: one waits, the other lets it pass.
const TWO_CONSUMERS: u32 = 256;

impl Consumer<'_> {
    /// Consumer 0 passes first.
    #[inline(always)]
    pub(super) unsafe fn begin_ping_pong<T: Tiles>(&self) {
        if self.idx + 1 == T::CONSUMERS {
            // SAFETY: as `release_semaphore`.
            unsafe { self.pass_ping_pong::<T>() };
        }
    }

    /// Consumers begin their products by turns: one's softmax then runs beside the others' products.
    #[inline(always)]
    pub(super) unsafe fn await_ping_pong<T: Tiles>(&self) {
        if T::PING_PONG {
            // SAFETY: all consumers come here equally often.
            unsafe { barrier::barrier_sync(PING_PONG_BARRIER + self.idx, TWO_CONSUMERS) };
        }
    }

    #[inline(always)]
    pub(super) unsafe fn pass_ping_pong<T: Tiles>(&self) {
        if T::PING_PONG {
            let next = if self.idx + 1 == T::CONSUMERS {
                0
            } else {
                self.idx + 1
            };
            // SAFETY: as `await_dq_slot`.
            unsafe { barrier::barrier_arrive(PING_PONG_BARRIER + next, TWO_CONSUMERS) };
        }
    }

    /// Ends the ping-pong: the last consumer has let consumer 0 pass.
    #[inline(always)]
    pub(super) unsafe fn end_ping_pong<T: Tiles>(&self) {
        if self.idx == 0 {
            // SAFETY: as `await_dq_slot`.
            unsafe { self.await_ping_pong::<T>() };
        }
    }
}
