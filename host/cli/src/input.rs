//! The input file: tensors, metadata, stored results; everything about it is checked before anything is computed.

use std::collections::HashMap;
use std::path::Path;

use ferroflash::Dtype;
use ferroflash::arguments::Argument;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::block_mask::{self, StoredMap};
use crate::expressions::Other;
use crate::failure::Failure;
use crate::lengths::{Lengths, VECTORS};
use crate::mask::MaskWords;

/// Names of results, in the order in which they are printed.
pub const RESULTS: [&str; 6] = ["o", "lse", "d_q", "d_k", "d_v", "d_sinks"];

/// Names of what attention reads, beside lengths.
const READ: [&str; 7] = ["q", "k", "v", "d_o", "d_lse", "block_mask", "sinks"];

/// What was read.
#[derive(Debug)]
pub struct Input {
    /// Element type of q, k, v and d_o.
    pub dtype: Dtype,
    /// Queries: `[batch, seqlen_q, heads_q, head_dim]`; packed, `[total_q, heads_q, head_dim]`.
    pub q: Stored,
    /// Keys: `[batch, seqlen_k, heads_k, head_dim]`; packed, `[total_k, heads_k, head_dim]`.
    pub k: Stored,
    /// Values, as the keys.
    pub v: Stored,
    /// Gradient of o, where the file has it.
    pub d_o: Option<Stored>,
    /// Gradient of lse, where the file has it: `[batch, heads_q, seqlen_q]`; packed, `[heads_q, total_q]`.
    pub d_lse: Option<Vec<f32>>,
    /// Where sequences of different lengths lie.
    pub lengths: Lengths,
    /// Block mask.
    pub block_mask: Option<StoredMap>,
    /// The sink of each query head, where heads have some.
    pub sinks: Option<Vec<f32>>,
    /// Tensors that are none of attention's own: what expressions may read.
    pub others: HashMap<String, Other>,
    /// Stored results by name, as f32.
    pub expected: HashMap<&'static str, Vec<f32>>,
    /// The metadata as they stand in the file.
    pub metadata: HashMap<String, String>,
    /// Metadata `causal`, `window_left`, `window_right` and `prefix`.
    pub mask: MaskWords,
    /// Metadata `softmax_scale`.
    pub softmax_scale: Option<f32>,
}

impl Input {
    /// Queries of a batch entry, or sequence, as far as lengths make sense; none of one that there is not.
    pub fn seqlen_q(&self, batch: usize) -> usize {
        let number = |argument, at: usize| {
            let vector: &[i32] = self.lengths.get(argument)?;
            let number = vector.get(at).copied().unwrap_or(0);
            Some(usize::try_from(number).unwrap_or(0))
        };
        let start = number(Argument::CuSeqlensQ, batch);
        let end = number(Argument::CuSeqlensQ, batch.saturating_add(1));
        let room = match (start, end) {
            (Some(start), Some(end)) => end.saturating_sub(start),
            _ => self.q.shape[1],
        };
        number(Argument::SeqUsedQ, batch).map_or(room, |used| used.min(room))
    }
}

