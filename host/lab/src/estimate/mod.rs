//! The predicted cost of attention, without a GPU: FLOPs, bytes, memory and time of every schedule, from the problem and the limits of
//! a [`Gpu`]. It touches no device.
//!
//! ```
//! use ferroflash_lab::estimate::{Gpu, estimate};
//! use ferroflash::{Algorithm, Dtype, Mask, Pass, Problem};
//!
//! let problem = Problem::builder(Dtype::Bf16).seqlen(8192).heads(16).head_dim(64).mask(Mask::Causal).build()?;
//! let schedules = estimate(&problem, &Gpu::named("A100")?, Pass::Forward)?;
//! let [standard, flash1, flash2] = &schedules[..] else { panic!("flash3 is for Hopper") };
//! assert_eq!(flash2.algorithm, Algorithm::Flash2);
//! assert!(flash2.hbm_bytes() < flash1.hbm_bytes() && flash1.hbm_bytes() < standard.hbm_bytes());
//! assert!(flash2.speedup > 1.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bytes through HBM
//!
//! FlashAttention (Dao et al. 2022, Theorem 2): standard attention takes Θ(N·d + N²) accesses of HBM, FlashAttention Θ(N²·d²·M⁻¹), where M is
//! the size of the SRAM. Here they are written out, for one head of N queries and N keys with d columns, in elements of e bytes; heads add up.
//! N² stands for the scores in the blocks that are visited: full, causal and windowed masks are counted block by block, by the cursors that
//! the kernels walk ([`Band`](ferroflash_kernels::attention::mask::Band)).
//!
//! - **standard**, forward: S is written in f32 (4N²), the softmax reads it twice (8N²) and writes P (eN²), the output reads P (eN²): 12N² + 2eN², and
//!   q, k, v, o and lse. Backward: S and P again (12N² + eN²), dV reads P (eN²), dP is written over S (4N²), dS reads dP and P and goes over P
//!   (4N² + 2eN²), dQ and dK read dS (2eN²): 20N² + 6eN². A mask saves nothing: all scores are computed. The second reading of S counts if the rows
//!   of all warps, 64 to an SM, are larger than the L2 cache.
//! - **flash1**, Algorithms 1 and 4 of the paper: blocks of keys outside, of queries inside. K and V are read once. For each of the T = N / B_c blocks of
//!   keys q is read, and O (f32), l and m are read and written: T·N·(ed + 8d + 16), and twice 4d + 8 for each row, to begin and to end with. B_c is the
//!   kernel's: 256 up to head_dim 64, 128 up to 128 and 64 above, because a warp's registers hold no more scores; the paper's B_c = ⌈M / 4d⌉ keys
//!   fill the shared memory of an SM, M elements. Backward: `delta` as below, which also clears dQ (4Nd); then T tiles of 128 keys, above head_dim 128 of 64, past which q, dO, lse and Δ are
//!   streamed, and dQ (f32) is read and written: T·N·(2ed + 8 + 8d).
//! - **flash2** and **flash3**, forward: q is read once, o and lse are written once. Every query tile reads the keys and values that it sees; the L2
//!   cache serves that ([`Estimate::l2_bytes`]). From HBM they come once if L2 keeps those of all heads whose tiles are resident together, or if
//!   its size is not known; if not, once for each time that the GPU is full of tiles that have the same keys. The least is each tensor once
//!   ([`Estimate::least_bytes`]).
//! - Backward: five products. `delta` reads o, dO and lse. Key tiles read k and v, and write dK and dV, once. q, dO, lse and Δ are streamed past them, and
//!   dQ is added up in f32: its accumulator is written once (4Nd), and read once to be rounded. Where L2 does not keep what a head streams, each time that the
//!   GPU is full of tiles of a head reads q and dO, and reads and writes the accumulator.
//!
//! # FLOPs, exponentials, memory
//!
//! FLOPs are those that tensor cores execute, in whole blocks and in the columns that a kernel is compiled for: 4N²d forward, 10N²d backward.
//! `standard` multiplies 128 × 128 at a time, so at head_dim 64 half of some products is padding. Exponentials are one a score, two in the softmax of
//! `standard`. Extra memory is the workspace as plans have it, without what depends on the device's schedule (shares of KV heads, split keys).
//!
//! # q, k and v in 8 bits
//!
//! Forward, q, k and v have one byte an element, and flash3 multiplies them in 8 bits; no other schedule does. Its tiles are those of the plan. Backward, a launch
//! takes them out of 8 bits, and any schedule follows as on these tensors; what it writes is extra memory. `standard`, with which times are compared, has q, k and v in
//! the problem's type in the forward pass. Scales are not counted.
//!
//! # Time
//!
//! A launch takes as long as the roof that binds it: FLOPs by the tensor cores' peak, exponentials by the special-function units', bytes by the memory's
//! bandwidth, each times the share of it that kernels reach (`estimate/efficiency.rs` has each constant, measured by this project, with its record). Launches
//! follow one another, and each costs `LAUNCH` more (there, too); the call costs as much once again.
//!
//! flash1, flash2 and flash3 are timed by their tiles; one of flash1's is a whole head. A tile's products run at its slot's part of the speed, a slot being the place of one block of
//! threads on an SM. Beside them it takes its beginning and its end: a latency, and its own rows by the slot's part of the bandwidth. Tiles of one length go in
//! whole waves of as many as there are slots. Uneven ones fill each other's gaps, and last as long as the longest.
//!
//! The model leaves out: bandwidth of L2 and shared memory, waits for dQ, clocks that fall with power, wide, paired and compact tiles, few tiles of `standard`
//! for many SMs. `host/lab/tests/estimate_record.rs` holds it against every plain row of the record: 98 % of more than 900 of flash2 and flash3 are
//! within 15 %, all of those that launches bind, and 97 % of all four schedules together.
//! What is off, and why:
//!
//! - flash3's backward pass of one KV head for 32 heads, 0.3 to 0.6 of the measured time: rows of a commit (02f0a0f) whose tiles did not share a
//!   KV head's queries yet. Of later commits the same heads are near.
//! - flash3's forward pass of 64 queries, 1.3 to 1.5 times the measured time: compact tiles serve it, and default tiles, half empty, count here. One causal
//!   row of 1024 queries, batch 1, is at 0.81.
//! - No plain row of flash2 and flash3 is of an H100, and none of flash2 above head_dim 128: those shares are of single times (`estimate/efficiency.rs`).
//! - The special-function units bind no row: at head_dim 64 flash3's share of the tensor cores (0.58) asks for 0.58 of their cycles, and they are
//!   taken to give 0.64.
//! - flash1: 0.81 to 1.17 of the measured time, 19 of 24 rows within 15 % (record 2026-11-26). Least where memory binds (head_dim 128, 1k and 2k), most where few
//!   heads are long.
//! - `standard`: 0.73 to 0.94 of the measured time on H100 and H200 (record 2026-11-26). Memory binds it, and its kernels reach less of the bandwidth than a plain sum.
//!
//! Courses teach rules of thumb for A100, fp16, head_dim 64: about 1.5 times as fast as standard attention at 512, twice at 2k, three times at 8k.
//! With 8 times 32 heads flash1 is predicted 1.9, 2.5 and 2.5 times as fast, flash2 4.0, 6.4 and 6.6: these are over our `standard`, which keeps S in f32. Under a
//! causal mask they are 1.6 to 2 times as much from 1k on, for `standard` computes what the mask hides.

