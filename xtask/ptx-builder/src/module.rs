//! Cuts rustc's PTX into one module per entry: the header, what the entry refers to, the entry with its launch bounds
//! and the alignment of its parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ferroflash_kernels::variants::{self, Kind, Variant};

use crate::{Error, PROBE_PREFIX, PROBES};

/// What the names of the probes start with that only Hopper can run: they are in its module alone.
const HOPPER_PROBE_PREFIX: &str = "probe_sm90a_";

/// The text of each module, by name: every row, and [`PROBES`] where the kernel crate has any.
pub fn split(
    parts: &[(Vec<&Variant>, String)],
    rows: &[&Variant],
) -> Result<BTreeMap<String, String>, Error> {
    let mut modules = BTreeMap::new();
    let mut extra = BTreeSet::new();
    for (part_idx, (part_rows, text)) in parts.iter().enumerate() {
        let unit = Unit::parse(text)?;
        let mut probes = Vec::new();
        for item in unit
            .items
            .iter()
            .filter(|item| item.kind == ItemKind::Entry)
        {
            if item.name.starts_with(PROBE_PREFIX) {
                if unit.is_for_hopper() || !item.name.starts_with(HOPPER_PROBE_PREFIX) {
                    probes.push(item.name);
                }
            } else if part_rows.iter().any(|variant| variant.name == item.name) {
                modules.insert(item.name.to_owned(), unit.module(&[item.name]));
            } else {
                extra.insert(item.name.to_owned());
            }
        }
        // Every part has the same probes.
        if part_idx == 0 && !probes.is_empty() {
            let module = unit.module(&probes);
            let module = if unit.is_for_hopper() {
                for_hopper(&module)?
            } else {
                module
            };
            modules.insert(PROBES.to_owned(), module);
        }
    }
    let missing: Vec<String> = rows
        .iter()
        .filter(|row| !modules.contains_key(row.name))
        .map(|row| row.name.to_owned())
        .collect();
    if missing.is_empty() && extra.is_empty() {
        Ok(modules)
    } else {
        Err(Error::Entries {
            missing,
            extra: extra.into_iter().collect(),
        })
    }
}

/// The names of the entries of a module.
pub fn entries(text: &str) -> Result<Vec<String>, Error> {
    let unit = Unit::parse(text)?;
    let entries = unit
        .items
        .iter()
        .filter(|item| item.kind == ItemKind::Entry);
    Ok(entries.map(|item| item.name.to_owned()).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemKind {
    Entry,
    Function,
    Variable,
}

/// One declaration or definition at the top level.
#[derive(Debug)]
struct Item<'a> {
    kind: ItemKind,
    name: &'a str,
    text: &'a str,
}

/// The PTX of one run of rustc.
#[derive(Debug)]
struct Unit<'a> {
    /// `.version`, `.target`, `.address_size`.
    header: Vec<&'a str>,
    items: Vec<Item<'a>>,
}

impl<'a> Unit<'a> {
    fn parse(text: &'a str) -> Result<Self, Error> {
        let mut unit = Unit {
            header: Vec::new(),
            items: Vec::new(),
        };
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let line = rest.lines().next().unwrap_or_default();
            if line.starts_with("//") {
                rest = rest[line.len()..].trim_start();
            } else if [".version", ".target", ".address_size"]
                .iter()
                .any(|directive| line.starts_with(directive))
            {
                unit.header.push(line.trim_end());
                rest = rest[line.len()..].trim_start();
            } else {
                let (kind, head_len) = kind_of(rest);
                let item_len = item_len(rest, kind)?;
                let item = &rest[..item_len];
                unit.items.push(Item {
                    kind,
                    name: name_of(item, kind, head_len)?,
                    text: item,
                });
                rest = rest[item_len..].trim_start();
            }
        }
        if unit.header.len() == 3 {
            Ok(unit)
        } else {
            Err(Error::Ptx {
                reason: format!("{} of the 3 lines of the header", unit.header.len()),
            })
        }
    }

    /// Whether the text is for Hopper alone.
    fn is_for_hopper(&self) -> bool {
        self.header
            .iter()
            .any(|line| line.split_whitespace().any(|word| word == "sm_90a"))
    }

    /// A module with these entries and all that they refer to, in the order of the text.
    fn module(&self, entries: &[&str]) -> String {
        let mut wanted: BTreeSet<&str> = entries.iter().copied().collect();
        let mut open: Vec<&str> = entries.to_vec();
        let known: BTreeSet<&str> = self.items.iter().map(|item| item.name).collect();
        while let Some(name) = open.pop() {
            for item in self.items.iter().filter(|item| item.name == name) {
                for word in words(item.text) {
                    if known.contains(word) && wanted.insert(word) {
                        open.push(word);
                    }
                }
            }
        }
        let mut text = self.header.join("\n");
        text.push('\n');
        for item in self.items.iter().filter(|item| wanted.contains(item.name)) {
            text.push('\n');
            match (item.kind, variants::by_name(item.name)) {
                (ItemKind::Entry, Some(variant)) => text.push_str(&with_alignment(
                    &with_launch_bounds(item.text, variant),
                    variant,
                )),
                _ => text.push_str(item.text),
            }
            text.push('\n');
        }
        text
    }
}

