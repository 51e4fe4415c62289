//! The threads that work is divided among, also in a forked process.
//!
//! Normally these are rayon's own: its global pool, or the pool of whoever calls from one of its threads. A forked child inherits the
//! pool's memory and none of its threads: work given to it there would never finish. Python's `multiprocessing` and the workers of PyTorch's
//! `DataLoader` are such children. So the process that first asks owns the global pool, and another one makes a pool of its own.
//!
//! Nothing here waits for a lock that a thread of the parent may have held when it forked. The pools of a process's ancestors are kept: they
//! cannot be ended without their threads.

use std::mem;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The process whose threads rayon's global pool has; 0 before it is first asked.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// How many threads the global pool has; 0 while unknown, which rayon takes as its default.
static N_THREADS: AtomicUsize = AtomicUsize::new(0);

/// The pool of the first forked process that asked; then that of its child, and so on.
static FORKED: OnceLock<Box<Forked>> = OnceLock::new();

/// The pool of a forked process.
struct Forked {
    process: u32,
    /// `None` if the system gives no threads.
    pool: Option<ThreadPool>,
    /// The pool of a process that was forked from this one.
    next: OnceLock<Box<Forked>>,
}

/// Runs work in a pool whose threads exist in this process.
pub(crate) fn install<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match Threads::of_this_process() {
        Threads::Rayons => work(),
        Threads::Own(Some(pool)) => pool.install(work),
        Threads::Own(None) => {
            // A pool that is this thread alone, as long as it lives.
            let alone = ThreadPoolBuilder::new().num_threads(1);
            mem::forget(alone.use_current_thread().build());
            work()
        }
    }
}

/// Runs tasks, each in its thread's working memory. A single task runs in the calling thread: waking another takes longer than little work does.
pub(super) fn each<T: Send, W>(
    tasks: &mut [T],
    workspace: impl Fn() -> W + Sync + Send,
    run: impl Fn(&mut W, &mut T) + Sync + Send,
) {
    match tasks {
        [task] => run(&mut workspace(), task),
        tasks => tasks.par_iter_mut().for_each_init(workspace, run),
    }
}

/// How many threads work is divided among.
pub(crate) fn n_threads() -> usize {
    match Threads::of_this_process() {
        Threads::Rayons => rayon::current_num_threads(),
        Threads::Own(pool) => pool.map_or(1, ThreadPool::current_num_threads),
    }
}

/// Which threads a process has.
enum Threads {
    /// Those that rayon finds by itself.
    Rayons,
    /// Those of a forked process.
    Own(Option<&'static ThreadPool>),
}

impl Threads {
    fn of_this_process() -> Threads {
        // A thread of a pool gives that pool its work.
        if rayon::current_thread_index().is_some() {
            return Threads::Rayons;
        }
        let process = process::id();
        let mut last = &FORKED;
        while let Some(forked) = last.get() {
            if forked.process == process {
                return Threads::Own(forked.pool.as_ref());
            }
            last = &forked.next;
        }
        if FORKED.get().is_none() && owns_global_pool(process) {
            return Threads::Rayons;
        }
        let forked = Box::new(Forked {
            process,
            pool: ThreadPoolBuilder::new()
                .num_threads(N_THREADS.load(Ordering::Relaxed))
                .build()
                .ok(),
            next: OnceLock::new(),
        });
        // Where another thread of this process was sooner, its pool is taken.
        Threads::Own(last.get_or_init(|| forked).pool.as_ref())
    }
}

/// Whether the threads of rayon's global pool are this process's.
fn owns_global_pool(process: u32) -> bool {
    // Said before the pool is made: a child that is forked meanwhile does not take it for its own.
    match OWNER.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            N_THREADS.store(rayon::current_num_threads(), Ordering::Relaxed);
            true
        }
        Err(owner) => owner == process,
    }
}
