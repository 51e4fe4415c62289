//! Problem and layouts as the kernels' parameters spell them.

use ferroflash_kernels::params::{Scale, Shape, TensorView};

use crate::tensor::Description;
use crate::validate::Checked;

/// Strides of a tensor; its address is filled in at launch.
pub fn view(tensor: &Description) -> TensorView {
    // A stride that does not fit belongs to a dimension of at most one entry and is never multiplied by anything
    // but 0: validation checked the extent.
    let stride = |elems: usize| i64::try_from(elems).unwrap_or(0);
    TensorView {
        base: 0,
        batch_stride: stride(tensor.layout.batch_stride),
        row_stride: stride(tensor.layout.row_stride),
        head_stride: stride(tensor.layout.head_stride),
    }
}

/// Sizes; eligibility made sure that they fit.
pub fn shape(checked: &Checked) -> Shape {
    let problem = checked.problem();
    Shape {
        batch: problem.batch as u32,
        heads_q: problem.heads_q as u32,
        heads_k: problem.heads_k as u32,
        group_size: problem.group_size() as u32,
        seqlen_q: problem.seqlen_q as u32,
        seqlen_k: problem.seqlen_k as u32,
        head_dim: problem.head_dim as u32,
        reserved: 0,
    }
}

/// The scale and its base-2 twin, rounded once.
pub fn scale(checked: &Checked) -> Scale {
    let scale = checked.softmax_scale();
    Scale {
        scale,
        scale_log2: (f64::from(scale) * std::f64::consts::LOG2_E) as f32,
    }
}
