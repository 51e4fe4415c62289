//! The input file: tensors, metadata, stored results; everything about it is checked before anything is computed.

use std::collections::HashMap;
use std::path::Path;

use ferroflash::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::arguments::Side;
use crate::failure::Failure;

/// Names of results, in the order in which they are printed.
pub const RESULTS: [&str; 5] = ["o", "lse", "d_q", "d_k", "d_v"];

/// What was read.
#[derive(Debug)]
pub struct Input {
    /// Element type of q, k, v and d_o.
    pub dtype: Dtype,
    /// Queries: `[batch, seqlen_q, heads_q, head_dim]`.
    pub q: Stored,
    /// Keys: `[batch, seqlen_k, heads_k, head_dim]`.
    pub k: Stored,
    /// Values, as the keys.
    pub v: Stored,
    /// Gradient of o, where the file has it.
    pub d_o: Option<Stored>,
    /// Gradient of lse, where the file has it: `[batch, heads_q, seqlen_q]`.
    pub d_lse: Option<Vec<f32>>,
    /// Stored results by name, as f32.
    pub expected: HashMap<&'static str, Vec<f32>>,
    /// The metadata as they stand in the file.
    pub metadata: HashMap<String, String>,
    /// Metadata `causal`.
    pub causal: Option<bool>,
    /// Metadata `window_left` and `window_right`.
    pub window: [Option<Side>; 2],
    /// Metadata `softmax_scale`.
    pub softmax_scale: Option<f32>,
}

/// One tensor's shape and bytes.
#[derive(Debug)]
pub struct Stored {
    /// `[batch, seqlen, heads, head_dim]`.
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
    let like_q = |name: &str| stored(tensors, name, dtype);
    let (q, k, v) = (like_q("q")?, like_q("k")?, like_q("v")?);
    let has_d_o = tensors.names().contains(&"d_o");
    let d_o = if has_d_o { Some(like_q("d_o")?) } else { None };
    let d_lse = match tensors.tensor("d_lse") {
        Ok(tensor) => Some(lse_gradient(&tensor, &q)?),
        Err(_) => None,
    };
    let mut expected = HashMap::new();
    for name in RESULTS {
        if let Ok(tensor) = tensors.tensor(name) {
            expected.insert(name, expected_values(name, &tensor, &q, &k)?);
        }
    }
    let causal = parsed(&metadata, "causal", "true or false")?;
    let side = |name| parsed(&metadata, name, "a number of keys, or -1");
    let window = [side("window_left")?, side("window_right")?];
    let softmax_scale = parsed(&metadata, "softmax_scale", "a number")?;
    Ok(Input {
        dtype,
        q,
        k,
        v,
        d_o,
        d_lse,
        expected,
        metadata,
        causal,
        window,
        softmax_scale,
    })
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

fn stored(tensors: &SafeTensors, name: &str, dtype: Dtype) -> Result<Stored, String> {
    let tensor = tensors
        .tensor(name)
        .map_err(|_| format!("tensor {name} is missing"))?;
    let given = dtype_of(name, &tensor)?;
    if given != dtype {
        return Err(format!("tensor {name} is {given}, q is {dtype}"));
    }
    let shape = <[usize; 4]>::try_from(tensor.shape()).map_err(|_| {
        format!(
            "tensor {name} has shape {:?}; needed: [batch, seqlen, heads, head_dim]",
            tensor.shape()
        )
    })?;
    Ok(Stored {
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

/// `[batch, heads_q, seqlen_q]`.
fn lse_shape(q: &Stored) -> [usize; 3] {
    let [batch, seqlen_q, heads_q, _] = q.shape;
    [batch, heads_q, seqlen_q]
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

/// A stored result as f32, whichever float it is stored as.
fn expected_values(
    name: &str,
    tensor: &TensorView,
    q: &Stored,
    k: &Stored,
) -> Result<Vec<f32>, String> {
    let needed = match name {
        "lse" => lse_shape(q).to_vec(),
        "o" | "d_q" => q.shape.to_vec(),
        _ => k.shape.to_vec(),
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
