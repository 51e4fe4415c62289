//! GPUs as the model sees them: a table of public numbers, or custom ones.

use ferroflash::Dtype;
use ferroflash::plan::{DeviceInfo, Thresholds};

use super::EstimateError;

/// The limits of a GPU that bound attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Peak of dense fp16 products with f32 sums: FLOP/s.
    pub f16_flops: f64,
    /// The same for bf16; `None`: its tensor cores have no bf16.
    pub bf16_flops: Option<f64>,
    /// The same for tf32, in which products of f32 tensors are computed.
    pub tf32_flops: Option<f64>,
    /// Bandwidth of its memory (HBM or GDDR): bytes/s.
    pub bandwidth: f64,
    /// Shared memory of an SM, by the compute capability: bytes.
    pub sram_bytes: u64,
    /// Number of SMs.
    pub n_sms: u32,
    /// The L2 cache, bytes; `None`: not published, or not given.
    pub l2_bytes: Option<u64>,
    /// Exponentials by the special-function units: 1/s; `None`: not given.
    pub exponentials: Option<f64>,
    /// Compute capability, which decides which kernels run; `None`: not given.
    pub compute_capability: Option<(u32, u32)>,
    /// Its memory, bytes; `None`: not given.
    pub memory_bytes: Option<u64>,
}

/// Exponentials of an SM in a clock: 16 for compute capability 5.0 to 9.0 (CUDA C++ Programming Guide, "Throughput of Native Arithmetic
/// Instructions"), and the same on B200 (FlashAttention-4, 2026).
const EXPONENTIALS_PER_CLOCK: f64 = 16.0;

/// Shared memory of each block that the driver reserves: bytes (CUDA C++ Programming Guide, compute capability 8.0 and newer).
pub(super) const RESERVED_BYTES: u64 = 1024;

/// A row of the table, in the units of data sheets.
struct Row {
    name: &'static str,
    /// TFLOP/s.
    f16: f64,
    has_bf16: bool,
    /// TFLOP/s.
    tf32: Option<f64>,
    /// GB/s, of 10⁹ bytes.
    bandwidth: f64,
    /// KB, of 1024 bytes.
    sram: u64,
    n_sms: u32,
    /// MB, of 2²⁰ bytes.
    l2: u64,
    /// GHz.
    boost: f64,
    compute_capability: (u32, u32),
    /// GB, by the product's name.
    memory: u64,
}

impl Row {
    fn gpu(&self) -> Gpu {
        Gpu {
            name: self.name.into(),
            f16_flops: self.f16 * 1e12,
            bf16_flops: self.has_bf16.then_some(self.f16 * 1e12),
            tf32_flops: self.tf32.map(|tflops| tflops * 1e12),
            bandwidth: self.bandwidth * 1e9,
            sram_bytes: self.sram << 10,
            n_sms: self.n_sms,
            l2_bytes: Some(self.l2 << 20),
            exponentials: Some(EXPONENTIALS_PER_CLOCK * f64::from(self.n_sms) * self.boost * 1e9),
            compute_capability: Some(self.compute_capability),
            memory_bytes: Some(self.memory << 30),
        }
    }

    /// Whether this is the device: its name has the row's words one after the other, and SMs and memory are the row's.
    fn is(&self, info: &DeviceInfo) -> bool {
        let memory = self.memory << 30;
        let near = memory.abs_diff(info.memory_bytes) < memory / 8;
        let (own, given) = (words(self.name), words(&info.name));
        let named = given.windows(own.len()).any(|given| given == own);
        named && near && self.n_sms == info.n_sms
    }
}

/// The words of a name, without the size of the memory: that is compared itself.
fn words(name: &str) -> Vec<String> {
    let parts = name.split(|c: char| !c.is_alphanumeric());
    let words = parts.map(str::to_lowercase);
    words
        .filter(|word| !word.is_empty() && !word.ends_with("gb"))
        .collect()
}

/// Rows of the table, written as one.
macro_rules! table {
    ($(
        $name:literal: $f16:literal, $has_bf16:literal, $tf32:expr, $bandwidth:literal, $sram:literal, $n_sms:literal,
        $l2:literal, $boost:literal, $compute_capability:expr, $memory:literal;
    )*) => {
        [$(Row {
            name: $name,
            f16: $f16,
            has_bf16: $has_bf16,
            tf32: $tf32,
            bandwidth: $bandwidth,
            sram: $sram,
            n_sms: $n_sms,
            l2: $l2,
            boost: $boost,
            compute_capability: $compute_capability,
            memory: $memory,
        }),*]
    };
}

