//! What ptxas says of an entry, and what is wrong with it.

use anyhow::{Result, anyhow};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::TileConfig;
use ferroflash_ptx_builder::PROBES;

use super::{Item, StandardEdit};

/// 32-bit registers of an SM, of every architecture from sm_70 on.
const REGISTERS_PER_SM: u32 = 65536;

/// What ptxas' warnings C7508 to C7515 begin with.
const LOSS: &str = "Potential Performance Loss:";

/// A thread's registers are allocated in units of this many.
const REGISTER_UNIT: u32 = 8;

/// What one entry takes on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The entry; [`PROBES`] for the greatest figures of all probes.
    pub entry: String,
    /// What it was compiled with.
    pub spec: Spec,
    /// What is in its places for an expression, if anything.
    pub edit: Option<StandardEdit>,
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

impl Usage {
    /// Its place in the table, apart from the target.
    pub fn place(&self) -> (String, String, Spec, String) {
        let edit = self.edit.map_or(String::new(), |edit| edit.to_string());
        (self.target.clone(), self.entry.clone(), self.spec, edit)
    }
}

/// The entry, the spec and the edit, as tables and messages have them.
pub fn label(entry: &str, spec: Spec, edit: Option<StandardEdit>) -> String {
    match edit {
        Some(edit) => format!("{entry} {spec}, {edit}"),
        None => format!("{entry} {spec}"),
    }
}

/// Reads what `ptxas -v` says; of several entries the greatest figures.
pub(super) fn usage(item: &Item, said: &str) -> Result<Usage> {
    let mut usage = Usage {
        entry: item.module.name.clone(),
        spec: item.spec,
        edit: item.edit,
        target: item.target.to_owned(),
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
            item.module.name
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

/// What ptxas is known to serialise `wgmma` of, by entry and spec. With dropout, whose draws take registers of their own, in packed sequences under a causal mask f16's
/// tiles of 64 columns have none left: slower than they could be, and right.
const KNOWN_LOSSES: [(&str, &str); 1] = [("backward_sm90a_f16_d64", "right_bound+lengths+dropout")];

fn is_known(usage: &Usage, loss: &str) -> bool {
    let spec = usage.spec.to_string();
    let is_of_wgmma = loss.contains("instructions are serialized");
    is_of_wgmma
        && usage.edit.is_none()
        && KNOWN_LOSSES.contains(&(usage.entry.as_str(), spec.as_str()))
}

/// What is wrong with these figures, a line for each fault. Probes have no tile config and may take what they like.
pub fn faults(usage: &Usage, tile_config: Option<TileConfig>) -> Vec<String> {
    let label = label(&usage.entry, usage.spec, usage.edit);
    let name = format!("{label} for {}", usage.target);
    let Some(tile_config) = tile_config else {
        let known = usage.entry == PROBES;
        return if known {
            Vec::new()
        } else {
            vec![format!("{name}: the list has no such row")]
        };
    };
    let losses = usage.losses.iter().filter(|loss| !is_known(usage, loss));
    let mut faults: Vec<String> = losses.map(|loss| format!("{name}: {loss}")).collect();
    let spilled = usage.spill_bytes.max(usage.stack_bytes);
    if spilled > tile_config.spill_bytes {
        faults.push(format!(
            "{name}: {spilled} bytes of spills or stack, {} are allowed",
            tile_config.spill_bytes
        ));
    }
    if tile_config.launch_registers > 0 && usage.registers != tile_config.launch_registers {
        faults.push(format!(
            "{name}: {} registers, but warpgroups share out {} of each thread",
            usage.registers, tile_config.launch_registers
        ));
    }
    let registers = usage.registers.next_multiple_of(REGISTER_UNIT)
        * tile_config.threads
        * tile_config.blocks_per_sm;
    if registers > REGISTERS_PER_SM {
        faults.push(format!(
            "{name}: {} registers · {} threads · {} blocks do not fit an SM",
            usage.registers, tile_config.threads, tile_config.blocks_per_sm
        ));
    }
    let shared_bytes = usage.static_bytes + tile_config.shared_bytes;
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
    use std::path::PathBuf;

    use ferroflash_kernels::spec::Constant;
    use ferroflash_kernels::variants;
    use ferroflash_ptx_builder::Module;

    use super::super::targets;
    use super::*;

    const SAID: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'e' for 'sm_80'
ptxas info    : Function properties for e
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 544 bytes cmem[0]
";

    fn read(target: &str, said: &str) -> Usage {
        let module = Module {
            name: "e".into(),
            ptx: PathBuf::new(),
            deflated: PathBuf::new(),
        };
        let item = Item::new(&module, Spec::PLAIN, None, target);
        usage(&item, said).expect("the text is ptxas's")
    }

    #[test]
    fn figures_are_read_from_ptxas() {
        let usage = read("sm_80", SAID);
        let expected = Usage {
            entry: "e".into(),
            spec: Spec::PLAIN,
            edit: None,
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
        let mut usage = read("sm_90a", &said);
        assert_eq!(usage.losses.len(), 2);
        (usage.spill_bytes, usage.stack_bytes) = (0, 0);
        let found = faults(&usage, Some(variants::VARIANTS[0].tile_config));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("e plain for sm_90a: wgmma.mma_async instructions are serialized")
        );
        assert!(found[1].contains("'setmaxnreg' ignored"));
        usage.entry = KNOWN_LOSSES[0].0.into();
        assert_eq!(
            faults(&usage, Some(variants::VARIANTS[0].tile_config)).len(),
            2
        );
        usage.spec = Spec::PLAIN
            .with(Constant::RightBound)
            .with(Constant::Lengths)
            .with(Constant::Dropout);
        let found = faults(&usage, Some(variants::VARIANTS[0].tile_config));
        assert!(
            found.len() == 1 && found[0].contains("'setmaxnreg' ignored"),
            "{found:?}"
        );
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
        let mut tile_config = row.expect("the list has it").tile_config;
        assert_eq!(faults(&usage, Some(tile_config)), [""; 0]);
        tile_config.shared_bytes = 99 * 1024 + 1;
        assert_eq!(faults(&usage, Some(tile_config)).len(), 1);
    }

    #[test]
    fn more_than_the_tile_config_allows_is_a_fault() {
        let mut tile_config = variants::VARIANTS[0].tile_config;
        (
            tile_config.threads,
            tile_config.blocks_per_sm,
            tile_config.spill_bytes,
        ) = (128, 2, 0);
        let fine = Usage {
            entry: "e".into(),
            spec: Spec::PLAIN,
            target: "sm_80".into(),
            registers: 255,
            ..Usage::default()
        };
        assert_eq!(faults(&fine, Some(tile_config)), [""; 0]);
        let spilled = Usage {
            spill_bytes: 4,
            ..fine.clone()
        };
        assert_eq!(faults(&spilled, Some(tile_config)).len(), 1);
        tile_config.spill_bytes = 4;
        assert_eq!(faults(&spilled, Some(tile_config)), [""; 0]);
        tile_config.blocks_per_sm = 3;
        assert_eq!(faults(&fine, Some(tile_config)).len(), 1);
        tile_config.shared_bytes = 200 * 1024;
        assert_eq!(faults(&fine, Some(tile_config)).len(), 2);
    }
}
