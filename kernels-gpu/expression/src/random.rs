//! Random expressions and what a call may give them, by a seed: for tests of whatever evaluates or compiles expressions.

use super::check::type_of;
use super::{
    Binary, Bounds, Compare, Contiguous, ElementType, Elements, Expression, Id, Index, MAX_NODES,
    MAX_RANK, Node, Param, ParamValue, Precision, ScoreIndices, Tensor, Type, Unary,
};

/// What an expression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It takes a score's place.
    Score,
    /// It says whether a score counts.
    Mask,
}

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number less than `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// One of some values.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A number: mostly small, sometimes extreme.
    pub fn number(&mut self) -> f32 {
        match self.below(8) {
            0 => self.choose(&[
                0.0,
                -0.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
                f32::MAX,
                f32::MIN_POSITIVE,
                1e-40,
                -3e9,
            ]),
            1..4 => self.choose(&[1.0, -1.0, 2.0, 0.5, -3.0, 64.0, std::f32::consts::LOG2_E]),
            _ => (self.bits() >> 40) as f32 / (1u32 << 20) as f32 - 8.0,
        }
    }

    /// A whole number: mostly small, sometimes extreme.
    pub fn int(&mut self) -> i32 {
        match self.below(8) {
            0 => self.choose(&[i32::MIN, i32::MAX, i32::MIN + 1, 1 << 16, -32]),
            1..4 => self.choose(&[0, 1, -1, 2, 31, 32, 63, 64]),
            _ => self.below(200) as i32 - 100,
        }
    }
}

/// The names that [`random`] gives to parameters, with their types.
const PARAMS: [(&str, Type); 3] = [
    ("scale", Type::F32),
    ("window", Type::I32),
    ("cap", Type::F32),
];

/// The names that [`random`] gives to tensors, with their elements and ranks.
const TENSORS: [(&str, ElementType, u8); 4] = [
    ("slopes", ElementType::F32, 1),
    ("documents", ElementType::I32, 2),
    ("bias", ElementType::Bf16, 4),
    ("table", ElementType::F16, 3),
];

const UNARY: [Unary; 15] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Not,
    Unary::ToF32,
    Unary::ToI32,
    Unary::Exp2(Precision::Fast),
    Unary::Exp2(Precision::Full),
    Unary::Ln(Precision::Fast),
    Unary::Ln(Precision::Full),
    Unary::Tanh(Precision::Fast),
    Unary::Tanh(Precision::Full),
    Unary::Sigmoid(Precision::Fast),
    Unary::Sigmoid(Precision::Full),
    Unary::Sqrt(Precision::Fast),
    Unary::Sqrt(Precision::Full),
];

const BINARY: [Binary; 12] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::Shl,
    Binary::Shr,
];

const COMPARE: [Compare; 4] = [Compare::Lt, Compare::Le, Compare::Eq, Compare::Ne];

/// Nodes while they are drawn.
struct Drawn<'a> {
    random: &'a mut Random,
    nodes: Vec<Node>,
    types: Vec<Type>,
    params: Vec<Param>,
    tensors: Vec<Tensor>,
}

impl Drawn<'_> {
    /// A node drawn before, mostly a late one, of a type that some has.
    fn operand(&mut self, ty: Type) -> Id {
        let of_type = |&id: &usize| self.types[id] == ty;
        let ids: Vec<usize> = (0..self.nodes.len()).filter(of_type).collect();
        let late = ids.len().saturating_sub(4);
        let first = if self.random.below(2) == 0 { late } else { 0 };
        ids[first + self.random.below(ids.len() - first)] as Id
    }

    fn any(&mut self) -> Id {
        let n = self.nodes.len();
        let late = n.saturating_sub(6);
        (late + self.random.below(n - late)) as Id
    }

    /// Adds a node if it is defined for its operands.
    fn push(&mut self, node: Node) {
        let of = |id: Id| self.types[id as usize];
        if let Some(ty) = type_of(node, &self.params, &self.tensors, of) {
            self.nodes.push(node);
            self.types.push(ty);
        }
    }

    fn leaf(&mut self, kind: Kind) {
        let node = match self.random.below(8) {
            0 | 1 if kind == Kind::Score => Node::Score,
            0..4 => Node::Index(self.random.choose(&Index::ALL)),
            4 => Node::F32(self.random.number().to_bits()),
            5 => Node::I32(self.random.int()),
            6 => Node::Bool(self.random.below(2) == 0),
            _ => Node::Param(self.random.below(self.params.len()) as u8),
        };
        self.push(node);
    }

    fn inner(&mut self) {
        let a = self.any();
        let ty = self.types[a as usize];
        let b = self.operand(ty);
        let (a, b) = if self.random.below(2) == 0 {
            (a, b)
        } else {
            (b, a)
        };
        let node = match self.random.below(10) {
            0..3 => Node::Unary(self.random.choose(&UNARY), a),
            3..7 => Node::Binary(self.random.choose(&BINARY), a, b),
            7 => Node::Compare(self.random.choose(&COMPARE), a, b),
            8 => Node::Select(self.operand(Type::Bool), a, b),
            _ => {
                let slot = self.random.below(self.tensors.len());
                let mut ids = [0; MAX_RANK];
                for id in ids.iter_mut().take(usize::from(self.tensors[slot].rank)) {
                    *id = self.operand(Type::I32);
                }
                Node::Read(slot as u8, ids)
            }
        };
        self.push(node);
    }
}

/// A random expression, made of up to `budget` nodes of all kinds, of which those are kept that its value needs. It is as drawn: not simplified.
pub fn random(seed: u64, budget: u32, kind: Kind) -> Expression {
    let mut random = Random(seed);
    let mut drawn = Drawn {
        random: &mut random,
        nodes: Vec::new(),
        types: Vec::new(),
        params: PARAMS
            .map(|(name, ty)| Param {
                name: name.to_owned(),
                ty,
            })
            .into(),
        tensors: TENSORS
            .map(|(name, element, rank)| Tensor {
                name: name.to_owned(),
                element,
                rank,
            })
            .into(),
    };
    drawn.push(if kind == Kind::Score {
        Node::Score
    } else {
        Node::F32(0)
    });
    drawn.push(Node::Index(Index::Query));
    drawn.push(Node::Bool(true));
    let budget = (budget as usize).min(MAX_NODES - 4);
    // Some nodes that are drawn are not defined for their operands.
    for _ in 0..2 * budget {
        if drawn.nodes.len() < budget {
            match drawn.random.below(4) {
                0 => drawn.leaf(kind),
                _ => drawn.inner(),
            }
        }
    }
    let (a, b) = (drawn.operand(Type::F32), drawn.operand(Type::F32));
    drawn.push(match kind {
        Kind::Score => Node::Binary(Binary::Add, a, b),
        Kind::Mask => Node::Compare(Compare::Lt, a, b),
    });
    let bool = drawn.operand(Type::Bool);
    let last = drawn.nodes.len() as Id - 1;
    drawn.push(match kind {
        Kind::Score => Node::Select(bool, last, a),
        Kind::Mask => Node::Binary(Binary::Xor, last, bool),
    });
    match Expression::from_nodes(&drawn.nodes, &drawn.params, &drawn.tensors) {
        Ok(expression) => expression,
        Err(error) => unreachable!("a random expression is well-typed: {error}"),
    }
}

/// What a call may give an expression of [`random`].
#[derive(Clone, Debug)]
pub struct Sample {
    /// The parameters.
    pub params: Vec<ParamValue>,
    /// The tensors.
    pub tensors: Vec<Contiguous>,
    random: Random,
}

impl Sample {
    /// Random parameters and tensors for an expression.
    pub fn new(expression: &Expression, seed: u64) -> Sample {
        let mut random = Random(seed);
        let params = expression.params().iter().map(|param| match param.ty {
            Type::I32 => ParamValue::I32(random.int()),
            Type::F32 | Type::Bool => ParamValue::F32(random.number()),
        });
        let params = params.collect();
        let tensors = expression.tensors().iter().map(|tensor| {
            let extents: Vec<usize> = (0..tensor.rank).map(|_| 1 + random.below(5)).collect();
            let n = 0..extents.iter().product::<usize>();
            let elements = match tensor.element {
                ElementType::I32 => Elements::I32(n.map(|_| random.int()).collect()),
                ElementType::F32 => Elements::F32(n.map(|_| random.number()).collect()),
                // These 16 bits are the first of bf16, and 7 bits of a fraction are few enough for f16.
                ElementType::F16 | ElementType::Bf16 => {
                    let mut narrow = || (random.below(255) as f32 - 127.0) / 16.0;
                    Elements::F32(n.map(|_| narrow()).collect())
                }
            };
            match Contiguous::new(&extents, elements) {
                Ok(tensor) => tensor,
                Err(error) => {
                    unreachable!("there are as many elements as the extents say: {error}")
                }
            }
        });
        let tensors = tensors.collect();
        Sample {
            params,
            tensors,
            random,
        }
    }

    /// A random place.
    pub fn place(&mut self) -> ScoreIndices {
        let mut place = ScoreIndices::default();
        for index in Index::ALL {
            place.set(index, self.random.below(300) as i32);
        }
        place
    }

    /// A random score.
    pub fn score(&mut self) -> f32 {
        self.random.number()
    }

    /// What is known of the parameters: their values.
    pub fn bounds(&self) -> Vec<Bounds> {
        self.params
            .iter()
            .map(|&value| Bounds::from(value))
            .collect()
    }
}
