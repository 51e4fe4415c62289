//! `build-ptx`: the kernel compiler found or installed, every module built and assembled, a table of what they take.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::variants;
use ferroflash_ptx_builder::{
    Built, Choice, Compiler, Freshness, Parts, Request, Rows, Sources, compiler,
};

use crate::assemble::{self, Keep, Share, Usage};
use crate::prebuild;
use crate::tools;
use crate::workspace::Workspace;

/// Compiles the kernels to PTX, one module per variant, and checks what ptxas makes of them.
#[derive(clap::Args, Clone, Debug)]
pub struct BuildPtx {
    /// The architectures to compile for; by default those that the list of kernels names. Each gets the kernels whose
    /// own architecture it is; one that the list does not name, all that run on it.
    #[arg(long, value_delimiter = ',', value_name = "sm_80,sm_89,sm_90a")]
    arch: Vec<String>,
    /// Compiles kernels of older architectures for each architecture too.
    #[arg(long)]
    all_rows: bool,
    /// The compiler: auto, rustup (the active toolchain), debian (/usr/bin/rustc), or the path of a rustc.
    #[arg(long, default_value = "auto")]
    compiler: Choice,
    /// Keeps the assembled modules beside the PTX.
    #[arg(long, conflicts_with = "no_assemble")]
    cubin: bool,
    /// Leaves out ptxas and the table.
    #[arg(long)]
    no_assemble: bool,
    /// Assembles one in so many of the modules' specialisations.
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        conflicts_with = "no_assemble"
    )]
    one_in: NonZero<usize>,
    /// Decides which ones.
    #[arg(long, value_name = "SEED", default_value = "0")]
    seed: u64,
    /// Compiles one of the parts, nine at most, that rustc gets one by one: as many successive numbers as there are choose all of them.
    #[arg(long, value_name = "NUMBER")]
    part: Option<u64>,
    /// Assembles nothing; says which modules are not byte for byte those that a revision of git has prebuilt, and fails where there are any. Code that is
    /// renamed gives the same bytes; code that is moved, where functions are still defined in the same order: otherwise registers may have other numbers.
    #[arg(long, value_name = "REVISION", conflicts_with_all = ["cubin", "all_rows"])]
    compare: Option<String>,
}

/// Of the specialisations of the modules that `ci` compiles, it assembles one in so many: all of all modules take ptxas half an hour. No number of parts, nor of
/// architectures, has a divisor in common with it, so that successive seeds have each specialisation of each part.
const CI_ONE_IN: NonZero<usize> = NonZero::new(5).expect("5 is not 0");

impl BuildPtx {
    /// What `prebuild` and `bundle` do: every architecture of the list, no assembling.
    pub fn plain() -> Self {
        Self {
            arch: Vec::new(),
            all_rows: false,
            compiler: Choice::Auto,
            cubin: false,
            no_assemble: true,
            one_in: NonZero::<usize>::MIN,
            seed: 0,
            part: None,
            compare: None,
        }
    }

    /// A part of the modules of one architecture of the list, by this seed.
    pub fn part(seed: u64) -> Self {
        let archs = ferroflash_ptx_builder::default_archs();
        let (part, arch) = of_seed(seed, archs.len());
        Self {
            arch: vec![archs[arch].to_owned()],
            part: Some(part),
            ..Self::plain()
        }
    }

    /// What `ci` assembles and checks: a sample of that part.
    pub fn sampled(seed: u64) -> Self {
        Self {
            no_assemble: false,
            one_in: CI_ONE_IN,
            seed,
            ..Self::part(seed)
        }
    }

    /// Whether all modules of an architecture are compiled.
    pub fn is_whole(&self) -> bool {
        self.part.is_none()
    }

    fn share(&self) -> Share {
        Share {
            one_in: self.one_in,
            seed: self.seed,
        }
    }
}

/// The number of a part, and of the architecture: as many successive seeds as there are architectures have all of them, and the seeds after those the next part.
fn of_seed(seed: u64, n_archs: usize) -> (u64, usize) {
    let n_archs = n_archs as u64;
    (seed / n_archs, (seed % n_archs) as usize)
}

/// Builds, assembles, and prints the table.
pub fn build_ptx(workspace: &Workspace, options: &BuildPtx) -> Result<()> {
    if let Some(revision) = &options.compare {
        return prebuild::compare(workspace, revision, options);
    }
    let ptxas = if options.no_assemble {
        None
    } else {
        tools::find(workspace, "ptxas")
    };
    let keep = if options.cubin {
        Keep::Cubins
    } else {
        Keep::Nothing
    };
    // Of one architecture after the other: the faults of the first hide none of the others'.
    let mut faults = Vec::new();
    each_arch(workspace, options, |arch, built| {
        match &ptxas {
            Some(ptxas) => {
                let usages =
                    assemble::assemble(workspace, ptxas, arch, built, keep, options.share())?;
                faults.extend(table(&usages));
            }
            None if options.cubin => bail!("ptxas is missing: `cargo xtask tools` brings it"),
            None if options.no_assemble => {}
            None => eprintln!(
                "registers and spills are not checked: ptxas is missing (`cargo xtask tools` brings it)"
            ),
        }
        Ok(())
    })?;
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("{}", faults.join("\n")),
    }
}