mod efficiency;
mod error;
mod flash;
mod gpu;
mod sizes;
mod standard;
pub mod sweep;
mod tiles;

use std::fmt;

use ferroflash::plan::kinds;
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Algorithm, Pass, Problem};
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

pub use error::EstimateError;
pub use gpu::Gpu;

use sizes::Sizes;
use tiles::Tiles;

/// What bounds the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Roof {
    /// The tensor cores.
    Compute,
    /// The memory's bandwidth.
    Memory,
    /// The special-function units, which take the exponentials.
    Exponentials,
    /// The launches: there is next to nothing to do.
    Launch,
}

impl Roof {
    /// All.
    pub const ALL: [Roof; 4] = [
        Roof::Compute,
        Roof::Memory,
        Roof::Exponentials,
        Roof::Launch,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Roof::Compute => "compute",
            Roof::Memory => "memory",
            Roof::Exponentials => "exponentials",
            Roof::Launch => "launch",
        }
    }
}

impl fmt::Display for Roof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What it computes.
    pub name: &'static str,
    /// FLOPs of its products.
    pub flops: u64,
    /// Exponentials.
    pub exponentials: u64,
    /// Bytes read from and written to HBM.
    pub hbm_bytes: u64,
    /// Bytes that SMs request from the L2 cache.
    pub l2_bytes: u64,
}

