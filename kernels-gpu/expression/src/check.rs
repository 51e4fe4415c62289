//! Construction from nodes, the only way to an [`Expression`]: checks types, order, names and limits. Also what an expression depends on.

use super::intern::Interner;
use super::{
    Binary, Compare, Expression, ExpressionError, Id, Index, MAX_RANK, Node, Param, Tensor, Type,
    Unary, Use,
};
use crate::device::{MAX_PARAMS, MAX_TENSORS};

/// Most nodes of an expression.
pub const MAX_NODES: usize = 256;

/// Most bytes of a name.
pub const MAX_NAME: usize = 64;

/// What a node depends on: a set of indices, and the score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dependencies(u8);

impl Dependencies {
    /// Nothing that changes within a call.
    pub const NONE: Dependencies = Dependencies(0);

    /// Everything.
    pub const ALL: Dependencies = Dependencies(u8::MAX);

    /// The score.
    pub const SCORE: Dependencies = Dependencies(1 << Index::ALL.len());

    /// An index.
    #[inline]
    pub const fn index(index: Index) -> Dependencies {
        Dependencies(1 << index as u8)
    }

    /// The union of both.
    #[inline]
    pub const fn union(self, other: Dependencies) -> Dependencies {
        Dependencies(self.0 | other.0)
    }

    /// Whether both depend on something common.
    #[inline]
    pub const fn meets(self, other: Dependencies) -> bool {
        self.0 & other.0 != 0
    }
}

impl Index {
    /// All, in the order of their numbers.
    pub const ALL: [Index; 7] = [
        Index::Batch,
        Index::Head,
        Index::KvHead,
        Index::Query,
        Index::Key,
        Index::SeqlenQ,
        Index::SeqlenK,
    ];
}

impl Node {
    /// Calls `visit` for each operand, in order.
    pub(super) fn operands(&self, tensors: &[Tensor], mut visit: impl FnMut(Id)) {
        self.mapped(tensors, |id| {
            visit(id);
            id
        });
    }

    /// The node with other operands. Indices beyond a tensor's rank become 0.
    pub(super) fn mapped(&self, tensors: &[Tensor], mut map: impl FnMut(Id) -> Id) -> Node {
        match *self {
            Node::Unary(op, a) => Node::Unary(op, map(a)),
            Node::Binary(op, a, b) => {
                let a = map(a);
                Node::Binary(op, a, map(b))
            }
            Node::Compare(op, a, b) => {
                let a = map(a);
                Node::Compare(op, a, map(b))
            }
            Node::Select(c, a, b) => {
                let c = map(c);
                let a = map(a);
                Node::Select(c, a, map(b))
            }
            Node::Read(slot, indices) => {
                let rank = tensors
                    .get(usize::from(slot))
                    .map_or(0, |tensor| usize::from(tensor.rank));
                let mut mapped = [0; MAX_RANK];
                for (to, from) in mapped.iter_mut().zip(indices).take(rank) {
                    *to = map(from);
                }
                Node::Read(slot, mapped)
            }
            Node::Score
            | Node::Index(_)
            | Node::F32(_)
            | Node::I32(_)
            | Node::Bool(_)
            | Node::Param(_) => *self,
        }
    }
}

/// The type of a node whose operands have the types `of`; `None` if it is not defined for these.
pub(super) fn type_of(
    node: Node,
    params: &[Param],
    tensors: &[Tensor],
    of: impl Fn(Id) -> Type,
) -> Option<Type> {
    match node {
        Node::Score | Node::F32(_) => Some(Type::F32),
        Node::Index(_) | Node::I32(_) => Some(Type::I32),
        Node::Bool(_) => Some(Type::Bool),
        Node::Param(slot) => params.get(usize::from(slot)).map(|param| param.ty),
        Node::Unary(op, a) => unary_type(op, of(a)),
        Node::Binary(op, a, b) => binary_type(op, of(a)).filter(|_| of(a) == of(b)),
        Node::Compare(_, a, b) => (of(a) == of(b) && of(a) != Type::Bool).then_some(Type::Bool),
        Node::Select(c, a, b) => (of(c) == Type::Bool && of(a) == of(b)).then_some(of(a)),
        Node::Read(slot, indices) => {
            let tensor = tensors.get(usize::from(slot))?;
            let mut indices = indices.iter().take(usize::from(tensor.rank));
            indices
                .all(|&index| of(index) == Type::I32)
                .then_some(tensor.element.ty())
        }
    }
}

