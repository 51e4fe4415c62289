//! The report when nobody can go on.

use super::block::{Block, Blocked};
use super::cluster;
use super::fault::{Access, Fault, Kind, Waiting};
use super::machine::{LANES, Machine, Who};

/// Threads that wait for the same at the same place are told of once.
#[derive(Default)]
struct Report(Vec<Waiting>);

impl Report {
    fn add(&mut self, access: Access, threads: u32, until: String) {
        let same = |other: &&mut Waiting| {
            (other.access.at, other.access.instruction) == (access.at, access.instruction)
                && other.access.thread.block == access.thread.block
                && other.until == until
        };
        match self.0.iter_mut().find(same) {
            Some(other) => other.threads += threads,
            None => self.0.push(Waiting {
                access,
                threads,
                until,
            }),
        }
    }
}

/// Who waits for what.
pub(super) fn report(machine: &Machine) -> Fault {
    let mut report = Report::default();
    for (slot, block) in machine.blocks.iter().enumerate() {
        let block = block.borrow();
        if block.live_warps > 0 {
            for warp in 0..block.warps.len() {
                add_warp(&mut report, machine, &block, slot, warp);
            }
            for (who, site, until) in block.mbarriers.waiting() {
                report.add(who.access(site), 1, until);
            }
        }
    }
    Kind::Deadlock { waiting: report.0 }.into()
}

fn add_warp(report: &mut Report, machine: &Machine, block: &Block, slot: usize, warp: usize) {
    let state = &block.warps[warp];
    let who = |lane: u32| Who {
        slot,
        block: block.index,
        warp,
        lane: lane as usize,
    };
    let here = |lane| Access {
        thread: who(lane).thread(),
        instruction: state.instruction,
        at: state.at,
    };
    if let Some(blocked) = state.blocked {
        let until = match blocked {
            Blocked::Barrier(id) => {
                let barrier = &block.barriers[id as usize];
                format!(
                    "barrier {id}, where {} of {} have come",
                    barrier.arrived, barrier.expected
                )
            }
            Blocked::Registers(registers) => block.registers.until(warp, registers),
            Blocked::Cluster => cluster::barrier(machine, slot).borrow().until(),
        };
        report.add(here(0), LANES as u32, until);
    }
    if state.arrived != 0 {
        let others = format!("lanes {:#010x} of their warp", !state.arrived);
        report.add(
            here(state.arrived.trailing_zeros()),
            state.arrived.count_ones(),
            others,
        );
    }
    for lane in (0..LANES as u32).filter(|lane| state.spinning & 1 << lane != 0) {
        let spin = block.lanes[warp * LANES + lane as usize].spin;
        report.add(who(lane).access(spin), 1, "another value".to_owned());
    }
}
