//! From operations to PTX text: what is written at the tile, at the block, and at the scores.
//!
//! Values that one place computes for another are kept in registers of the whole entry ([`Program::declarations`]). Rows and
//! columns have values of their own only where a value depends on them.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::lower::is_kept;
use super::op::{Arena, Class, Given, IndexUse, Instr, Level, Op, OpId};

/// What the instructions of a kernel's text become.
#[derive(Clone, Debug)]
pub struct Program {
    arena: Arena,
    score: OpId,
    gradient: Option<OpId>,
    at_score: Vec<bool>,
    at_gradient: Vec<bool>,
    at_block: Vec<bool>,
    at_tile: Vec<bool>,
    kept: Vec<bool>,
}

/// The operands of one instruction of the kernel's text.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Whose parameter values of the launch are read from.
    pub entry: &'a str,
    /// As they stand in the text.
    pub registers: &'a [&'a str],
}

impl Program {
    /// How it forms indices of tensors.
    pub fn index_uses(&self) -> &[IndexUse] {
        &self.arena.index_uses
    }

    /// The program whose values are the new score and, for gradients, the derivative.
    pub(super) fn of(arena: Arena, score: OpId, gradient: Option<OpId>) -> Program {
        let at_score = used(&arena, Level::Score, &[score]);
        let at_gradient = match gradient {
            Some(gradient) => used(&arena, Level::Score, &[score, gradient]),
            None => vec![false; arena.ops().len()],
        };
        let kept_at = |level: Level, places: &[&[bool]]| -> Vec<OpId> {
            (0..arena.ops().len() as OpId)
                .filter(|&id| arena.level(id) == level && is_kept(id, &arena))
                .filter(|&id| places.iter().any(|place| place[id as usize]))
                .collect()
        };
        let of_block = kept_at(Level::Block, &[&at_score, &at_gradient]);
        let at_block = used(&arena, Level::Block, &of_block);
        let of_tile = kept_at(Level::Tile, &[&at_score, &at_gradient, &at_block]);
        let at_tile = used(&arena, Level::Tile, &of_tile);
        let mut kept = vec![false; arena.ops().len()];
        for id in of_block.into_iter().chain(of_tile) {
            kept[id as usize] = true;
        }
        Program {
            arena,
            score,
            gradient,
            at_score,
            at_gradient,
            at_block,
            at_tile,
            kept,
        }
    }

    /// Whether anything is kept from a level on.
    pub(super) fn keeps(&self, level: Level) -> bool {
        (0..self.kept.len()).any(|id| self.kept[id] && self.arena.level(id as OpId) == level)
    }

    /// Whether it has a derivative.
    pub(super) fn has_gradient(&self) -> bool {
        self.gradient.is_some()
    }

    /// The declarations of the registers that are kept, for the beginning of the entry's body.
    pub(super) fn declarations(&self) -> String {
        let mut text = String::new();
        for (id, op) in self.arena.ops().iter().enumerate() {
            if !self.kept[id] {
                continue;
            }
            let class = class_name(class(*op));
            for row in 0..self.rows(id as OpId) {
                let name = kept_name(id as OpId, row);
                push(&mut text, format_args!("\t.reg {class} {name};\n"));
            }
        }
        text
    }

    /// What stands for `ferroflash_score_tile`.
    pub(super) fn tile(&self, operands: Operands<'_>) -> String {
        let scope = Scope::new(self, Level::Tile, operands, 0);
        scope.section(&self.at_tile, &[])
    }

    /// What stands for `ferroflash_score_block`.
    pub(super) fn block(&self, operands: Operands<'_>) -> String {
        let scope = Scope::new(self, Level::Block, operands, 0);
        scope.section(&self.at_block, &[])
    }

    /// What stands for `ferroflash_score` at a column of the block.
    pub(super) fn score(&self, operands: Operands<'_>, column: i32) -> String {
        let scope = Scope::new(self, Level::Score, operands, column);
        scope.section(&self.at_score, &[(self.score, 0)])
    }

