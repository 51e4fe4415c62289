//! The input file: tensors, metadata, stored results; everything about it is checked before anything is computed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use ferroflash::arguments::{Argument, ByArgument, VectorType};
use ferroflash::{BlockMask, Dtype, Element, Problem};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::expressions::ScoreTensor;
use crate::failure::Failure;
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
    pub others: HashMap<String, Arc<ScoreTensor>>,
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
    let bytes = std::fs::read(path).map_err(Failure::of_file(path))?;
    let format = |error| Failure::of_file(path)(format!("not a safetensors file: {error}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(format)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(format)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    contents(&tensors, metadata).map_err(Failure::of_file(path))
}

fn contents(tensors: &SafeTensors, metadata: HashMap<String, String>) -> Result<Input, String> {
    supported(&metadata)?;
    let q = tensors
        .tensor("q")
        .map_err(|_| "tensor q is missing".to_owned())?;
    let dtype = dtype_of("q", &q)?;
    let lengths = lengths(tensors)?;
    let packed = |cu_seqlens| lengths.get(cu_seqlens).is_some();
    let like_q = |name| stored(tensors, name, dtype, packed(Argument::CuSeqlensQ));
    let like_k = |name| stored(tensors, name, dtype, packed(Argument::CuSeqlensK));
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
        block_mask: block_mask(tensors, &metadata)?,
        sinks,
        others: others(tensors),
        expected,
        metadata,
        mask,
        softmax_scale,
    })
}

