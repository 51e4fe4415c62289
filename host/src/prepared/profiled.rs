//! Prepared passes whose main kernel records its tiles: for a profile.

use super::{Prepared, PreparedBackward, PreparedForward};
use crate::error::DriverError;
use crate::plan::{NoStamps, Plan};

/// Why a prepared pass cannot be profiled.
///
/// [`PreparedForward::profiled`] has an example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotStamped {
    /// There is no such plan.
    #[error(transparent)]
    NoStamps(#[from] NoStamps),
    /// Its kernel cannot be loaded.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Prepared<Plan> {
    fn profiled(&self) -> Result<Prepared<Plan>, NotStamped> {
        let plan = self.launches.plan().profiled()?;
        Ok(Prepared::new(self.launches.device(), self.arguments, plan)?)
    }
}

impl PreparedForward {
    /// The same pass with [`Plan::profiled`]'s plan: it is called in the same way and has the same results. It also records which block of threads
    /// works on which tile, and when. Call [`Queue::clear_stamps`] before it and [`Queue::read_stamps`] after it.
    ///
    /// ```no_run
    /// use ferroflash::{Inputs, Outputs, PreparedForward, Queue};
    ///
    /// # fn profile(prepared: &PreparedForward, queue: &mut Queue, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), Box<dyn std::error::Error>> {
    /// let profiled = prepared.profiled()?;
    /// queue.clear_stamps(profiled.plan())?;
    /// profiled.forward(queue, inputs, outputs)?;
    /// let stamps = queue.read_stamps(profiled.plan())?;
    /// // In `ferroflash-lab`, `timeline::Measured` checks them and says how long SMs had no tile.
    /// println!("{} tiles", stamps.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Queue::clear_stamps`]: crate::Queue::clear_stamps
    /// [`Queue::read_stamps`]: crate::Queue::read_stamps
    pub fn profiled(&self) -> Result<PreparedForward, NotStamped> {
        self.prepared.profiled().map(PreparedForward::new)
    }
}

impl PreparedBackward {
    /// As [`PreparedForward::profiled`].
    pub fn profiled(&self) -> Result<PreparedBackward, NotStamped> {
        self.prepared.profiled().map(PreparedBackward::new)
    }
}
