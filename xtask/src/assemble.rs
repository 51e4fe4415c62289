//! What ptxas makes of each module: registers, spills, stack, shared memory; remembered as long as nothing changes.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use ferroflash_kernels::spec::text::{of_variant, specialise};
use ferroflash_kernels::spec::{Constant, PROBE_SPEC, Spec};
use ferroflash_kernels::variants::{self, Footprint, TileShape, Variant};
use ferroflash_ptx_builder::{Built, Module, PROBES};

use crate::workspace::Workspace;

/// 32-bit registers of an SM, of every architecture from sm_70 on.
const REGISTERS_PER_SM: u32 = 65536;

/// What ptxas' warnings C7508 to C7515 begin with.
const LOSS: &str = "Potential Performance Loss:";

/// A thread's registers are allocated in units of this many.
const REGISTER_UNIT: u32 = 8;

/// Whether the assembled modules are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As `<variant>.<target>.cubin` beside the PTX.
    Cubins,
    /// Only the figures.
    Nothing,
}

/// What one entry takes on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The entry; [`PROBES`] for the greatest figures of all probes.
    pub entry: String,
    /// What it was compiled with.
    pub spec: Spec,
    /// The architecture that it was assembled for.
    pub target: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spill stores and loads of a thread.
    pub spill_bytes: u32,
    /// Bytes of stack of a thread.
    pub stack_bytes: u32,
    /// Bytes of shared memory of a block that the PTX itself declares.
    pub static_bytes: u32,
    /// What ptxas says that it could not do: it runs `wgmma` one after another, or ignores `setmaxnreg`.
    pub losses: Vec<String>,
}

/// Assembles every module for every device architecture that it should run on.
pub fn assemble(
    workspace: &Workspace,
    ptxas: &Path,
    arch: &str,
    built: &Built,
    keep: Keep,
) -> Result<Vec<Usage>> {
    let version = Command::new(ptxas)
        .arg("--version")
        .output()
        .with_context(|| format!("{}", ptxas.display()))?;
    let job = Job {
        ptxas,
        version: version.stdout,
        cache: workspace.ptx().join("assembled").join(arch),
        keep,
    };
    fs::create_dir_all(&job.cache)?;
    let mut work: Vec<(&Module, Spec, &str)> = Vec::new();
    for module in &built.modules {
        let variant = variants::by_name(&module.name);
        for &spec in variant.map_or(&[PROBE_SPEC][..], |variant| variant.specs()) {
            let targets = targets(arch, variant);
            work.extend(targets.into_iter().map(|target| (module, spec, target)));
        }
    }

    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(&(module, spec, target)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let usage = job.run(module, spec, target);
                    results.lock().expect("no worker panics").push(usage);
                }
            });
        }
    });
    let mut usages = results
        .into_inner()
        .expect("no worker panics")
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    usages.sort_by(|a, b| (&a.target, &a.entry, a.spec).cmp(&(&b.target, &b.entry, b.spec)));
    Ok(usages)
}

/// PTX for sm_80 and for sm_89 runs on Hopper too, and the former with compact tiles is there for sm_86; PTX for sm_90a runs nowhere else.
fn targets<'a>(arch: &'a str, variant: Option<&Variant>) -> Vec<&'a str> {
    let compact = variant.is_some_and(|variant| variant.tiles == TileShape::Compact);
    match arch {
        "sm_80" if compact => vec!["sm_80", "sm_86", "sm_90"],
        "sm_80" => vec!["sm_80", "sm_90"],
        "sm_89" => vec!["sm_89", "sm_90"],
        _ => vec![arch],
    }
}

/// What is the same for all modules.
struct Job<'a> {
    ptxas: &'a Path,
    version: Vec<u8>,
    cache: PathBuf,
    keep: Keep,
}

