//! `wgmma`: products of a warpgroup that run while its threads go on.
//!
//! Each warp multiplies its own 16 rows of A with all of B. Its reads of shared memory last from the product to the
//! wait for its group, and are checked over that whole time.

mod operand;

use super::asynchronous::Asynchronous;
use super::block::{Block, Parts};
use super::cluster::{rank_of, with_rank};
use super::fault::Fault;
use super::machine::{LANES, Machine, Who};
use super::mma::Operand;
use super::shared::{Piece, Reader};
use super::site::{self, Site};
use super::tensor_core::{self, Add, CHUNK, Found, TensorCore};
use super::warp::{Meeting, collective};
use super::warpgroup::{Event, WARPS, agree};
use crate::ptx::wgmma::{Descriptor, Major, Types};

/// A, as the instruction is given it.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    /// In shared memory, and which dimension is contiguous there: a [`Major`] as the instruction has it.
    Shared(Descriptor, u32),
    /// In this lane's registers.
    Registers([u32; 4]),
}

fn major(immediate: u32) -> Major {
    if immediate == Major::K as u32 {
        Major::K
    } else {
        Major::Mn
    }
}

/// The operands of a product besides its accumulators.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub a: Left,
    pub b: Descriptor,
    pub major_b: u32,
    pub types: Types,
    pub accumulate: bool,
}

/// What accumulators hold to which nobody gave a value: a NaN, and not one of those that products in flight leave.
pub(crate) const UNDEFINED: f32 = f32::from_bits(0x7fdd_dddd);

/// What a lane hands in for its accumulators when they hold values.
const VALUES: u32 = 0;

/// What a lane's accumulators are: their number in flight, or [`VALUES`].
fn accumulators(
    machine: &Machine,
    site: Site,
    d: &[f32],
    columns: Option<usize>,
) -> Result<u32, Fault> {
    let who = machine.current.get();
    let mut block = machine.blocks[who.slot].borrow_mut();
    let core = &mut block.warps[who.warp].tensor_core;
    let touched = |core: &mut TensorCore, id| {
        let product = core.find(id).map_or(site, |chain| chain.site);
        let (access, product) = (who.access(site), who.access(product));
        Err(Asynchronous::AccumulatorTouched { access, product }.into())
    };
    match core.examine(d) {
        Found::Values => {
            if columns.is_some() {
                core.stage(who.lane, d);
            }
            Ok(VALUES)
        }
        Found::Tags(id) => {
            let whole = core
                .find(id)
                .is_some_and(|chain| chain.columns == d.len() * 2);
            if whole { Ok(id) } else { touched(core, id) }
        }
        Found::Remains(id) => touched(core, id),
    }
}

/// `wgmma.mma_async`
#[track_caller]
pub(crate) fn multiply(instruction: &'static str, d: &mut [f32], product: Product) {
    let machine = Machine::current();
    let site = site::intern(instruction, std::panic::Location::caller());
    let columns = d.len() * 2;
    let held = accumulators(machine, site, d, Some(columns));
    let held = machine.settle(held, VALUES);
    let (a, source) = match product.a {
        Left::Shared(Descriptor { low, high }, major) => ([low, high, 0, 0], major),
        Left::Registers(registers) => (registers, 2),
    };
    let kind = u32::from(product.accumulate)
        | product.major_b << 1
        | source << 2
        | (product.types as u32) << 4;
    let operands = [
        held,
        product.b.low,
        product.b.high,
        kind,
        columns as u32,
        a[0],
        a[1],
        a[2],
        a[3],
    ];
    let [chain] = collective(instruction, operands, |block, who, at| {
        let site = site::intern(instruction, at);
        same_in_all_lanes(block, who, site, &product)?;
        let mut operands = [0; 8];
        let shared_a = if let Left::Shared(..) = product.a {
            7
        } else {
            5
        };
        operands[..shared_a].copy_from_slice(&block.warps[who.warp].operands[0][..shared_a]);
        agree(
            block,
            Event {
                who,
                site,
                operands,
            },
        )?;
        let chain = begin(block, who, site, held, columns, &product)?;
        for results in &mut block.warps[who.warp].results {
            results[0] = chain;
        }
        sometimes_calculate(machine, block, who.warp);
        Ok(Meeting::Over)
    });
    TensorCore::hide(chain, d);
}

/// The lanes of a warp must give one product; A in registers is each lane's own.
fn same_in_all_lanes(block: &Block, who: Who, site: Site, product: &Product) -> Result<(), Fault> {
    let count = if let Left::Shared(..) = product.a {
        7
    } else {
        5
    };
    let operands = &block.warps[who.warp].operands;
    let differs = |lane: &usize| operands[*lane][..count] != operands[0][..count];
    let Some(lane) = (0..LANES).find(differs) else {
        return Ok(());
    };
    let other = |lane| Who { lane, ..who }.access(site);
    Err(Asynchronous::WarpgroupDiverged {
        earlier: other(0),
        later: other(lane),
    }
    .into())
}

