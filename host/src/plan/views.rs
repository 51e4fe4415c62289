//! Problem and layouts as fields of the kernels' parameters.

use ferroflash_kernels::params::{KernelParams, Params, Scale, Shape, Slot, TensorView};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::Variant;

use super::tensor_map::tensor_map;
use crate::arguments::Arguments;
use crate::tensor::Description;
use crate::validate::Checked;

/// Fills in sizes and strides of every tensor that the parameters have a place for. A tensor map has its box already; addresses
/// are filled in at launch. Kernels without an element type get elements of two bytes.
pub fn describe(mut params: Params, variant: &Variant, arguments: &Arguments) -> Params {
    let tensor = |argument| arguments.tensor(argument);
    let view = |tensor: &Description| match variant.dtype {
        Some(_) => view(tensor, |elems| elems),
        // Rows of elements of one byte begin at multiples of 16 bytes, too.
        None => view(tensor, |elems| {
            elems.saturating_mul(tensor.dtype.size_bytes()) / 2
        }),
    };
    params.slots(&mut |slot| match slot {
        Slot::Tensor(argument, place) => *place = tensor(argument).map(view).unwrap_or_default(),
        Slot::Map(argument, map) => {
            if let Some(tensor) = tensor(argument) {
                *map = tensor_map(tensor, map.box_rows, map.box_heads);
            }
        }
        Slot::Vector(..) | Slot::Workspace(_) => {}
    });
    params
}

/// Elements of two bytes in one of this many bytes.
fn halves(size_bytes: usize) -> usize {
    size_bytes / 2
}

/// Strides of a tensor, in what `count` makes of elements.
fn view(tensor: &Description, count: impl Fn(usize) -> usize) -> TensorView {
    // A stride that does not fit belongs to a dimension of at most one entry and is never multiplied by anything
    // but 0: validation checked the extent.
    let stride = |elems: usize| i64::try_from(count(elems)).unwrap_or(0);
    TensorView {
        base: 0,
        batch_stride: stride(tensor.layout.batch_stride),
        row_stride: stride(tensor.layout.row_stride),
        head_stride: stride(tensor.layout.head_stride),
    }
}

/// The constants of a kernel: those of the problem that it uses, and whether tensors have fewer columns than it.
pub fn spec(checked: &Checked, variant: &Variant) -> Spec {
    let spec = checked.spec().among(variant.capabilities());
    let problem = checked.problem();
    let columns = problem.head_dim().min(problem.head_dim_v());
    match variant.pads_columns(columns as u32) {
        true => spec.with(Constant::PadColumns),
        false => spec,
    }
}

/// Sizes; eligibility made sure that they fit.
pub fn shape(checked: &Checked) -> Shape {
    let problem = checked.problem();
    Shape {
        batch: problem.batch() as u32,
        heads_q: problem.heads_q() as u32,
        heads_k: problem.heads_k() as u32,
        group_size: problem.group_size() as u32,
        seqlen_q: problem.seqlen_q() as u32,
        seqlen_k: problem.seqlen_k() as u32,
        head_dim: problem.head_dim() as u32,
        head_dim_v: problem.head_dim_v() as u32,
    }
}

/// The same for a kernel without an element type: columns of two bytes.
pub fn shape_in_halves(checked: &Checked) -> Shape {
    let shape = shape(checked);
    let n = halves(checked.problem().dtype().size_bytes()) as u32;
    Shape {
        head_dim: shape.head_dim * n,
        head_dim_v: shape.head_dim_v * n,
        ..shape
    }
}

/// The scale and its base-2 twin.
pub fn scale(checked: &Checked) -> Scale {
    let scale = checked.softmax_scale();
    Scale {
        scale,
        scale_log2: scale_log2(scale),
    }
}

/// A unit of scores, in units of the exponents of 2: rounded once.
pub fn scale_log2(unit: f32) -> f32 {
    (f64::from(unit) * std::f64::consts::LOG2_E) as f32
}
