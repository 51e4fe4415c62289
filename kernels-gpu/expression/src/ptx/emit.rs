//! From operations to PTX text: what is written at the tile, at the block, and at the scores.
//!
//! Values that one place computes for another are kept in registers of the whole entry ([`Program::declarations`]). Rows and
//! columns have values of their own only where a value depends on them.

use std::fmt::Write as _;

use super::RowTerms;
use super::lower::is_kept;
use super::op::{Arena, Class, IndexUse, Instr, Level, Op, OpId};
use super::scope::Scope;

/// What the instructions of a kernel's text become.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) arena: Arena,
    values: Values,
    at_score: Vec<bool>,
    at_gradient: Vec<bool>,
    at_block: Vec<bool>,
    at_tile: Vec<bool>,
    pub(super) kept: Vec<bool>,
}

/// The values that a program is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    /// The new score.
    pub(super) score: OpId,
    /// The derivative.
    pub(super) gradient: Option<OpId>,
    /// What the scores of a row lack, if anything.
    pub(super) of_row: Option<OpId>,
    /// Where that goes.
    pub(super) terms: RowTerms,
    /// Whether scores are measured in the size of a cap.
    pub(super) is_capped: bool,
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

    /// The program of these values.
    pub(super) fn of(arena: Arena, values: Values) -> Program {
        let at_score = used(&arena, Level::Score, &[values.score]);
        let at_gradient = match values.gradient {
            Some(gradient) => used(&arena, Level::Score, &[values.score, gradient]),
            None => vec![false; arena.ops().len()],
        };
        let mut at_rows = vec![false; arena.ops().len()];
        if let Some(of_row) = values.of_row {
            at_rows[of_row as usize] = true;
        }
        let kept_at = |level: Level, places: &[&[bool]]| -> Vec<OpId> {
            (0..arena.ops().len() as OpId)
                .filter(|&id| arena.level(id) == level && is_kept(id, &arena))
                .filter(|&id| places.iter().any(|place| place[id as usize]))
                .collect()
        };
        let of_block = kept_at(Level::Block, &[&at_score, &at_gradient, &at_rows]);
        let at_block = used(&arena, Level::Block, &of_block);
        let of_tile = kept_at(Level::Tile, &[&at_score, &at_gradient, &at_block, &at_rows]);
        let at_tile = used(&arena, Level::Tile, &of_tile);
        let mut kept = vec![false; arena.ops().len()];
        for id in of_block.into_iter().chain(of_tile) {
            kept[id as usize] = true;
        }
        Program {
            arena,
            values,
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
        self.values.gradient.is_some()
    }

    /// Whether scores lack what those of a row have in common.
    pub(super) fn leaves_row_terms(&self) -> bool {
        self.values.terms == RowTerms::Apart
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

    /// What stands for `ferroflash_score_with_rows` and `ferroflash_score_without_rows`, by this instruction.
    pub(super) fn row_terms(&self, text: &str, operands: Operands<'_>) -> String {
        let Some(of_row) = self.values.of_row else {
            return String::new();
        };
        let scope = Scope::new(self, Level::Score, operands, 0);
        let mut lines = String::new();
        for (row, register) in operands.registers.iter().enumerate() {
            let term = scope.operand(text, of_row, row, 0);
            let line = format_args!("\t{text} {register}, {register}, {term};\n");
            push(&mut lines, line);
        }
        lines
    }

    /// What stands for `ferroflash_score_is_capped`.
    pub(super) fn is_capped(&self, operands: Operands<'_>) -> String {
        let mut lines = String::new();
        for register in operands.registers {
            let capped = u32::from(self.values.is_capped);
            let line = format_args!("\tmov.b32 {register}, {capped};\n");
            push(&mut lines, line);
        }
        lines
    }

    /// What stands for `ferroflash_score` at a column of the block.
    pub(super) fn score(&self, operands: Operands<'_>, column: i32) -> String {
        let scope = Scope::new(self, Level::Score, operands, column);
        scope.section(&self.at_score, &[(self.values.score, 0)])
    }

    /// What stands for `ferroflash_score_gradient` at a column of the block.
    pub(super) fn score_gradient(&self, operands: Operands<'_>, column: i32) -> String {
        let scope = Scope::new(self, Level::Score, operands, column);
        let score = (self.values.score, 0);
        match self.values.gradient {
            Some(gradient) => scope.section(&self.at_gradient, &[score, (gradient, 4)]),
            None => scope.section(&self.at_score, &[score]),
        }
    }

    /// How many values it has in a fragment, one below the other.
    pub(super) fn rows(&self, id: OpId) -> usize {
        1 + usize::from(self.arena.depends(id).per_row())
    }

    /// How many it has next to each other.
    pub(super) fn columns(&self, id: OpId) -> usize {
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
pub(super) fn class(op: Op) -> Class {
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

pub(super) fn kept_name(id: OpId, row: usize) -> String {
    format!("%ffk{id}_{row}")
}

/// Writing to a string does not fail.
pub(super) fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}
