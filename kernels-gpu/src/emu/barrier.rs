//! The sixteen barriers of a block, and `bar.warp.sync`.

use super::block::{Block, Blocked};
use super::clock::Clock;
use super::fault::{Fault, Kind};
use super::machine::{ALL, LANES, Machine, Who};
use super::site::{self, Site};
use super::warp::{Meeting, collective};

/// Barriers of a block.
pub(super) const BARRIERS: usize = 16;

/// One barrier: who has come since it last let threads go.
#[derive(Default)]
pub(super) struct Barrier {
    /// For how many threads it is.
    pub expected: u32,
    /// How many have come.
    pub arrived: u32,
    /// Warps that wait.
    pub waiting: Vec<usize>,
    /// Whether those who came brought a predicate; and of these, whether it held in one.
    reduces: bool,
    any: bool,
    /// What those who came know.
    known: Clock,
    /// Where and by whom it was last reached.
    pub last: Option<(Who, Site)>,
}

/// Whether those who come wait.
#[derive(Clone, Copy)]
enum Role {
    Sync,
    Arrive,
    /// They wait, bring a predicate, and get to know whether anybody's holds.
    Reduce(bool),
}

/// `bar.sync id, threads`
#[track_caller]
pub(crate) fn sync(instruction: &'static str, id: u32, threads: u32) {
    reach(instruction, id, threads, Role::Sync);
}

/// `bar.arrive id, threads`
#[track_caller]
pub(crate) fn arrive(instruction: &'static str, id: u32, threads: u32) {
    reach(instruction, id, threads, Role::Arrive);
}

/// `bar.red.or.pred id, threads`
#[track_caller]
pub(crate) fn red_or(instruction: &'static str, id: u32, threads: u32, x: bool) -> bool {
    reach(instruction, id, threads, Role::Reduce(x))
}

/// `bar.sync 0`
#[track_caller]
pub(crate) fn sync_all(instruction: &'static str) {
    reach(
        instruction,
        0,
        Machine::current().launch.threads,
        Role::Sync,
    );
}

/// Gives whether anybody's predicate holds, which has a meaning for [`Role::Reduce`] alone.
#[track_caller]
fn reach(instruction: &'static str, id: u32, threads: u32, role: Role) -> bool {
    let x = matches!(role, Role::Reduce(true)) as u32;
    let [any] = collective(instruction, [id, threads, x], |block, who, at| {
        let site = site::intern(instruction, at);
        for lane in 0..LANES {
            let who = Who { lane, ..who };
            let [its_id, its_threads, ..] = block.warps[who.warp].operands[lane];
            let wrong = |what, value| {
                Err(Kind::Operand {
                    access: who.access(site),
                    what,
                    value,
                }
                .into())
            };
            if its_id != id || its_threads != threads {
                return wrong(
                    "all lanes must give one barrier and one number of threads",
                    its_id,
                );
            }
            if id as usize >= BARRIERS {
                return wrong("there are barriers 0 to 15", id);
            }
            if threads == 0 || !threads.is_multiple_of(LANES as u32) {
                return wrong("the number of threads must be a multiple of 32", threads);
            }
        }
        count(block, who, site, (id, threads), role)
    });
    any != 0
}

/// A warp has come to barrier `id`.
fn count(
    block: &mut Block,
    who: Who,
    site: Site,
    (id, threads): (u32, u32),
    role: Role,
) -> Result<Meeting, Fault> {
    block.meet(who.warp);
    let barrier = &mut block.barriers[id as usize];
    let expected = if barrier.arrived == 0 {
        threads
    } else {
        barrier.expected
    };
    let arrived = barrier.arrived + LANES as u32;
    if expected != threads || arrived > expected {
        let (access, given) = (who.access(site), threads);
        return Err(Kind::BarrierCount {
            access,
            barrier: id,
            expected,
            given,
            arrived,
        }
        .into());
    }
    let reduces = matches!(role, Role::Reduce(_));
    if barrier.arrived > 0 && barrier.reduces != reduces {
        let access = who.access(site);
        return Err(Kind::BarrierMixed {
            access,
            barrier: id,
        }
        .into());
    }
    let warp = &mut block.warps[who.warp];
    let any = warp.operands.iter().any(|operands| operands[2] != 0);
    barrier.any = any || barrier.arrived > 0 && barrier.any;
    barrier.reduces = reduces;
    let mut known = warp.known.clone();
    known.own[who.warp] = warp.now.clock;
    warp.advance();
    if barrier.arrived == 0 {
        barrier.known = known;
    } else {
        barrier.known.join(&known);
    }
    (barrier.expected, barrier.arrived, barrier.last) = (expected, arrived, Some((who, site)));
    let waits = !matches!(role, Role::Arrive);
    if waits {
        barrier.waiting.push(who.warp);
    }
    if arrived < expected {
        if waits {
            block.warps[who.warp].blocked = Some(Blocked::Barrier(id));
            return Ok(Meeting::Blocked);
        }
        return Ok(Meeting::Over);
    }
    barrier.arrived = 0;
    for warp in barrier.waiting.drain(..) {
        let state = &mut block.warps[warp];
        state.known.join(&barrier.known);
        state.blocked = None;
        state.runnable = ALL;
        let results = &mut state.results;
        results
            .iter_mut()
            .for_each(|result| result[0] = barrier.any as u32);
        if warp != who.warp {
            block.woken.push(warp);
        }
    }
    Ok(Meeting::Over)
}

/// `bar.warp.sync`
#[track_caller]
pub(crate) fn warp_sync(instruction: &'static str) {
    let [] = collective(instruction, [], |block, who, _| {
        block.meet(who.warp);
        block.warps[who.warp].advance();
        Ok(Meeting::Over)
    });
}
