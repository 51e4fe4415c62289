//! The text that stands for one instruction of a kernel.

use std::collections::HashMap;

use super::emit::{Operands, Program, class, kept_name, push};
use super::op::{Class, Given, Instr, Level, Op, OpId};

/// The text that stands for one instruction.
pub(super) struct Scope<'a> {
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
    /// Where nothing has been written yet.
    pub(super) fn new(
        program: &'a Program,
        level: Level,
        operands: Operands<'a>,
        column: i32,
    ) -> Scope<'a> {
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
    pub(super) fn section(mut self, marked: &[bool], outputs: &[(OpId, usize)]) -> String {
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
    pub(super) fn operand(&self, text: &str, id: OpId, row: usize, column: usize) -> String {
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
