//! A mask as a program of few instructions, which kernels interpret on a block of scores.
//!
//! A value that depends only on the query, or only on the key, is evaluated at each query, or key, of a block, and its bounds there are kept: this
//! is done by the parts of rows and of columns. These are its tightest bounds. If the bounds of its operands are as tight, as for `q + 1`, it is
//! bounded in the last part like values that depend on both.

use std::fmt;

use super::{
    Binary, Compare, Dependencies, ElementType, Expression, Id, Index, Node, Param, Tensor, Type,
    Unary,
};
use crate::device::{
    MASK_BINARY, MASK_COMPARE, MASK_INDEX, MASK_UNARY, MAX_MASK_BOUNDS, MAX_MASK_INSTRUCTIONS,
    MAX_MASK_VALUES, MaskInstruction, MaskOp, MaskProgram,
};

/// A mask that cannot be a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TooLong {
    /// It has more instructions than a program may have.
    Instructions {
        /// Its number.
        given: usize,
        /// The limit.
        most: usize,
    },
    /// It has more live values than a program may have.
    Values {
        /// The limit.
        most: usize,
    },
    /// It has more values of rows or of columns than a program can keep bounds of.
    Bounds {
        /// Its number.
        given: usize,
        /// The limit.
        most: usize,
    },
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooLong::Instructions { given, most } => write!(
                f,
                "the mask has {given} instructions; kernels take {most} at most"
            ),
            TooLong::Values { most } => write!(
                f,
                "the mask holds more than {most} values at a time; kernels hold no more"
            ),
            TooLong::Bounds { given, most } => write!(
                f,
                "the mask has {given} values of queries alone, or of keys; kernels keep bounds of {most} at most"
            ),
        }
    }
}

/// What a node depends on within a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The launch, the batch entry, the head.
    Launch,
    Rows,
    Columns,
    Both,
}

/// The parts of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Rows,
    Columns,
    Last,
}

/// A mask while its program is written.
struct Writer<'a> {
    mask: &'a Expression,
    params: &'a [Param],
    tensors: &'a [Tensor],
    of: Vec<Of>,
    /// Whether bounds of the operands give the least and greatest value.
    is_sharp: Vec<bool>,
    /// Nodes whose bounds are kept, of rows and of columns.
    kept: [Vec<Id>; 2],
    instructions: Vec<MaskInstruction>,
}

/// The program of a mask, in a launch that gives these parameters and tensors.
pub fn mask_program(
    mask: &Expression,
    params: &[Param],
    tensors: &[Tensor],
) -> Result<MaskProgram, TooLong> {
    let mut writer = Writer::new(mask, params, tensors);
    let last = writer.needed(Part::Last, &[mask.nodes().len() as Id - 1]);
    let kept = |of| {
        let ids = last.iter().copied();
        let kept = ids.filter(|&id| !writer.is_bounded(id) && writer.of[id as usize] == of);
        kept.collect::<Vec<_>>()
    };
    let (rows, columns) = (kept(Of::Rows), kept(Of::Columns));
    writer.kept = [rows.clone(), columns.clone()];
    let given = rows.len().max(columns.len());
    if given > MAX_MASK_BOUNDS {
        let most = MAX_MASK_BOUNDS;
        return Err(TooLong::Bounds { given, most });
    }
    let mut ends = [0; 3];
    let parts = [
        (Part::Rows, writer.needed(Part::Rows, &rows)),
        (Part::Columns, writer.needed(Part::Columns, &columns)),
        (Part::Last, last),
    ];
    for (end, (part, ids)) in ends.iter_mut().zip(parts) {
        writer.write(part, &ids)?;
        *end = writer.instructions.len() as u32;
    }
    let given = writer.instructions.len();
    if given > MAX_MASK_INSTRUCTIONS {
        let most = MAX_MASK_INSTRUCTIONS;
        return Err(TooLong::Instructions { given, most });
    }
    let mut program = MaskProgram {
        end_of_rows: ends[0],
        end_of_columns: ends[1],
        end: ends[2],
        row_bounds: rows.len() as u32,
        column_bounds: columns.len() as u32,
        ..MaskProgram::default()
    };
    program.instructions[..given].copy_from_slice(&writer.instructions);
    Ok(program)
}

/// How blocks that a mask hides or shows are found.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskMapping {
    /// The program for intervals. Without instructions it decides nothing.
    pub program: MaskProgram,
    /// Whether blocks that it leaves open are evaluated pair by pair.
    pub at_pairs: bool,
}

/// How to map a mask, in a launch that gives these parameters and tensors.
pub fn mask_mapping(mask: &Expression, params: &[Param], tensors: &[Tensor]) -> MaskMapping {
    match mask_program(mask, params, tensors) {
        Ok(program) => MaskMapping {
            program,
            at_pairs: Writer::new(mask, params, tensors).is_loose(),
        },
        Err(_) => MaskMapping {
            program: MaskProgram::default(),
            at_pairs: true,
        },
    }
}

