//! A rounding to 8 bits planned: the greatest magnitudes of tiles, then the tiles rounded. With given scales the tiles are rounded first, and amax, if it is wanted,
//! is made of the magnitudes that this leaves.

use ferroflash_kernels::config;
use ferroflash_kernels::params::{Params, QuantizeParams};
use ferroflash_kernels::variants::Kind;

use super::operation::{Launches, OperationPlan, counts, kernel, plan_operation};
use super::{Backend, DeviceInfo, Reason};
use crate::arguments::Argument;
use crate::error::PlanError;
use crate::problem::Fp8;
use crate::problem::quantize::QuantizeProblem;
use crate::quantize::Rotation;
use crate::validate::quantize::CheckedQuantize;

/// The plan made before a tensor is rounded.
///
/// The [module](mod@crate::plan) has an example.
pub type QuantizePlan = OperationPlan<QuantizeProblem>;

/// Plans a checked rounding for a GPU (or the emulator's) or for the CPU.
///
/// The [module](mod@crate::plan) has an example.
pub fn plan_quantize(
    checked: &CheckedQuantize,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<QuantizePlan, PlanError> {
    plan_operation(checked, device, backend, launches)
}

/// A block of rows with a scale of its own is a tile.
const _: () = assert!(config::quantize().block_q as usize == Fp8::BLOCK);

fn launches(checked: &CheckedQuantize, device: &DeviceInfo) -> Result<Launches, Reason> {
    let problem = checked.problem();
    let [_, heads_k, head_dim] = problem.sizes();
    let variant = |kind| kernel(kind, head_dim, checked, device);
    let (amax, quantize) = (variant(Kind::Amax)?, variant(Kind::Quantize)?);
    let mut launches = Launches::default();
    let tiles = problem.max_seqlen() as u64;
    let tiles = tiles.div_ceil(quantize.tile_config.block_q.into()).max(1);
    let factors = [problem.batch() as u64, heads_k as u64, tiles];
    let grid = factors
        .iter()
        .fold(1, |n: u64, &size| n.saturating_mul(size));
    counts([
        ("batch · seqlen", problem.rows().n_rows(problem.batch())),
        ("the number of tiles", grid),
    ])?;
    // The scale of a tensor without numbers is written, too.
    let (grid, tiles_per_scale) = match problem.scales() {
        Fp8::PerTensor => (grid.max(1), grid.max(1)),
        Fp8::PerHead => (grid, tiles),
        Fp8::PerBlock => (grid, 1),
    };
    if grid == 0 {
        return Ok(launches);
    }
    let wants_amax = checked.arguments().get(Argument::Amax).is_some();
    // The greatest magnitude of a tile is amax itself, if the tile has a scale of its own.
    let combines = problem.gives_descale() && wants_amax && tiles_per_scale > 1;
    let of_tiles = match combines || !problem.gives_descale() {
        true => launches
            .workspace
            .place("of_tiles", &[grid, size_of::<f32>() as u64])?,
        false => 0,
    };
    let rotation = Rotation::of(problem);
    let params = QuantizeParams {
        of_tiles,
        signs: rotation.as_ref().map_or([0; 4], Rotation::sign_bits),
        hadamard: rotation.as_ref().map_or(0, Rotation::width) as u32,
        unit: rotation.as_ref().map_or(1.0, Rotation::unit),
        // Each fits: their products have been counted.
        rows: problem.rows().seqlen() as u32,
        seqlen: problem.max_seqlen() as u32,
        batch: problem.batch() as u32,
        heads_k: heads_k as u32,
        group_size: problem.group_size() as u32,
        head_dim: head_dim as u32,
        tiles_per_scale: tiles_per_scale as u32,
        power_of_2: u32::from(problem.is_power_of_2()),
        ..QuantizeParams::default()
    };
    let (n_scales, grid) = ((grid / tiles_per_scale) as u32, grid as u32);
    let params = Params::Quantize(params);
    if !problem.gives_descale() {
        launches.push(checked, amax, grid, params);
    }
    launches.push(checked, quantize, grid, params);
    if combines {
        launches.push(checked, amax, n_scales, params);
    }
    Ok(launches)
}
