//! Which block of threads works on which tile when: plans of the library's own planner for a GPU of a few SMs, in the simulation
//! ([`ferroflash_lab::timeline`]).

mod picture;

use anyhow::Result;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, Plan, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::{Pass, without_tensors};
use ferroflash::{Dtype, Mask, Problem};
use ferroflash_lab::timeline::{Detail, Timeline, backward, forward};

pub use picture::pictures;

/// A problem of bf16 and head_dim 128, one batch entry, on a GPU of a few of an H200's SMs.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Heads.
    pub heads: usize,
    /// Queries and keys.
    pub seqlen: usize,
    /// Its mask.
    pub mask: Mask,
    /// SMs of the GPU.
    pub n_sms: u32,
}

/// Three schedules of the forward pass.
pub const FORWARD: Scene = Scene {
    heads: 2,
    seqlen: 1024,
    mask: Mask::Full,
    n_sms: 4,
};

/// The forward pass under a causal mask.
pub const CAUSAL: Scene = Scene {
    heads: 4,
    seqlen: 2048,
    mask: Mask::Causal,
    n_sms: 4,
};

/// The deterministic backward pass.
pub const FULL_BACKWARD: Scene = Scene {
    heads: 2,
    seqlen: 512,
    mask: Mask::Full,
    n_sms: 8,
};

/// The same under a causal mask.
pub const CAUSAL_BACKWARD: Scene = Scene {
    heads: 2,
    seqlen: 1024,
    mask: Mask::Causal,
    n_sms: 8,
};

/// In which order tiles begin, or visit blocks of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The planner's.
    Planned,
    /// What no plan has, to compare with: forward one head after the other, from its first tile to its last; backward every tile from block
    /// 0 up.
    Ascending,
}

impl Scene {
    /// The problem.
    pub fn problem(&self) -> Result<Problem> {
        let builder = Problem::builder(Dtype::Bf16).seqlen(self.seqlen);
        let builder = builder.heads(self.heads).head_dim(128).mask(self.mask);
        Ok(builder.build()?)
    }

    fn planned(&self, pass: Pass, algorithm: Algorithm) -> Result<(Plan, DeviceInfo)> {
        let device = DeviceInfo {
            n_sms: self.n_sms,
            ..DeviceInfo::h200()
        };
        let checked = without_tensors(&self.problem()?, pass, Location::Cuda(0))?;
        let plan = plan(&checked, &device, Backend::Cuda, Some(algorithm))?;
        Ok((plan, device))
    }

    /// The forward pass.
    pub fn forward(&self, algorithm: Algorithm, order: Order) -> Result<Timeline> {
        let (plan, device) = self.planned(Pass::Forward, algorithm)?;
        let launch = forward::Launch::of_plan(&plan, &device)?;
        let mut works: Vec<_> = launch.works().collect();
        if order == Order::Ascending {
            works.sort_by_key(|work| (work.head, work.tiles.first().map(|tile| tile.tile)));
        }
        Ok(launch.timeline(works))
    }

    /// flash3's backward pass, step by step.
    pub fn backward(&self, order: Order) -> Result<Timeline> {
        let (plan, device) = self.planned(Pass::Backward, Algorithm::Flash3)?;
        let launch = backward::Launch::of_plan(&plan, &device)?;
        let mut ways = launch.ways();
        if order == Order::Ascending {
            for way in &mut ways {
                way.steps.sort_by_key(|step| step.block);
                for step in &mut way.steps {
                    step.rank = way.tile.k_block;
                }
            }
        }
        Ok(backward::trace(&launch, &ways, Detail::Steps)?)
    }
}