impl<'a> Writer<'a> {
    /// Whether intervals may leave a block open although all of its pairs have the same value. They seldom do if values of rows and of columns are
    /// combined only in sums, differences and comparisons, as in causal masks, windows and documents.
    fn is_loose(&self) -> bool {
        let nodes = self.mask.nodes().iter().enumerate();
        let is_both = |id: Id| self.of[id as usize] == Of::Both;
        let is_fixed = |id: Id| self.of[id as usize] == Of::Launch;
        let types = self.mask.types();
        nodes.into_iter().any(|(id, &node)| {
            is_both(id as Id)
                && match node {
                    Node::Unary(Unary::Neg | Unary::Abs | Unary::Not, _)
                    | Node::Unary(Unary::ToF32 | Unary::ToI32, _)
                    | Node::Index(_) => false,
                    Node::Binary(Binary::Add | Binary::Sub | Binary::Min | Binary::Max, a, b)
                    | Node::Compare(_, a, b) => is_both(a) && is_both(b),
                    Node::Binary(Binary::And | Binary::Or, ..) => types[id] != Type::Bool,
                    Node::Binary(Binary::Mul, a, b) => !is_fixed(a) && !is_fixed(b),
                    Node::Binary(Binary::Div | Binary::Shr, _, b) => !is_fixed(b),
                    Node::Select(c, ..) => is_both(c),
                    _ => true,
                }
        })
    }