    /// What stands for `ferroflash_score_gradient` at a column of the block.
    pub(super) fn score_gradient(&self, operands: Operands<'_>, column: i32) -> String {
        let scope = Scope::new(self, Level::Score, operands, column);
        match self.gradient {
            Some(gradient) => scope.section(&self.at_gradient, &[(self.score, 0), (gradient, 4)]),
            None => scope.section(&self.at_score, &[(self.score, 0)]),
        }
    }

    fn rows(&self, id: OpId) -> usize {
        1 + usize::from(self.arena.depends(id).per_row())
    }

    fn columns(&self, id: OpId) -> usize {
        1 + usize::from(self.arena.depends(id).per_column())
    }
}

/// The operations that these need at a level, and what they take from other levels.
fn used(arena: &Arena, level: Level, outputs: &[OpId]) -> Vec<bool> {
    let mut used = vec![false; arena.ops().len()];
    for &output in outputs {
        used[output as usize] = true;
    }
    for (id, op) in arena.ops().iter().enumerate().rev() {
        if let Op::Instr(instr, args) = op
            && used[id]
            && arena.level(id as OpId) == level
        {
            for &arg in &args[..instr.operands()] {
                used[arg as usize] = true;
            }
        }
    }
    used
}

/// What register holds the value of an operation.
fn class(op: Op) -> Class {
    match op {
        Op::Param64(_) | Op::Instr(Instr::B64(..), _) => Class::B64,
        Op::Bool(_) | Op::Instr(Instr::Pred(..), _) => Class::Pred,
        _ => Class::B32,
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::B32 => ".b32",
        Class::B64 => ".b64",
        Class::Pred => ".pred",
    }
}

fn kept_name(id: OpId, row: usize) -> String {
    format!("%ffk{id}_{row}")
}

/// Writing to a string does not fail.
fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

/// The text that stands for one instruction.
struct Scope<'a> {
    program: &'a Program,
    level: Level,
    operands: Operands<'a>,
    column: i32,
    names: HashMap<(OpId, usize, usize), String>,
    lines: String,
    n_b32: usize,
    n_b64: usize,
    n_pred: usize,
    n_b16: usize,
}

