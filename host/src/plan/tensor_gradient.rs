//! Launches that compute the gradients of tensors which a score reads: after a backward pass of any algorithm.

use ferroflash_expression::{ElementType, Index, ReadDims};
use ferroflash_kernels::params::{
    GRADIENT_BF16, GRADIENT_F16, GRADIENT_F32, Params, StandardParams, TensorGradientParams,
};
use ferroflash_kernels::variants::Kind;

use super::block_mask::block_map;
use super::select::{grid, of_dtype};
use super::views::{scale, shape};
use super::workspace::WorkspaceLayout;
use super::{Plan, PlannedLaunch, Reason, lengths};
use crate::arguments::Argument;
use crate::backend::cpu;
use crate::problem::Problem;
use crate::terms::Backend;
use crate::validate::Checked;

/// The indices of the tensors whose gradients are wanted.
fn wanted(checked: &Checked) -> impl Iterator<Item = usize> {
    let arguments = Argument::SCORE_TENSOR_GRADIENTS.into_iter().enumerate();
    arguments.filter_map(|(place, argument)| {
        checked.arguments().get(argument)?;
        Some(place)
    })
}

/// The launches of a pass, followed by those of the gradients that are wanted. These also use the statistics that `standard` has computed for each row.
pub fn behind(
    checked: &Checked,
    mut launches: Vec<PlannedLaunch>,
    plan: &mut Plan,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let is_empty = problem.batch() == 0 || problem.seqlen_q() == 0 || problem.seqlen_k() == 0;
    if is_empty || wanted(checked).next().is_none() {
        return Ok(launches);
    }
    let workspace = &mut plan.workspace;
    if plan.backend == Backend::Cpu {
        // No kernel: what the sums take, and threads work in.
        workspace.place("tensor_sums", &[cpu::tensor_gradient_bytes(problem)])?;
        return Ok(launches);
    }
    let of_standard = launches.iter().find_map(|launch| match launch.params {
        Params::Standard(params) => Some(params),
        _ => None,
    });
    let pass = match of_standard {
        Some(params) => params,
        None => {
            let params = rows(checked, workspace)?;
            launches.push(delta(checked, params)?);
            params
        }
    };
    for place in wanted(checked) {
        launches.extend(gradient(checked, place, pass)?);
    }
    Ok(launches)
}

/// The kernels' inputs if the pass is not by `standard`: Δ of each row and, if heads have sinks, lse are in the workspace.
fn rows(checked: &Checked, workspace: &mut WorkspaceLayout) -> Result<StandardParams, Reason> {
    let problem = checked.problem();
    let rows = [problem.batch(), problem.heads_q(), problem.seqlen_q()].map(|n| n as u64);
    let [batch, heads, seqlen] = rows;
    let mut push = |name| workspace.place(name, &[batch, heads, seqlen, size_of::<f32>() as u64]);
    let delta = push("tensor_delta")?;
    let lse_log2 = match problem.has_sinks() {
        true => push("tensor_lse_log2")?,
        false => 0,
    };
    Ok(StandardParams {
        delta,
        lse_log2,
        shape: shape(checked),
        window: checked.window(),
        scale: scale(checked),
        blocks: block_map(problem),
        lengths: match checked.has_lengths() {
            true => lengths::rows(problem),
            false => Default::default(),
        },
        ..Default::default()
    })
}

/// The kernel of Δ.
fn delta(checked: &Checked, params: StandardParams) -> Result<PlannedLaunch, Reason> {
    let problem = checked.problem();
    let variant = of_dtype(Kind::StandardDelta, checked)?;
    let blocks = (problem.seqlen_q() as u64).div_ceil(variant.tile_config.block_q.into());
    let heads = (problem.batch() * problem.heads_q()) as u64;
    let grid = grid("the number of blocks of rows", &[blocks, heads])?;
    Ok(PlannedLaunch::new(
        checked,
        variant,
        grid,
        Params::Standard(params),
    ))
}

/// The kernel of one gradient.
fn gradient(
    checked: &Checked,
    place: usize,
    pass: StandardParams,
) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    // Validation has refused gradients of tensors that have none.
    let parts = problem.edit_parts();
    let Some((read, edit)) = parts.and_then(|parts| parts.gradient_of(place).ok()) else {
        return Ok(None);
    };
    let variant = of_dtype(Kind::TensorGradient, checked)?;
    let each = |index, n: usize, other| match read.dim_of(index) {
        Some(_) => n as u32,
        None => other,
    };
    let heads = each(Index::KvHead, problem.heads_k(), 1);
    let params = TensorGradientParams {
        pass,
        gradient: 0,
        batch_stride: stride(problem, read, &[Index::Batch]),
        head_stride: stride(problem, read, &[Index::Head, Index::KvHead]),
        q_stride: stride(problem, read, &[Index::Query]),
        k_stride: stride(problem, read, &[Index::Key]),
        batches: each(Index::Batch, problem.batch(), 1),
        heads: each(Index::Head, problem.heads_q(), heads),
        place: place as u32,
        element: match parts.map(|parts| parts.tensors()[place].tensor.element) {
            Some(ElementType::F16) => GRADIENT_F16,
            Some(ElementType::Bf16) => GRADIENT_BF16,
            _ => GRADIENT_F32,
        },
    };
    let tile_config = &variant.tile_config;
    let tiles = |rows: usize, block: u32| (rows as u64).div_ceil(block.into());
    let factors = [
        tiles(problem.seqlen_q(), tile_config.block_q),
        tiles(problem.seqlen_k(), tile_config.block_k),
        params.batches.into(),
        params.heads.into(),
    ];
    let grid = grid("the number of tiles of the gradient", &factors)?;
    let params = Params::TensorGradient(params);
    let launch = PlannedLaunch::new(checked, variant, grid, params);
    Ok(Some(PlannedLaunch {
        edit: Some(*edit),
        ..launch
    }))
}

/// Elements of a contiguous gradient from one of an index to the next; 0 where no dimension has any of these.
fn stride(problem: &Problem, read: &ReadDims, indices: &[Index]) -> u64 {
    let dim = indices.iter().find_map(|&index| read.dim_of(index));
    let behind = dim.map(|dim| &read.dims()[dim + 1..]);
    let extents = |dims: &[Option<Index>]| -> u64 {
        dims.iter()
            .map(|&index| problem.extent_of(index) as u64)
            .product()
    };
    behind.map_or(0, extents)
}
