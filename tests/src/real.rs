//! The real inputs under `tests/data`, read into the oracle's layout.

use std::path::PathBuf;

use ferroflash::{Dtype, Mask};
use half::{bf16, f16};
use safetensors::SafeTensors;

use crate::inputs::Values;
use crate::oracle::{Gradients, Output, Sizes};

/// Names of the files.
pub const FILES: [&str; 4] = [
    "causal_d64",
    "causal_gqa_d64",
    "full_ragged_d128",
    "window_d64",
];

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct Real {
    /// Sizes.
    pub sizes: Sizes,
    /// Type of q, k, v and d_o.
    pub dtype: Dtype,
    /// Mask.
    pub mask: Mask,
    /// Factor of the scores.
    pub softmax_scale: f32,
    /// q, k, v and d_o.
    pub values: Values,
    /// o and lse, worked out in f64, stored as f32.
    pub output: Output,
    /// d_q, d_k and d_v, worked out in f64, stored as f32.
    pub gradients: Gradients,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not there.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is not a safetensors file, or a tensor is missing.
    #[error(transparent)]
    Format(#[from] safetensors::SafeTensorError),
    /// Its contents are not those of an attention problem.
    #[error("{what}")]
    Contents {
        /// What is wrong.
        what: String,
    },
}

/// Where the file of this name lies: under the manifest that cargo, or a bundle's script, names at run time.
pub fn path(name: &str) -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package)
        .join("data")
        .join(name)
        .with_extension("safetensors")
}

/// Reads the file of this name.
pub fn read(name: &str) -> Result<Real, ReadError> {
    let path = path(name);
    let bytes = std::fs::read(&path).map_err(|source| ReadError::Io { path, source })?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let metadata = metadata.metadata().clone().unwrap_or_default();
    let of_key = |key: &str| {
        metadata.get(key).ok_or_else(|| ReadError::Contents {
            what: format!("no metadata `{key}`"),
        })
    };
    let numbers = |name: &str| numbers(&tensors, name);

    // -1 is no bound, and so is no word of it.
    let bound = |key: &str| match metadata.get(key).map(|word| word.parse::<isize>()) {
        None => Ok(None),
        Some(Ok(bound)) => Ok(usize::try_from(bound).ok()),
        Some(Err(_)) => Err(ReadError::Contents {
            what: format!("{key} is no number"),
        }),
    };
    let prefix = bound("prefix")?.unwrap_or(0);
    let mask = match (
        of_key("causal")?.as_str(),
        bound("window_left")?,
        bound("window_right")?,
    ) {
        ("true", None, _) if prefix > 0 => Mask::PrefixLm { prefix },
        ("true", None, _) => Mask::Causal,
        ("true", left, _) => Mask::Window {
            left,
            right: Some(0),
        },
        (_, None, None) => Mask::Full,
        (_, left, right) => Mask::Window { left, right },
    };
    let (batch, seqlen_q, heads_q, head_dim) = shape(&tensors, "q")?;
    let (_, seqlen_k, heads_k, _) = shape(&tensors, "k")?;
    let (.., head_dim_v) = shape(&tensors, "v")?;
    Ok(Real {
        sizes: Sizes {
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            head_dim,
            head_dim_v,
        },
        dtype: match tensors.tensor("q")?.dtype() {
            safetensors::Dtype::BF16 => Dtype::Bf16,
            safetensors::Dtype::F16 => Dtype::F16,
            other => {
                return Err(ReadError::Contents {
                    what: format!("q is {other:?}"),
                });
            }
        },
        mask,
        softmax_scale: of_key("softmax_scale")?
            .parse()
            .map_err(|_| ReadError::Contents {
                what: "softmax_scale is no number".into(),
            })?,
        values: Values {
            q: numbers("q")?,
            k: numbers("k")?,
            v: numbers("v")?,
            d_o: numbers("d_o")?,
            d_lse: None,
        },
        output: Output {
            o: numbers("o")?,
            lse: numbers("lse")?,
        },
        gradients: Gradients {
            d_q: numbers("d_q")?,
            d_k: numbers("d_k")?,
            d_v: numbers("d_v")?,
            d_sinks: Vec::new(),
        },
    })
}

fn shape(tensors: &SafeTensors, name: &str) -> Result<(usize, usize, usize, usize), ReadError> {
    match tensors.tensor(name)?.shape() {
        &[batch, seqlen, heads, head_dim] => Ok((batch, seqlen, heads, head_dim)),
        other => Err(ReadError::Contents {
            what: format!("{name} has shape {other:?}"),
        }),
    }
}

fn numbers(tensors: &SafeTensors, name: &str) -> Result<Vec<f64>, ReadError> {
    let tensor = tensors.tensor(name)?;
    let data = tensor.data();
    let half = |of: fn([u8; 2]) -> f64| data.as_chunks().0.iter().map(|&bytes| of(bytes)).collect();
    match tensor.dtype() {
        safetensors::Dtype::BF16 => Ok(half(|bytes| bf16::from_le_bytes(bytes).to_f64())),
        safetensors::Dtype::F16 => Ok(half(|bytes| f16::from_le_bytes(bytes).to_f64())),
        safetensors::Dtype::F32 => Ok(data
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f64::from(f32::from_le_bytes(bytes)))
            .collect()),
        other => Err(ReadError::Contents {
            what: format!("{name} is {other:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{self, Inputs};

    /// The largest difference, relative to the largest number.
    fn apart(ours: &[f64], stored: &[f64]) -> f64 {
        assert_eq!(ours.len(), stored.len());
        let largest = stored.iter().fold(0f64, |max, x| max.max(x.abs()));
        ours.iter()
            .zip(stored)
            .map(|(a, b)| (a - b).abs())
            .fold(0f64, f64::max)
            / largest
    }

    /// Two implementations that share nothing, PyTorch in float64 and the oracle, agree to the precision of the file.
    #[test]
    fn the_oracle_agrees_with_the_stored_results() {
        for name in FILES {
            let real = read(name).unwrap();
            let visible = oracle::visible(real.sizes, real.mask.window(), real.mask.prefix());
            let Values { q, k, v, d_o, .. } = &real.values;
            let softmax_scale = 1.0 / (real.sizes.head_dim as f64).sqrt();
            assert_eq!(softmax_scale as f32, real.softmax_scale);
            let inputs = Inputs {
                sizes: real.sizes,
                q,
                k,
                v,
                softmax_scale,
                visible: &visible,
                block: None,
                edit: None,
                sinks: None,
                dropout: None,
            };
            let output = oracle::forward(&inputs);
            let gradients = oracle::backward(&inputs, d_o, None);
            for (what, ours, stored) in [
                ("o", &output.o, &real.output.o),
                ("lse", &output.lse, &real.output.lse),
                ("d_q", &gradients.d_q, &real.gradients.d_q),
                ("d_k", &gradients.d_k, &real.gradients.d_k),
                ("d_v", &gradients.d_v, &real.gradients.d_v),
            ] {
                let apart = apart(ours, stored);
                assert!(apart < 1e-7, "{name} {what}: {apart}");
            }
        }
    }
}
