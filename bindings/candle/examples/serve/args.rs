//! The command line.

use std::path::PathBuf;

use candle_core::DType;
use clap::{Parser, ValueEnum};

use crate::engine::Sizes;
use crate::scheduler::Limits;
use crate::workload::Workload;

/// Serves a small transformer to many requests at once: continuous batching over a cache in pages, checked byte by byte against plain
/// generation.
#[derive(Parser)]
#[command(name = "serve")]
pub struct Args {
    /// Where tensors lie; `cuda` wants the feature of this name
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceArg,
    /// Type of products and attention; the default is f32 on the CPU and bf16 on a GPU, whose kernels take no f32
    #[arg(long, value_enum)]
    pub dtype: Option<Type>,
    /// Weights that the example `train` has saved; the default are those of this example
    #[arg(long, value_name = "FILE.safetensors")]
    pub weights: Option<PathBuf>,

    #[arg(long, default_value_t = 48, value_parser = positive)]
    pub requests: usize,
    /// Requests a second, in the mean
    #[arg(long, default_value_t = 20.0, value_parser = above_zero)]
    pub rate: f64,
    /// Prompts have 1 to so many bytes
    #[arg(long, default_value_t = 120, value_name = "BYTES", value_parser = positive)]
    pub longest_prompt: usize,
    /// Answers have 1 to so many bytes
    #[arg(long, default_value_t = 80, value_name = "BYTES", value_parser = positive)]
    pub longest_answer: usize,
    /// Of arrivals, prompts and lengths
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Pages of the cache
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub pages: usize,
    /// Rows of a page
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub page_size: usize,
    /// Sequences of a step, at most
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub batch: usize,
    /// Tokens of a step, at most: one for each sequence that decodes, the rest for prompts
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub step_tokens: usize,

    /// By how much a byte's score may lie below that of plain generation; the default is 0 for f32 and 0.25 for the other types
    #[arg(long, value_parser = not_negative)]
    pub margin: Option<f32>,
    /// Prints what was asked and answered
    #[arg(long)]
    pub texts: bool,
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

impl Args {
    pub fn workload(&self) -> Workload {
        Workload {
            requests: self.requests,
            rate: self.rate,
            longest_prompt: self.longest_prompt,
            longest_answer: self.longest_answer,
            seed: self.seed,
        }
    }

    pub fn sizes(&self) -> Sizes {
        Sizes {
            n_pages: self.pages,
            page_size: self.page_size,
            limits: Limits {
                batch: self.batch,
                tokens: self.step_tokens,
            },
        }
    }

    pub fn dtype(&self) -> DType {
        match (self.dtype, self.device) {
            (Some(Type::F32), _) | (None, DeviceArg::Cpu) => DType::F32,
            (Some(Type::Bf16), _) | (None, DeviceArg::Cuda) => DType::BF16,
            (Some(Type::F16), _) => DType::F16,
        }
    }

    /// The margin of the check. Scores of bf16 lie 0.06 apart where they are 8 to 16, as the best ones are.
    pub fn margin(&self) -> f32 {
        let default = match self.dtype() {
            DType::F32 => 0.0,
            _ => 0.25,
        };
        self.margin.unwrap_or(default)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("allowed: whole numbers from 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("allowed: numbers greater than 0".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("allowed: numbers from 0".to_owned()),
    }
}
