//! The records of a profiled plan, in a queue's workspace: for a profile.

use ferroflash_driver::extra;
use ferroflash_kernels::params::Stamp;

use super::queue::Queue;
use crate::error::{DriverError, Error};
use crate::plan::Plan;

impl Queue {
    /// Clears the records of a profiled plan ([`Plan::profiled`](crate::plan::Plan::profiled)) in the order of the queue, so before the next call, which
    /// writes them; its workspace grows first if it is too small. Does nothing for another plan. Refused while the queue captures.
    pub fn clear_stamps(&mut self, plan: &Plan) -> Result<(), Error> {
        self.ready()?;
        self.reserve(plan)?;
        if let Some((address, n_bytes)) = self.stamps_of(plan) {
            let stream = self.stream().as_raw();
            let _current = self.lane.device.enter()?;
            // SAFETY: the range is the workspace's, which has been reserved and is there until the queue's work is done.
            unsafe { extra::stream::fill(address, 0, n_bytes, stream) }
                .map_err(DriverError::from)?;
        }
        Ok(())
    }

    /// Waits for the queue, and returns the records of a profiled plan's last call: `[heads, tiles]`, as its schedule counts them; none for another
    /// plan. The next call of another plan overwrites the records.
    pub fn read_stamps(&mut self, plan: &Plan) -> Result<Vec<Stamp>, Error> {
        self.synchronize()?;
        self.reserve(plan)?;
        let Some((address, n_bytes)) = self.stamps_of(plan) else {
            return Ok(Vec::new());
        };
        let mut words = vec![[0; Stamp::WORDS]; n_bytes / size_of::<Stamp>()];
        let stream = self.stream().as_raw();
        let current = self.lane.device.enter()?;
        // SAFETY: both ranges have this length; the words are borrowed until the copy has been waited for, and any bytes are words.
        unsafe { extra::stream::copy_to_host(words.as_mut_ptr().cast(), address, n_bytes, stream) }
            .map_err(DriverError::from)?;
        drop(current);
        self.synchronize()?;
        Ok(words.into_iter().map(Stamp::from_words).collect())
    }

    /// The place of a plan's records in the workspace, and their bytes.
    fn stamps_of(&self, plan: &Plan) -> Option<(u64, usize)> {
        let piece = plan.stamps()?;
        let n_bytes = usize::try_from(piece.n_bytes).ok()?;
        Some((self.workspace.address() + piece.offset_bytes, n_bytes))
    }
}