fn unary_type(op: Unary, of: Type) -> Option<Type> {
    let (is_defined, ty) = match op {
        Unary::Neg | Unary::Abs => (of != Type::Bool, of),
        Unary::Not => (of != Type::F32, of),
        Unary::ToF32 => (of == Type::I32, Type::F32),
        Unary::ToI32 => (of == Type::F32, Type::I32),
        Unary::Exp2(_) | Unary::Ln(_) | Unary::Tanh(_) | Unary::Sigmoid(_) | Unary::Sqrt(_) => {
            (of == Type::F32, of)
        }
    };
    is_defined.then_some(ty)
}

fn binary_type(op: Binary, of: Type) -> Option<Type> {
    let is_defined = match op {
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Min | Binary::Max => {
            of != Type::Bool
        }
        Binary::Rem | Binary::Shl | Binary::Shr => of == Type::I32,
        Binary::And | Binary::Or | Binary::Xor => of != Type::F32,
    };
    is_defined.then_some(of)
}

impl Binary {
    /// Whether a ∘ b is b ∘ a, bit by bit.
    pub(super) fn is_commutative(self) -> bool {
        match self {
            Binary::Add
            | Binary::Mul
            | Binary::Min
            | Binary::Max
            | Binary::And
            | Binary::Or
            | Binary::Xor => true,
            Binary::Sub | Binary::Div | Binary::Rem | Binary::Shl | Binary::Shr => false,
        }
    }
}

impl Compare {
    /// Whether a ∘ b is b ∘ a.
    pub(super) fn is_commutative(self) -> bool {
        matches!(self, Compare::Eq | Compare::Ne)
    }
}

fn check_name(name: &str) -> Result<(), ExpressionError> {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name = name.starts_with(is_letter)
        && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
        && name.len() <= MAX_NAME;
    let name = || name.chars().take(MAX_NAME).collect();
    is_name
        .then_some(())
        .ok_or_else(|| ExpressionError::Name { name: name() })
}

/// Checks the lists of parameters and tensors.
fn check_lists(params: &[Param], tensors: &[Tensor]) -> Result<(), ExpressionError> {
    if params.len() > MAX_PARAMS {
        let (given, allowed) = (params.len(), MAX_PARAMS);
        return Err(ExpressionError::Params { given, allowed });
    }
    if tensors.len() > MAX_TENSORS {
        let (given, allowed) = (tensors.len(), MAX_TENSORS);
        return Err(ExpressionError::Tensors { given, allowed });
    }
    let mut seen: Vec<(&str, Use)> = Vec::new();
    let params = params.iter().map(|p| (p.name.as_str(), Use::Param(p.ty)));
    let tensors = tensors.iter().map(|t| (t.name.as_str(), t.usage()));
    for (name, second) in params.chain(tensors) {
        check_name(name)?;
        match second {
            Use::Param(Type::Bool) => {
                let name = name.to_owned();
                return Err(ExpressionError::ParamType { name });
            }
            Use::Tensor { rank: given, .. } if !(1..=MAX_RANK).contains(&given) => {
                let name = name.to_owned();
                return Err(ExpressionError::Rank { name, given });
            }
            Use::Param(_) | Use::Tensor { .. } => {}
        }
        if let Some(&(_, first)) = seen.iter().find(|(seen, _)| *seen == name) {
            let name = name.to_owned();
            return Err(ExpressionError::Conflict {
                name,
                first,
                second,
            });
        }
        seen.push((name, second));
    }
    Ok(())
}

