//! The rule that a function's assembler text is the instruction that its documentation begins with.
//!
//! `` /// `ld.acquire.gpu.global.u32`: … `` names the opcode with all its modifiers, and may give operands: those that are
//! numbers or special registers must be in the text, too. Where the text wants several instructions, the documentation
//! names each but those that only move operands ([`MOVES`]): `` /// `fma.rn.f32` of `neg.f32`: … ``. What a macro's
//! argument adds to an opcode is `…` in both.

use super::source::{Item, Source};

/// Instructions that bring operands where another one wants them, and results back.
const MOVES: [&str; 4] = ["mov.b32", "mov.b64", "setp.ne.u32", "selp.u32"];

/// Stands for what a macro is given.
const GIVEN: char = '…';

/// Stands for an operand of the assembler block.
const OPERAND: char = '¤';

/// Whether the documentation of each function and macro begins with the instructions of its text.
pub fn check_instructions(source: &Source, faults: &mut Vec<String>) {
    let mut items = source.functions();
    items.extend(source.macros());
    for item in &items {
        // What a macro's function holds is said of the function.
        let inner = |line: usize| items.iter().any(|other| other.is_within(item, line));
        let texts = texts(source, item).filter(|(line, _)| !inner(*line));
        let statements: Vec<String> = texts.flat_map(|(_, text)| statements(&text)).collect();
        if statements.is_empty() {
            continue;
        }
        let place = format!("{}:{}: `{}`", source.path, item.line, item.name);
        let named = named(&paragraph(source, item));
        if named.is_empty() {
            faults.push(format!(
                "{place}: its documentation begins with no instruction"
            ));
        }
        for instruction in &named {
            if !statements
                .iter()
                .any(|statement| is_instance(statement, instruction))
            {
                faults.push(format!("{place}: its text is not `{instruction}`"));
            }
        }
        for statement in &statements {
            let is_named = named.iter().any(|named| opcode(named) == opcode(statement));
            if !is_named && !MOVES.contains(&opcode(statement)) {
                let opcode = opcode(statement);
                faults.push(format!(
                    "{place}: its documentation does not name `{opcode}`"
                ));
            }
        }
    }
}

/// The first paragraph of an item's documentation.
fn paragraph(source: &Source, item: &Item) -> String {
    let lines: Vec<&str> = source
        .text
        .lines()
        .take(item.line - 1)
        .map(str::trim)
        .collect();
    let first = lines
        .iter()
        .rposition(|line| !line.starts_with("///") && !line.starts_with("#["))
        .map_or(0, |at| at + 1);
    let docs = lines[first..]
        .iter()
        .filter_map(|line| line.strip_prefix("///"));
    let paragraph = docs.map(str::trim).take_while(|line| !line.is_empty());
    paragraph.collect::<Vec<_>>().join(" ")
}

/// The instructions that a documentation begins with: up to the first colon, comma or full stop outside of them.
fn named(paragraph: &str) -> Vec<String> {
    let mut named = Vec::new();
    if !paragraph.starts_with('`') {
        return named;
    }
    for (idx, part) in paragraph.split('`').enumerate().skip(1) {
        if idx % 2 == 0 {
            if part.contains([':', ',', '.']) {
                break;
            }
        } else if named.is_empty() || opcode(part).contains('.') {
            named.push(part.to_owned());
        }
    }
    named
}

/// An instruction's opcode, behind the predicate that guards it.
fn opcode(instruction: &str) -> &str {
    let mut words = instruction.split_whitespace();
    words.find(|word| !is_guard(word)).unwrap_or_default()
}

fn is_guard(word: &str) -> bool {
    word.starts_with('@')
}

/// Whether a statement has the opcode of an instruction, a guard if that has one, and those of its operands that are numbers
/// or special registers.
fn is_instance(statement: &str, instruction: &str) -> bool {
    let operands = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'));
        let words = words.filter(|word| !word.is_empty() && !is_guard(word));
        words.skip(1).map(str::to_owned).collect()
    };
    let is_guarded = |text: &str| text.split_whitespace().next().is_some_and(is_guard);
    let given = operands(statement);
    let is_fixed = |operand: &String| operand.starts_with(|c: char| c == '%' || c.is_ascii_digit());
    opcode(statement) == opcode(instruction)
        && is_guarded(statement) == is_guarded(instruction)
        && operands(instruction)
            .iter()
            .filter(|operand| is_fixed(operand))
            .all(|operand| given.contains(operand))
}