/// Peaks are dense: half of what data sheets give with sparsity. With sums in f32 they are SMs × FLOP of an SM in a clock × the boost clock, within 2 %
/// (`tests.rs` recomputes each). Shared memory is that of the compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability"). Above each row stand the documents of the rest.
const TABLE: [Row; 10] = table! {
    // name         fp16  bf16   tf32           GB/s    KB   SMs  L2   GHz   capability  GB
    // NVIDIA T4 data sheet: peak, bandwidth, memory. NVIDIA Turing GPU Architecture whitepaper: SMs, L2, clock.
    "T4":          65.0,  false, None,          320.0,  64,  40,  4,   1.59, (7, 5),     16;
    // SXM2. NVIDIA V100 data sheet: peak, bandwidth, memory. NVIDIA Tesla V100 GPU Architecture whitepaper: SMs, L2, clock.
    "V100":        125.0, false, None,          900.0,  96,  80,  6,   1.53, (7, 0),     16;
    // SXM4 of 80 GB. NVIDIA A100 data sheet: peaks, bandwidth, memory. NVIDIA A100 Tensor Core GPU Architecture
    // whitepaper: SMs, L2, clock.
    "A100":        312.0, true,  Some(156.0),   2039.0, 164, 108, 40,  1.41, (8, 0),     80;
    // SXM4 of 40 GB: bandwidth and memory are of the A100 whitepaper.
    "A100 40GB":   312.0, true,  Some(156.0),   1555.0, 164, 108, 40,  1.41, (8, 0),     40;
    // PCIe of 80 GB: the bandwidth is of the A100 data sheet.
    "A100 PCIe":   312.0, true,  Some(156.0),   1935.0, 164, 108, 40,  1.41, (8, 0),     80;
    // NVIDIA L4 data sheet: peaks (242 and 120 TFLOP/s with sparsity), bandwidth, memory. NVIDIA Ada GPU Architecture whitepaper: SMs, L2, clock.
    "L4":          121.0, true,  Some(60.0),    300.0,  100, 58,  48,  2.04, (8, 9),     24;
    // NVIDIA Ada GPU Architecture whitepaper: all. With sums in f32 its tensor cores are half as fast as with sums in fp16.
    "RTX 4090":    165.2, true,  Some(82.6),    1008.0, 100, 128, 72,  2.52, (8, 9),     24;
    // SXM5. NVIDIA H100 Tensor Core GPU Architecture whitepaper: peaks, SMs, L2, the boost clock of tensor cores.
    // NVIDIA H100 data sheet: bandwidth, memory.
    "H100":        989.4, true,  Some(494.7),   3350.0, 228, 132, 50,  1.83, (9, 0),     80;
    // SXM. NVIDIA H200 data sheet: bandwidth, memory; the chip is H100's.
    "H200":        989.4, true,  Some(494.7),   4800.0, 228, 132, 50,  1.83, (9, 0),     141;
    // HGX. NVIDIA Blackwell data sheet: fp16 (4.5 PFLOP/s with sparsity), bandwidth, memory. 148 SMs and 8192 FLOP in a clock: FlashAttention-4 (2026). Derived:
    // tf32 is half of fp16, as on every other GPU (the data sheet rounds its 2.25 PFLOP/s with sparsity to 2.2), and the clock is the peak divided by SMs and
    // FLOP in a clock. The L2 cache is what the driver reports, 126.5 MB (pytorch/ao, pull request 4002).
    "B200":        2250.0, true, Some(1125.0),  7700.0, 228, 148, 126, 1.86, (10, 0),    180;
};

/// The index of the record's GPU.
const H200: usize = 8;

impl Gpu {
    /// The record's GPU.
    pub(super) fn h200() -> Gpu {
        TABLE[H200].gpu()
    }

    /// A GPU of the table, by its name in letters of either case: T4, V100, A100 (SXM, 80 GB), A100 40GB, A100 PCIe (80 GB), L4, RTX
    /// 4090, H100, H200, B200.
    pub fn named(name: &str) -> Result<Gpu, EstimateError> {
        let plain = |name: &str| name.replace([' ', '-', '_'], "").to_lowercase();
        let row = TABLE.iter().find(|row| plain(row.name) == plain(name));
        row.map(Row::gpu).ok_or_else(|| EstimateError::UnknownGpu {
            given: name.into(),
            allowed: Gpu::names(),
        })
    }

    /// The names of the table.
    pub fn names() -> String {
        TABLE.map(|row| row.name).join(", ")
    }

