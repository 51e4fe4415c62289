//! Warpgroups: that their four warps do the same, and the registers that they hand each other (`setmaxnreg`).

use std::collections::VecDeque;

use super::Launch;
use super::asynchronous::Asynchronous;
use super::block::{Block, Blocked};
use super::fault::{Fault, Kind};
use super::machine::{ALL, LANES, Who};
use super::site::{self, Site};
use super::warp::{Meeting, collective};

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;
/// Registers are given out in such portions.
const PORTION: u32 = 8;
/// Fewest and most registers of a thread.
const LEAST: u32 = 24;
const MOST: u32 = 256;

/// One instruction, as all warps of the warpgroup must execute it.
pub(super) struct Event {
    pub who: Who,
    pub site: Site,
    pub operands: [u32; 8],
}

/// What the warps of a warpgroup have done and not all of them yet.
#[derive(Default)]
pub(super) struct Agreement {
    events: VecDeque<Event>,
    /// How many events all warps have gone through and are forgotten.
    past: u64,
    /// How many each warp has gone through.
    reached: [u64; WARPS],
}

impl Agreement {
    /// A warp comes to its next instruction for the warpgroup.
    fn check(&mut self, event: Event) -> Result<(), Fault> {
        let warp = event.who.warp % WARPS;
        let index = (self.reached[warp] - self.past) as usize;
        self.reached[warp] += 1;
        let Some(earlier) = self.events.get(index) else {
            self.events.push_back(event);
            return Ok(());
        };
        let places = [earlier.site, event.site].map(site::resolve);
        if places[0] != places[1] || earlier.operands != event.operands {
            return Err(Asynchronous::WarpgroupDiverged {
                earlier: earlier.who.access(earlier.site),
                later: event.who.access(event.site),
            }
            .into());
        }
        if self.reached.iter().all(|reached| *reached > self.past) {
            self.events.pop_front();
            self.past += 1;
        }
        Ok(())
    }

    /// An instruction that not all warps have come to.
    pub fn unfinished(&self) -> Option<Fault> {
        let event = self.events.front()?;
        let warps = self.reached.iter().filter(|reached| **reached > self.past);
        Some(
            Asynchronous::WarpgroupIncomplete {
                access: event.who.access(event.site),
                warps: warps.count() as u32,
            }
            .into(),
        )
    }
}

/// A warp has met at an instruction for its warpgroup: whether there is one, and does the same.
pub(super) fn agree(block: &mut Block, event: Event) -> Result<(), Fault> {
    let group = event.who.warp / WARPS;
    if (group + 1) * WARPS > block.warps.len() {
        return Err(Kind::Operand {
            access: event.who.access(event.site),
            what: "a warpgroup has four warps",
            value: (block.warps.len() % WARPS) as u32,
        }
        .into());
    }
    block.agreements[group].check(event)
}

/// The registers of a block.
pub(super) struct Pool {
    /// What a thread of each warp holds.
    held: Vec<u32>,
    /// Registers that were given back.
    free: u32,
    /// Warps that wait for registers, the first to come first.
    waiting: VecDeque<usize>,
}

impl Pool {
    /// What threads hold at launch is what `ptxas` gives a kernel of which the multiprocessor is to hold so many blocks.
    pub fn new(launch: &Launch) -> Pool {
        let threads = launch.threads * launch.blocks_per_sm;
        let each = (REGISTERS / threads / PORTION * PORTION).min(MOST);
        Pool {
            held: vec![each; launch.threads as usize / LANES],
            free: 0,
            waiting: VecDeque::new(),
        }
    }

    /// What a warp that waits for `registers` lacks.
    pub fn until(&self, warp: usize, registers: u32) -> String {
        let (lacks, free) = (self.lacks(warp, registers), self.free);
        format!(
            "{registers} registers for each thread: {lacks} more for its warp, while the block has {free} to give"
        )
    }

    fn lacks(&self, warp: usize, registers: u32) -> u32 {
        (registers - self.held[warp]) * LANES as u32
    }

    /// Gives a warp what it asks for, if it is there.
    fn grant(&mut self, warp: usize, registers: u32) -> bool {
        let lacks = self.lacks(warp, registers);
        if lacks > self.free {
            return false;
        }
        self.free -= lacks;
        self.held[warp] = registers;
        true
    }
}

/// `setmaxnreg.dec`
#[track_caller]
pub(crate) fn release_registers(instruction: &'static str, registers: u32) {
    let [] = collective(instruction, [registers], |block, who, at| {
        let site = site::intern(instruction, at);
        let held = block.registers.held[who.warp];
        let rules = [registers <= held, true];
        check(block, who, site, registers, rules)?;
        block.registers.free += (held - registers) * LANES as u32;
        block.registers.held[who.warp] = registers;
        while let Some(warp) = block.registers.waiting.front().copied() {
            let Some(Blocked::Registers(wanted)) = block.warps[warp].blocked else {
                break;
            };
            if !block.registers.grant(warp, wanted) {
                break;
            }
            block.registers.waiting.pop_front();
            block.warps[warp].blocked = None;
            block.warps[warp].runnable = ALL;
            block.woken.push(warp);
        }
        Ok(Meeting::Over)
    });
}

/// `setmaxnreg.inc`
#[track_caller]
pub(crate) fn take_registers(instruction: &'static str, registers: u32) {
    let [] = collective(instruction, [registers], |block, who, at| {
        let site = site::intern(instruction, at);
        let rules = [true, registers >= block.registers.held[who.warp]];
        check(block, who, site, registers, rules)?;
        let pool = &mut block.registers;
        if pool.waiting.is_empty() && pool.grant(who.warp, registers) {
            return Ok(Meeting::Over);
        }
        pool.waiting.push_back(who.warp);
        block.warps[who.warp].blocked = Some(Blocked::Registers(registers));
        Ok(Meeting::Blocked)
    });
}

fn check(
    block: &mut Block,
    who: Who,
    site: Site,
    registers: u32,
    [not_above, not_below]: [bool; 2],
) -> Result<(), Fault> {
    let rules = [
        (
            registers.is_multiple_of(PORTION) && (LEAST..=MOST).contains(&registers),
            "the number of registers must be a multiple of 8 in 24 ..= 256",
        ),
        (
            not_above,
            "no more registers than the threads hold can be kept",
        ),
        (
            not_below,
            "no fewer registers than the threads hold can be asked for",
        ),
    ];
    if let Some((_, what)) = rules.into_iter().find(|(holds, _)| !holds) {
        return Err(Kind::Operand {
            access: who.access(site),
            what,
            value: registers,
        }
        .into());
    }
    let operands = [registers, 0, 0, 0, 0, 0, 0, 0];
    agree(
        block,
        Event {
            who,
            site,
            operands,
        },
    )
}