/// Tensors of other names than attention's own.
fn others(tensors: &SafeTensors) -> HashMap<String, Arc<ScoreTensor>> {
    let is_own = |name: &str| {
        let is_vector = vectors().any(|argument| argument.name() == name);
        is_vector || READ.contains(&name) || RESULTS.contains(&name)
    };
    let others = tensors.tensors().into_iter();
    let others = others.filter(|(name, _)| !is_own(name));
    others
        .filter_map(|(name, tensor)| Some((name, Arc::new(ScoreTensor::read(&tensor)?))))
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
    for argument in vectors() {
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
        safetensors::Dtype::I32 => Ok(elements(tensor.data())),
        safetensors::Dtype::I64 => {
            let numbers = elements::<i64>(tensor.data()).into_iter();
            let numbers: Result<Vec<i32>, _> = numbers.map(i32::try_from).collect();
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
fn lse_shape(q: &Stored) -> Vec<usize> {
    match *q.dims {
        [total_q, heads_q, _] => vec![heads_q, total_q],
        _ => {
            let [batch, seqlen_q, heads_q, _] = q.shape;
            vec![batch, heads_q, seqlen_q]
        }
    }
}

/// The shape of a result.
pub fn result_shape(name: &str, [q, k, v]: [&Stored; 3]) -> Vec<usize> {
    match name {
        "lse" => lse_shape(q),
        "sinks" | "d_sinks" => vec![q.shape[2]],
        // That of q, with the columns of v.
        "o" => [&q.dims[..q.dims.len() - 1], &v.shape[3..]].concat(),
        "d_q" => q.dims.clone(),
        "d_v" => v.dims.clone(),
        _ => k.dims.clone(),
    }
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
    like: [&Stored; 3],
) -> Result<Vec<f32>, String> {
    let needed = result_shape(name, like);
    if tensor.shape() != needed {
        return Err(format!(
            "stored {name} has shape {:?}; needed: {needed:?}",
            tensor.shape()
        ));
    }
    Ok(with_element!(dtype_of(name, tensor)?, T => {
        let elements = elements::<T>(tensor.data()).into_iter();
        elements.map(|element| element.to_f32()).collect()
    }))
}

/// The vectors that say where sequences lie.
fn vectors() -> impl Iterator<Item = Argument> {
    let optional = |argument: &Argument| {
        let input = argument.optional_input();
        input.is_some_and(|input| input.dtype == VectorType::I32)
    };
    let optional = Argument::ALL.into_iter().filter(optional);
    [Argument::CuSeqlensQ, Argument::CuSeqlensK]
        .into_iter()
        .chain(optional)
}

/// The vectors of one problem; none where all sequences are of one length.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    vectors: ByArgument<Option<Vec<i32>>>,
}

impl Lengths {
    /// q, k and v of these lengths, packed; `None` where their sum is no i32.
    pub fn packed(lens: &[usize]) -> Option<Lengths> {
        let mut cu_seqlens = vec![0i32];
        let mut end = 0i32;
        for &len in lens {
            end = end.checked_add(i32::try_from(len).ok()?)?;
            cu_seqlens.push(end);
        }
        let mut lengths = Lengths::default();
        lengths.set(Argument::CuSeqlensQ, cu_seqlens.clone());
        lengths.set(Argument::CuSeqlensK, cu_seqlens);
        Some(lengths)
    }

    /// With this vector too.
    pub fn set(&mut self, argument: Argument, vector: Vec<i32>) {
        self.vectors[argument] = Some(vector);
    }

    /// A vector, where there is one.
    pub fn get(&self, argument: Argument) -> Option<&[i32]> {
        self.vectors[argument].as_deref()
    }

    /// Those that there are.
    pub fn iter(&self) -> impl Iterator<Item = (Argument, &[i32])> {
        let vectors = self.vectors.iter();
        vectors.filter_map(|(argument, vector)| Some((argument, vector.as_deref()?)))
    }

    /// How many sequences a `cu_seqlens` has, and the most rows of one.
    pub fn of_packed(&self, argument: Argument) -> Option<(usize, usize)> {
        let cu_seqlens = self.get(argument)?;
        let lens = cu_seqlens
            .windows(2)
            .map(|pair| i64::from(pair[1]) - i64::from(pair[0]));
        // Whether they make sense is for the library to say.
        let longest = lens.max().unwrap_or(0).max(0);
        Some((cu_seqlens.len().saturating_sub(1), longest as usize))
    }
}

/// Rows or keys of a block where the metadata do not say.
const DEFAULT_BLOCK: usize = BlockMask::MULTIPLE;

/// A map as it stands in the file.
#[derive(Clone, Debug)]
pub struct StoredMap {
    /// Bytes of the map.
    pub bytes: Vec<u8>,
    /// `[batch or 1, heads_q or 1, blocks of queries, blocks of keys]`.
    shape: [usize; 4],
    block_q: usize,
    block_k: usize,
}

/// The map, where the file has one.
fn block_mask(
    tensors: &SafeTensors,
    metadata: &HashMap<String, String>,
) -> Result<Option<StoredMap>, String> {
    let Ok(tensor) = tensors.tensor("block_mask") else {
        return Ok(None);
    };
    if tensor.dtype() != safetensors::Dtype::U8 {
        let given = tensor.dtype();
        return Err(format!("tensor block_mask is {given:?}; needed: U8"));
    }
    let shape = tensor.shape();
    let shape = <[usize; 4]>::try_from(shape).map_err(|_| {
        format!(
            "tensor block_mask has shape {shape:?}; needed: [batch or 1, heads_q or 1, blocks of queries, blocks of keys]"
        )
    })?;
    let size = |name: &str| -> Result<usize, String> {
        Ok(parsed(metadata, name, "a number of rows")?.unwrap_or(DEFAULT_BLOCK))
    };
    Ok(Some(StoredMap {
        bytes: tensor.data().to_vec(),
        shape,
        block_q: size("block_q")?,
        block_k: size("block_k")?,
    }))
}

impl StoredMap {
    /// The block mask whose maps these are: those of each batch entry, or head, where the shape has more than one.
    pub fn mask(&self) -> BlockMask {
        let mut mask = BlockMask::new(self.block_q, self.block_k);
        if self.shape[0] != 1 {
            mask = mask.per_batch();
        }
        if self.shape[1] != 1 {
            mask = mask.per_head();
        }
        mask
    }

    /// Whether the map has the shape that the problem needs.
    pub fn fits(&self, problem: &Problem) -> Result<(), String> {
        match problem.block_mask_shape() {
            Some(needed) if needed != self.shape => {
                let given = self.shape;
                Err(format!(
                    "tensor block_mask has shape {given:?}; needed: {needed:?}"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// An element that files hold, as it lies in memory: both are little-endian.
pub trait Bytes: Element + Pod {}

impl<T: Element + Pod> Bytes for T {}

const _: () = assert!(cfg!(target_endian = "little"));

/// The elements that these bytes are.
pub fn elements<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytemuck::allocation::pod_collect_to_vec(bytes)
}

/// An expression with the Rust type of a [`Dtype`].
macro_rules! with_element {
    ($dtype:expr, $T:ident => $of:expr) => {
        match $dtype {
            ferroflash::Dtype::Bf16 => {
                type $T = half::bf16;
                $of
            }
            ferroflash::Dtype::F16 => {
                type $T = half::f16;
                $of
            }
            ferroflash::Dtype::F32 => {
                type $T = f32;
                $of
            }
        }
    };
}
pub(crate) use with_element;
