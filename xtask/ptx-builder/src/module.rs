//! Cuts rustc's PTX into one module per entry: the header, what the entry refers to, and the entry.

use std::collections::{BTreeMap, BTreeSet};

use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::of_variant;
use ferroflash_kernels::variants::{Arch, Variant};

use crate::{Error, PROBE_PREFIX, PROBES, entry};

/// The text of each module for the architecture `arch`, by name: every row, and [`PROBES`] where the kernel crate has
/// any for it.
pub fn split(
    arch: &str,
    parts: &[(Vec<&Variant>, String)],
    rows: &[&Variant],
) -> Result<BTreeMap<String, String>, Error> {
    let mut modules = BTreeMap::new();
    let mut extra = BTreeSet::new();
    for (part_rows, text) in parts {
        let unit = Unit::parse(text)?;
        let mut probes = Vec::new();
        for item in unit
            .items
            .iter()
            .filter(|item| item.kind == ItemKind::Entry)
        {
            if item.name.starts_with(PROBE_PREFIX) {
                let hopper = item.name.starts_with(entry::HOPPER_PROBE_PREFIX);
                if !hopper || arch == Arch::Sm90a.name() {
                    probes.push(item.name);
                }
            } else if part_rows.iter().any(|variant| variant.name == item.name) {
                modules.insert(item.name.to_owned(), unit.module(&[item.name]));
            } else {
                extra.insert(item.name.to_owned());
            }
        }
        // The first part has the probes.
        if !probes.is_empty() {
            modules.insert(PROBES.to_owned(), unit.module(&probes));
        }
    }
    let missing: Vec<String> = rows
        .iter()
        .filter(|row| !modules.contains_key(row.name))
        .map(|row| row.name.to_owned())
        .collect();
    for row in rows
        .iter()
        .filter(|row| missing.iter().all(|name| name != row.name))
    {
        check_constants(row, &modules[row.name])?;
    }
    if missing.is_empty() && extra.is_empty() {
        Ok(modules)
    } else {
        Err(Error::Entries {
            missing,
            extra: extra.into_iter().collect(),
        })
    }
}

/// A kernel asks for the constants of its kind, and for no others.
fn check_constants(row: &Variant, text: &str) -> Result<(), Error> {
    of_variant(text, row, Spec::PLAIN, None)
        .map(|_| ())
        .map_err(|error| Error::Constants {
            entry: row.name,
            error,
        })
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
            match item.kind {
                ItemKind::Entry => text.push_str(&entry::finished(item.name, item.text)),
                _ => text.push_str(item.text),
            }
            text.push('\n');
        }
        text
    }
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

#[cfg(test)]
mod tests {
    use ferroflash_kernels::variants::VARIANTS;

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

    /// Some kernel of the list.
    fn some_row() -> &'static Variant {
        VARIANTS.first().expect("the list is not empty")
    }

    #[test]
    fn a_kernel_that_does_not_ask_for_its_constants_is_refused() {
        let mut rows = VARIANTS.iter();
        let row = rows
            .find(|row| row.capabilities() != Spec::PLAIN)
            .expect("the list has one");
        let text = TEXT.replace("first", row.name);
        match split("sm_80", &[(vec![row], text)], &[row]) {
            Err(Error::Constants { entry, .. }) => assert_eq!(entry, row.name),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn entries_that_are_not_those_of_the_list_are_named() {
        let row = some_row();
        let parts = [(vec![row], TEXT.to_owned())];
        match split("sm_80", &parts, &[row]) {
            Err(Error::Entries { missing, extra }) => {
                assert_eq!(missing, [row.name]);
                assert_eq!(extra, ["first"]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn probes_of_hopper_go_with_its_module_only() {
        let text = TEXT.replace("probe_add", "probe_sm90a_add");
        let row = some_row();
        let constants = row.capabilities().constants();
        let asked: String = constants
            .map(|constant| format!("{};\n", constant.symbol()))
            .collect();
        let text = text.replace("\tcall helper;\n", &format!("\tcall helper;\n{asked}"));
        let text = text.replace("first", row.name);
        let parts = [(vec![row], text)];
        let modules = |arch| {
            let modules = split(arch, &parts, &[row]).expect("it is the row's");
            modules.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(modules("sm_80"), [row.name]);
        assert_eq!(modules("sm_90a"), [row.name, PROBES]);
    }

    #[test]
    fn a_text_that_ends_early_is_refused() {
        assert!(matches!(
            Unit::parse(&TEXT[..TEXT.len() - 10]),
            Err(Error::Ptx { .. })
        ));
    }
}
