//! What ptxas makes of each module: registers, spills, stack, shared memory; remembered as long as nothing changes.

mod budgets;
mod edits;
mod usage;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use ferroflash_kernels::spec::text::{of_variant, specialise};
use ferroflash_kernels::spec::{Constant, PROBE_SPEC, Spec};
use ferroflash_kernels::variants::{self, TileShape, Variant};
use ferroflash_ptx_builder::{Built, Module};

use crate::workspace::Workspace;
pub use budgets::spill_bytes;
pub use edits::{StandardEdit, edited_spill_bytes};
use usage::usage;
pub use usage::{Usage, faults, label};

/// Whether the assembled modules are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As `<variant>.<target>.cubin` beside the PTX.
    Cubins,
    /// Only the figures.
    Nothing,
}

/// Which of the modules' specialisations are assembled: one in so many, by a seed. Runs of as many successive seeds see all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// So many; of 1, all of them.
    pub one_in: NonZero<usize>,
    /// The seed.
    pub seed: u64,
}

impl Share {
    /// Whether it has the specialisation of this number.
    fn has(self, number: usize) -> bool {
        let at = (number as u64).wrapping_add(self.seed);
        at.is_multiple_of(self.one_in.get() as u64)
    }
}

/// Assembles modules for every device architecture that they should run on.
pub fn assemble(
    workspace: &Workspace,
    ptxas: &Path,
    arch: &str,
    built: &Built,
    keep: Keep,
    share: Share,
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
    let mut work = Vec::new();
    for module in &built.modules {
        let variant = variants::by_name(&module.name);
        let targets = targets(arch, variant);
        for &spec in variant.map_or(&[PROBE_SPEC][..], budgets::specs) {
            let of_target = |&target| Item::new(module, spec, None, target);
            work.extend(targets.iter().map(of_target));
        }
        for edit in StandardEdit::ALL {
            let has_gradient = edit.edit()?.has_gradient();
            let specs = variant.map_or_else(Vec::new, |variant| {
                edits::edited_specs(variant, has_gradient)
            });
            // The oldest device is enough: what an expression takes is much the same on others.
            let of_spec = |spec| Item::new(module, spec, Some(edit), targets[0]);
            work.extend(specs.into_iter().map(of_spec));
        }
    }
    let mut numbers = 0..;
    work.retain(|_| numbers.next().is_some_and(|number| share.has(number)));

    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let usage = job.run(item);
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
    usages.sort_by_key(Usage::place);
    Ok(usages)
}

/// What is assembled: a module with a spec and an edit, for a target.
struct Item<'a> {
    module: &'a Module,
    spec: Spec,
    edit: Option<StandardEdit>,
    target: &'a str,
}

impl<'a> Item<'a> {
    fn new(module: &'a Module, spec: Spec, edit: Option<StandardEdit>, target: &'a str) -> Self {
        Item {
            module,
            spec,
            edit,
            target,
        }
    }

    /// Its text as the driver gets it.
    fn text(&self) -> Result<String> {
        let text = fs::read_to_string(&self.module.ptx)?;
        let edit = self.edit.map(StandardEdit::edit).transpose()?;
        Ok(match variants::by_name(&self.module.name) {
            Some(variant) => of_variant(&text, variant, self.spec, edit.as_ref())?,
            None => specialise(&text, Spec::of(&Constant::ALL), self.spec)?,
        })
    }
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
    fn run(&self, item: &Item) -> Result<Usage> {
        let text = item.text()?;
        let &Item { module, target, .. } = item;
        let mut hasher = DefaultHasher::new();
        (&self.version, &text).hash(&mut hasher);
        let key = format!("{:016x}\n", hasher.finish());
        let name = label(&module.name, item.spec, item.edit).replace([' ', ','], ".");
        let cubin = module.ptx.with_file_name(format!("{name}.{target}.cubin"));
        let report = self.cache.join(format!("{name}.{target}"));
        let known = fs::read_to_string(&report).ok();
        let known = known.as_deref().and_then(|text| text.strip_prefix(&key));
        if let Some(output) = known
            && (self.keep == Keep::Nothing || cubin.is_file())
        {
            return usage(item, output);
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
                "ptxas refused {} for {target}:\n{}",
                label(&module.name, item.spec, item.edit),
                said.trim_end()
            );
        }
        fs::write(&report, format!("{key}{said}"))?;
        usage(item, &said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_successive_seeds_see_everything() {
        let share = |one_in, seed| Share {
            one_in: NonZero::new(one_in).expect("not 0"),
            seed,
        };
        let seen = |seed| (0..20).filter(move |&number| share(4, seed).has(number));
        let mut all: Vec<usize> = (6..10).flat_map(seen).collect();
        assert_eq!(all.len(), 20);
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert!((0..20).all(|number| share(1, 9).has(number)));
        assert_eq!(seen(u64::MAX).count(), 5);
    }
}
