//! Random expressions, and short names for nodes.

use crate::{
    Binary, Compare, ElementType, Expression, Id, Index, Node, Param, Precision, Tensor, Type,
    Unary,
};

/// Numbers that look random: xorshift.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Of −2 to 2, in steps that f16 and bf16 have.
    pub fn number(&mut self) -> f32 {
        (self.below(65) as f32 - 32.0) / 16.0
    }
}

/// Nodes that become an expression.
#[derive(Default)]
pub struct Tree {
    pub nodes: Vec<Node>,
    types: Vec<Type>,
}

const INDICES: [Index; 7] = [
    Index::Batch,
    Index::Head,
    Index::KvHead,
    Index::Query,
    Index::Key,
    Index::SeqlenQ,
    Index::SeqlenK,
];

/// What all trees may name.
pub fn params() -> Vec<Param> {
    let param = |name: &str, ty| Param {
        name: name.to_owned(),
        ty,
    };
    vec![
        param("slope", Type::F32),
        param("cap", Type::F32),
        param("window", Type::I32),
        param("period", Type::I32),
    ]
}

/// What all trees may name.
pub fn tensors() -> Vec<Tensor> {
    let tensor = |name: &str, element, rank| Tensor {
        name: name.to_owned(),
        element,
        rank,
    };
    vec![
        tensor("slopes", ElementType::F32, 1),
        tensor("doc", ElementType::I32, 1),
        tensor("bias", ElementType::Bf16, 3),
        tensor("table", ElementType::F16, 2),
    ]
}

impl Tree {
    pub fn put(&mut self, node: Node, ty: Type) -> Id {
        self.nodes.push(node);
        self.types.push(ty);
        self.nodes.len() as Id - 1
    }

    pub fn score(&mut self) -> Id {
        self.put(Node::Score, Type::F32)
    }

    pub fn f32(&mut self, x: f32) -> Id {
        self.put(Node::F32(x.to_bits()), Type::F32)
    }

    pub fn i32(&mut self, x: i32) -> Id {
        self.put(Node::I32(x), Type::I32)
    }

    pub fn index(&mut self, index: Index) -> Id {
        self.put(Node::Index(index), Type::I32)
    }

    pub fn param(&mut self, nth: u8) -> Id {
        let ty = params()[usize::from(nth)].ty;
        self.put(Node::Param(nth), ty)
    }

    pub fn unary(&mut self, unary: Unary, x: Id) -> Id {
        let ty = match unary {
            Unary::ToF32 => Type::F32,
            Unary::ToI32 => Type::I32,
            _ => self.types[x as usize],
        };
        self.put(Node::Unary(unary, x), ty)
    }

    pub fn binary(&mut self, binary: Binary, a: Id, b: Id) -> Id {
        self.put(Node::Binary(binary, a, b), self.types[a as usize])
    }

    pub fn compare(&mut self, compare: Compare, a: Id, b: Id) -> Id {
        self.put(Node::Compare(compare, a, b), Type::Bool)
    }

    pub fn select(&mut self, keep: Id, a: Id, b: Id) -> Id {
        self.put(Node::Select(keep, a, b), self.types[a as usize])
    }

    pub fn read(&mut self, nth: u8, indices: &[Id]) -> Id {
        let mut all = [0; 4];
        all[..indices.len()].copy_from_slice(indices);
        let ty = tensors()[usize::from(nth)].element.ty();
        self.put(Node::Read(nth, all), ty)
    }

    pub fn build(self) -> Expression {
        Expression {
            nodes: self.nodes.into(),
            params: params().into(),
            tensors: tensors().into(),
        }
    }

    /// A node of a type, mostly one of the last.
    fn pick(&mut self, ty: Type, random: &mut Random) -> Id {
        let nodes = 0..self.nodes.len();
        let fitting: Vec<usize> = nodes.filter(|&at| self.types[at] == ty).collect();
        if fitting.is_empty() || random.below(4) == 0 {
            return self.leaf(ty, random);
        }
        let last = fitting.len().min(4);
        fitting[fitting.len() - 1 - random.below(last)] as Id
    }