/// Builds for one architecture after another and hands each on; with which compiler.
pub fn each_arch(
    workspace: &Workspace,
    options: &BuildPtx,
    mut with: impl FnMut(&str, &Built) -> Result<()>,
) -> Result<Compiler> {
    let compiler = find_or_install(&options.compiler, &workspace.root)?;
    eprintln!("kernel compiler: {}", compiler.describe());
    let archs = if options.arch.is_empty() {
        ferroflash_ptx_builder::default_archs()
    } else {
        options.arch.iter().map(String::as_str).collect()
    };
    for arch in archs {
        let built = compile(workspace, &compiler, arch, options)?;
        with(arch, &built)?;
    }
    Ok(compiler)
}

/// Which rows an architecture gets.
fn rows_for(arch: &str, options: &BuildPtx) -> Rows {
    if ferroflash_ptx_builder::default_archs().contains(&arch) && !options.all_rows {
        Rows::Own
    } else {
        Rows::All
    }
}

fn compile(
    workspace: &Workspace,
    compiler: &Compiler,
    arch: &str,
    options: &BuildPtx,
) -> Result<Built> {
    let begun = Instant::now();
    let sources = Sources::of_checkout(&workspace.root);
    // A folder of their own: those of all parts stay.
    let (parts, out) = match options.part {
        None => (Parts::All, workspace.ptx()),
        Some(number) => (Parts::One(number), workspace.ptx().join("part")),
    };
    let built = ferroflash_ptx_builder::build(&Request {
        compiler,
        sources: &sources,
        arch,
        rows: rows_for(arch, options),
        parts,
        out: &out,
    })?;
    let state = match built.freshness {
        Freshness::Unchanged => "nothing has changed".to_owned(),
        Freshness::Compiled => format!("compiled in {:.1} s", begun.elapsed().as_secs_f64()),
    };
    eprintln!(
        "{arch}: {} PTX modules in {}: {state}",
        built.modules.len(),
        out.join(arch).display()
    );
    Ok(built)
}

/// Finds a compiler. Where there is none and this machine is a Debian whose administrator we are, installs one.
fn find_or_install(choice: &Choice, root: &Path) -> Result<Compiler> {
    let error = match compiler::find(choice, root) {
        Ok(compiler) => return Ok(compiler),
        Err(error) if matches!(choice, Choice::Auto | Choice::Debian) => error,
        Err(error) => return Err(error.into()),
    };
    let packages = compiler::DEBIAN_PACKAGES.join(" ");
    if !Path::new("/etc/debian_version").exists() {
        bail!("{error}; with rustup, `rustup component add rust-src` brings what is missing");
    }
    let install = format!("apt-get update -qq && apt-get install -qq -y {packages}");
    if !is_root() {
        bail!("{error}; run `sudo sh -c '{install}'`");
    }
    eprintln!("{error}");
    eprintln!("installing the kernel compiler: {install}");
    let status = Command::new("sh")
        .args(["-c", &install])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()?;
    if !status.success() {
        bail!("apt-get could not install {packages}");
    }
    compiler::find(choice, root).context("the compiler was installed and still does not serve")
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Prints the table, a row for each entry; says which takes more than its tile config allows.
fn table(usages: &[Usage]) -> Vec<String> {
    let targets: BTreeSet<&str> = usages.iter().map(|usage| usage.target.as_str()).collect();
    let mut entries: BTreeMap<_, Vec<&Usage>> = BTreeMap::new();
    for usage in usages {
        let edit = usage.edit.map(|edit| edit.to_string());
        let entry = (usage.entry.as_str(), edit, usage.spec);
        entries.entry(entry).or_default().push(usage);
    }
    let label = |usages: &[&Usage]| {
        let first = usages[0];
        assemble::label(&first.entry, first.spec, first.edit)
    };
    let width = entries.values().map(|usages| label(usages).len());
    let width = width.max().unwrap_or(0);
    print!("{:width$}", "");
    for target in &targets {
        print!("  {target:24}");
    }
    println!("  shared memory");
    print!("{:width$}", "variant");
    for _ in &targets {
        print!("  registers  spills  stack");
    }
    println!("  static + dynamic");
    let mut faults = Vec::new();
    for ((entry, ..), usages) in entries {
        let tile_config = variants::by_name(entry).map(|variant| variant.tile_config);
        print!("{:width$}", label(&usages));
        for target in &targets {
            let Some(usage) = usages.iter().find(|usage| usage.target == *target) else {
                print!("  {:24}", "");
                continue;
            };
            print!(
                "  {:9}  {:6}  {:5}",
                usage.registers, usage.spill_bytes, usage.stack_bytes
            );
            let budget = variants::by_name(&usage.entry).map(|variant| TileConfig {
                spill_bytes: match usage.edit {
                    Some(edit) => assemble::edited_spill_bytes(variant, usage.spec, edit),
                    None => assemble::spill_bytes(variant, usage.spec),
                },
                ..variant.tile_config
            });
            faults.extend(assemble::faults(usage, budget));
        }
        let static_bytes = usages
            .iter()
            .map(|usage| usage.static_bytes)
            .max()
            .unwrap_or(0);
        let dynamic_bytes = tile_config.map_or(0, |row| row.shared_bytes);
        println!("  {static_bytes:6} + {dynamic_bytes:7}");
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_seeds_have_every_part_of_every_architecture() {
        let met: BTreeSet<_> = (100..127).map(|seed| of_seed(seed, 3)).collect();
        let parts: BTreeSet<_> = met.iter().map(|&(part, _)| part % 9).collect();
        assert_eq!((met.len(), parts.len()), (27, 9));
        assert!((0..3).all(|arch| met.iter().filter(|met| met.1 == arch).count() == 9));
    }
}