impl<'a> Scope<'a> {
    fn new(program: &'a Program, level: Level, operands: Operands<'a>, column: i32) -> Scope<'a> {
        Scope {
            program,
            level,
            operands,
            column,
            names: HashMap::new(),
            lines: String::new(),
            n_b32: 0,
            n_b64: 0,
            n_pred: 0,
            n_b16: 0,
        }
    }

    /// The operations that are marked, then the outputs, each with the place of its first operand.
    fn section(mut self, marked: &[bool], outputs: &[(OpId, usize)]) -> String {
        let arena = &self.program.arena;
        for (id, op) in arena.ops().iter().enumerate() {
            let id = id as OpId;
            if !marked[id as usize] {
                continue;
            }
            match *op {
                Op::Param32(offset) => self.load(id, ".b32", offset),
                Op::Param64(offset) => self.load(id, ".b64", offset),
                Op::Given(given) if arena.level(id) == self.level => self.given(id, given),
                Op::Instr(instr, args) if arena.level(id) == self.level => {
                    for row in 0..self.program.rows(id) {
                        for column in 0..self.program.columns(id) {
                            self.instr(id, instr, &args, row, column);
                        }
                    }
                }
                _ => {}
            }
        }
        for &(output, first) in outputs {
            for element in 0..4 {
                let Some(&register) = self.operands.registers.get(first + element) else {
                    continue;
                };
                let value = self.operand("mov.b32", output, element / 2, element % 2);
                if value != register {
                    push(
                        &mut self.lines,
                        format_args!("\tmov.b32 {register}, {value};\n"),
                    );
                }
            }
        }
        self.text()
    }

    fn text(self) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let mut text = String::from("{\n");
        let registers = [
            (".b32", "%fft", self.n_b32),
            (".b64", "%ffd", self.n_b64),
            (".pred", "%ffp", self.n_pred),
            (".b16", "%ffh", self.n_b16),
        ];
        for (class, name, n) in registers {
            if n > 0 {
                push(&mut text, format_args!("\t.reg {class} {name}<{n}>;\n"));
            }
        }
        text.push_str(&self.lines);
        text.push_str("\t}");
        text
    }

    fn load(&mut self, id: OpId, ty: &str, offset: u32) {
        let name = self.name(id, 0, 0);
        let entry = self.operands.entry;
        push(
            &mut self.lines,
            format_args!("\tld.param{ty} {name}, [{entry}_param_0+{offset}];\n"),
        );
    }

    /// What the kernel hands over: named by its own register, and copied where it is kept.
    fn given(&mut self, id: OpId, given: Given) {
        let places: &[usize] = match given {
            Given::Batch => &[0],
            Given::Head => &[1],
            Given::KvHead => &[2],
            Given::SeqlenQ => &[3],
            Given::SeqlenK => &[4],
            Given::Own => &[5, 6],
            Given::First => &[0],
            Given::X => &[0, 1, 2, 3],
            Given::Running => &[],
        };
        for (nth, &place) in places.iter().enumerate() {
            let Some(&register) = self.operands.registers.get(place) else {
                continue;
            };
            let (row, column) = match given {
                Given::X => (nth / 2, nth % 2),
                _ => (nth, 0),
            };
            if self.program.kept[id as usize] {
                let name = kept_name(id, row);
                push(
                    &mut self.lines,
                    format_args!("\tmov.b32 {name}, {register};\n"),
                );
            }
            self.names.insert((id, row, column), register.to_owned());
        }
    }

    fn instr(&mut self, id: OpId, instr: Instr, args: &[OpId; 3], row: usize, column: usize) {
        let text = instr.text();
        let args: Vec<String> = args[..instr.operands()]
            .iter()
            .map(|&arg| self.operand(text, arg, row, column))
            .collect();
        let name = self.name(id, row, column);
        let lines = &mut self.lines;
        match instr {
            Instr::LoadF16 => {
                let half = self.n_b16;
                self.n_b16 += 1;
                push(lines, format_args!("\t{text} %ffh{half}, [{}];\n", args[0]));
                push(lines, format_args!("\tcvt.f32.f16 {name}, %ffh{half};\n"));
            }
            Instr::LoadBf16 => {
                push(lines, format_args!("\t{text} {name}, [{}];\n", args[0]));
                push(lines, format_args!("\tshl.b32 {name}, {name}, 16;\n"));
            }
            _ if text.starts_with("ld.") => {
                push(lines, format_args!("\t{text} {name}, [{}];\n", args[0]));
            }
            _ => push(
                lines,
                format_args!("\t{text} {name}, {};\n", args.join(", ")),
            ),
        }
    }

    /// A new register for a value; the kept one where it is kept.
    fn name(&mut self, id: OpId, row: usize, column: usize) -> String {
        let name = if self.program.kept[id as usize] {
            kept_name(id, row)
        } else {
            let (prefix, n) = match class(self.program.arena.get(id)) {
                Class::B32 => ("%fft", &mut self.n_b32),
                Class::B64 => ("%ffd", &mut self.n_b64),
                Class::Pred => ("%ffp", &mut self.n_pred),
            };
            *n += 1;
            format!("{prefix}{}", *n - 1)
        };
        self.names.insert((id, row, column), name.clone());
        name
    }

    /// How an instruction names its operand.
    fn operand(&self, text: &str, id: OpId, row: usize, column: usize) -> String {
        let row = row.min(self.program.rows(id) - 1);
        let nth = column.min(self.program.columns(id) - 1);
        let index = self.column.wrapping_add(column as i32);
        match self.program.arena.get(id) {
            Op::Imm(bits) => immediate(text, bits),
            Op::ColumnInt(step) => immediate(text, step.wrapping_mul(index) as u32),
            Op::ColumnF32 => immediate(text, (index as f32).to_bits()),
            _ => match self.names.get(&(id, row, nth)) {
                Some(name) => name.clone(),
                None => kept_name(id, row),
            },
        }
    }
}

/// A constant as the type of the instruction's operands asks for it.
fn immediate(text: &str, bits: u32) -> String {
    if text.ends_with(".f32") {
        format!("0f{bits:08X}")
    } else if text.ends_with(".s32") {
        (bits as i32).to_string()
    } else if text.ends_with(".u32") || text.ends_with(".b64") {
        bits.to_string()
    } else {
        format!("0x{bits:08X}")
    }
}
