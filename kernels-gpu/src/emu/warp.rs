//! Instructions for which all lanes of a warp meet.

use std::panic::Location;

use super::block::Block;
use super::fault::{Access, Fault, Kind, Thread};
use super::machine::{ALL, LANES, MOST_OPERANDS, MOST_RESULTS, Machine, Who};
use super::site;

/// Whether the warp goes on after its lanes have met.
pub(super) enum Meeting {
    /// All lanes go on.
    Over,
    /// All lanes wait for other warps.
    Blocked,
}

/// All 32 lanes hand in their operands; the last to come runs `combine`, which reads the operands of all and
/// leaves the results of all in the warp. Lanes that meet at different instructions are a fault.
#[track_caller]
#[inline]
pub(super) fn collective<const OPERANDS: usize, const RESULTS: usize>(
    instruction: &'static str,
    operands: [u32; OPERANDS],
    combine: impl FnOnce(&mut Block, Who, &'static Location<'static>) -> Result<Meeting, Fault>,
) -> [u32; RESULTS] {
    const { assert!(OPERANDS <= MOST_OPERANDS && RESULTS <= MOST_RESULTS) };
    let at = Location::caller();
    let machine = Machine::current();
    let who = machine.current.get();
    let arrived = arrive(machine, who, instruction, at, &operands, combine);
    if machine.settle(arrived, true) {
        machine.suspend();
    }
    let block = machine.blocks[who.slot].borrow();
    let mut results = [0; RESULTS];
    copy::<RESULTS>(&block.warps[who.warp].results[who.lane], &mut results);
    results
}

/// Copies the first numbers: a copy of slices is a call, unless their length is known where it is compiled.
#[inline]
#[expect(clippy::manual_memcpy, reason = "see above")]
fn copy<const N: usize>(from: &[u32], to: &mut [u32]) {
    for i in 0..N {
        to[i] = from[i];
    }
}

/// One lane comes; whether it must wait.
#[inline]
fn arrive<const OPERANDS: usize>(
    machine: &Machine,
    who: Who,
    instruction: &'static str,
    at: &'static Location<'static>,
    operands: &[u32; OPERANDS],
    combine: impl FnOnce(&mut Block, Who, &'static Location<'static>) -> Result<Meeting, Fault>,
) -> Result<bool, Fault> {
    let mut block = machine.blocks[who.slot].borrow_mut();
    let block = &mut *block;
    let warp = &mut block.warps[who.warp];
    if warp.exited != 0 {
        let access = Access {
            thread: who.thread(),
            instruction,
            at,
        };
        return Err(Kind::Exited {
            access,
            lanes: warp.exited,
        }
        .into());
    }
    if warp.arrived == 0 {
        (warp.instruction, warp.at) = (instruction, at);
    } else if !(std::ptr::eq(warp.at, at) && std::ptr::eq(warp.instruction, instruction))
        && (warp.at != at || warp.instruction != instruction)
    {
        let first = warp.arrived.trailing_zeros() as usize;
        let thread = Thread {
            lane: Some(first as u32),
            ..who.thread()
        };
        let earlier = Access {
            thread,
            instruction: warp.instruction,
            at: warp.at,
        };
        let later = Access {
            thread: who.thread(),
            instruction,
            at,
        };
        return Err(Kind::Divergence { earlier, later }.into());
    }
    copy::<OPERANDS>(operands, &mut warp.operands[who.lane]);
    let bit = 1 << who.lane;
    warp.arrived |= bit;
    if warp.arrived != ALL {
        warp.runnable &= !bit;
        return Ok(true);
    }
    warp.arrived = 0;
    warp.runnable = ALL;
    machine.progress();
    let mut stats = machine.stats.get();
    stats.warp_instructions += 1;
    machine.stats.set(stats);
    let meeting = combine(block, who, at)?;
    machine
        .ready
        .borrow_mut()
        .extend(block.woken.drain(..).map(|warp| (who.slot, warp)));
    if let Meeting::Blocked = meeting {
        block.warps[who.warp].runnable = 0;
        return Ok(true);
    }
    Ok(false)
}

/// `shfl`: every lane gets the `x` of the lane that `source` names.
#[track_caller]
pub(crate) fn exchange(instruction: &'static str, x: u32, source: impl FnOnce(u32) -> u32) -> u32 {
    let own = Machine::current().current.get().lane as u32;
    let [y] = collective(instruction, [x, source(own)], |block, who, at| {
        let warp = &mut block.warps[who.warp];
        for lane in 0..LANES {
            let [_, source, ..] = warp.operands[lane];
            if source as usize >= LANES {
                let access = Who { lane, ..who }.access(site::intern(instruction, at));
                return Err(Kind::Operand {
                    access,
                    what: "the source must be a lane",
                    value: source,
                }
                .into());
            }
            warp.results[lane][0] = warp.operands[source as usize][0];
        }
        Ok(Meeting::Over)
    });
    y
}

/// `vote`: every lane gets what `count` says of the predicates of all.
#[track_caller]
pub(crate) fn vote(
    instruction: &'static str,
    x: bool,
    count: impl FnOnce(&[bool; LANES]) -> bool,
) -> bool {
    let of_votes = |votes: &[u32; LANES]| count(&votes.map(|vote| vote != 0)) as u32;
    reduce(instruction, x as u32, of_votes) != 0
}

/// `redux`, and `vote` with a mask: every lane gets what `of_all` says of the operands of all.
#[track_caller]
pub(crate) fn reduce(
    instruction: &'static str,
    x: u32,
    of_all: impl FnOnce(&[u32; LANES]) -> u32,
) -> u32 {
    let [y] = collective(instruction, [x], |block, who, _| {
        let warp = &mut block.warps[who.warp];
        let outcome = of_all(&warp.operands.map(|operands| operands[0]));
        warp.results
            .iter_mut()
            .for_each(|results| results[0] = outcome);
        Ok(Meeting::Over)
    });
    y
}
