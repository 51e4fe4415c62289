//! Whether a kernel can work on a problem's tensors on a device: each check a function, each refusal a [`Reason`].

use ferroflash_kernels::config::MLA_COLUMNS;
use ferroflash_kernels::params::{
    KernelParams, MAX_ROWS, SCALE_ROWS, Slot, TmaBackwardParams, TmaForwardParams,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{self, HEAD_DIM_MULTIPLE, HeadDims, Kind, VARIANTS, Variant};

use super::flash2::decode;
use super::{DeviceInfo, Reason, tensor_map};
use crate::arguments::{Argument, Arguments};
use crate::dtype::Dtype;
use crate::problem::{Fp8, Pages};
use crate::tensor::Description;
use crate::validate::{Checked, Pass};

/// Kernels read 16 bytes at a time.
const ALIGNMENT_BYTES: u64 = 16;

/// Whether this kernel can work on these tensors on this device.
///
/// The [module](mod@crate::plan) has an example.
pub fn eligible(variant: &Variant, checked: &Checked, device: &DeviceInfo) -> Result<(), Reason> {
    dtype(variant, checked)?;
    columns(variant, checked)?;
    compute_capability(variant, device)?;
    shared_memory(variant, device)?;
    block_mask(variant, checked)?;
    lengths(variant, checked)?;
    split_kv(variant, checked)?;
    pages(variant, checked)?;
    score(variant, checked)?;
    dropout(variant, checked)?;
    scale_blocks(variant, checked)?;
    sizes(checked)?;
    if matches!(variant.kind, Kind::Forward | Kind::ForwardE4m3) {
        decode::eligible(variant, checked.problem())?;
    }
    alignment(checked.arguments())?;
    tensor_maps(variant, checked)
}

fn dtype(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    let problem = checked.problem();
    let given = problem.dtype();
    let needed = match (problem.fp8(), variant.kind) {
        (Some(_), Kind::TmaForward) => variants::Dtype::E4m3,
        _ => given.of_kernels(),
    };
    match variant.dtype {
        Some(dtype) if dtype != needed => Err(Reason::Dtype { given }),
        _ => Ok(()),
    }
}

/// Whether each of these kinds has a kernel for the element type: a kind that several algorithms use may have kernels for more types than the others.
pub(super) fn dtype_of_all(kinds: &[Kind], checked: &Checked) -> Result<(), Reason> {
    let takes = |kind: &Kind| {
        let mut rows = VARIANTS.iter().filter(|row| row.kind == *kind);
        rows.any(|row| dtype(row, checked).is_ok())
    };
    match kinds.iter().all(takes) {
        true => Ok(()),
        false => Err(refused_dtype(checked)),
    }
}

/// The refusal of a type that no kernel takes. An algorithm's kernels for numbers in 8 bits may take fewer types than its others.
fn refused_dtype(checked: &Checked) -> Reason {
    let given = checked.problem().dtype();
    let (cache, all) = (checked.problem().fp8_kv(), checked.problem().fp8());
    match (cache, all) {
        (Some(_), _) => Reason::DtypeBeside {
            given,
            beside: "keys and values in e4m3",
        },
        (None, Some(_)) => Reason::DtypeBeside {
            given,
            beside: "q, k and v in e4m3",
        },
        (None, None) => Reason::Dtype { given },
    }
}

pub(super) fn head_dim(served: HeadDims, given: usize) -> Result<(), Reason> {
    let given = given as u32;
    let HeadDims { multiple, most } = served;
    match served.serves(given) {
        true => Ok(()),
        false => Err(Reason::HeadDimMultiple {
            given,
            multiple,
            most,
        }),
    }
}

/// Kernels pad keys and values to a head_dim each, except those for keys in 8 bits. One kernel takes values that are the first columns of the keys.
fn columns(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    let problem = checked.problem();
    let (given, needed) = (problem.head_dim_v() as u32, problem.head_dim() as u32);
    match variant.kind {
        // It reads no keys.
        Kind::Combine => return head_dim(variant.head_dims(), problem.head_dim_v()),
        _ => head_dim(variant.head_dims(), problem.head_dim())?,
    }
    match (problem.values_in_keys(), variant.kind) {
        (true, Kind::TmaForwardMla) => {
            let most = 2 * MLA_COLUMNS;
            if given.is_multiple_of(HEAD_DIM_MULTIPLE) && given <= most {
                return Ok(());
            }
            Err(Reason::HeadDimVMultiple {
                given,
                multiple: HEAD_DIM_MULTIPLE,
                most,
            })
        }
        (true, _) => Err(Reason::ValuesInKeys),
        (false, Kind::ForwardE4m3) if given != needed => Err(Reason::HeadDimV { given, needed }),
        (false, _) => match head_dim(variant.head_dims_v(), problem.head_dim_v()) {
            Err(Reason::HeadDimMultiple {
                given,
                multiple,
                most,
            }) => Err(Reason::HeadDimVMultiple {
                given,
                multiple,
                most,
            }),
            other => other,
        },
    }
}

pub(super) fn compute_capability(variant: &Variant, device: &DeviceInfo) -> Result<(), Reason> {
    let (given, needed) = (device.compute_capability, variant.arch.compute_capability());
    match variant.arch.runs_on(given) {
        true => Ok(()),
        false if given < needed => Err(Reason::ComputeCapability { given, needed }),
        false => Err(Reason::OtherArchitecture { given, needed }),
    }
}

fn shared_memory(variant: &Variant, device: &DeviceInfo) -> Result<(), Reason> {
    let (given, needed) = (
        device.shared_bytes_per_block,
        variant.tile_config.shared_bytes,
    );
    if needed <= given {
        Ok(())
    } else {
        Err(Reason::SharedMemory { given, needed })
    }
}

/// Kernels count rows, heads and tiles with 32 bits, with room for sums of a few of them.
fn sizes(checked: &Checked) -> Result<(), Reason> {
    let problem = checked.problem();
    // Where sequences have lengths of their own, rows are counted from a place in the middle, too.
    let limit = match checked.has_lengths() {
        true => u64::from(MAX_ROWS / 2),
        false => u64::from(MAX_ROWS),
    };
    let heads =
        (problem.batch() as u64).saturating_mul(problem.heads_q().max(problem.heads_k()) as u64);
    let [scales_q, scales_k] = problem.n_scales();
    let pages = |size: fn(Pages) -> usize| problem.pages().map_or(0, size) as u64;
    let sizes = [
        ("seqlen_q", problem.seqlen_q() as u64),
        ("seqlen_k", problem.seqlen_k() as u64),
        ("total_q", problem.total_q().unwrap_or_default() as u64),
        ("total_k", problem.total_k().unwrap_or_default() as u64),
        ("batch", problem.batch() as u64),
        ("heads_q", problem.heads_q() as u64),
        ("batch · heads", heads),
        ("the map of the block mask", problem.n_blocks()),
        ("n_pages", pages(|pages| pages.n_pages())),
        ("page_size", pages(|pages| pages.page_size())),
        ("the table of pages", problem.n_table_entries()),
        ("scales of q", scales_q),
        ("scales of k", scales_k),
    ];
    match sizes.into_iter().find(|&(_, given)| given > limit) {
        Some((what, given)) => Err(Reason::TooLarge { what, given, limit }),
        None => Ok(()),
    }
}

/// Not every kernel's tiles support a block mask.
fn block_mask(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    if checked.problem().block_mask().is_none() || variant.takes(Constant::BlockMask) {
        return Ok(());
    }
    Err(Reason::BlockMask {
        block_q: variant.tile_config.block_q,
        block_k: variant.tile_config.block_k,
    })
}

/// flash1's kernels do not read lengths.
fn lengths(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    match checked.has_lengths() && !variant.capabilities().has(Constant::Lengths) {
        true => Err(Reason::Lengths),
        false => Ok(()),
    }
}

/// Few forward kernels divide keys.
fn split_kv(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    let asked = checked.problem().split_kv().keys().is_some() && checked.pass() != Pass::Backward;
    if !asked || variant.capabilities().has(Constant::SplitKv) {
        return Ok(());
    }
    // Other types have kernels beside this one.
    Err(match checked.problem().dtype() {
        given @ Dtype::F32 => Reason::DtypeBeside {
            given,
            beside: "split_kv",
        },
        _ => Reason::SplitKv,
    })
}

/// Few forward kernels find keys and values in pages.
fn pages(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    match checked.problem().pages() {
        Some(_) if !variant.capabilities().has(Constant::Pages) => Err(Reason::Pages),
        _ => Ok(()),
    }
}

/// Not every kernel that looks at scores can edit them.
fn score(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    let problem = checked.problem();
    let asked = problem.edit_parts().is_some();
    if !asked || variant.takes(Constant::Score) {
        return Ok(());
    }
    let beside = match (problem.fp8_kv(), variant.kind, problem.values_in_keys()) {
        (Some(_), ..) => Some("keys and values in 8 bits"),
        (None, Kind::ForwardE4m3, _) => Some("q, k and v in 8 bits"),
        (None, _, true) => Some("values in the keys"),
        (None, _, false) => None,
    };
    Err(Reason::Score { beside })
}

/// Not every kernel can drop weights.
fn dropout(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    match checked.problem().dropout() {
        Some(_) if !variant.takes(Constant::Dropout) => Err(Reason::Dropout),
        _ => Ok(()),
    }
}

/// Where scales are of blocks, the keys of a tile have one.
fn scale_blocks(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    match checked.problem().fp8() {
        Some(Fp8::PerBlock) if !variant.takes(Constant::ScaleBlocks) => Err(Reason::ScaleBlocks {
            block_k: variant.tile_config.block_k,
            rows: SCALE_ROWS,
        }),
        _ => Ok(()),
    }
}

pub(super) fn alignment(arguments: &Arguments) -> Result<(), Reason> {
    let mut tensors = arguments.tensors();
    tensors.try_for_each(|(argument, tensor)| aligned(argument, tensor))
}

/// Tensor maps can describe the tensors that the kernel copies with them.
fn tensor_maps(variant: &Variant, checked: &Checked) -> Result<(), Reason> {
    let mut outcome = Ok(());
    let mut check = |slot: Slot| {
        if let Slot::Map(argument, _) = slot
            && let Some(tensor) = checked.arguments().tensor(argument)
            && outcome.is_ok()
        {
            outcome = tensor_map::describable(argument, tensor);
        }
    };
    match variant.kind {
        Kind::TmaForward | Kind::TmaForwardMla => TmaForwardParams::default().slots(&mut check),
        Kind::TmaBackward => TmaBackwardParams::default().slots(&mut check),
        _ => {}
    }
    outcome
}

/// The alignment that 16-byte copies need; the stride of an empty dimension, or of a single entry, is ignored.
fn aligned(argument: Argument, tensor: &Description) -> Result<(), Reason> {
    let layout = &tensor.layout;
    if layout.shape().contains(&0) {
        return Ok(());
    }
    if !tensor.address.is_multiple_of(ALIGNMENT_BYTES) {
        return Err(Reason::BaseAlignment {
            argument,
            address: tensor.address,
        });
    }
    let multiple = ALIGNMENT_BYTES / tensor.dtype.size_bytes() as u64;
    let steps = [
        (layout.batch, layout.batch_stride),
        (layout.seqlen, layout.row_stride),
        (layout.heads, layout.head_stride),
    ];
    match steps
        .into_iter()
        .find(|&(n, stride)| n > 1 && !(stride as u64).is_multiple_of(multiple))
    {
        Some((_, stride)) => Err(Reason::StrideAlignment {
            argument,
            stride: stride as u64,
        }),
        None => Ok(()),
    }
}
