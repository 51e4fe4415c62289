//! Operations: the intermediate form between an expression's nodes and PTX. Equal operations are merged.
//!
//! An operation knows what it depends on ([`Depends`]), and therefore how often its value changes ([`Level`]).

use std::collections::HashMap;

use crate::Index;

/// An operation's number in its [`Arena`]: operands have smaller ones.
pub type OpId = u32;

/// The kind of PTX register of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 32 bits: a number or an integer.
    B32,
    /// 64 bits: an address or an offset.
    B64,
    /// A predicate.
    Pred,
}

/// A value that the kernel passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Given {
    /// The sequence.
    Batch,
    /// The query head.
    Head,
    /// The head of keys and values.
    KvHead,
    /// Queries of the sequence.
    SeqlenQ,
    /// Keys of the sequence.
    SeqlenK,
    /// The index of the thread's row, which a tile fixes.
    Own,
    /// The first running index of the block.
    First,
    /// The running index of a column: [`Given::First`] plus an immediate. Only parts of affine sums name it; it is never
    /// written.
    Running,
    /// The raw score.
    X,
}

/// A PTX instruction with up to three operands. Its [`Instr::text`] is what the program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// A result of 32 bits by this mnemonic, of this many operands.
    B32(&'static str, u8),
    /// A result of 64 bits by this mnemonic, of this many operands.
    B64(&'static str, u8),
    /// A predicate by this mnemonic, of this many operands.
    Pred(&'static str, u8),
    /// A number of 16 bits at an address, as f32.
    LoadF16,
    /// A number of 16 bits at an address, as f32.
    LoadBf16,
}

impl Instr {
    /// Its mnemonic; that of the load for loads that convert.
    pub fn text(self) -> &'static str {
        match self {
            Instr::B32(text, _) | Instr::B64(text, _) | Instr::Pred(text, _) => text,
            Instr::LoadF16 => "ld.global.nc.b16",
            Instr::LoadBf16 => "ld.global.nc.u16",
        }
    }

    /// How many operands it has.
    pub fn operands(self) -> usize {
        match self {
            Instr::B32(_, n) | Instr::B64(_, n) | Instr::Pred(_, n) => usize::from(n),
            Instr::LoadF16 | Instr::LoadBf16 => 1,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A constant of 32 bits.
    Imm(u32),
    /// A constant predicate.
    Bool(bool),
    /// 32 bits of the launch's parameter, by their offset in bytes.
    Param32(u32),
    /// 64 bits of the launch's parameter, by their offset in bytes.
    Param64(u32),
    /// A value that the kernel passes.
    Given(Given),
    /// The column within its block times a constant, as an immediate integer.
    ColumnInt(i32),
    /// The column within its block, as an immediate number.
    ColumnF32,
    /// An instruction; operands that it does not have are 0.
    Instr(Instr, [OpId; 3]),
}

/// What a value depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depends(u8);

impl Depends {
    /// Nothing that changes within a tile.
    pub const NOTHING: Depends = Depends(0);
    /// The thread's row.
    pub const OWN: Depends = Depends(1);
    /// The block of running indices.
    pub const BLOCK: Depends = Depends(2);
    /// The column within the block.
    pub const COLUMN: Depends = Depends(4);
    /// The score.
    pub const SCORE: Depends = Depends(8);

    /// Whether it depends on any of these.
    pub fn on(self, other: Depends) -> bool {
        self.0 & other.0 != 0
    }

    /// The union of both.
    pub fn and(self, other: Depends) -> Depends {
        Depends(self.0 | other.0)
    }

    /// Whether each row has its own value.
    pub fn per_row(self) -> bool {
        self.on(Depends::OWN.and(Depends::SCORE))
    }

    /// Whether each column has its own value.
    pub fn per_column(self) -> bool {
        self.on(Depends::COLUMN.and(Depends::SCORE))
    }

    /// How often it changes.
    pub fn level(self) -> Level {
        if self.per_column() {
            Level::Score
        } else if self.on(Depends::BLOCK) {
            Level::Block
        } else {
            Level::Tile
        }
    }
}

/// How often a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Once per tile.
    Tile,
    /// Once per block of running indices.
    Block,
    /// With each column, or each score.
    Score,
}

/// How a program forms an index of a dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexUse {
    /// The tensor's index in the list of the launch.
    pub tensor: usize,
    /// The dimension.
    pub dim: usize,
    /// The sequence or the head that is the index, as the kernel passes it: it is not clamped. `None`: the index is clamped.
    pub unclamped: Option<Index>,
}

/// Operations, each of those before it.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    /// How indices of tensors are formed.
    pub index_uses: Vec<IndexUse>,
    ops: Vec<Op>,
    depends: Vec<Depends>,
    known: HashMap<Op, OpId>,
}

impl Arena {
    /// The number of an operation, which is put in where it is not there.
    pub fn op(&mut self, op: Op) -> OpId {
        if let Some(&id) = self.known.get(&op) {
            return id;
        }
        let depends = match op {
            Op::Imm(_) | Op::Bool(_) | Op::Param32(_) | Op::Param64(_) => Depends::NOTHING,
            Op::Given(given) => match given {
                Given::Own => Depends::OWN,
                Given::First => Depends::BLOCK,
                Given::Running => Depends::COLUMN,
                Given::X => Depends::SCORE,
                _ => Depends::NOTHING,
            },
            Op::ColumnInt(_) | Op::ColumnF32 => Depends::COLUMN,
            Op::Instr(instr, args) => args[..instr.operands()]
                .iter()
                .fold(Depends::NOTHING, |all, &arg| all.and(self.depends(arg))),
        };
        let id = self.ops.len() as OpId;
        self.ops.push(op);
        self.depends.push(depends);
        self.known.insert(op, id);
        id
    }

