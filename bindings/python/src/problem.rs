//! Attention problems: sizes, element type, mask, scale, from the shapes of q and k.

use ferroflash::error::ProblemError;
use ferroflash::expression::{Expression, Type};
use ferroflash::validate::Pass;
use ferroflash::{Attention, Dtype, Error, Fp8, Fp8Kv, Fp8Sums, Mask, Pages, Precision, SplitKv};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::argument::argument;
use crate::device::device;
use crate::error::to_py;
use crate::expression::{Mask as MaskExpression, Score};

/// One attention problem. Tensors are `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]`.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Problem {
    pub(crate) problem: ferroflash::Problem,
    /// The inputs of its expressions.
    pub(crate) taken: Taken,
}

#[pymethods]
impl Problem {
    /// `batch` and the largest lengths are those of the sequences if q or k is packed; otherwise they come from the shapes. `left` and `right` are
    /// numbers of keys before and after a query's position, aligned to the bottom right; `None`: no limit. With `columns` keys and values are a pool
    /// of pages, `[n_pages, page_size, heads, head_dim]`, indexed by a table of this many columns. `split_kv` is "auto", "never", or the keys of a
    /// split. With `values_in_keys` the value of a key is this many first columns of its row. `fp8_kv` is "per_sequence" or "per_page": keys and
    /// values in e4m3, and the kind of their scales. `fp8` is "per_tensor", "per_head" or "per_block": q, k and v in e4m3, likewise; `dtype` is then that of o, and `fp8_sums` is "two_levels" or "one_level". `score` and `mask` are expressions. `inputs` are the names of
    /// optional inputs that calls give. `dropout_p` is the probability that a weight is dropped. `precision` is "tensor" or "full": how exact products of float32 are on a GPU.
    #[new]
    #[pyo3(signature = (dtype, shape_q, shape_k, *, batch=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, left=None, right=None,
                        columns=None, split_kv="auto", values_in_keys=None, fp8_kv=None, fp8=None, fp8_sums="two_levels", score=None, mask=None, inputs=Vec::new(), dropout_p=0.0,
                        precision="tensor"))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        dtype: &str,
        shape_q: Vec<usize>,
        shape_k: Vec<usize>,
        batch: Option<usize>,
        max_seqlen_q: Option<usize>,
        max_seqlen_k: Option<usize>,
        softmax_scale: Option<f32>,
        left: Option<usize>,
        right: Option<usize>,
        columns: Option<usize>,
        split_kv: &str,
        values_in_keys: Option<usize>,
        fp8_kv: Option<&str>,
        fp8: Option<&str>,
        fp8_sums: &str,
        score: Option<&Score>,
        mask: Option<&MaskExpression>,
        inputs: Vec<String>,
        dropout_p: f32,
        precision: &str,
    ) -> PyResult<Problem> {
        let q = Side::of("q", &shape_q, max_seqlen_q)?;
        let k = match columns {
            None => Side::of("k", &shape_k, max_seqlen_k)?,
            Some(columns) => Side::in_pages(&shape_k, columns, max_seqlen_k)?,
        };
        let batch = match (batch, q.batch.or(k.batch)) {
            (Some(batch), _) | (None, Some(batch)) => batch,
            (None, None) => {
                return Err(PyValueError::new_err(
                    "batch is missing; it is needed where q and k are packed",
                ));
            }
        };
        let window = match (left, right) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        };
        let builder = ferroflash::Problem::builder(dtype_of(dtype)?)
            .batch(batch)
            .seqlen_q(q.seqlen)
            .seqlen_k(k.seqlen)
            .heads_q(q.heads)
            .heads_k(k.heads)
            .head_dim(q.head_dim)
            .precision(precision_of(precision)?)
            .mask(window)
            .split_kv(split_of(split_kv)?);
        let builder = softmax_scale.map_or(builder, |scale| builder.softmax_scale(scale));
        let builder = q.total.map_or(builder, |total| builder.packed_q(total));
        let builder = k.total.map_or(builder, |total| builder.packed_k(total));
        let builder = k.pages.map_or(builder, |pages| builder.pages(pages));
        let builder = match values_in_keys {
            None => builder,
            Some(columns) => builder.head_dim_v(columns).values_in_keys(),
        };
        let builder = match fp8_kv {
            None => builder,
            Some(scales) => builder.fp8_kv(fp8_kv_of(scales)?),
        };
        let builder = match fp8 {
            None => builder,
            Some(scales) => builder
                .fp8(one_of("fp8", scales, &FP8)?)
                .fp8_sums(one_of("fp8_sums", fp8_sums, &FP8_SUMS)?),
        };
        let builder = score.map_or(builder, |score| builder.score(score.0));
        let builder = mask.map_or(builder, |mask| builder.mask_expression(mask.0));
        let mut builder = builder;
        for name in &inputs {
            builder = builder.giving(argument(name)?);
        }
        let problem = builder.dropout(dropout_p).build().map_err(to_py)?;
        let taken = Taken::of([
            score.map(|score| score.0.expression()),
            mask.map(|mask| mask.0.expression()),
        ]);
        Ok(Problem { problem, taken })
    }

    /// The shape of the gradient of a tensor that the score reads. For a tensor without one, a `NotImplementedError` says why.
    fn score_gradient_shape(&self, name: &str) -> PyResult<Vec<usize>> {
        let shape = self.problem.score_gradient_shape(name);
        shape.map_err(|error| to_py(ProblemError::Score(error)))
    }

    /// What would run on a device (`None`: the processor), and why every other candidate would not.
    #[pyo3(signature = (ordinal=None, *, backward=false))]
    fn explain(&self, ordinal: Option<u32>, backward: bool) -> PyResult<String> {
        let pass = if backward {
            Pass::Backward
        } else {
            Pass::Forward
        };
        let attention = self.attention(ordinal).map_err(to_py)?;
        Ok(attention.explain(pass).map_err(to_py)?.to_string())
    }
}

