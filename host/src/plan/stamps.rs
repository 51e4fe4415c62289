//! Plans whose main kernel records which block of threads works on which tile, and when: for a profile.

use ferroflash_kernels::params::{Params, Stamp};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::Kind;

use super::workspace::Piece;
use super::{Plan, PlannedLaunch, Reason};
use crate::terms::Algorithm;

/// The piece of the workspace that holds the records.
const STAMPS: &str = "stamps";

/// Why a plan's main kernel has no time stamps.
///
/// [`PreparedForward::profiled`](crate::PreparedForward::profiled) has an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoStamps {
    /// No launch takes tiles in an order.
    #[error("no kernel of {0} takes tiles in an order that is planned")]
    NoTiles(Algorithm),
    /// The kernel has no profiled copy.
    #[error("{kernel} has no copy with time stamps; {with} have one")]
    NoRow {
        /// The kernel.
        kernel: &'static str,
        /// Those that have one.
        with: String,
    },
    /// Its copy lacks a feature that the plan needs.
    #[error("the copy of {kernel} with time stamps has no code for {}", .constant.name())]
    Feature {
        /// The kernel.
        kernel: &'static str,
        /// The feature.
        constant: Constant,
    },
    /// There is no room for the records.
    #[error("there is no room for the records: {0}")]
    Workspace(Reason),
}

impl Plan {
    /// The same plan with the profiled copy of its main kernel: same grid, same tiles, same results, and a [`Stamp`] for each tile in the workspace
    /// ([`Plan::stamps`]). Calls never use it: `ferroflash profile` asks for it, after it has timed the plan itself.
    pub fn profiled(&self) -> Result<Plan, NoStamps> {
        let mut plan = self.clone();
        let no_tiles = NoStamps::NoTiles(self.algorithm);
        let main = plan.launches.iter_mut().find(|launch| launch.is_main());
        let main = main.ok_or(no_tiles.clone())?;
        let schedule = main.schedule().ok_or(no_tiles)?;
        let kernel = main.variant.name;
        let row = main.variant.profiled().ok_or_else(|| NoStamps::NoRow {
            kernel,
            with: with_stamps(),
        })?;
        let lacks =
            |constant: &Constant| main.spec.has(*constant) && !row.capabilities().has(*constant);
        if let Some(constant) = Constant::ALL.into_iter().find(lacks) {
            return Err(NoStamps::Feature { kernel, constant });
        }
        let factors = [schedule.heads.into(), schedule.tiles.into(), Stamp::N_BYTES];
        let place = plan.workspace.place(STAMPS, &factors);
        let place = place.map_err(NoStamps::Workspace)?;
        main.variant = row;
        match &mut main.params {
            Params::Forward(params) => params.stamps = place,
            Params::TmaForward(params) => params.stamps = place,
            Params::Backward(params) => params.stamps = place,
            Params::TmaBackward(params) => params.pass.stamps = place,
            _ => return Err(NoStamps::NoTiles(self.algorithm)),
        }
        Ok(plan)
    }

    /// The place of a profiled plan's records in the workspace: `[heads, tiles]` of [`Stamp`], as the schedule counts them; `None` for any other
    /// plan. The caller clears the records before the run, so a tile that no block works on has a record of zeros.
    pub fn stamps(&self) -> Option<Piece> {
        let mut pieces = self.workspace.pieces().iter();
        pieces.find(|piece| piece.name == STAMPS).copied()
    }

    /// The launch whose tiles a schedule orders.
    pub fn main_launch(&self) -> Option<&PlannedLaunch> {
        self.launches.iter().find(|launch| launch.is_main())
    }
}

impl PlannedLaunch {
    fn is_main(&self) -> bool {
        matches!(
            self.variant.kind,
            Kind::Forward
                | Kind::TmaForward
                | Kind::Flash1Forward
                | Kind::Backward
                | Kind::TmaBackward
                | Kind::Flash1Backward
        )
    }
}

/// The rows that have a profiled copy.
fn with_stamps() -> String {
    let rows = ferroflash_kernels::variants::VARIANTS.iter();
    let names = rows
        .filter(|row| row.profiled().is_some())
        .map(|row| row.name);
    names.collect::<Vec<_>>().join(", ")
}
