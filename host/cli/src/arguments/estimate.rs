//! Options of `estimate`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::{DtypeName, Passes, SizeWords};

/// Options of `estimate`: a GPU and a problem.
#[derive(Debug, Args)]
pub struct EstimateArguments {
    /// A GPU of the table: T4, V100, A100 (SXM, 80 GB), "A100 40GB", "A100 PCIe" (80 GB), L4, "RTX 4090", H100, H200, B200.
    #[arg(long, conflicts_with_all = ["device", "peak", "bandwidth", "sram", "sms"])]
    pub gpu: Option<String>,
    /// The GPU that is present. Its peak and bandwidth come from the table, or from --peak and --bandwidth.
    #[arg(long, conflicts_with_all = ["sram", "sms"])]
    pub device: bool,
    /// Your own GPU: dense products of the problem's type, TFLOP/s. With --bandwidth, --sram and --sms.
    #[arg(
        long,
        value_name = "TFLOPS",
        requires = "bandwidth",
        allow_negative_numbers = true
    )]
    pub peak: Option<f64>,
    /// Bandwidth of its memory, GB/s, of 10⁹ bytes. With --peak.
    #[arg(
        long,
        value_name = "GB/S",
        requires = "peak",
        allow_negative_numbers = true
    )]
    pub bandwidth: Option<f64>,
    /// Shared memory of one of its SMs, KB, of 1024 bytes. With --peak, --bandwidth and --sms. It decides which
    /// kernels fit, and so the tiles of the backward pass; it does not enter the formulas of bytes.
    #[arg(long, value_name = "KB", requires = "peak")]
    pub sram: Option<u32>,
    /// Its number of SMs. With --peak, --bandwidth and --sram.
    #[arg(long, value_name = "N", requires = "peak")]
    pub sms: Option<u32>,
    /// Sizes and mask of the problem.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// A sweep: rows of q, k and v from the first number on, doubled up to the second.
    #[arg(long, value_name = "FIRST..LAST", conflicts_with_all = ["seqlen", "seqlen_k"])]
    pub seqs: Option<Sweep>,
    /// Type of the elements. Unless given: bf16, or f16 where the GPU's tensor cores have no bf16.
    #[arg(long)]
    pub dtype: Option<DtypeName>,
    /// Which passes.
    #[arg(long, default_value = "both")]
    pub pass: Passes,
    /// Prints one JSON object a line instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Draws the times of a sweep, both axes logarithmic; an existing file is replaced.
    #[arg(long, value_name = "FILE", requires = "seqs")]
    pub svg: Option<PathBuf>,
}

/// Sequence lengths, each twice the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    first: usize,
    last: usize,
}

impl Sweep {
    /// The lengths.
    pub fn lengths(self) -> Vec<usize> {
        std::iter::successors(Some(self.first), |length| length.checked_mul(2))
            .take_while(|&length| length <= self.last)
            .collect()
    }
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let bounds = text.split_once("..");
        match bounds.map(|(first, last)| (first.parse(), last.parse())) {
            Some((Ok(first), Ok(last))) if 0 < first && first <= last => Ok(Sweep { first, last }),
            _ => Err(
                "allowed: two lengths, the first at least 1 and at most the second, as 512..16384"
                    .into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_doubles() {
        let sweep: Sweep = "512..5000".parse().unwrap();
        assert_eq!(sweep.lengths(), [512, 1024, 2048, 4096]);
        let last: Sweep = format!("{0}..{0}", usize::MAX).parse().unwrap();
        assert_eq!(last.lengths(), [usize::MAX]);
        for bad in ["512", "0..4", "8..4", "a..b", "..", "1..2..3"] {
            assert!(bad.parse::<Sweep>().is_err(), "{bad}");
        }
    }
}