impl Problem {
    /// The problem on a device, its sizes checked.
    pub(crate) fn attention(&self, ordinal: Option<u32>) -> Result<Attention, Error> {
        Attention::new(&device(ordinal)?, self.problem)
    }
}

/// The inputs of a problem's expressions, by name: those of the score, then the others of the mask.
#[derive(Clone, Default)]
pub(crate) struct Taken {
    pub(crate) params: Vec<(&'static str, Type)>,
    pub(crate) tensors: Vec<&'static str>,
}

impl Taken {
    fn of(expressions: [Option<&'static Expression>; 2]) -> Taken {
        let mut taken = Taken::default();
        for expression in expressions.into_iter().flatten() {
            for param in expression.params() {
                let name = param.name.as_str();
                if !taken.params.iter().any(|(other, _)| *other == name) {
                    taken.params.push((name, param.ty));
                }
            }
            for tensor in expression.tensors() {
                let name = tensor.name.as_str();
                if !taken.tensors.contains(&name) {
                    taken.tensors.push(name);
                }
            }
        }
        taken
    }
}

/// The sizes in a shape of q or k.
struct Side {
    batch: Option<usize>,
    seqlen: usize,
    total: Option<usize>,
    heads: usize,
    head_dim: usize,
    pages: Option<Pages>,
}

impl Side {
    fn of(argument: &str, shape: &[usize], max_seqlen: Option<usize>) -> PyResult<Side> {
        match *shape {
            [batch, seqlen, heads, head_dim] => Ok(Side {
                batch: Some(batch),
                seqlen,
                total: None,
                heads,
                head_dim,
                pages: None,
            }),
            [total, heads, head_dim] => Ok(Side {
                batch: None,
                seqlen: max_seqlen.ok_or_else(|| {
                    PyValueError::new_err(format!(
                        "max_seqlen_{argument} is missing; it is needed where {argument} is packed"
                    ))
                })?,
                total: Some(total),
                heads,
                head_dim,
                pages: None,
            }),
            _ => Err(PyValueError::new_err(format!(
                "{argument} has the shape {shape:?}; allowed: [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]"
            ))),
        }
    }

    /// k in the pages of a pool: by default a sequence is as long as the pages of a row of the table.
    fn in_pages(shape: &[usize], columns: usize, max_seqlen: Option<usize>) -> PyResult<Side> {
        let pages = pages_of("k", shape, columns)?;
        let longest = columns.saturating_mul(pages.page_size());
        let side = Side::of("k", shape, Some(longest))?;
        Ok(Side {
            batch: None,
            seqlen: max_seqlen.unwrap_or(longest),
            pages: Some(pages),
            ..side
        })
    }
}

/// The pages of a pool `[n_pages, page_size, heads, head_dim]`, indexed by a table of this many columns.
pub(crate) fn pages_of(argument: &str, shape: &[usize], columns: usize) -> PyResult<Pages> {
    match *shape {
        [n_pages, page_size, _, _] => Ok(Pages::new(n_pages, page_size).columns(columns)),
        _ => Err(PyValueError::new_err(format!(
            "{argument} has the shape {shape:?}; allowed in pages: [n_pages, page_size, heads, head_dim]"
        ))),
    }
}

fn split_of(text: &str) -> PyResult<SplitKv> {
    let refused = |text| PyValueError::new_err(format!("split_kv: {text}"));
    text.parse().map_err(refused)
}

/// How exact products are, by its name.
fn precision_of(name: &str) -> PyResult<Precision> {
    name.parse()
        .map_err(|error| PyValueError::new_err(format!("precision is {error}")))
}

/// The value of this name among those that an argument may have.
fn one_of<T: Copy>(argument: &str, given: &str, allowed: &[(&str, T)]) -> PyResult<T> {
    let found = allowed.iter().find(|(name, _)| *name == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        PyValueError::new_err(format!("{argument} is {given}; allowed: {names}"))
    })
}

/// Scales of keys and values in 8 bits.
const FP8_KV: [(&str, Fp8Kv); 2] = [
    ("per_sequence", Fp8Kv::PerSequence),
    ("per_page", Fp8Kv::PerPage),
];

pub(crate) fn fp8_kv_of(name: &str) -> PyResult<Fp8Kv> {
    one_of("fp8_kv", name, &FP8_KV)
}

/// Scales of q, k and v in 8 bits.
const FP8: [(&str, Fp8); 3] = [
    ("per_tensor", Fp8::PerTensor),
    ("per_head", Fp8::PerHead),
    ("per_block", Fp8::PerBlock),
];

/// Their sums.
const FP8_SUMS: [(&str, Fp8Sums); 2] = [
    ("two_levels", Fp8Sums::TwoLevels),
    ("one_level", Fp8Sums::OneLevel),
];

pub(crate) fn dtype_of(name: &str) -> PyResult<Dtype> {
    match name {
        "bfloat16" => Ok(Dtype::Bf16),
        "float16" => Ok(Dtype::F16),
        "float32" => Ok(Dtype::F32),
        _ => Err(PyTypeError::new_err(format!(
            "dtype is {name}; allowed: bfloat16, float16, float32"
        ))),
    }
}