impl Job<'_> {
    fn run(&self, module: &Module, spec: Spec, target: &str) -> Result<Usage> {
        let text = fs::read_to_string(&module.ptx)?;
        let text = match variants::by_name(&module.name) {
            Some(variant) => of_variant(&text, variant, spec, None)?,
            None => specialise(&text, &Constant::ALL, spec)?,
        };
        let mut hasher = DefaultHasher::new();
        (&self.version, &text).hash(&mut hasher);
        let key = format!("{:016x}\n", hasher.finish());
        let cubin = module.ptx.with_extension(format!("{spec}.{target}.cubin"));
        let report = self.cache.join(format!("{}.{spec}.{target}", module.name));
        let known = fs::read_to_string(&report).ok();
        let known = known.as_deref().and_then(|text| text.strip_prefix(&key));
        if let Some(output) = known
            && (self.keep == Keep::Nothing || cubin.is_file())
        {
            return usage(module, spec, target, output);
        }

        let specialised = report.with_extension(format!("{target}.ptx"));
        fs::write(&specialised, &text)?;
        let mut command = Command::new(self.ptxas);
        command
            .args(["-v", "-arch", target])
            .arg(&specialised)
            .arg("-o");
        match self.keep {
            Keep::Cubins => command.arg(&cubin),
            Keep::Nothing => command.arg("/dev/null"),
        };
        let output = command.output()?;
        fs::remove_file(&specialised)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!(
                "ptxas refused {} ({spec}) for {target}:\n{}",
                module.name,
                said.trim_end()
            );
        }
        fs::write(&report, format!("{key}{said}"))?;
        usage(module, spec, target, &said)
    }
}

/// Reads what `ptxas -v` says; of several entries the greatest figures.
fn usage(module: &Module, spec: Spec, target: &str, said: &str) -> Result<Usage> {
    let mut usage = Usage {
        entry: module.name.clone(),
        spec,
        target: target.to_owned(),
        ..Usage::default()
    };
    for line in said.lines() {
        usage.registers = usage.registers.max(number_before(line, " registers"));
        usage.static_bytes = usage.static_bytes.max(number_before(line, " bytes smem"));
        usage.stack_bytes = usage
            .stack_bytes
            .max(number_before(line, " bytes stack frame"));
        let spills =
            number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
        usage.spill_bytes = usage.spill_bytes.max(spills);
        if let Some((_, loss)) = line.split_once(LOSS) {
            usage.losses.push(loss.trim().to_owned());
        }
    }
    if usage.registers == 0 {
        return Err(anyhow!(
            "ptxas says nothing of the registers of {}:\n{said}",
            module.name
        ));
    }
    Ok(usage)
}