    fn leaf(&mut self, ty: Type, random: &mut Random) -> Id {
        match (ty, random.below(4)) {
            (Type::F32, 0) => {
                let x = random.of(&[0.0, 1.0, -1.0, 0.5, 30.0, f32::NEG_INFINITY]);
                self.f32(x)
            }
            (Type::F32, 1) => {
                let nth = random.of(&[0, 1]);
                self.param(nth)
            }
            (Type::F32, _) => self.score(),
            (Type::I32, 0) => {
                let x = random.of(&[0, 1, -1, 2, 3, 16, 64, -5, i32::MAX, i32::MIN]);
                self.i32(x)
            }
            (Type::I32, 1) => {
                let nth = random.of(&[2, 3]);
                self.param(nth)
            }
            (Type::I32, _) => {
                let index = random.of(&INDICES);
                self.index(index)
            }
            (Type::Bool, 0) => self.put(Node::Bool(random.below(2) == 0), Type::Bool),
            (Type::Bool, _) => {
                let a = self.pick(Type::I32, random);
                let b = self.pick(Type::I32, random);
                let compare = random.of(&[Compare::Lt, Compare::Le, Compare::Eq, Compare::Ne]);
                self.compare(compare, a, b)
            }
        }
    }

    fn step(&mut self, ty: Type, random: &mut Random) -> Id {
        let precision = random.of(&[Precision::Fast, Precision::Full]);
        let compare = random.of(&[Compare::Lt, Compare::Le, Compare::Eq, Compare::Ne]);
        match (ty, random.below(8)) {
            (_, 0) => {
                let keep = self.pick(Type::Bool, random);
                let (a, b) = (self.pick(ty, random), self.pick(ty, random));
                self.select(keep, a, b)
            }
            (Type::F32, 1) => {
                let x = self.pick(Type::I32, random);
                self.unary(Unary::ToF32, x)
            }
            (Type::F32, 2) => {
                let nth = random.of(&[0, 2, 3]);
                self.random_read(nth, random)
            }
            (Type::I32, 1) => self.random_read(1, random),
            (Type::I32, 2) => {
                let x = self.pick(Type::F32, random);
                self.unary(Unary::ToI32, x)
            }
            (Type::F32, 3) => {
                let x = self.pick(Type::F32, random);
                let unary = random.of(&[
                    Unary::Neg,
                    Unary::Abs,
                    Unary::Exp2(precision),
                    Unary::Ln(precision),
                    Unary::Tanh(precision),
                    Unary::Sigmoid(precision),
                    Unary::Sqrt(precision),
                ]);
                self.unary(unary, x)
            }
            (Type::I32, 3) => {
                let x = self.pick(Type::I32, random);
                let unary = random.of(&[Unary::Neg, Unary::Abs, Unary::Not]);
                self.unary(unary, x)
            }
            (Type::Bool, 1) => {
                let x = self.pick(Type::Bool, random);
                self.unary(Unary::Not, x)
            }
            (Type::Bool, 2 | 3) => {
                let ty = random.of(&[Type::F32, Type::I32]);
                let (a, b) = (self.pick(ty, random), self.pick(ty, random));
                self.compare(compare, a, b)
            }
            _ => {
                use Binary::{Add, And, Div, Max, Min, Mul, Or, Rem, Shl, Shr, Sub, Xor};
                let binary = match ty {
                    Type::F32 => random.of(&[Add, Add, Sub, Mul, Mul, Div, Min, Max]),
                    Type::I32 => random.of(&[
                        Add, Add, Sub, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr,
                    ]),
                    Type::Bool => random.of(&[And, Or, Xor]),
                };
                let (a, b) = (self.pick(ty, random), self.pick(ty, random));
                self.binary(binary, a, b)
            }
        }
    }

    fn random_read(&mut self, nth: u8, random: &mut Random) -> Id {
        let rank = usize::from(tensors()[usize::from(nth)].rank);
        let indices: Vec<Id> = (0..rank).map(|_| self.pick(Type::I32, random)).collect();
        self.read(nth, &indices)
    }
}

/// An expression of a type.
pub fn random(ty: Type, random: &mut Random) -> Expression {
    let mut tree = Tree::default();
    tree.score();
    let n = 3 + random.below(14);
    for _ in 0..n {
        let ty = random.of(&[Type::F32, Type::F32, Type::I32, Type::Bool]);
        tree.step(ty, random);
    }
    tree.step(ty, random);
    tree.build()
}