/// The module of probes for Hopper: those that no other device runs with bounds, without which `setmaxnreg` has no
/// effect, and their tensor maps at multiples of 64 bytes.
fn for_hopper(module: &str) -> Result<String, Error> {
    let unit = Unit::parse(module)?;
    let mut text = unit.header.join("\n");
    text.push('\n');
    for item in &unit.items {
        text.push('\n');
        match item.text.find('{') {
            Some(body) if item.name.starts_with(HOPPER_PROBE_PREFIX) => {
                let head = item.text[..body]
                    .trim_end()
                    .replace(".param .align 16 ", ".param .align 64 ");
                text.push_str(&head);
                text.push_str("\n.maxntid 128, 1, 1\n.minnctapersm 1\n");
                text.push_str(&item.text[body..]);
            }
            _ => text.push_str(item.text),
        }
        text.push('\n');
    }
    Ok(text)
}

/// What a text at the top level begins, and the length of the words before its name.
fn kind_of(text: &str) -> (ItemKind, usize) {
    let head = &text[..text.find(['(', '{', ';', '=']).unwrap_or(text.len())];
    for (directive, kind) in [(".entry", ItemKind::Entry), (".func", ItemKind::Function)] {
        if let Some(start) = head.find(directive) {
            return (kind, start + directive.len());
        }
    }
    (ItemKind::Variable, 0)
}

/// The length of the declaration or definition at the start of `text`: to the semicolon, or to the end of the body.
fn item_len(text: &str, kind: ItemKind) -> Result<usize, Error> {
    let mut depth = 0_usize;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'/' if text[at..].starts_with("//") => {
                bytes.find(|(_, byte)| *byte == b'\n');
            }
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.checked_sub(1).ok_or_else(|| Error::Ptx {
                    reason: "unbalanced braces".into(),
                })?;
                if byte == b'}' && depth == 0 && kind != ItemKind::Variable {
                    return Ok(at + 1);
                }
            }
            b';' if depth == 0 => return Ok(at + 1),
            _ => {}
        }
    }
    let line = text.lines().next().unwrap_or_default();
    Err(Error::Ptx {
        reason: format!("no end of `{line}`"),
    })
}

fn name_of(item: &str, kind: ItemKind, head_len: usize) -> Result<&str, Error> {
    let name = match kind {
        ItemKind::Variable => {
            words(&item[..item.find(['[', '=', ';']).unwrap_or(item.len())]).last()
        }
        ItemKind::Entry | ItemKind::Function => {
            let tail = item[head_len..].trim_start();
            // A function's result stands in parentheses before its name.
            let tail = if tail.starts_with('(') {
                tail.split_once(')').map_or("", |(_, tail)| tail)
            } else {
                tail
            };
            words(tail).next()
        }
    };
    name.ok_or_else(|| Error::Ptx {
        reason: format!("no name in `{}`", item.lines().next().unwrap_or_default()),
    })
}

/// The identifiers of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$')))
        .filter(|word| !word.is_empty())
}

/// The entry with the threads of its block and the blocks that an SM should hold: rustc has no attribute for them.
fn with_launch_bounds(entry: &str, variant: &Variant) -> String {
    let body = entry.find('{').unwrap_or(entry.len());
    let mut text = entry[..body].trim_end().to_owned();
    let footprint = &variant.footprint;
    let _ = write!(
        text,
        "\n.maxntid {}, 1, 1\n.minnctapersm {}\n{}",
        footprint.threads,
        footprint.blocks_per_sm,
        &entry[body..]
    );
    text
}

