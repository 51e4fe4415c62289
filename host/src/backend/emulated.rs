//! Runs a plan's kernels on the emulator of `ferroflash-kernels`, on the caller's own host memory: for tests of kernels.
#![forbid(unsafe_code)]

use ferroflash_kernels::emu::{self, GlobalMemory, Plain};
use ferroflash_kernels::entry;

use crate::arguments::{Access, Argument, ByArgument, Lent, Operand, Operands};
use crate::dtype::{HostData, HostDataMut, of_any_type};
use crate::error::{Error, ProblemError};
use crate::plan::schedule;
use crate::plan::workspace::ALIGNMENT_BYTES;
use crate::plan::{DeviceInfo, Planned, PlannedLaunch};
use crate::tensor::{Location, Memory, MemoryMut};

/// The emulated device, and how its threads are interleaved.
#[derive(Clone, Debug)]
pub struct EmulatorOptions {
    /// Its limits, for planning.
    pub device: DeviceInfo,
    /// The seed of the order of threads and copies, and what is checked.
    pub run: emu::Options,
    /// Whether lengths and page tables are checked.
    pub lengths: Lengths,
}

/// Whether the lengths of sequences, and their pages, are checked before kernels read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Every call checks them, as any on the host: contradictions are errors.
    Checked,
    /// They are not checked, as in GPU memory: kernels take them as they are.
    Unseen,
}

impl EmulatorOptions {
    /// [`DeviceInfo::emulated`], in the order of a seed, everything checked.
    pub fn seeded(seed: u64) -> EmulatorOptions {
        EmulatorOptions {
            device: DeviceInfo::emulated(),
            run: emu::Options::seeded(seed),
            lengths: Lengths::Checked,
        }
    }

    /// The same with [`DeviceInfo::emulated_hopper`].
    pub fn hopper(seed: u64) -> EmulatorOptions {
        EmulatorOptions {
            device: DeviceInfo::emulated_hopper(),
            ..EmulatorOptions::seeded(seed)
        }
    }
}

/// Computes what the plan's pass writes.
pub(crate) fn run(
    plan: &impl Planned,
    options: &EmulatorOptions,
    operands: &mut Operands,
) -> Result<(), Error> {
    let mut workspace = Workspace::new(plan)?;
    let mut memory = GlobalMemory::new();
    let mut addresses = ByArgument::<u64>::default();
    let values = *operands.values();
    for (argument, operand) in operands.iter_mut() {
        let access = plan.need(argument).map(|need| need.access);
        addresses[argument] = lend(&mut memory, argument, operand, access)?;
    }
    let start = workspace.lend(&mut memory, plan);
    for planned in plan.planned_launches() {
        let variant = planned.variant;
        let fault = |report: String| Error::Emulator {
            kernel: variant.name,
            report,
        };
        let kernel =
            entry::emulated(variant.name).ok_or_else(|| fault("there is no such kernel".into()))?;
        let params = plan.bound(
            planned,
            start,
            |argument| addresses[argument],
            Some(&values),
        );
        let launch = launch(planned, &options.device);
        let kernel = || kernel(&params);
        let ran = match planned.edit {
            Some(edit) => emu::run_edited(&launch, edit, &options.run, &mut memory, &kernel),
            None => emu::run(&launch, &options.run, &mut memory, &kernel),
        };
        ran.map_err(|found| fault(found.to_string()))?;
    }
    workspace.counters_are_clear(plan)
}

/// As many resident blocks as the device holds, or as the emulator can run: later blocks start when others end, as on a device with fewer SMs.
fn launch(planned: &PlannedLaunch, device: &DeviceInfo) -> emu::Launch {
    let tile_config = &planned.variant.tile_config;
    emu::Launch {
        grid: planned.grid,
        threads: tile_config.threads,
        shared_bytes: tile_config.shared_bytes,
        resident_blocks: schedule::resident_blocks(device, tile_config)
            .min(emu::MAX_RESIDENT_THREADS / tile_config.threads),
        blocks_per_sm: tile_config.blocks_per_sm,
        cluster: tile_config.cluster,
        spec: planned.spec,
    }
}

