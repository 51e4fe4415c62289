//! The fractions of peaks that kernels reach: every measured constant of the model, in one place, with its record.
//!
//! Fractions of the tensor cores' peak are those in steady state, between the beginning and the end of tiles
//! ([`Tiles`](super::tiles::Tiles)). One is fitted for each schedule, pass and head_dim, to all lengths and both masks of the record at once. They
//! include the cost of the softmax. An unmeasured one is derived from a measured one by a factor with a comment.

use std::cmp::Ordering;

use ferroflash::{Algorithm, Dtype, Fp8, Pass, Problem};
use ferroflash_kernels::variants::TileShape;

use super::flash::kernel;
use super::{Gpu, multiplies_8_bits};

/// Fraction of the memory's bandwidth: a plain sum of 1 GB reads 4.38 of H200's 4.8 TB/s (tests/benches/notes/2026-11-24-decode.md).
pub(super) const MEMORY: f64 = 0.91;

/// Fraction of the special-function units' peak: flash3's forward pass at head_dim 64 keeps them busy for 64 % of all cycles, the most that is
/// measured (tests/benches/notes/2026-11-22-where-the-time-goes.md).
pub(super) const EXPONENTIALS: f64 = 0.64;

/// The cost of a launch, in seconds: a bare `cuLaunchKernel` takes 3.2 to 3.9 µs (tests/benches/notes/2026-11-24-decode.md).
pub(super) const LAUNCH: f64 = 3.5e-6;

/// The cost of a call in addition to its launches, in seconds, by the device's clock: the shortest forward passes of the record take 11.7 to 13.4 µs
/// (2026-11-20, commit d7ea894, 64 and 128 queries), of which [`LAUNCH`] and one tile explain 8 to 10.
pub(super) const CALL: f64 = 3.5e-6;

/// The time of a tile in addition to its products and its own bytes, in seconds: the first blocks are being loaded, and the last product's result is
/// not yet written. Fitted to the record where tiles are short (64 to 2048 rows, 2026-11-20 to 23), once for each
/// pass; the backward pass waits for two blocks of operands and sends two gradients.
pub(super) const fn tile_latency(pass: Pass) -> f64 {
    match pass {
        Pass::Forward | Pass::ForwardWithWeights => 1e-6,
        Pass::Backward => 2e-6,
    }
}

/// Fractions of the tensor cores' peak, forward and backward, for every head_dim up to the first number.
type Shares = &'static [(u32, f64, f64)];

/// flash3 on H200 (records 2026-11-20 to 2026-11-23, `host/lab/tests/estimate_record.rs`; tests/benches/notes/2026-11-26-scores-and-masks.md, head_dim 512, full, forward: 393 to 410 TFLOP/s
/// of 989). No backward kernel supports more than 256.
const FLASH3: Shares = &[
    (64, 0.58, 0.53),
    (128, 0.72, 0.62),
    (256, 0.75, 0.41),
    (u32::MAX, 0.41, 0.41),
];

/// flash3 with keys of up to 192 columns and values of up to 128, which have their own tiles, on H200 (record 2026-11-26): forward as above.
const FLASH3_SHORT_VALUES: Shares = &[(256, 0.75, 0.60)];

/// flash3 with keys of up to 64 columns and values of more than 128, which have their own tiles, on H200 (record 2026-11-27). No backward kernel has
/// such tiles: the last fractions are not used.
const FLASH3_LONG_VALUES: Shares = &[(256, 0.72, 0.41), (u32::MAX, 0.62, 0.41)];

/// flash3 with q, k and v in 8 bits, of the peak of 8-bit products, on H200 (tests/benches/notes/2026-11-30-e4m3-forward.md): sums of two levels.
/// The backward pass is that of 16 bits: the last fractions are not used.
const FLASH3_E4M3: Shares = &[
    (64, 0.38, 0.0),
    (96, 0.42, 0.0),
    (128, 0.51, 0.0),
    (256, 0.52, 0.0),
];

/// The same with sums of one level, in the kernels that have them.
const FLASH3_E4M3_ONE_LEVEL: Shares = &[(128, 0.51, 0.0), (192, 0.58, 0.0), (256, 0.65, 0.0)];