    fn new(mask: &'a Expression, params: &'a [Param], tensors: &'a [Tensor]) -> Writer<'a> {
        let of = mask.dependencies().into_iter().map(|all| {
            let on = |index| all.meets(Dependencies::index(index));
            match (on(Index::Query), on(Index::Key)) {
                (false, false) => Of::Launch,
                (true, false) => Of::Rows,
                (false, true) => Of::Columns,
                (true, true) => Of::Both,
            }
        });
        let mut writer = Writer {
            mask,
            params,
            tensors,
            of: of.collect(),
            is_sharp: Vec::new(),
            kept: [Vec::new(), Vec::new()],
            instructions: Vec::new(),
        };
        for id in 0..mask.nodes().len() {
            let is_sharp = writer.bounds_are_sharp(id);
            writer.is_sharp.push(is_sharp);
        }
        writer
    }

    /// Whether bounds of a node's operands on a block give the least and greatest value that it has there. Functions of one operand that
    /// varies do, which never fall or never rise; so its own least and greatest value are taken.
    fn bounds_are_sharp(&self, id: usize) -> bool {
        let is_sharp = |id: Id| self.is_sharp[id as usize];
        let is_fixed = |id: Id| self.of[id as usize] == Of::Launch;
        match self.mask.nodes()[id] {
            Node::Unary(Unary::Neg | Unary::Not | Unary::ToF32 | Unary::ToI32, a) => is_sharp(a),
            Node::Binary(
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Min | Binary::Max,
                a,
                b,
            ) => is_sharp(a) && is_fixed(b) || is_fixed(a) && is_sharp(b),
            Node::Binary(Binary::Div | Binary::Shr, a, b) => is_sharp(a) && is_fixed(b),
            Node::Compare(Compare::Lt | Compare::Le, a, b) => {
                is_sharp(a) && is_fixed(b) || is_fixed(a) && is_sharp(b)
            }
            Node::Index(_) => true,
            _ => self.of[id] == Of::Launch,
        }
    }

    /// Whether the last part bounds a node by the bounds of its operands.
    fn is_bounded(&self, id: Id) -> bool {
        let of = self.of[id as usize];
        matches!(of, Of::Launch | Of::Both) || self.is_sharp[id as usize]
    }

    /// The nodes that a part needs for these, in order.
    fn needed(&self, part: Part, wanted: &[Id]) -> Vec<Id> {
        let nodes = self.mask.nodes();
        let mut is_needed = vec![false; nodes.len()];
        for &id in wanted {
            is_needed[id as usize] = true;
        }
        for id in (0..nodes.len()).rev() {
            let is_made = part != Part::Last || self.is_bounded(id as Id);
            if is_needed[id] && is_made {
                self.operands(nodes[id], |operand| is_needed[operand as usize] = true);
            }
        }
        let ids = is_needed.iter().enumerate().filter(|(_, needed)| **needed);
        ids.map(|(id, _)| id as Id).collect()
    }

    /// Calls `visit` for each operand that the program evaluates.
    fn operands(&self, node: Node, visit: impl FnMut(Id)) {
        if !is_unknown(node) {
            node.operands(self.mask.tensors(), visit);
        }
    }

    /// Writes a part of these nodes, with as few places for values as possible.
    fn write(&mut self, part: Part, ids: &[Id]) -> Result<(), TooLong> {
        let nodes = self.mask.nodes();
        let is_made = |writer: &Writer, id: Id| part != Part::Last || writer.is_bounded(id);
        let mut last_use = vec![0; nodes.len()];
        for &id in ids.iter().filter(|&&id| is_made(self, id)) {
            self.operands(nodes[id as usize], |operand| {
                last_use[operand as usize] = id;
            });
        }
        let mut places: Vec<Option<Id>> = vec![None; MAX_MASK_VALUES];
        let mut place_of = vec![0; nodes.len()];
        for &id in ids {
            let free = places.iter().position(Option::is_none);
            let to = free.ok_or(TooLong::Values {
                most: MAX_MASK_VALUES,
            })?;
            let instruction = match is_made(self, id) {
                true => self.instruction(id, to as u8, |id| place_of[id as usize]),
                false => self.bound(id, to as u8),
            };
            self.instructions.push(instruction);
            place_of[id as usize] = to as u8;
            places[to] = Some(id);
            self.keep(part, id, to as u8);
            // What is not used later makes room; so does a value that was only kept.
            for place in &mut places {
                if place.is_some_and(|held| last_use[held as usize] <= id) {
                    *place = None;
                }
            }
        }
        Ok(())
    }

    /// Keeps the value in this place, if it belongs to the part.
    fn keep(&mut self, part: Part, id: Id, place: u8) {
        let kept = match part {
            Part::Rows => &self.kept[0],
            Part::Columns => &self.kept[1],
            Part::Last => return,
        };
        if let Some(at) = kept.iter().position(|&other| other == id) {
            let keep = MaskInstruction::new(MaskOp::Keep, (MAX_MASK_VALUES + at) as u8);
            self.instructions.push(keep.with(0, [place; 4]));
        }
    }

    /// The instruction that loads the kept bounds of a node.
    fn bound(&self, id: Id, to: u8) -> MaskInstruction {
        let (op, kept) = match self.of[id as usize] {
            Of::Rows => (MaskOp::OfRows, &self.kept[0]),
            _ => (MaskOp::OfColumns, &self.kept[1]),
        };
        let at = kept.iter().position(|&other| other == id);
        MaskInstruction::new(op, to).with(at.unwrap_or(0) as u8, [0; 4])
    }

    /// The instruction for a node with operands in these places.
    fn instruction(&self, id: Id, to: u8, place: impl Fn(Id) -> u8) -> MaskInstruction {
        let new = |op| MaskInstruction::new(op, to);
        let node = self.mask.nodes()[id as usize];
        if is_unknown(node) {
            return new(MaskOp::Unknown);
        }
        match node {
            Node::Index(index) => new(MaskOp::Index).with(number(&MASK_INDEX, &index), [0; 4]),
            Node::F32(bits) => new(MaskOp::F32).with_bits(bits),
            Node::I32(x) => new(MaskOp::I32).with_bits(x as u32),
            Node::Bool(x) => new(MaskOp::Bool).with_bits(x.into()),
            Node::Param(slot) => {
                let param = &self.mask.params()[usize::from(slot)];
                let op = match param.ty {
                    Type::I32 => MaskOp::ParamI32,
                    Type::F32 | Type::Bool => MaskOp::ParamF32,
                };
                new(op).with(number(self.params, param), [0; 4])
            }
            Node::Unary(op, a) => {
                new(MaskOp::Unary).with(number(&MASK_UNARY, &op), [place(a), 0, 0, 0])
            }
            Node::Binary(op, a, b) => {
                new(MaskOp::Binary).with(number(&MASK_BINARY, &op), [place(a), place(b), 0, 0])
            }
            Node::Compare(op, a, b) => {
                new(MaskOp::Compare).with(number(&MASK_COMPARE, &op), [place(a), place(b), 0, 0])
            }
            Node::Select(c, a, b) => new(MaskOp::Select).with(0, [place(c), place(a), place(b), 0]),
            Node::Read(slot, ids) => {
                let tensor = &self.mask.tensors()[usize::from(slot)];
                let op = match tensor.element {
                    ElementType::F32 => MaskOp::ReadF32,
                    ElementType::F16 => MaskOp::ReadF16,
                    ElementType::Bf16 => MaskOp::ReadBf16,
                    ElementType::I32 => MaskOp::ReadI32,
                };
                let read = new(op).with(number(self.tensors, tensor), ids.map(place));
                read.with_rank(tensor.rank)
            }
            // Masks do not ask for it.
            Node::Score => new(MaskOp::Unknown),
        }
    }
}

/// Whether a program has no bounds for a node: for functions that are not exact.
fn is_unknown(node: Node) -> bool {
    matches!(node, Node::Unary(op, _) if !MASK_UNARY.contains(&op))
}

/// The number of one of a list.
fn number<T: PartialEq>(list: &[T], one: &T) -> u8 {
    list.iter().position(|other| other == one).unwrap_or(0) as u8
}
