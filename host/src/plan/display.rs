//! A plan in words.

use std::fmt;

use ferroflash_kernels::params::{SHIFTED, SplitKv};

use super::Plan;
use crate::dtype::Dtype;
use crate::problem::{Precision, Problem};
use crate::terms::{Backend, Pass};

/// The values, if they differ from the keys.
fn values(problem: &Problem) -> String {
    let columns = problem.head_dim_v();
    match problem.values_in_keys() {
        true => format!(", v the first {columns} columns of k"),
        false if columns != problem.head_dim() => format!(", head_dim_v {columns}"),
        false => String::new(),
    }
}

/// The instructions of products of f32.
fn products(plan: &Plan) -> &'static str {
    match (plan.problem.dtype(), plan.backend) {
        (Dtype::Bf16 | Dtype::F16, _) | (_, Backend::Cpu) => "",
        (Dtype::F32, _) => match plan.problem.precision() {
            Precision::Tensor => " (tf32)",
            Precision::Full => " (3xTF32)",
        },
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = &self.problem;
        writeln!(
            f,
            "{:?} with {} on {}",
            self.pass, self.algorithm, self.backend
        )?;
        writeln!(
            f,
            "  problem   {}{} q {:?} k {:?} {}{}{}{}{}{}{} scale {} {:?}",
            problem.dtype(),
            products(self),
            problem.shape_q(),
            problem.shape_k(),
            problem.mask(),
            problem
                .block_mask()
                .map_or(String::new(), |blocks| format!(", {blocks}")),
            problem
                .fp8_kv()
                .map_or(String::new(), |scales| format!(", {scales}")),
            problem
                .fp8()
                .map_or(String::new(), |scales| match self.pass {
                    Pass::Backward => format!(", {scales}, taken out of 8 bits"),
                    _ => format!(", {scales}, {}", problem.fp8_sums()),
                }),
            values(problem),
            problem.expressions(),
            problem.sinks_and_dropout(),
            problem.scale(),
            problem.order()
        )?;
        for launch in &self.launches {
            let tile_config = &launch.variant.tile_config;
            writeln!(
                f,
                "  launch    {} grid {} threads {} shared {}",
                launch.kernel(),
                launch.grid,
                tile_config.threads,
                tile_config.shared_bytes
            )?;
            if let Some(schedule) = launch.schedule() {
                write!(
                    f,
                    "            tiles {} heads {} heads_per_group {}",
                    schedule.tiles, schedule.heads, schedule.heads_per_group
                )?;
                if launch.n_head_splits() > 1 {
                    write!(f, ", {} head splits", launch.n_head_splits())?;
                }
                if let Some(SplitKv { keys, n, .. }) = launch.splits() {
                    write!(f, ", {n} splits of {keys} keys")?;
                }
                if schedule.stride == 2 {
                    write!(f, ", every second tile first")?;
                }
                match launch.packed_heads() {
                    1 if schedule.order == SHIFTED => writeln!(f, ", shifted order")?,
                    1 => writeln!(f)?,
                    packed => writeln!(f, ", {packed} heads of q share a tile")?,
                }
            }
        }
        if let Some(blocks) = self.mask_blocks {
            writeln!(f, "  blocks that the mask expression hides are {blocks}")?;
        }
        match self.backend {
            Backend::Cpu => writeln!(f, "  memory    {} bytes", self.extra_bytes())?,
            _ => {
                let pieces = self.workspace.to_string();
                writeln!(f, "  workspace {}", pieces.replace('\n', "\n            "))?;
            }
        }
        writeln!(
            f,
            "  standard attention would need {} bytes",
            self.standard_bytes
        )?;
        for candidate in &self.candidates {
            writeln!(f, "  candidate {candidate}")?;
        }
        Ok(())
    }
}