impl Launch {
    /// One that goes through rows and multiplies nothing.
    fn of_rows(name: &'static str, bytes: u64) -> Launch {
        Launch {
            name,
            flops: 0,
            exponentials: 0,
            hbm_bytes: bytes,
            l2_bytes: bytes,
        }
    }
}

/// The work of a schedule: its kernels, and the bytes of its workspace.
struct Counts {
    launches: Vec<Launch>,
    extra_bytes: u64,
    /// The tiles of the one launch that multiplies, if they are modelled.
    tiles: Option<Tiles>,
}

/// One schedule's pass, predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The schedule.
    pub algorithm: Algorithm,
    /// The pass.
    pub pass: Pass,
    /// Its kernels, one after the other.
    pub launches: Vec<Launch>,
    /// Bytes of inputs and outputs, each once: if every query sees a key, no schedule moves fewer.
    pub least_bytes: u64,
    /// Bytes of memory in addition to inputs and outputs.
    pub extra_bytes: u64,
    /// Predicted time, in seconds.
    pub seconds: f64,
    /// The roof that most of the time goes to.
    pub roof: Roof,
    /// Predicted time of `standard` divided by this one's.
    pub speedup: f64,
    /// Whether this library has kernels for it that run on this GPU; `None` if the GPU's compute capability is not given.
    pub has_kernels: Option<bool>,
}

impl Estimate {
    /// The estimate of one schedule; `None` if there is no such schedule, or the model does not cover the problem or its type.
    pub fn of(problem: &Problem, gpu: &Gpu, pass: Pass, algorithm: Algorithm) -> Option<Estimate> {
        let mut all = estimate(problem, gpu, pass).ok()?.into_iter();
        all.find(|one| one.algorithm == algorithm)
    }

    /// FLOPs of all products.
    pub fn flops(&self) -> u64 {
        self.launches.iter().map(|launch| launch.flops).sum()
    }

    /// All exponentials.
    pub fn exponentials(&self) -> u64 {
        self.launches.iter().map(|launch| launch.exponentials).sum()
    }

    /// Bytes read from and written to HBM.
    pub fn hbm_bytes(&self) -> u64 {
        self.launches.iter().map(|launch| launch.hbm_bytes).sum()
    }

    /// Bytes that SMs request from the L2 cache.
    pub fn l2_bytes(&self) -> u64 {
        self.launches.iter().map(|launch| launch.l2_bytes).sum()
    }

    /// Arithmetic intensity: FLOPs per byte through HBM; 0 without bytes.
    pub fn intensity(&self) -> f64 {
        match self.hbm_bytes() {
            0 => 0.0,
            bytes => self.flops() as f64 / bytes as f64,
        }
    }
}

