//! Probes of clocks, and of where a thread runs. What they say differs from run to run; what is compared is what holds of it everywhere.

use super::put_all;
use crate::ptx::special;

/// The most multiprocessors that any GPU has, and more.
const MANY_SMS: u32 = 1024;

pub(super) unsafe fn clocks(_: u64, output: u64) {
    let (sm, ns, cycles) = (
        special::sm_id(),
        special::global_timer(),
        special::clock64(),
    );
    let (ns_later, cycles_later) = (special::global_timer(), special::clock64());
    let holds = [
        // A block stays where it is.
        sm < MANY_SMS && special::sm_id() == sm,
        0 < ns && ns <= ns_later,
        cycles < cycles_later,
    ];
    put_all(output, 0, &holds.map(u32::from))
}