/// The texts of the assembler blocks in an item, each with the line on which its block begins.
fn texts<'a>(source: &'a Source, item: &'a Item) -> impl Iterator<Item = (usize, String)> + 'a {
    let first = item.line - 1;
    let lines = source.code.lines().zip(source.text.lines()).enumerate();
    let lines = lines.skip(first).take(item.code.lines().count());
    let blocks = lines.filter_map(|(at, (code, _))| {
        let begin = ["asm!(", "ptx!("]
            .iter()
            .filter_map(|word| code.find(word).map(|at| at + word.len()))
            .min()?;
        let column = code[..begin].chars().count();
        Some((at, column))
    });
    blocks.map(|(at, column)| {
        let rest: Vec<&str> = source.text.lines().skip(at).collect();
        let text: String = rest.join("\n").chars().skip(column).collect();
        (at + 1, template(&text))
    })
}

/// The text that an assembler block is given, whose parentheses have just been opened: each of its strings, and `…` for
/// what a macro puts between those of one `concat!`.
fn template(block: &str) -> String {
    let mut text = String::new();
    let mut depth = 1;
    let mut concat = None;
    let mut rest = block;
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        if c == '"' {
            len = 1 + string(&rest[1..], &mut text);
        } else if rest.starts_with("//") {
            len = rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("concat!(") {
            concat = Some(depth);
        } else if c == '$' && concat.is_some_and(|outside| outside < depth) {
            text.push(GIVEN);
        } else if c == ',' && concat.is_none() {
            text.push('\n');
        } else if c == '(' {
            depth += 1;
        } else if c == ')' {
            depth -= 1;
            if depth == 0 {
                break;
            }
            concat = concat.filter(|outside| *outside < depth);
        }
        rest = &rest[len..];
    }
    text
}

/// Takes over a string whose quotation mark has just been opened, as the assembler sees it: operands become one character,
/// braces blanks. Its length with the closing mark.
fn string(rest: &str, text: &mut String) -> usize {
    let mut at = 0;
    while let Some(c) = rest[at..].chars().next() {
        let here = &rest[at..];
        if c == '"' {
            return at + 1;
        }
        at += if let Some(next) = here.strip_prefix("\\\n") {
            here.len() - next.trim_start().len()
        } else if here.starts_with("{{") || here.starts_with("}}") {
            text.push(' ');
            2
        } else if c == '{' {
            text.push(OPERAND);
            here.find('}').map_or(here.len(), |end| end + 1)
        } else {
            text.push(c);
            c.len_utf8()
        };
    }
    rest.len()
}