/// Every schedule of this pass for the problem and the GPU: standard, flash1, flash2 and, on Hopper, flash3.
///
/// [`Pass::ForwardWithWeights`] has only `standard`.
pub fn estimate(problem: &Problem, gpu: &Gpu, pass: Pass) -> Result<Vec<Estimate>, EstimateError> {
    let given = Sizes::new(problem)?;
    // Refuses what calls refuse, as a head_dim of 0. No size of it depends on the place.
    without_tensors(problem, pass, Location::Cuda(0))?;
    let mut estimates: Vec<Estimate> = Vec::new();
    let of_standard = {
        let counts = counts_of_standard(&given, gpu, pass);
        let share = efficiency::products(Algorithm::Standard, pass, problem, gpu);
        time(&counts, pass, gpu, gpu.peak(problem.dtype())? * share).0
    };
    let peak = peak(problem, pass, gpu)?;
    for algorithm in [
        Algorithm::Standard,
        Algorithm::Flash1,
        Algorithm::Flash2,
        Algorithm::Flash3,
    ] {
        let Some(counts) = counts(algorithm, problem, &given, gpu, pass) else {
            continue;
        };
        let share = efficiency::products(algorithm, pass, problem, gpu);
        let (seconds, roof) = time(&counts, pass, gpu, peak * share);
        estimates.push(Estimate {
            algorithm,
            pass,
            launches: counts.launches,
            least_bytes: least_bytes(&given, pass),
            extra_bytes: counts.extra_bytes,
            seconds,
            roof,
            speedup: of_standard / seconds,
            has_kernels: has_kernels(algorithm, pass, problem, gpu),
        });
    }
    match estimates.is_empty() {
        true => Err(EstimateError::Fp8 {
            gpu: gpu.name.clone(),
        }),
        false => Ok(estimates),
    }
}

/// Whether a pass multiplies 8 bits: the backward pass takes q, k and v out of them first.
fn multiplies_8_bits(problem: &Problem, pass: Pass) -> bool {
    problem.fp8().is_some() && pass != Pass::Backward
}

/// The peak of the tensor cores for a pass: FLOP/s.
fn peak(problem: &Problem, pass: Pass, gpu: &Gpu) -> Result<f64, EstimateError> {
    match multiplies_8_bits(problem, pass) {
        true => Ok(gpu.peak_e4m3()),
        false => gpu.peak(problem.dtype()),
    }
}

/// The work of an algorithm on tensors of these sizes; `None` if the GPU or the head_dim does not have the algorithm.
fn counts(
    algorithm: Algorithm,
    problem: &Problem,
    given: &Sizes,
    gpu: &Gpu,
    pass: Pass,
) -> Option<Counts> {
    let in_8_bits = multiplies_8_bits(problem, pass);
    match algorithm {
        Algorithm::Standard => (!in_8_bits).then(|| counts_of_standard(given, gpu, pass)),
        _ if pass == Pass::ForwardWithWeights => None,
        Algorithm::Flash3 if !gpu.is_hopper() => None,
        Algorithm::Flash1 | Algorithm::Flash2 if in_8_bits => None,
        Algorithm::Flash1 | Algorithm::Flash2 | Algorithm::Flash3 => {
            let main = flash::kernel(algorithm, pass, problem, gpu)?;
            let sizes = match in_8_bits {
                true => *given,
                false => given.dequantized(),
            };
            let counts = flash::counts(algorithm, pass, problem, &sizes, gpu, main);
            Some(dequantizing(counts, given, pass))
        }
        Algorithm::Tiled => None,
    }
}

/// The work of `standard`; forward, on q, k and v that are not in 8 bits.
fn counts_of_standard(given: &Sizes, gpu: &Gpu, pass: Pass) -> Counts {
    let sizes = given.dequantized();
    let mut counts = standard::counts(&sizes, pass, gpu);
    if pass == Pass::ForwardWithWeights {
        // They are an output.
        counts.extra_bytes -= sizes.weights();
    }
    dequantizing(counts, given, pass)
}

/// The work of a schedule, behind the launch that takes q, k and v out of 8 bits for a backward pass.
fn dequantizing(mut counts: Counts, given: &Sizes, pass: Pass) -> Counts {
    let wide = given.dequantized().inputs();
    if pass == Pass::Backward && wide > given.inputs() {
        let launch = Launch::of_rows("dequantize", given.inputs() + wide);
        counts.launches.insert(0, launch);
        counts.extra_bytes += wide;
    }
    counts
}