/// The same with scales of blocks.
const FLASH3_E4M3_BLOCKS: Shares = &[
    (64, 0.25, 0.0),
    (96, 0.38, 0.0),
    (128, 0.41, 0.0),
    (256, 0.46, 0.0),
];

/// flash2 on H200 (record 2026-11-20). On H100 (tests/benches/notes/2026-11-25-scores-and-masks.md, 2k, full): 316 and 223 TFLOP/s at head_dim 256, 198
/// forward at 512. No backward kernel supports more than 256: the last share is that of 256.
const FLASH2: Shares = &[
    (64, 0.40, 0.27),
    (128, 0.43, 0.34),
    (256, 0.32, 0.23),
    (u32::MAX, 0.20, 0.23),
];

/// A product of `standard` on Hopper. It is fitted to three times on H100 (tests/benches/notes/2026-11-25-scores-and-masks.md): head_dim 256 at 2k, 140 TFLOP/s
/// forward and 163 backward, and 512 forward, 206. With it the predicted times are 0.96, 0.98 and 1.08 of those.
const STANDARD: f64 = 0.28;

/// flash1 on H200 (record 2026-11-26): head_dim 64 causal and 128 full, 512 to 16k. If heads are fewer than SMs, a head's block of threads does not
/// share the caches and the power limit, and is faster than these by a fifth; otherwise it is slower by a tenth. Off Hopper ([`OFF_HOPPER`]) that is
/// 27 to 43 % of
/// the peak; FlashAttention-2's abstract (Dao 2023) says 25 to 40 % of A100's.
const FLASH1: Shares = &[(64, 0.185, 0.255), (256, 0.26, 0.30)];

/// How much greater the fraction of an `mma.sync` kernel is if tensor cores have no faster instruction. No such GPU is in our records.
/// FlashAttention-2 reaches 50 to 73 % of A100's peak (its abstract); the middle of it, 0.62, is this much more than flash2's 0.43 at head_dim 128.
/// On B200, where tensor cores have a faster instruction, it is a guess.
const OFF_HOPPER: f64 = 0.62 / 0.43;

/// For f32 tensors, whose products are in tf32: flash2's fraction relative to that of 16-bit types, forward on H100
/// (tests/benches/notes/2026-11-25-scores-and-masks.md):
/// 0.31 by 0.37 at head_dim 64, 0.30 by 0.42 at 128, of whole times. The middle of it.
const F32: f64 = 0.78;

/// The fraction of the tensor cores' peak that an algorithm's products reach.
pub(super) fn products(algorithm: Algorithm, pass: Pass, problem: &Problem, gpu: &Gpu) -> f64 {
    let columns = problem.head_dim().max(problem.head_dim_v()) as u32;
    let of = |shares: Shares| {
        let row = shares.iter().find(|row| columns <= row.0);
        let &(_, forward, backward) = row.unwrap_or(&shares[shares.len() - 1]);
        match pass {
            Pass::Backward => backward,
            Pass::Forward | Pass::ForwardWithWeights => forward,
        }
    };
    let flash3 = || {
        let row = kernel(algorithm, pass, problem, gpu);
        if multiplies_8_bits(problem, pass) {
            return match (problem.fp8(), row.map(|row| row.tiles)) {
                (Some(Fp8::PerBlock), _) => FLASH3_E4M3_BLOCKS,
                (_, Some(TileShape::OneLevel)) => FLASH3_E4M3_ONE_LEVEL,
                _ => FLASH3_E4M3,
            };
        }
        match row.map(|row| row.head_dims_v().most.cmp(&row.head_dims().most)) {
            Some(Ordering::Less) => FLASH3_SHORT_VALUES,
            Some(Ordering::Greater) => FLASH3_LONG_VALUES,
            Some(Ordering::Equal) | None => FLASH3,
        }
    };
    let on_hopper = match algorithm {
        Algorithm::Flash3 => return of(flash3()),
        Algorithm::Flash2 => of(FLASH2),
        Algorithm::Flash1 => of(FLASH1),
        Algorithm::Standard | Algorithm::Tiled => STANDARD,
    };
    let of_type = if problem.dtype() == Dtype::F32 {
        F32
    } else {
        1.0
    };
    let of_gpu = if gpu.is_hopper() { 1.0 } else { OFF_HOPPER };
    on_hopper * of_type * of_gpu
}
