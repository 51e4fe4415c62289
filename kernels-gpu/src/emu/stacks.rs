//! Stacks for the threads of a run, of which a process has only so many.
//!
//! A stack takes two mappings of memory (itself and the guard below it), and Linux gives a process 65,530 by default
//! (`vm.max_map_count`). Tests launch side by side, so a launch reserves the stacks of all its threads before the first
//! one starts, and waits while other launches have too many. It needs no more later, so no two wait for each other.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;

/// Bytes of a thread's stack; untouched pages cost nothing.
const BYTES: usize = 256 << 10;
/// Most stacks of a process: with their guards nine tenths of Linux's mappings; the rest is for everyone else.
pub(super) const MOST: usize = 30_000;
/// Most stacks kept for later runs: making one takes longer than running a small kernel on it.
const MOST_KEPT: usize = 12_000;

struct Pool {
    /// Reserved by launches, whether or not they exist yet.
    reserved: usize,
    /// Left by finished launches.
    kept: Vec<DefaultStack>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    reserved: 0,
    kept: Vec::new(),
});
/// A launch has given its stacks back.
static GIVEN_BACK: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stacks of one launch.
pub(super) struct Stacks {
    reserved: usize,
    idle: Vec<DefaultStack>,
}

impl Stacks {
    /// Reserves this many, at most [`MOST`], and waits until other launches leave them.
    pub fn reserve(count: usize) -> Stacks {
        assert!(count <= MOST, "more stacks than a process has");
        let mut pool = GIVEN_BACK
            .wait_while(pool(), |pool| pool.reserved + count > MOST)
            .unwrap_or_else(PoisonError::into_inner);
        pool.reserved += count;
        let beyond = pool.kept.len().saturating_sub(count);
        let idle = pool.kept.split_off(beyond);
        // What stays in the pool counts too.
        let room = MOST - pool.reserved;
        pool.kept.truncate(room);
        Stacks {
            reserved: count,
            idle,
        }
    }

    /// A stack for one thread; as many at a time as were reserved.
    pub fn take(&mut self) -> std::io::Result<DefaultStack> {
        self.idle.pop().map_or_else(|| DefaultStack::new(BYTES), Ok)
    }

    /// Takes back the stack of a thread that has ended.
    pub fn keep(&mut self, stack: DefaultStack) {
        self.idle.push(stack);
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.reserved -= self.reserved;
        let room = MOST_KEPT
            .min(MOST - pool.reserved)
            .saturating_sub(pool.kept.len());
        self.idle.truncate(room);
        pool.kept.append(&mut self.idle);
        drop(pool);
        GIVEN_BACK.notify_all();
    }
}
