//! Gradients of sinks, after the kernel that computes Δ.
//!
//! A head's sink is a score that every row of the head has, and whose value is 0: its weight in a row is exp(sink − L), and the gradient of
//! the sink
//!
//! ```text
//! dsink = Σ over rows of exp(sink − L) (dL − rowsum(dO ∘ O)) = −Σ exp(sink − L) Δ
//! ```
//!
//! One block of threads takes a head, through all batch entries. The order of the sums is fixed.

use core::f32::consts::LOG2_E;

use crate::config;
use crate::kernels::merge::partial::sink_of;
use crate::kernels::varlen::n_listed;
use crate::params::SinkGradientParams;
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{barrier, global, shared, shuffle, special};
use crate::tile::global::row_of_head;

const THREADS: u32 = config::sink_gradient().threads;
const WARPS: u32 = THREADS / 32;
/// Rows of a thread that are on their way at a time.
const IN_FLIGHT: u32 = 4;

const _: () = assert!(config::sink_gradient().shared_bytes == WARPS * 4);

/// A head's gradient: see the module's documentation.
///
/// # Safety
/// The launch is as [`config::sink_gradient`] says, with a block for every head; arrays are as [`SinkGradientParams`] says.
#[inline(always)]
pub unsafe fn sink_gradient(p: &SinkGradientParams) {
    let (thread, head_idx) = (special::thread_idx_x(), special::block_idx_x());
    // SAFETY: the caller's contract; all threads come to the barrier, and each reads rows that are there.
    unsafe {
        let sink_log2 = sink_of(p.sinks, head_idx) * LOG2_E;
        let rows = if p.block_q == 0 {
            p.padded_q as u32
        } else {
            n_listed(p.q_blocks) * p.block_q
        };
        let mut sums = [0.0; IN_FLIGHT as usize];
        let mut batch_idx = 0;
        while batch_idx < p.batch {
            let head = batch_idx * p.heads_q + head_idx;
            let mut first = thread;
            while first < rows {
                let read = [0, 1, 2, 3].map(|i| {
                    let row = first + i * THREADS;
                    if row < rows {
                        let at = |array| row_of_head(array, head, p.padded_q, row);
                        let lse_log2 = global::ld_global_f32(at(p.lse_log2));
                        (lse_log2, global::ld_global_f32(at(p.delta)))
                    } else {
                        (f32::INFINITY, 0.0)
                    }
                });
                sums = [0, 1, 2, 3].map(|i| {
                    let (lse_log2, delta) = read[i];
                    fma(ex2_approx(sink_log2 - lse_log2), delta, sums[i])
                });
                first += IN_FLIGHT * THREADS;
            }
            batch_idx += 1;
        }
        let mut sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        for distance in [16, 8, 4, 2, 1] {
            sum += shuffle::shuffle_bfly_f32(sum, distance);
        }
        let base = special::shared_base();
        if special::lane_idx() == 0 {
            shared::st_shared_f32(base + thread / 32 * 4, sum);
        }
        barrier::barrier_sync_all();
        if thread == 0 {
            let mut all = 0.0;
            for warp in 0..WARPS {
                all += shared::ld_shared_f32(base + warp * 4);
            }
            // 0 and not −0 where there is no row.
            global::st_global_f32(p.d_sinks + u64::from(head_idx) * 4, 0.0 - all);
        }
    }
}