/// Bytes of inputs and outputs.
fn least_bytes(sizes: &Sizes, pass: Pass) -> u64 {
    let inputs = sizes.inputs() + sizes.row_values();
    match pass {
        Pass::Forward => inputs + sizes.o(),
        Pass::ForwardWithWeights => inputs + sizes.o() + sizes.weights(),
        // o and dO; and gradients as large as q, k and v.
        Pass::Backward => inputs + 2 * sizes.o() + sizes.dequantized().inputs(),
    }
}

/// Seconds of all launches, and the roof that most of them go to. `flops` are FLOP/s of the tensor cores.
fn time(counts: &Counts, pass: Pass, gpu: &Gpu, flops: f64) -> (f64, Roof) {
    let mut of_roof = [0.0; Roof::ALL.len()];
    of_roof[Roof::Launch as usize] = efficiency::CALL;
    for launch in &counts.launches {
        let exponentials = gpu.exponentials.map_or(0.0, |peak| {
            launch.exponentials as f64 / (peak * efficiency::EXPONENTIALS)
        });
        let products = launch.flops as f64 / flops;
        let compute = match &counts.tiles {
            Some(tiles) if launch.flops > 0 => tiles.seconds(products, pass, gpu),
            _ => products,
        };
        let roofs = [
            (Roof::Compute, compute),
            (
                Roof::Memory,
                launch.hbm_bytes as f64 / (gpu.bandwidth * efficiency::MEMORY),
            ),
            (Roof::Exponentials, exponentials),
        ];
        let longest = |a: (Roof, f64), b: (Roof, f64)| if b.1 > a.1 { b } else { a };
        let (roof, seconds) = roofs.into_iter().fold((Roof::Compute, 0.0), longest);
        of_roof[roof as usize] += seconds;
        of_roof[Roof::Launch as usize] += efficiency::LAUNCH;
    }
    let most = Roof::ALL
        .into_iter()
        .max_by(|&a, &b| of_roof[a as usize].total_cmp(&of_roof[b as usize]));
    (of_roof.iter().sum(), most.unwrap_or(Roof::Launch))
}

/// The time of a tile of a forward kernel in addition to its steps, in steps: one block of keys past a tile of queries each, on an H200.
pub(crate) fn edges_in_steps(algorithm: Algorithm, problem: &Problem, main: &Variant) -> f64 {
    let (gpu, pass, tile_config) = (Gpu::h200(), Pass::Forward, &main.tile_config);
    let peak = peak(problem, pass, &gpu).unwrap_or(gpu.f16_flops);
    let block = f64::from(tile_config.block_q) * f64::from(tile_config.block_k);
    let columns = main.head_dims().most + main.head_dims_v().most;
    let flops = 2.0 * block * f64::from(columns) * sizes::products(problem) as f64;
    // Blocks of threads on an SM share its speed.
    let places = f64::from(gpu.n_sms) * f64::from(tile_config.blocks_per_sm.max(1));
    let speed = peak * efficiency::products(algorithm, pass, problem, &gpu) / places;
    efficiency::tile_latency(pass) * speed / flops
}

/// Whether the list has a row of every kernel that runs on the GPU.
fn has_kernels(algorithm: Algorithm, pass: Pass, problem: &Problem, gpu: &Gpu) -> Option<bool> {
    let compute_capability = gpu.compute_capability?;
    let kinds: &[Kind] = kinds(algorithm, pass);
    let dtype = match multiplies_8_bits(problem, pass) {
        true => ferroflash_kernels::variants::Dtype::E4m3,
        false => problem.dtype().of_kernels(),
    };
    let has_row = |&kind: &Kind| {
        VARIANTS.iter().any(|row| {
            let of_type = row.dtype.is_none_or(|own| own == dtype);
            row.kind == kind
                && of_type
                && row.head_dims().serves(problem.head_dim() as u32)
                && row.head_dims_v().serves(problem.head_dim_v() as u32)
                && row.arch.runs_on(compute_capability)
                && flash::fits(row, gpu)
        })
    };
    let takes_out = problem.fp8().is_some() && pass == Pass::Backward;
    let of_8_bits: &[Kind] = if takes_out { &[Kind::Dequantize] } else { &[] };
    Some(!kinds.is_empty() && kinds.iter().chain(of_8_bits).all(has_row))
}