    /// All operations, in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operation of a number.
    pub fn get(&self, id: OpId) -> Op {
        self.ops[id as usize]
    }

    /// What an operation depends on.
    pub fn depends(&self, id: OpId) -> Depends {
        self.depends[id as usize]
    }

    /// How often an operation's value changes.
    pub fn level(&self, id: OpId) -> Level {
        self.depends(id).level()
    }

    /// A constant number.
    pub fn f32(&mut self, x: f32) -> OpId {
        self.op(Op::Imm(x.to_bits()))
    }

    /// A constant integer.
    pub fn i32(&mut self, x: i32) -> OpId {
        self.op(Op::Imm(x as u32))
    }

    /// A constant predicate.
    pub fn bool(&mut self, x: bool) -> OpId {
        self.op(Op::Bool(x))
    }

    /// A value that the kernel passes.
    pub fn given(&mut self, given: Given) -> OpId {
        self.op(Op::Given(given))
    }

    /// An instruction with a result of 32 bits.
    pub fn b32(&mut self, text: &'static str, operands: &[OpId]) -> OpId {
        self.instr(Instr::B32(text, operands.len() as u8), operands)
    }

    /// An instruction with a result of 64 bits.
    pub fn b64(&mut self, text: &'static str, operands: &[OpId]) -> OpId {
        self.instr(Instr::B64(text, operands.len() as u8), operands)
    }

    /// An instruction whose result is a predicate.
    pub fn pred(&mut self, text: &'static str, operands: &[OpId]) -> OpId {
        self.instr(Instr::Pred(text, operands.len() as u8), operands)
    }

    /// An instruction. Of two operands that may change places the earlier comes first, so that equal sums are one.
    pub fn instr(&mut self, instr: Instr, operands: &[OpId]) -> OpId {
        let mut args = [0; 3];
        for (arg, &operand) in args.iter_mut().zip(operands) {
            *arg = operand;
        }
        let commutes = matches!(
            instr.text(),
            "add.f32"
                | "mul.f32"
                | "fma.rn.f32"
                | "add.s32"
                | "mul.lo.s32"
                | "and.b32"
                | "or.b32"
                | "xor.b32"
        );
        // Constants have to be the second operand.
        let last = |arena: &Arena, id: OpId| (arena.is_immediate(id), id);
        if commutes && last(self, args[0]) > last(self, args[1]) {
            args.swap(0, 1);
        }
        self.op(Op::Instr(instr, args))
    }

    /// Whether an operation is written as an immediate operand.
    pub fn is_immediate(&self, id: OpId) -> bool {
        matches!(self.get(id), Op::Imm(_) | Op::ColumnInt(_) | Op::ColumnF32)
    }

    /// `if keep { a } else { b }` of 32 bits.
    pub fn select(&mut self, a: OpId, b: OpId, keep: OpId) -> OpId {
        match self.get(keep) {
            Op::Bool(true) => a,
            Op::Bool(false) => b,
            _ if a == b => a,
            _ => self.b32("selp.b32", &[a, b, keep]),
        }
    }

    /// Not p.
    pub fn not(&mut self, p: OpId) -> OpId {
        match self.get(p) {
            Op::Bool(x) => self.bool(!x),
            Op::Instr(instr, [inner, ..]) if instr.text() == "not.pred" => inner,
            Op::Instr(instr, [a, b, _]) => match opposite(instr.text()) {
                Some(text) => self.pred(text, &[a, b]),
                None => self.pred("not.pred", &[p]),
            },
            _ => self.pred("not.pred", &[p]),
        }
    }

    /// p and q.
    pub fn and(&mut self, p: OpId, q: OpId) -> OpId {
        match (self.get(p), self.get(q)) {
            (Op::Bool(true), _) => q,
            (_, Op::Bool(true)) => p,
            (Op::Bool(false), _) => p,
            (_, Op::Bool(false)) => q,
            _ if p == q => p,
            _ => self.pred("and.pred", &[p.min(q), p.max(q)]),
        }
    }

    /// p or q.
    pub fn or(&mut self, p: OpId, q: OpId) -> OpId {
        match (self.get(p), self.get(q)) {
            (Op::Bool(false), _) => q,
            (_, Op::Bool(false)) => p,
            (Op::Bool(true), _) => p,
            (_, Op::Bool(true)) => q,
            _ if p == q => p,
            _ => self.pred("or.pred", &[p.min(q), p.max(q)]),
        }
    }

    /// Whether p and q differ.
    pub fn xor(&mut self, p: OpId, q: OpId) -> OpId {
        match (self.get(p), self.get(q)) {
            (Op::Bool(false), _) => q,
            (_, Op::Bool(false)) => p,
            (Op::Bool(true), _) => self.not(q),
            (_, Op::Bool(true)) => self.not(p),
            _ if p == q => self.bool(false),
            _ => self.pred("xor.pred", &[p.min(q), p.max(q)]),
        }
    }
}

/// The comparison that is true where another is false, NaN included.
fn opposite(text: &str) -> Option<&'static str> {
    const PAIRS: [(&str, &str); 7] = [
        ("setp.lt.s32", "setp.ge.s32"),
        ("setp.le.s32", "setp.gt.s32"),
        ("setp.eq.s32", "setp.ne.s32"),
        ("setp.lt.f32", "setp.geu.f32"),
        ("setp.le.f32", "setp.gtu.f32"),
        ("setp.eq.f32", "setp.neu.f32"),
        ("setp.lt.u32", "setp.ge.u32"),
    ];
    PAIRS.into_iter().find_map(|(a, b)| {
        if a == text {
            Some(b)
        } else if b == text {
            Some(a)
        } else {
            None
        }
    })
}