/// A product begins: the number of its accumulators.
fn begin(
    block: &mut Block,
    who: Who,
    site: Site,
    held: u32,
    columns: usize,
    product: &Product,
) -> Result<u32, Fault> {
    block.meet(who.warp);
    let from_registers = matches!(product.a, Left::Registers(_));
    let core = &block.warps[who.warp].tensor_core;
    if !core.fenced && (held == VALUES || from_registers) {
        let access = who.access(site);
        return Err(Asynchronous::MissingFence { access }.into());
    }
    let major_b = major(product.major_b);
    must_be_along_rows(who, site, product)?;
    let b = operand::right(who, site, product.b, major_b, columns as u32)?;
    let b = begin_reading(block, who, site, &b)?;
    let a = match product.a {
        Left::Shared(descriptor, immediate) => {
            let major = major(immediate);
            let pieces = operand::left(who, site, descriptor, major, who.warp % WARPS)?;
            let pieces = begin_reading(block, who, site, &pieces)?;
            tensor_core::Left::Shared(pieces, major)
        }
        Left::Registers(_) => {
            let operands = &block.warps[who.warp].operands;
            tensor_core::Left::Registers(Box::new(
                operands.map(|lane| [lane[5], lane[6], lane[7], lane[8]]),
            ))
        }
    };
    let core = &mut block.warps[who.warp].tensor_core;
    let chain = match held {
        VALUES => core.begin(columns, site),
        chain => chain,
    };
    let product = tensor_core::Product {
        chain,
        types: operands(product.types),
        a,
        b,
        major_b,
        add: if product.accumulate {
            Add::Adds
        } else {
            Add::Replaces
        },
        group: core.committed,
    };
    core.push(product, site);
    Ok(chain)
}

/// The types of A and of B.
fn operands(types: Types) -> [Operand; 2] {
    match types {
        Types::Bf16 => [Operand::Bf16; 2],
        Types::F16 => [Operand::F16; 2],
        Types::E4m3 => [Operand::E4m3; 2],
        Types::E5m2 => [Operand::E5m2; 2],
        Types::E4m3E5m2 => [Operand::E4m3, Operand::E5m2],
        Types::E5m2E4m3 => [Operand::E5m2, Operand::E4m3],
    }
}

/// Of types of 8 bits there is no product of operands that are transposed.
fn must_be_along_rows(who: Who, site: Site, product: &Product) -> Result<(), Fault> {
    let is_transposed = |immediate| major(immediate) == Major::Mn;
    let of_a = matches!(product.a, Left::Shared(_, immediate) if is_transposed(immediate));
    if operands(product.types)[0].bytes() == 2 || !(of_a || is_transposed(product.major_b)) {
        return Ok(());
    }
    Err(super::fault::Kind::Operand {
        access: who.access(site),
        what: "operands of 8 bits have their inner dimension contiguous",
        value: product.major_b,
    }
    .into())
}

fn begin_reading(
    block: &mut Block,
    who: Who,
    site: Site,
    pieces: &[u32],
) -> Result<Vec<usize>, Fault> {
    let Parts {
        actor,
        shared,
        fences,
        ..
    } = block.parts(who, site);
    let reader = Reader::Warp(who.warp);
    // Descriptors name places in the own block's memory.
    let rank = rank_of(shared.base());
    let piece = |addr| Piece {
        addr: with_rank(addr, rank),
        bytes: CHUNK,
        alignment: CHUNK,
    };
    pieces
        .iter()
        .map(|addr| shared.begin_reading(&actor, fences, reader, piece(*addr)))
        .collect()
}

/// Products take their operands at any moment until they are waited for.
fn sometimes_calculate(machine: &Machine, block: &mut Block, warp: usize) {
    if machine.chance(2) {
        let Block { warps, shared, .. } = block;
        warps[warp].tensor_core.calculate(shared);
    }
}

/// What is the same for `fence`, `commit_group` and `wait_group`.
#[track_caller]
fn meet_all<const RESULTS: usize>(
    instruction: &'static str,
    operands: [u32; 2],
    then: impl FnOnce(&mut Block, usize),
) -> [u32; RESULTS] {
    collective(instruction, operands, |block, who, at| {
        let site = site::intern(instruction, at);
        let given = &block.warps[who.warp].operands;
        if let Some(lane) = (0..LANES).find(|lane| given[*lane][..2] != operands) {
            let access = |lane| Who { lane, ..who }.access(site);
            let (earlier, later) = (access(who.lane), access(lane));
            return Err(Asynchronous::WarpgroupDiverged { earlier, later }.into());
        }
        let [x, y] = operands;
        let operands = [x, y, 0, 0, 0, 0, 0, 0];
        agree(
            block,
            Event {
                who,
                site,
                operands,
            },
        )?;
        then(block, who.warp);
        Ok(Meeting::Over)
    })
}

/// `wgmma.fence`
#[track_caller]
pub(crate) fn fence(instruction: &'static str) {
    let [] = meet_all(instruction, [0; 2], |block, warp| {
        block.warps[warp].tensor_core.fenced = true;
    });
}

/// `wgmma.commit_group`
#[track_caller]
pub(crate) fn commit_group(instruction: &'static str) {
    let [] = meet_all(instruction, [0; 2], |block, warp| {
        block.warps[warp].tensor_core.committed += 1;
        sometimes_calculate(Machine::current(), block, warp);
    });
}

/// `wgmma.wait_group newest`: if the accumulators `d` belong to a group that is done, they have their sums.
#[track_caller]
pub(crate) fn wait(instruction: &'static str, d: &mut [f32], newest: u32) {
    let machine = Machine::current();
    let site = site::intern(instruction, std::panic::Location::caller());
    let held = accumulators(machine, site, d, None);
    let held = machine.settle(held, VALUES);
    let [done] = meet_all(instruction, [held, newest], |block, warp| {
        block.meet(warp);
        tensor_core::retire(block, warp, newest);
        let state = &mut block.warps[warp];
        state.advance();
        let core = &mut state.tensor_core;
        let done = core.find(held).is_some_and(|chain| chain.pending == 0);
        if done {
            core.fenced = false;
        }
        state
            .results
            .iter_mut()
            .for_each(|results| results[0] = u32::from(done));
    });
    if done != 0 {
        let who = machine.current.get();
        machine.blocks[who.slot].borrow_mut().warps[who.warp]
            .tensor_core
            .hand_back(held, who.lane, d);
    }
}
