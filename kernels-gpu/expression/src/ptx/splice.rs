//! Puts a program into the text of a kernel: pure text in, text out.

use std::collections::HashMap;

use super::emit::{Operands, Program};
use super::error::SpliceError;
use super::op::Level;

/// What the instructions that a program replaces begin with.
pub const INSTRUCTION: &str = "ferroflash_score";

/// The instruction of a kernel that adds row terms itself, where another has `ferroflash_score_block`.
pub const BLOCK_APART: &str = "ferroflash_score_block_apart";

/// What the kernel's text asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tile,
    Block,
    BlockApart,
    WithRows,
    WithoutRows,
    IsCapped,
    Score,
    Gradient,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Tile,
        Kind::Block,
        Kind::BlockApart,
        Kind::WithRows,
        Kind::WithoutRows,
        Kind::IsCapped,
        Kind::Score,
        Kind::Gradient,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Tile => "ferroflash_score_tile",
            Kind::Block => "ferroflash_score_block",
            Kind::BlockApart => BLOCK_APART,
            Kind::WithRows => "ferroflash_score_with_rows",
            Kind::WithoutRows => "ferroflash_score_without_rows",
            Kind::IsCapped => "ferroflash_score_is_capped",
            Kind::Score => "ferroflash_score",
            Kind::Gradient => "ferroflash_score_gradient",
        }
    }

    fn operands(self) -> usize {
        match self {
            Kind::Tile => 7,
            Kind::Block | Kind::BlockApart | Kind::IsCapped => 1,
            Kind::WithRows | Kind::WithoutRows => 2,
            Kind::Score => 5,
            Kind::Gradient => 9,
        }
    }
}

/// An instruction of the text.
#[derive(Clone, Debug)]
struct Instruction<'a> {
    kind: Kind,
    operands: Vec<&'a str>,
}

/// The text with the program in place of its instructions.
pub fn splice(program: &Program, text: &str) -> Result<String, SpliceError> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    // What stands before the first entry has no instruction; each entry goes as far as the next one.
    loop {
        let next = next_entry(rest);
        let (part, after) = rest.split_at(next.unwrap_or(rest.len()));
        match entry_name(part) {
            Some(entry) => entry_part(program, entry, part, &mut result)?,
            None => {
                if let Some((_, instruction, _)) = next_instruction(part)? {
                    let instruction = instruction.kind.name().to_owned();
                    return Err(SpliceError::NoEntry { instruction });
                }
                result.push_str(part);
            }
        }
        if after.is_empty() {
            return Ok(result);
        }
        rest = after;
    }
}

/// The start of the next entry or function, after the first character.
fn next_entry(text: &str) -> Option<usize> {
    let words = [".entry", ".func"];
    let starts = words.into_iter().filter_map(|word| {
        let mut found = text.match_indices(word).map(|(at, _)| at);
        found.find(|&at| at > 0 && is_code(text, at))
    });
    starts.min()
}

/// Whether a place of the text is in no comment of its line.
fn is_code(text: &str, at: usize) -> bool {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    !text[line..at].contains("//")
}