/// Lends exactly the elements that the layout covers, under the argument's name.
fn lend<'a>(
    memory: &mut GlobalMemory<'a>,
    argument: Argument,
    operand: &'a mut Operand,
    access: Option<Access>,
) -> Result<u64, ProblemError> {
    let given = operand.describe();
    let n_elems = given.extent_elems()?;
    let name = argument.name();
    match operand.lend() {
        Lent::Read(Memory::Host(data)) => {
            Ok(of_any_type!(HostData, data, data => memory.input(name, &data[..n_elems])))
        }
        Lent::Write(MemoryMut::Host(data)) => Ok(
            of_any_type!(HostDataMut, data, data => write(memory, name, &mut data[..n_elems], access)),
        ),
        // Validation has refused it already.
        Lent::Read(Memory::Device(_)) | Lent::Write(MemoryMut::Device(_)) => {
            Err(ProblemError::OtherDevice {
                given: given.location(),
                needed: Location::Host,
            })
        }
    }
}

/// Lends memory to write: its contents count as initialised if they may be read.
fn write<'a, T: Plain>(
    memory: &mut GlobalMemory<'a>,
    name: &str,
    data: &'a mut [T],
    access: Option<Access>,
) -> u64 {
    match access {
        Some(Access::Updated) => memory.in_out(name, data),
        _ => memory.output(name, data),
    }
}

/// The workspace, in units of the narrowest element that a piece holds: lanes that write adjacent weights do not race.
struct Workspace {
    memory: Vec<u16>,
    first: usize,
}

impl Workspace {
    fn new(plan: &impl Planned) -> Result<Workspace, ProblemError> {
        let overflow = ProblemError::SizeOverflow {
            what: "the workspace",
        };
        let unit = size_of::<u16>() as u64;
        let n_units = usize::try_from((plan.workspace_layout().n_bytes() + ALIGNMENT_BYTES) / unit)
            .map_err(|_| overflow)?;
        let memory = vec![0u16; n_units];
        let first = memory.as_ptr().align_offset(ALIGNMENT_BYTES as usize);
        Ok(Workspace { memory, first })
    }

    /// Lends every piece by its name, so that a kernel that leaves one for the next is found out.
    fn lend<'a>(&'a mut self, memory: &mut GlobalMemory<'a>, plan: &impl Planned) -> u64 {
        let mut rest = &mut self.memory[self.first..];
        let start = rest.as_ptr().addr() as u64;
        let mut lent = 0;
        for piece in plan.workspace_layout().pieces() {
            let unit = size_of::<u16>() as u64;
            let (offset, n_units) = (
                (piece.offset_bytes / unit) as usize,
                (piece.n_bytes / unit) as usize,
            );
            let (_, behind) = rest.split_at_mut(offset - lent);
            let (this, behind) = behind.split_at_mut(n_units);
            if piece.is_counter() {
                memory.kept(piece.name, this);
            } else {
                memory.scratch(piece.name, this);
            }
            lent = offset + n_units;
            rest = behind;
        }
        start
    }
    /// Kernels leave counters as they found them.
    fn counters_are_clear(&self, plan: &impl Planned) -> Result<(), Error> {
        let memory = &self.memory[self.first..];
        for piece in plan
            .workspace_layout()
            .pieces()
            .iter()
            .filter(|piece| piece.is_counter())
        {
            let unit = size_of::<u16>() as u64;
            let first = (piece.offset_bytes / unit) as usize;
            let left = &memory[first..first + (piece.n_bytes / unit) as usize];
            if left.iter().any(|&word| word != 0) {
                return Err(Error::Emulator {
                    kernel: plan
                        .planned_launches()
                        .last()
                        .map_or("", |launch| launch.variant.name),
                    report: format!("the counter {} is not 0 after the launch", piece.name),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, Device, Dtype, Pass, Problem};

    #[test]
    fn a_counter_that_a_kernel_leaves_is_found() {
        let problem = Problem::builder(Dtype::Bf16)
            .seqlen(64)
            .heads(1)
            .head_dim(64)
            .build()
            .unwrap();
        let device = Device::emulated(EmulatorOptions::hopper(0));
        let attention = Attention::new(&device, problem).unwrap();
        let plan = attention.explain(Pass::Forward).unwrap().plan.unwrap();
        let mut workspace = Workspace::new(&plan).unwrap();
        let mut memory = GlobalMemory::new();
        let start = workspace.lend(&mut memory, &plan);
        assert!(start.is_multiple_of(ALIGNMENT_BYTES));
        drop(memory);
        workspace.counters_are_clear(&plan).unwrap();
        let first = workspace.first;
        workspace.memory[first + 1] = 1;
        let left = workspace.counters_are_clear(&plan).unwrap_err();
        assert!(
            left.to_string()
                .contains("the counter tile_counter is not 0"),
            "{left}"
        );
    }
}
