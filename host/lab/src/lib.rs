//! Tools to study ferroflash's kernels: the predicted cost of a pass, its schedule, measurements, and pictures of these. It launches nothing:
//! `ferroflash` runs the kernels, and the command `ferroflash` brings both together.
//!
//! | module | contents |
//! |---|---|
//! | [`mod@estimate`] | FLOPs, bytes, memory and time of each schedule on a GPU of a table, by a roofline |
//! | [`timeline`] | which block of threads works on which tile, and when: simulated from a plan, or from a profiled kernel's records |
//! | [`profile`] | a problem kernel by kernel, compared with both: as a table, JSON and a picture |
//! | [`compare`] | measured schedules compared with their estimates: as a table, CSV, JSON and a picture |
//! | [`heat_map`] | a picture of attention weights |
//! | [`record`] | rows as `ferroflash bench --json` prints them |
//! | [`speed`] | TFLOP/s, GB/s or milliseconds of such rows by length, drawn |
//! | [`canvas`] | common parts of pictures |
//! | [`chart`] | a page with a title, a legend, panels and notes; charts over lengths |
//! | [`words`] | names of a problem in tables and pictures, and the FLOPs that papers count |
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
//! println!("{profile}"); // kernels, FLOPs, bytes, the bounding roof, how much of the main kernel's time is idle
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