/// The name of the entry that the part begins with.
fn entry_name(part: &str) -> Option<&str> {
    let name = part.strip_prefix(".entry")?.trim_start();
    let end = name.find(|c: char| !is_name(c)).unwrap_or(name.len());
    (end > 0).then_some(&name[..end])
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// One entry, from `.entry` to the next one.
fn entry_part(
    program: &Program,
    entry: &str,
    part: &str,
    result: &mut String,
) -> Result<(), SpliceError> {
    let mut instructions = Vec::new();
    let mut rest = part;
    while let Some((before, instruction, after)) = next_instruction(rest)? {
        instructions.push((before, instruction));
        rest = after;
    }
    if instructions.is_empty() {
        result.push_str(part);
        return Ok(());
    }
    check(program, entry, &instructions)?;
    let constants = constants(part);
    let mut needs_parameter = false;
    let mut body = String::new();
    for (before, instruction) in &instructions {
        body.push_str(before);
        let text = write(program, entry, instruction, &constants)?;
        needs_parameter |= text.contains("ld.param");
        body.push_str(&text);
    }
    body.push_str(rest);
    let parameter = format!("{entry}_param_0");
    let header = part.split('{').next().unwrap_or(part);
    if needs_parameter && !header.contains(&parameter) {
        let entry = entry.to_owned();
        return Err(SpliceError::NoParameter { entry });
    }
    let Some(open) = body.find('{') else {
        let instruction = instructions[0].1.kind.name().to_owned();
        return Err(SpliceError::NoEntry { instruction });
    };
    let (header, body) = body.split_at(open + 1);
    result.push_str(header);
    result.push('\n');
    result.push_str(&program.declarations());
    result.push_str(body);
    Ok(())
}

/// Whether the entry says all that the program needs.
fn check(
    program: &Program,
    entry: &str,
    instructions: &[(&str, Instruction<'_>)],
) -> Result<(), SpliceError> {
    let has = |kind: Kind| instructions.iter().any(|(_, known)| known.kind == kind);
    let entry = || entry.to_owned();
    if has(Kind::Gradient) && !program.has_gradient() {
        return Err(SpliceError::NoDerivative { entry: entry() });
    }
    if !has(Kind::Score) && !has(Kind::Gradient) {
        return Ok(());
    }
    let apart = has(Kind::BlockApart);
    if apart != program.leaves_row_terms() && (apart || has(Kind::Block)) {
        return Err(SpliceError::RowTerms { entry: entry() });
    }
    let block = match program.leaves_row_terms() {
        true => Kind::BlockApart,
        false => Kind::Block,
    };
    for (level, kind) in [(Level::Tile, Kind::Tile), (Level::Block, block)] {
        if program.keeps(level) && !has(kind) {
            return Err(SpliceError::Missing {
                entry: entry(),
                instruction: kind.name(),
            });
        }
    }
    Ok(())
}

fn write(
    program: &Program,
    entry: &str,
    instruction: &Instruction<'_>,
    constants: &HashMap<&str, Option<i32>>,
) -> Result<String, SpliceError> {
    let registers = &instruction.operands;
    let operands = Operands { entry, registers };
    let column = || {
        let operand = registers.last().copied().unwrap_or_default();
        number(operand)
            .or_else(|| constants.get(operand).copied().flatten())
            .ok_or_else(|| SpliceError::NoColumn {
                operand: operand.to_owned(),
            })
    };
    let scores = |n: usize| Operands {
        entry,
        registers: &registers[..n],
    };
    Ok(match instruction.kind {
        Kind::Tile => program.tile(operands),
        Kind::Block | Kind::BlockApart => program.block(operands),
        Kind::WithRows => program.row_terms("add.f32", operands),
        Kind::WithoutRows => program.row_terms("sub.f32", operands),
        Kind::IsCapped => program.is_capped(operands),
        Kind::Score => program.score(scores(4), column()?),
        Kind::Gradient => program.score_gradient(scores(8), column()?),
    })
}

/// Registers that the entry sets; with a number where it does so once, to an immediate.
fn constants(part: &str) -> HashMap<&str, Option<i32>> {
    let mut constants = HashMap::new();
    for statement in part.split([';', '\n']) {
        let statement = statement.trim_start_matches(['{', '}', ' ', '\t', '\r']);
        let Some((mut opcode, mut operands)) = statement.split_once(char::is_whitespace) else {
            continue;
        };
        let is_conditional = opcode.starts_with('@');
        if is_conditional && let Some((guarded, rest)) = operands.trim().split_once(' ') {
            (opcode, operands) = (guarded, rest);
        }
        // Vectors and results of calls set several registers.
        let operands = operands.trim();
        let (set, source) = match operands.strip_prefix(['{', '(']) {
            Some(list) => (list.split(['}', ')']).next().unwrap_or(list), ""),
            None => operands.split_once(',').unwrap_or((operands, "")),
        };
        let value = match opcode {
            "mov.b32" | "mov.u32" | "mov.s32" if !is_conditional => number(source.trim()),
            _ => None,
        };
        for register in set.split([',', '|']).map(str::trim) {
            constants
                .entry(register)
                .and_modify(|known| *known = None)
                .or_insert(value);
        }
    }
    constants
}

/// A decimal number that a column may be: see [`SpliceError::NoColumn`].
fn number(text: &str) -> Option<i32> {
    const MOST: i32 = 1 << 12;
    text.parse()
        .ok()
        .filter(|number| (0..MOST).contains(number))
}

/// The text before the next instruction of scores, the instruction, and the text after it.
#[allow(clippy::type_complexity)]
fn next_instruction(text: &str) -> Result<Option<(&str, Instruction<'_>, &str)>, SpliceError> {
    let found = text.match_indices(INSTRUCTION).map(|(at, _)| at);
    let Some(begin) = found.into_iter().find(|&at| begins_statement(text, at)) else {
        return Ok(None);
    };
    let (before, statement) = text.split_at(begin);
    let end = statement.find(|c: char| !is_name(c));
    let name = &statement[..end.unwrap_or(statement.len())];
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else {
        let instruction = name.to_owned();
        return Err(SpliceError::Unknown { instruction });
    };
    let close = statement.find([';', '\n']);
    let close = close.filter(|&close| statement[close..].starts_with(';'));
    let operands = statement[name.len()..close.unwrap_or(name.len())].trim();
    let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    let complete = operands
        .iter()
        .all(|operand| !operand.is_empty() && operand.chars().all(is_name));
    match close {
        Some(close) if complete && operands.len() == kind.operands() => {
            let after = &statement[close + 1..];
            Ok(Some((before, Instruction { kind, operands }, after)))
        }
        _ => Err(SpliceError::Operands {
            instruction: name.to_owned(),
            expected: kind.operands(),
            found: operands
                .iter()
                .filter(|operand| !operand.is_empty())
                .count(),
        }),
    }
}

/// Whether a statement begins here.
fn begins_statement(text: &str, at: usize) -> bool {
    let before = text[..at].trim_end_matches([' ', '\t', '\r']);
    is_code(text, at)
        && before
            .chars()
            .next_back()
            .is_none_or(|c| matches!(c, ';' | '{' | '}' | '\n' | ':'))
}