/// The instructions of a text: without comments and declarations.
fn statements(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join("\n");
    let statements = text.split(';').map(str::trim);
    let instructions =
        statements.filter(|statement| !statement.is_empty() && !statement.starts_with('.'));
    instructions.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// What is wrong with a function or macro of this documentation, whose assembler block is given this.
    fn faults_of(documentation: &str, block: &str) -> Vec<String> {
        let items = [
            format!("{documentation}\n#[inline(always)]\npub fn a() {{\n    ptx!({block});\n}}\n"),
            format!("{documentation}\nmacro_rules! a {{\n    () => {{ asm!({block}) }}\n}}\n"),
        ];
        let faults = items.map(|item| {
            let path = PathBuf::from("kernels-gpu/src/ptx/a.rs");
            let source = Source::new(path, format!("//! A · b.\n\n{item}"));
            let mut faults = Vec::new();
            check_instructions(&source, &mut faults);
            faults
                .iter()
                .map(|fault| fault.split_once("`a`: ").unwrap().1.to_owned())
                .collect()
        });
        let [of_function, of_macro]: [Vec<String>; 2] = faults;
        assert_eq!(of_function, of_macro, "{documentation}: {block}");
        of_function
    }

    #[test]
    fn what_the_documentation_names_is_accepted() {
        for (documentation, block) in [
            (
                "/// `ld.acquire.gpu.global.u32`: a.",
                r#""ld.acquire.gpu.global.u32 {x}, [{a}];", x = out(reg32) x"#,
            ),
            ("/// `mov.u32 r, %tid.x`: a.", r#""mov.u32 {x}, %tid.x;""#),
            (
                "/// `bar.sync 0`, which `b.c` is not: a.",
                r#""bar.sync 0;""#,
            ),
            (
                "/// `mma.sync.f32`: a.",
                "\"mma.sync.f32 \\\n     {{{d0}, {d1}}}, {{{a0}}};\"",
            ),
            (
                "/// `@p st.b32`: a.",
                r#""{{ .reg .pred p; setp.ne.u32 p, {p}, 0;", "@p st.b32 [{a}], {x}; }}""#,
            ),
            (
                "/// `fma.rn.f32` of\n/// `neg.f32`: a.",
                r#""{{ .reg .f32 m; neg.f32 m, {c}; fma.rn.f32 {d}, {a}, {b}, m; }}""#,
            ),
            (
                "/// `cvta.u64` of a: b.",
                r#"concat!("mov.b64 {a}, ", $entry, "_param;"), "cvta.u64 {a}, {a};""#,
            ),
            (
                "/// `wgmma.…` of a.",
                r#"$before, concat!("wgmma.", $shape, " {{"), "{}, {}", concat!(", {}", b!($n)), "}}, a;""#,
            ),
            ("/// No instruction.", r#""// {} {}""#),
        ] {
            assert_eq!(faults_of(documentation, block), [""; 0], "{documentation}");
        }
    }

    #[test]
    fn another_text_is_a_fault() {
        let ld = "/// `ld.acquire.gpu.global.u32`: a.";
        assert_eq!(
            faults_of(ld, r#""ld.relaxed.gpu.global.u32 {x}, [{a}];""#),
            [
                "its text is not `ld.acquire.gpu.global.u32`",
                "its documentation does not name `ld.relaxed.gpu.global.u32`"
            ]
        );
        // In a comment there is no instruction, and moves are none that need a name.
        let nowhere = r#""mov.b32 {x}, {y}; // ld.acquire.gpu.global.u32""#;
        assert_eq!(
            faults_of(ld, nowhere),
            ["its text is not `ld.acquire.gpu.global.u32`"]
        );
        for (documentation, block) in [
            ("/// `mov.u32 r, %tid.x`: a.", r#""mov.u32 {x}, %ctaid.x;""#),
            ("/// `bar.sync 0`: a.", r#""bar.sync 1;""#),
            ("/// `@p st.b32`: a.", r#""st.b32 [{a}], {x};""#),
            ("/// `st.b32`: a.", r#""@p st.b32 [{a}], {x};""#),
            (
                "/// `fma.rn.f32` of `neg.f32`: a.",
                r#""fma.rn.f32 {d}, {a}, {b}, {c};""#,
            ),
            (
                "/// `fma.rn.f32`: a.",
                r#""neg.f32 m, {c}; fma.rn.f32 {d}, {a}, {b}, m;""#,
            ),
            ("/// `wgmma.…`: a.", r#""wgmma.m64n8k16 {{""#),
            ("/// Does `bar.sync`.", r#""mov.b32 {x}, {y};""#),
            ("// No documentation.", r#""mov.b32 {x}, {y};""#),
        ] {
            assert!(
                !faults_of(documentation, block).is_empty(),
                "{documentation}"
            );
        }
    }

    #[test]
    fn a_macros_function_speaks_for_its_own_text() {
        let text = "//! A.\n/// `a.b32`: a.\nmacro_rules! a {\n    () => {\n        /// `b.b32`: b.\n        fn b() {\n            \
                    ptx!(\"b.b32;\");\n        }\n        asm!(\"a.b32;\")\n    };\n}\n";
        let source = Source::new(PathBuf::from("a.rs"), text.to_owned());
        let mut faults = Vec::new();
        check_instructions(&source, &mut faults);
        assert_eq!(faults, [""; 0]);
    }
}
