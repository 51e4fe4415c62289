//! The command line.

use std::path::PathBuf;

use candle_core::DType;
use clap::{Parser, ValueEnum};

/// Trains a small transformer on bytes, with attention by ferroflash or by candle's own operations.
#[derive(Parser)]
#[command(name = "train")]
pub struct Args {
    /// Sizes for a CPU (two minutes on two cores) or for a GPU; the options below change single ones
    #[arg(long, value_enum, default_value = "small")]
    pub preset: Preset,
    /// What computes attention; `both` trains once with each, `fp8` with ferroflash in the type and in 8 bits, from the same weights on the same batches
    #[arg(long, value_enum, default_value = "ferroflash")]
    pub attention: Choice,
    /// Where tensors lie; `cuda` wants the feature of this name
    #[arg(long, value_enum)]
    pub device: Option<DeviceArg>,
    /// Type of products and attention; weights, norms and the loss are f32 always
    #[arg(long, value_enum)]
    pub dtype: Option<Type>,
    /// Files or folders (their .md, .rs and .txt files) to learn; the default is the text of this repository
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub text: Vec<PathBuf>,

    #[arg(long, value_parser = positive)]
    pub steps: Option<usize>,
    /// Sequences a step
    #[arg(long, value_parser = positive)]
    pub batch: Option<usize>,
    #[arg(long, value_parser = positive)]
    pub seqlen: Option<usize>,
    #[arg(long, value_parser = positive)]
    pub layers: Option<usize>,
    #[arg(long, value_parser = positive)]
    pub heads: Option<usize>,
    /// Elements of a head, a multiple of 8; the width of the model is heads times this
    #[arg(long, value_parser = eights)]
    pub head_dim: Option<usize>,
    /// The highest learning rate
    #[arg(long, value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// Of initial weights and of batches
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// f16: good steps in a row that double the loss scale
    #[arg(long, default_value_t = 50, value_name = "STEPS", value_parser = positive)]
    pub scale_doubles_after: usize,
    /// f16: makes the gradients of this step overflow
    #[arg(long, value_name = "STEP")]
    pub force_overflow: Option<usize>,

    /// Steps between lines of the log
    #[arg(long, default_value_t = 20, value_parser = positive)]
    pub log_every: usize,
    /// Steps between held-out losses; the default is a fifth of all
    #[arg(long, value_parser = positive)]
    pub validate_every: Option<usize>,
    /// Batches of the held-out text
    #[arg(long, default_value_t = 4, value_parser = positive)]
    pub validation_batches: usize,
    /// Draws the loss curves
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Writes the weights of the (first) training at its end, in bf16: for the example `serve`
    #[arg(long, value_name = "FILE.safetensors")]
    pub save: Option<PathBuf>,

    /// Bytes to generate at the end
    #[arg(long, default_value_t = 200, value_name = "BYTES")]
    pub generate: usize,
    #[arg(long, default_value = "The kernel ")]
    pub prompt: String,
    /// Of generated text; 0 takes the likeliest byte
    #[arg(long, default_value_t = 0.7, value_parser = not_negative)]
    pub temperature: f64,
    /// Generates without the cache of keys and values, for comparison
    #[arg(long)]
    pub no_cache: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Preset {
    Small,
    Large,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    Ferroflash,
    Candle,
    Both,
    Fp8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceArg {
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Type {
    F32,
    Bf16,
    F16,
}

/// What a preset decides.
pub struct Sizes {
    pub device: DeviceArg,
    pub dtype: Type,
    pub steps: usize,
    pub batch: usize,
    pub seqlen: usize,
    pub layers: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub learning_rate: f64,
}

impl Preset {
    fn sizes(self) -> Sizes {
        match self {
            Preset::Small => Sizes {
                device: DeviceArg::Cpu,
                dtype: Type::F32,
                steps: 250,
                batch: 8,
                seqlen: 256,
                layers: 4,
                heads: 4,
                head_dim: 32,
                learning_rate: 3e-3,
            },
            // 150 million weights. Scores of candle's attention take 8 GiB a layer in f32, several times over.
            Preset::Large => Sizes {
                device: DeviceArg::Cuda,
                dtype: Type::Bf16,
                steps: 200,
                batch: 2,
                seqlen: 8192,
                layers: 12,
                heads: 16,
                head_dim: 64,
                learning_rate: 6e-4,
            },
        }
    }
}

impl Args {
    /// The preset's sizes with what the command line changes.
    pub fn sizes(&self) -> Sizes {
        let preset = self.preset.sizes();
        Sizes {
            device: self.device.unwrap_or(preset.device),
            dtype: self.dtype.unwrap_or(preset.dtype),
            steps: self.steps.unwrap_or(preset.steps),
            batch: self.batch.unwrap_or(preset.batch),
            seqlen: self.seqlen.unwrap_or(preset.seqlen),
            layers: self.layers.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or(preset.heads),
            head_dim: self.head_dim.unwrap_or(preset.head_dim),
            learning_rate: self.learning_rate.unwrap_or(preset.learning_rate),
        }
    }
}

impl From<Type> for DType {
    fn from(dtype: Type) -> DType {
        match dtype {
            Type::F32 => DType::F32,
            Type::Bf16 => DType::BF16,
            Type::F16 => DType::F16,
        }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("allowed: whole numbers from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

fn eights(text: &str) -> Result<usize, String> {
    match positive(text) {
        Ok(number) if number % 8 == 0 && number <= 256 => Ok(number),
        _ => Err("allowed: multiples of 8 up to 256".to_owned()),
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    match not_negative(text) {
        Ok(number) if number > 0.0 => Ok(number),
        _ => Err("allowed: numbers greater than 0".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("allowed: numbers from 0".to_owned()),
    }
}