/// The entry with its parameters where the copy engine wants tensor maps: at a multiple of 64 bytes. rustc cannot pass a
/// struct of that alignment; the driver lays parameters out as the PTX says.
fn with_alignment(entry: &str, variant: &Variant) -> String {
    match variant.kind {
        Kind::TmaForward => entry.replacen(".param .align 16 ", ".param .align 64 ", 1),
        _ => entry.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//\n// Generated by LLVM\n//\n\n.version 8.0\n.target sm_80\n.address_size 64\n
.extern .shared .align 1024 .b8 smem[];
.global .align 4 .b8 TABLE[8] = {0, 0, 128, 63, 0, 0, 0, 64};
.global .align 4 .b8 OTHER[4] = {0, 0, 0, 1};
.func  (.param .b32 func_retval0) helper(\n\t.param .b32 helper_param_0\n)\n;
.func  (.param .b32 func_retval0) helper(\n\t.param .b32 helper_param_0\n)\n{\n\tmov.b64 %rd1, TABLE;\n\tret;\n}
\t// .globl\tfirst
.visible .entry first(\n\t.param .b64 first_param_0\n)\n{\n\t{ // callseq }\n\tcall helper;\n\t}\n\tret;\n}
.visible .entry probe_add()\n{\n\tmov.u32 %r1, smem;\n\tret;\n}\n";

    #[test]
    fn a_module_holds_what_its_entry_refers_to_and_nothing_else() {
        let unit = Unit::parse(TEXT).expect("the text is well formed");
        let names: Vec<_> = unit.items.iter().map(|item| item.name).collect();
        assert_eq!(
            names,
            [
                "smem",
                "TABLE",
                "OTHER",
                "helper",
                "helper",
                "first",
                "probe_add"
            ]
        );

        let first = unit.module(&["first"]);
        assert_eq!(entries(&first).expect("a module is well formed"), ["first"]);
        assert_eq!(
            first.matches("helper(").count(),
            2,
            "declaration and definition: {first}"
        );
        assert!(
            first.contains("TABLE[8]") && !first.contains("OTHER") && !first.contains("smem"),
            "{first}"
        );

        let probes = unit.module(&["probe_add"]);
        assert!(
            probes.contains("smem[]") && !probes.contains("helper"),
            "{probes}"
        );
    }

    #[test]
    fn entries_that_are_not_those_of_the_list_are_named() {
        let row = &variants::VARIANTS[0];
        let parts = [(vec![row], TEXT.to_owned())];
        match split(&parts, &[row]) {
            Err(Error::Entries { missing, extra }) => {
                assert_eq!(missing, [row.name]);
                assert_eq!(extra, ["first"]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn probes_of_hopper_are_in_its_module_alone() {
        let row = &variants::VARIANTS[0];
        let rows = TEXT.replace("first", row.name);
        let hopper = ".visible .entry probe_sm90a_load(\n\t.param .align 16 .b8 maps[256]\n)\n{\n\tret;\n}\n";
        let both = format!("{rows}{hopper}");
        let built = |target: &str| {
            let text = both.replace("sm_80\n", &format!("{target}\n"));
            let modules = split(&[(vec![row], text)], &[row]).expect("the text is well formed");
            modules[PROBES].clone()
        };
        let names = |target| entries(&built(target)).expect("a module is well formed");
        assert_eq!(names("sm_80"), ["probe_add"]);
        assert_eq!(names("sm_90a"), ["probe_add", "probe_sm90a_load"]);
        let entry = "(\n\t.param .align 64 .b8 maps[256]\n)\n.maxntid 128, 1, 1\n.minnctapersm 1\n{\n\tret;\n}";
        assert!(built("sm_90a").contains(entry), "{}", built("sm_90a"));
    }

    #[test]
    fn launch_bounds_stand_between_parameters_and_body() {
        let row = &variants::VARIANTS[0];
        let text = with_launch_bounds(".visible .entry e(\n\t.param .b64 p\n)\n{\n\tret;\n}", row);
        let expected = format!(
            ".visible .entry e(\n\t.param .b64 p\n)\n.maxntid {}, 1, 1\n.minnctapersm {}\n{{\n\tret;\n}}",
            row.footprint.threads, row.footprint.blocks_per_sm
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn only_parameters_with_tensor_maps_are_aligned_to_64_bytes() {
        let entry =
            ".visible .entry e(\n\t.param .align 16 .b8 p[16]\n)\n{\n\t.param .align 16 .b8 q;\n}";
        let aligned =
            ".visible .entry e(\n\t.param .align 64 .b8 p[16]\n)\n{\n\t.param .align 16 .b8 q;\n}";
        for row in variants::VARIANTS {
            let holds_maps = row.kind == Kind::TmaForward;
            let expected = if holds_maps { aligned } else { entry };
            assert_eq!(with_alignment(entry, row), expected, "{}", row.name);
        }
    }

    #[test]
    fn a_text_that_ends_early_is_refused() {
        assert!(matches!(
            Unit::parse(&TEXT[..TEXT.len() - 10]),
            Err(Error::Ptx { .. })
        ));
    }
}
