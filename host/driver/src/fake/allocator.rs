//! A counting allocator of host memory, to show that a path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator; [`allocations`] returns how often a thread has called it. A test makes it its global allocator.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has allocated host memory.
pub fn allocations() -> u64 {
    COUNT.get()
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(address, layout) }
    }
}
