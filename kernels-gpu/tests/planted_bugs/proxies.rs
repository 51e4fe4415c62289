//! What goes to global memory by one way and is read by another: threads write what the copy engine loads, and the copy
//! engine stores what threads read.

mod loads;
mod stores;

use ferroflash_kernels::emu::{Asynchronous, Kind, MemoryLocation};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{mbarrier, shared, special};
use ferroflash_kernels::tile::shared::SharedTile;

const THREADS: u32 = 64;
/// Rows of the tensor, which is one box wide and high.
const ROWS: u32 = 8;
/// Numbers, of a row and of the tensor: as the copy engine counts, pairs of columns.
const ROW: u32 = 32;
const NUMBERS: u32 = ROWS * ROW;
const BYTES: u32 = NUMBERS * 4;

fn map(base: u64) -> TensorMap {
    let row = u64::from(ROW) * 4;
    TensorMap {
        base,
        sizes: [u64::from(ROW) * 2, ROWS.into(), 1, 1],
        strides: [row, BYTES.into(), BYTES.into()],
        box_rows: ROWS.into(),
        box_heads: 1,
        ..TensorMap::default()
    }
}

fn address(map: &TensorMap) -> u64 {
    std::ptr::from_ref(map).expose_provenance() as u64
}

/// A barrier in shared memory, behind the numbers.
fn bar() -> u32 {
    special::shared_base() + BYTES
}

/// Where a number lies in shared memory: in a box, or side by side with its neighbours.
fn place(number: u32, is_box: bool) -> u32 {
    let base = special::shared_base();
    match is_box {
        true => SharedTile {
            base,
            row_bytes: 128,
        }
        .pair(number / ROW, number % ROW * 2),
        false => base + number * 4,
    }
}

/// The numbers that a thread writes.
fn mine() -> std::ops::Range<u32> {
    let first = special::thread_idx_x() * (NUMBERS / THREADS);
    first..first + NUMBERS / THREADS
}

/// The numbers that a thread reads: none that it wrote itself.
fn others() -> impl Iterator<Item = u32> {
    mine().map(|number| (number + NUMBERS / 2 + 1) % NUMBERS)
}

fn value(number: u32) -> f32 {
    (number * 3 + 1) as f32
}

/// A thread's numbers to shared memory.
fn fill_shared(is_box: bool) {
    for number in mine() {
        // SAFETY: inside shared memory.
        unsafe { shared::st_shared_f32(place(number, is_box), value(number)) };
    }
}

/// The block's first thread makes the barrier.
fn make_barrier() {
    if special::thread_idx_x() == 0 {
        // SAFETY: inside shared memory.
        unsafe { mbarrier::mbarrier_init(bar(), 1) };
        mbarrier::fence_mbarrier_init();
    }
}

/// A fence for the copy engine is missing between two accesses of the numbers.
fn unfenced(kind: &Kind) -> bool {
    match kind {
        Kind::Asynchronous(Asynchronous::Unfenced { fence, place, .. }) => {
            let of_numbers =
                matches!(place, MemoryLocation::Global { buffer, .. } if buffer == "numbers");
            *fence == "fence.proxy.async.global" && of_numbers
        }
        _ => false,
    }
}

/// Two accesses of the numbers that nothing orders.
fn race(kind: &Kind) -> bool {
    matches!(kind, Kind::Race { place: MemoryLocation::Global { buffer, .. }, .. } if buffer == "numbers")
}
