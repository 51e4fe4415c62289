//! flash2's weights, where some are dropped.

use super::Block;
use crate::attention::score::ScoreRows;
use crate::kernels::dropout::{Dropped, head_of};
use crate::params::ForwardParams;
use crate::ptx::{spec, special};

impl Block {
    /// Which weights of keys from `first_key` on are dropped.
    ///
    /// # Safety
    /// The parameters say where seed and offset lie.
    #[inline(always)]
    pub(super) unsafe fn dropped<'p>(&self, p: &'p ForwardParams, first_key: u32) -> Dropped<'p> {
        let head = if spec::lengths() {
            self.sequence * p.shape.heads_q + self.head
        } else {
            self.head
        };
        Dropped {
            p: &p.dropout,
            // SAFETY: the caller's contract.
            head: unsafe { head_of(&p.dropout, special::opaque(head)) },
            rows: ScoreRows::Queries,
            first_row: self.queries.first + self.warp_row,
            first_column: first_key,
        }
    }
}