/// The types of nodes, each made of those before it.
fn check_nodes(
    nodes: &[Node],
    params: &[Param],
    tensors: &[Tensor],
) -> Result<Vec<Type>, ExpressionError> {
    let mut types: Vec<Type> = Vec::with_capacity(nodes.len());
    for (node, &given) in nodes.iter().enumerate() {
        let slot = match given {
            Node::Param(slot) if usize::from(slot) >= params.len() => Some(slot),
            Node::Read(slot, _) if usize::from(slot) >= tensors.len() => Some(slot),
            _ => None,
        };
        if let Some(slot) = slot {
            return Err(ExpressionError::Missing { node, slot });
        }
        let mut later = None;
        given.operands(tensors, |operand| {
            if operand as usize >= node {
                later = later.or(Some(operand));
            }
        });
        if let Some(operand) = later {
            return Err(ExpressionError::Order { node, operand });
        }
        let ty = type_of(given, params, tensors, |id| types[id as usize]);
        types.push(ty.ok_or(ExpressionError::Operands { node })?);
    }
    Ok(types)
}

impl Tensor {
    /// The meaning of its name.
    pub(super) fn usage(&self) -> Use {
        Use::Tensor {
            element: self.element,
            rank: usize::from(self.rank),
        }
    }
}

impl Expression {
    /// The expression whose value is the last of `nodes`, each made of those before it. Equal nodes are merged and unused ones removed; otherwise
    /// the nodes stay as they are. The value is a score, of type [`Type::F32`], or a mask: of type
    /// [`Type::Bool`] and without [`Node::Score`].
    pub fn from_nodes(
        nodes: &[Node],
        params: &[Param],
        tensors: &[Tensor],
    ) -> Result<Expression, ExpressionError> {
        check_lists(params, tensors)?;
        let types = check_nodes(nodes, params, tensors)?;
        let value = types.last().ok_or(ExpressionError::Empty)?;
        if *value == Type::I32 {
            let (given, wanted) = (*value, Type::F32);
            return Err(ExpressionError::Value { given, wanted });
        }
        let mut interner = Interner::verbatim(params, tensors);
        let root = interner.copy(nodes);
        let nodes = interner.reachable(root);
        if nodes.len() > MAX_NODES {
            let (given, allowed) = (nodes.len(), MAX_NODES);
            return Err(ExpressionError::Nodes { given, allowed });
        }
        if *value == Type::Bool && nodes.contains(&Node::Score) {
            return Err(ExpressionError::ScoreInMask);
        }
        Ok(Expression {
            nodes: nodes.into(),
            params: params.into(),
            tensors: tensors.into(),
        })
    }

    /// The type of each node.
    pub fn types(&self) -> Vec<Type> {
        let mut types: Vec<Type> = Vec::with_capacity(self.nodes.len());
        for &node in &self.nodes {
            let of = |id: Id| types[id as usize];
            // Every construction checks the types.
            let ty = type_of(node, &self.params, &self.tensors, of).unwrap_or(Type::F32);
            types.push(ty);
        }
        types
    }

    /// What each node depends on.
    pub fn dependencies(&self) -> Vec<Dependencies> {
        let mut all: Vec<Dependencies> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut own = match *node {
                Node::Score => Dependencies::SCORE,
                Node::Index(index) => Dependencies::index(index),
                _ => Dependencies::NONE,
            };
            node.operands(&self.tensors, |id| own = own.union(all[id as usize]));
            all.push(own);
        }
        all
    }

    /// Whether the value is a boolean: true where the score is visible.
    pub fn is_mask(&self) -> bool {
        self.types().last() == Some(&Type::Bool)
    }

    /// Whether the value depends on an index.
    pub fn depends_on(&self, index: Index) -> bool {
        self.nodes.contains(&Node::Index(index))
    }

    /// Whether the value depends on the score.
    pub fn uses_score(&self) -> bool {
        self.nodes.contains(&Node::Score)
    }

    /// Whether the value is the same everywhere in every call.
    pub fn is_constant(&self) -> bool {
        let is_constant = |node: &Node| {
            !matches!(
                node,
                Node::Score | Node::Index(_) | Node::Param(_) | Node::Read(..)
            )
        };
        self.nodes.iter().all(is_constant)
    }
}