    /// A custom GPU: a peak of the problem's type in FLOP/s, a bandwidth in bytes/s, shared memory of an SM in bytes, a number of SMs. Its L2 cache
    /// and special-function units are ignored, and which kernels run is not known.
    pub fn custom(
        peak: f64,
        bandwidth: f64,
        sram_bytes: u64,
        n_sms: u32,
    ) -> Result<Gpu, EstimateError> {
        positive("peak", peak)?;
        positive("bandwidth", bandwidth)?;
        positive("sram", sram_bytes as f64)?;
        positive("sms", f64::from(n_sms))?;
        Ok(Gpu {
            name: "custom GPU".into(),
            f16_flops: peak,
            bf16_flops: Some(peak),
            tf32_flops: Some(peak),
            bandwidth,
            sram_bytes,
            n_sms,
            l2_bytes: None,
            exponentials: None,
            compute_capability: None,
            memory_bytes: None,
        })
    }

    /// The present GPU. A device does not report its peak and its bandwidth, so they come from the row of the table that has its name,
    /// its number of SMs and its memory.
    pub fn of_device(info: &DeviceInfo) -> Result<Gpu, EstimateError> {
        let rows = TABLE.iter().filter(|row| row.is(info));
        // "A100 PCIe" is "A100", too.
        let row = rows.max_by_key(|row| words(row.name).len());
        let row = row.ok_or_else(|| EstimateError::UnknownDevice {
            name: info.name.clone(),
            n_sms: info.n_sms,
            memory_bytes: info.memory_bytes,
            allowed: Gpu::names(),
        })?;
        let gpu = row.gpu();
        Ok(Gpu {
            name: info.name.clone(),
            memory_bytes: Some(info.memory_bytes),
            ..gpu
        })
    }

    /// Its limits for planning; `None` if its compute capability or its memory is not given.
    pub fn device_info(&self) -> Option<DeviceInfo> {
        Some(DeviceInfo {
            name: self.name.clone(),
            compute_capability: self.compute_capability?,
            n_sms: self.n_sms,
            shared_bytes_per_block: self.sram_bytes.saturating_sub(RESERVED_BYTES) as u32,
            memory_bytes: self.memory_bytes?,
            thresholds: Thresholds::MEASURED,
        })
    }

    /// The same for any device, with its peak in FLOP/s and its bandwidth in bytes/s.
    pub fn of_device_with(
        info: &DeviceInfo,
        peak: f64,
        bandwidth: f64,
    ) -> Result<Gpu, EstimateError> {
        let sram_bytes = u64::from(info.shared_bytes_per_block) + RESERVED_BYTES;
        Ok(Gpu {
            name: info.name.clone(),
            compute_capability: Some(info.compute_capability),
            memory_bytes: Some(info.memory_bytes),
            ..Gpu::custom(peak, bandwidth, sram_bytes, info.n_sms)?
        })
    }

    /// The peak of its tensor cores for dense products of this type: FLOP/s.
    pub fn peak(&self, dtype: Dtype) -> Result<f64, EstimateError> {
        let peak = match dtype {
            Dtype::F16 => Some(self.f16_flops),
            Dtype::Bf16 => self.bf16_flops,
            Dtype::F32 => self.tf32_flops,
        };
        peak.ok_or_else(|| EstimateError::Dtype {
            gpu: self.name.clone(),
            given: dtype,
            allowed: match (self.bf16_flops, self.tf32_flops) {
                (None, None) => "f16",
                (Some(_), None) => "f16 and bf16",
                (None, Some(_)) => "f16 and f32",
                (Some(_), Some(_)) => "f16, bf16 and f32",
            },
        })
    }

    /// The peak of Hopper's tensor cores for products of 8 bits: twice that of 16 (NVIDIA H100 Tensor Core GPU Architecture whitepaper).
    pub fn peak_e4m3(&self) -> f64 {
        2.0 * self.f16_flops
    }

    /// Whether it is of Hopper's architecture, where `wgmma` is faster than `mma.sync`.
    pub fn is_hopper(&self) -> bool {
        self.compute_capability == Some((9, 0))
    }

    /// The most shared memory of a block: bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.sram_bytes.saturating_sub(RESERVED_BYTES)
    }
}

fn positive(argument: &'static str, given: f64) -> Result<(), EstimateError> {
    match given.is_finite() && given > 0.0 {
        true => Ok(()),
        false => Err(EstimateError::NotPositive { argument, given }),
    }
}

#[cfg(test)]
mod tests;