/// One tensor's shape and bytes.
#[derive(Debug)]
pub struct Stored {
    /// As it is stored.
    pub dims: Vec<usize>,
    /// `[batch, seqlen, heads, head_dim]`; packed, `[1, total, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

/// Reads and checks a file.
pub fn read(path: &Path) -> Result<Input, Failure> {
    let io = |source| Failure::Io {
        path: path.to_owned(),
        source,
    };
    let format = |source| Failure::Format {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::read(path).map_err(io)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(format)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(format)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    contents(&tensors, metadata).map_err(|what| Failure::Contents {
        path: path.to_owned(),
        what,
    })
}

fn contents(tensors: &SafeTensors, metadata: HashMap<String, String>) -> Result<Input, String> {
    supported(&metadata)?;
    let q = tensors
        .tensor("q")
        .map_err(|_| "tensor q is missing".to_owned())?;
    let dtype = dtype_of("q", &q)?;
    let lengths = lengths(tensors)?;
    let like_q = |name| {
        stored(
            tensors,
            name,
            dtype,
            lengths.get(Argument::CuSeqlensQ).is_some(),
        )
    };
    let like_k = |name| {
        stored(
            tensors,
            name,
            dtype,
            lengths.get(Argument::CuSeqlensK).is_some(),
        )
    };
    let (q, k, v) = (like_q("q")?, like_k("k")?, like_k("v")?);
    let has_d_o = tensors.names().contains(&"d_o");
    let d_o = if has_d_o { Some(like_q("d_o")?) } else { None };
    let d_lse = match tensors.tensor("d_lse") {
        Ok(tensor) => Some(lse_gradient(&tensor, &q)?),
        Err(_) => None,
    };
    let sinks = match tensors.tensor("sinks") {
        Ok(tensor) => Some(expected_values("sinks", &tensor, [&q, &k, &v])?),
        Err(_) => None,
    };
    let mut expected = HashMap::new();
    for name in RESULTS {
        if let Ok(tensor) = tensors.tensor(name) {
            expected.insert(name, expected_values(name, &tensor, [&q, &k, &v])?);
        }
    }
    let side = |name| parsed(&metadata, name, "a number of keys, or -1");
    let mask = MaskWords {
        causal: parsed(&metadata, "causal", "true or false")?,
        window_left: side("window_left")?,
        window_right: side("window_right")?,
        prefix: parsed(&metadata, "prefix", "a number of keys")?,
    };
    let softmax_scale = parsed(&metadata, "softmax_scale", "a number")?;
    Ok(Input {
        dtype,
        q,
        k,
        v,
        d_o,
        d_lse,
        lengths,
        block_mask: block_mask::read(tensors, &metadata)?,
        sinks,
        others: others(tensors),
        expected,
        metadata,
        mask,
        softmax_scale,
    })
}

/// Tensors of other names than attention's own.
fn others(tensors: &SafeTensors) -> HashMap<String, Other> {
    let is_own = |name: &str| {
        let vectors = VECTORS.map(Argument::name);
        [&READ[..], &RESULTS, &vectors].concat().contains(&name)
    };
    let others = tensors.tensors().into_iter();
    let others = others.filter(|(name, _)| !is_own(name));
    others
        .filter_map(|(name, tensor)| Some((name, Other::read(&tensor)?)))
        .collect()
}

/// Refuses what the metadata ask for and nobody here computes.
fn supported(metadata: &HashMap<String, String>) -> Result<(), String> {
    for (name, only) in [("layout", "bshd"), ("lse_layout", "bhs")] {
        match metadata.get(name) {
            Some(value) if value != only => {
                return Err(format!(
                    "metadata {name} is {value:?}; only {only:?} is supported"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A metadata value of a type.
fn parsed<T: std::str::FromStr>(
    metadata: &HashMap<String, String>,
    name: &str,
    allowed: &str,
) -> Result<Option<T>, String> {
    match metadata.get(name) {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("metadata {name} is {text:?}; it must be {allowed}")),
        },
    }
}

/// The vectors of lengths that the file has.
fn lengths(tensors: &SafeTensors) -> Result<Lengths, String> {
    let mut lengths = Lengths::default();
    for argument in VECTORS {
        if let Ok(tensor) = tensors.tensor(argument.name()) {
            lengths.set(argument, integers(argument.name(), &tensor)?);
        }
    }
    Ok(lengths)
}

/// A vector of i32 or i64, as i32.
fn integers(name: &str, tensor: &TensorView) -> Result<Vec<i32>, String> {
    if tensor.shape().len() != 1 {
        let shape = tensor.shape();
        return Err(format!(
            "tensor {name} has shape {shape:?}; needed: a vector"
        ));
    }
    match tensor.dtype() {
        safetensors::Dtype::I32 => {
            let (numbers, _) = tensor.data().as_chunks();
            Ok(numbers.iter().copied().map(i32::from_le_bytes).collect())
        }
        safetensors::Dtype::I64 => {
            let (numbers, _) = tensor.data().as_chunks();
            let number = |bytes| i32::try_from(i64::from_le_bytes(bytes));
            let numbers: Result<Vec<i32>, _> = numbers.iter().copied().map(number).collect();
            numbers.map_err(|_| format!("tensor {name} has a number that 32 bits do not hold"))
        }
        other => Err(format!("tensor {name} is {other:?}; allowed: I32, I64")),
    }
}

fn stored(tensors: &SafeTensors, name: &str, dtype: Dtype, packed: bool) -> Result<Stored, String> {
    let tensor = tensors
        .tensor(name)
        .map_err(|_| format!("tensor {name} is missing"))?;
    let given = dtype_of(name, &tensor)?;
    if given != dtype {
        return Err(format!("tensor {name} is {given}, q is {dtype}"));
    }
    let (shape, needed) = match (packed, tensor.shape()) {
        (false, &[batch, seqlen, heads, head_dim]) => (Some([batch, seqlen, heads, head_dim]), ""),
        (true, &[total, heads, head_dim]) => (Some([1, total, heads, head_dim]), ""),
        (false, _) => (None, "[batch, seqlen, heads, head_dim]"),
        (true, _) => (None, "[total, heads, head_dim], beside its cu_seqlens"),
    };
    let dims = tensor.shape().to_vec();
    let shape =
        shape.ok_or_else(|| format!("tensor {name} has shape {dims:?}; needed: {needed}"))?;
    Ok(Stored {
        dims,
        shape,
        bytes: tensor.data().to_vec(),
    })
}

/// The gradient of lse is f32, as lse is, whatever the type of q.
fn lse_gradient(tensor: &TensorView, q: &Stored) -> Result<Vec<f32>, String> {
    let dtype = dtype_of("d_lse", tensor)?;
    if dtype != Dtype::F32 {
        return Err(format!("tensor d_lse is {dtype}; needed: {}", Dtype::F32));
    }
    let needed = lse_shape(q);
    if tensor.shape() != needed {
        return Err(format!(
            "tensor d_lse has shape {:?}; needed: {needed:?}",
            tensor.shape()
        ));
    }
    Ok(elements(tensor.data()))
}

/// `[batch, heads_q, seqlen_q]`; packed, `[heads_q, total_q]`.
pub fn lse_shape(q: &Stored) -> Vec<usize> {
    match *q.dims {
        [total_q, heads_q, _] => vec![heads_q, total_q],
        _ => {
            let [batch, seqlen_q, heads_q, _] = q.shape;
            vec![batch, heads_q, seqlen_q]
        }
    }
}

/// That of q, with the columns of v.
pub fn o_shape(q: &Stored, v: &Stored) -> Vec<usize> {
    let mut shape = q.dims.clone();
    if let Some(columns) = shape.last_mut() {
        *columns = v.shape[3];
    }
    shape
}

fn dtype_of(name: &str, tensor: &TensorView) -> Result<Dtype, String> {
    match tensor.dtype() {
        safetensors::Dtype::BF16 => Ok(Dtype::Bf16),
        safetensors::Dtype::F16 => Ok(Dtype::F16),
        safetensors::Dtype::F32 => Ok(Dtype::F32),
        other => Err(format!(
            "tensor {name} is {other:?}; allowed: BF16, F16, F32"
        )),
    }
}

/// A stored result, or sinks, as f32, whichever float it is stored as.
fn expected_values(
    name: &str,
    tensor: &TensorView,
    [q, k, v]: [&Stored; 3],
) -> Result<Vec<f32>, String> {
    let needed = match name {
        "lse" => lse_shape(q),
        "sinks" | "d_sinks" => vec![q.shape[2]],
        "o" => o_shape(q, v),
        "d_q" => q.dims.clone(),
        "d_v" => v.dims.clone(),
        _ => k.dims.clone(),
    };
    if tensor.shape() != needed {
        return Err(format!(
            "stored {name} has shape {:?}; needed: {needed:?}",
            tensor.shape()
        ));
    }
    Ok(match dtype_of(name, tensor)? {
        Dtype::Bf16 => floats::<half::bf16>(tensor.data()),
        Dtype::F16 => floats::<half::f16>(tensor.data()),
        Dtype::F32 => floats::<f32>(tensor.data()),
    })
}

fn floats<T: Bytes>(bytes: &[u8]) -> Vec<f32> {
    elements::<T>(bytes)
        .into_iter()
        .map(|element| element.to_f32())
        .collect()
}

/// An element that files hold.
pub trait Bytes: ferroflash::Element {
    /// From its bytes in a file, as many as it has.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Appends its bytes.
    fn push_bytes(self, bytes: &mut Vec<u8>);
}

macro_rules! bytes {
    ($type:ty) => {
        impl Bytes for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                <$type>::from_le_bytes(array)
            }
            fn push_bytes(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    };
}
bytes!(half::bf16);
bytes!(half::f16);
bytes!(f32);

/// The elements that these bytes are.
pub fn elements<T: Bytes>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(size_of::<T>())
        .map(T::from_bytes)
        .collect()
}
