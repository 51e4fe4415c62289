//! For people who study ferroflash's kernels: what a pass should cost, what its schedule does, what was measured, and pictures of these. It launches nothing:
//! `ferroflash` runs the kernels, and the command `ferroflash` brings both together.
//!
//! | module | what it has |
//! |---|---|
//! | [`mod@estimate`] | FLOPs, bytes, memory and time of each schedule on a GPU of a table, by a roofline |
//! | [`timeline`] | which block of threads works on which tile when, simulated from a plan or by a profiled kernel's records |
//! | [`profile`] | a problem kernel by kernel, beside both: as a table, JSON and a picture |
//! | [`compare`] | measured schedules beside their estimates: as a table, CSV, JSON and a picture |
//! | [`heat_map`] | attention weights, drawn |
//! | [`record`] | rows as `ferroflash bench --json` prints them |
//! | [`speed`] | TFLOP/s, GB/s or milliseconds of such rows by length, drawn |
//! | [`canvas`] | what pictures share |
//! | [`chart`] | a page with a title, a legend, panels and notes; charts over lengths |
//! | [`words`] | how tables and pictures name a problem, and the FLOPs that papers count |
//!
//! ```
//! use ferroflash::plan::{Backend, DeviceInfo, plan};
//! use ferroflash::tensor::Location;
//! use ferroflash::validate::without_tensors;
//! use ferroflash::{Dtype, Mask, Pass, Problem};
//! use ferroflash_lab::estimate::Gpu;
//! use ferroflash_lab::profile::{OfPass, Profile};
//!
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).mask(Mask::Causal).build()?;
//! let (gpu, device) = (Gpu::named("H200")?, DeviceInfo::h200());
//! let plan = plan(&without_tensors(&problem, Pass::Backward, Location::Cuda(0))?, &device, Backend::Cuda, None)?;
//! let pass = OfPass::new(plan, Some(&gpu), &device);
//! let profile = Profile { device, gpu: Ok(gpu), problem, passes: vec![pass] };
//! println!("{profile}"); // kernels, FLOPs, bytes, what binds, how much of the main kernel's time is idle
//! assert!(profile.svg()?.starts_with("<svg"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod canvas;
pub mod chart;
pub mod compare;
pub mod estimate;
pub mod heat_map;
pub mod profile;
pub mod record;
pub mod speed;
pub mod timeline;
pub mod words;