/// The number in front of these words, 0 where they do not occur.
fn number_before(line: &str, words: &str) -> u32 {
    let Some(end) = line.find(words) else {
        return 0;
    };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// What is wrong with these figures, a line for each fault. Probes have no footprint and may take what they like.
pub fn faults(usage: &Usage, footprint: Option<Footprint>) -> Vec<String> {
    let name = format!("{} ({}) for {}", usage.entry, usage.spec, usage.target);
    let Some(footprint) = footprint else {
        let known = usage.entry == PROBES;
        return if known {
            Vec::new()
        } else {
            vec![format!("{name}: the list has no such row")]
        };
    };
    let mut faults: Vec<String> = usage
        .losses
        .iter()
        .map(|loss| format!("{name}: {loss}"))
        .collect();
    let spilled = usage.spill_bytes.max(usage.stack_bytes);
    if spilled > footprint.spill_bytes {
        faults.push(format!(
            "{name}: {spilled} bytes of spills or stack, {} are allowed",
            footprint.spill_bytes
        ));
    }
    if footprint.launch_registers > 0 && usage.registers != footprint.launch_registers {
        faults.push(format!(
            "{name}: {} registers, but warpgroups share out {} of each thread",
            usage.registers, footprint.launch_registers
        ));
    }
    let registers = usage.registers.next_multiple_of(REGISTER_UNIT)
        * footprint.threads
        * footprint.blocks_per_sm;
    if registers > REGISTERS_PER_SM {
        faults.push(format!(
            "{name}: {} registers · {} threads · {} blocks do not fit an SM",
            usage.registers, footprint.threads, footprint.blocks_per_sm
        ));
    }
    let shared_bytes = usage.static_bytes + footprint.shared_bytes;
    if shared_limit(&usage.target).is_some_and(|limit| shared_bytes > limit) {
        faults.push(format!(
            "{name}: {shared_bytes} bytes of shared memory are more than a block can have"
        ));
    }
    faults
}

/// Bytes of shared memory that a block can have: CUDA C++ Programming Guide, technical specifications per compute
/// capability.
fn shared_limit(target: &str) -> Option<u32> {
    match target.trim_end_matches('a') {
        "sm_80" => Some(163 * 1024),
        "sm_86" | "sm_89" => Some(99 * 1024),
        "sm_90" => Some(227 * 1024),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'e' for 'sm_80'
ptxas info    : Function properties for e
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 544 bytes cmem[0]
";

    fn module() -> Module {
        Module {
            name: "e".into(),
            ptx: PathBuf::new(),
            deflated: PathBuf::new(),
        }
    }

    #[test]
    fn figures_are_read_from_ptxas() {
        let usage = usage(&module(), Spec::PLAIN, "sm_80", SAID).expect("the text is ptxas's");
        let expected = Usage {
            entry: "e".into(),
            spec: Spec::PLAIN,
            target: "sm_80".into(),
            registers: 254,
            spill_bytes: 20,
            stack_bytes: 16,
            static_bytes: 1024,
            losses: Vec::new(),
        };
        assert_eq!(usage, expected);
    }

    #[test]
    fn what_ptxas_could_not_do_is_a_fault() {
        let said = format!(
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
             insufficient register resources for the wgmma pipeline in the function 'e'\n\
             ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register \
             requirements.\n{SAID}"
        );
        let mut usage =
            usage(&module(), Spec::PLAIN, "sm_90a", &said).expect("the text is ptxas's");
        assert_eq!(usage.losses.len(), 2);
        (usage.spill_bytes, usage.stack_bytes) = (0, 0);
        let found = faults(
            &usage,
            Some(ferroflash_kernels::variants::VARIANTS[0].footprint),
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("e (plain) for sm_90a: wgmma.mma_async instructions are serialized")
        );
        assert!(found[1].contains("'setmaxnreg' ignored"));
    }

    #[test]
    fn compact_tiles_must_fit_the_devices_that_they_are_for() {
        let row = variants::by_name("backward_sm80_bf16_d128_compact");
        assert_eq!(targets("sm_80", row), ["sm_80", "sm_86", "sm_90"]);
        assert_eq!(targets("sm_80", None), ["sm_80", "sm_90"]);
        assert_eq!(targets("sm_89", None), ["sm_89", "sm_90"]);
        let usage = Usage {
            target: "sm_86".into(),
            registers: 255,
            ..Usage::default()
        };
        let mut footprint = row.expect("the list has it").footprint;
        assert_eq!(faults(&usage, Some(footprint)), [""; 0]);
        footprint.shared_bytes = 99 * 1024 + 1;
        assert_eq!(faults(&usage, Some(footprint)).len(), 1);
    }

    #[test]
    fn more_than_the_footprint_allows_is_a_fault() {
        let mut footprint = ferroflash_kernels::variants::VARIANTS[0].footprint;
        (
            footprint.threads,
            footprint.blocks_per_sm,
            footprint.spill_bytes,
        ) = (128, 2, 0);
        let fine = Usage {
            entry: "e".into(),
            spec: Spec::PLAIN,
            target: "sm_80".into(),
            registers: 255,
            ..Usage::default()
        };
        assert_eq!(faults(&fine, Some(footprint)), [""; 0]);
        let spilled = Usage {
            spill_bytes: 4,
            ..fine.clone()
        };
        assert_eq!(faults(&spilled, Some(footprint)).len(), 1);
        footprint.spill_bytes = 4;
        assert_eq!(faults(&spilled, Some(footprint)), [""; 0]);
        footprint.blocks_per_sm = 3;
        assert_eq!(faults(&fine, Some(footprint)).len(), 1);
        footprint.shared_bytes = 200 * 1024;
        assert_eq!(faults(&fine, Some(footprint)).len(), 2);
    }
}
