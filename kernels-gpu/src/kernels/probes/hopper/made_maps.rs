//! The probe of tensor maps that a kernel makes.

use super::{BOX, COLUMNS, ROWS, WORDS, first_thread, map_at};
use crate::kernels::probes::{get, put};
use crate::params::TensorMap;
use crate::ptx::{barrier, global, mbarrier, special, tensor_map, tma};
use crate::tile;

/// Bytes of a tensor's head.
const HEAD_BYTES: u64 = (ROWS * COLUMNS * 2) as u64;
/// Rows that the made maps say there are: fewer than their tensors have.
const FEWER: [u32; 2] = [5, 7];

/// A map of the input that begins at another head, and one of the output, both of fewer rows. What the one makes of a box
/// that hangs over its last row, the other stores over its own. They lie behind the output's tensor, and are written over in
/// the end.
pub(in crate::kernels::probes) unsafe fn made_tensor_maps(input: u64, output: u64, maps: u64) {
    let (base, thread) = (special::shared_base(), special::thread_idx_x());
    let bar = base + BOX;
    for k in 0..24 {
        put(output, k, get(input, k));
    }
    tma::fence_proxy_async_global();
    if first_thread() {
        mbarrier::mbarrier_init(bar, 1);
        mbarrier::fence_mbarrier_init();
    }
    barrier::barrier_sync_all();
    if first_thread() {
        let size = size_of::<TensorMap>() as u64;
        let from = (output + u64::from(WORDS) * 4).next_multiple_of(size);
        let to = from + size;
        tile::tensor_map::copy(maps, from);
        tile::tensor_map::copy(map_at(maps, 1), to);
        tensor_map::replace_address(from, input + HEAD_BYTES);
        tensor_map::replace_rows(from, FEWER[0]);
        tensor_map::replace_rows(to, FEWER[1]);
        tensor_map::fence_tensor_map_release();
        tensor_map::fence_tensor_map_acquire(from);
        tensor_map::fence_tensor_map_acquire_if(to, 1);
        // Names no map, and does nothing.
        tensor_map::fence_tensor_map_acquire_if(output + 4, 0);
        mbarrier::mbarrier_arrive_expect_tx(bar, BOX);
        tma::tma_load(base, from, [8, 2, 1, 0], bar);
        mbarrier::mbarrier_wait(bar, 0);
        tma::tma_store_if(to, [0, 3, 1, 1], base, 1);
        tma::bulk_commit_group();
        tma::bulk_wait_group::<0>();
    }
    barrier::barrier_sync_all();
    let mut behind = WORDS + thread;
    while behind < 24 * 128 {
        global::st_global_u32(output + u64::from(behind) * 4, get(input, 0));
        behind += 128;
    }
}
