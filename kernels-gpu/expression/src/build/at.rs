//! The symbols of a trace: the position of a score, and the inputs of a call.

use super::handles::{Handle, Raw, Sealed};
use super::{Cond, Int, Num, Operand, Trace, add_to, apply};
use crate::{
    ElementType, ExpressionError, Index, MAX_PARAMS, MAX_RANK, MAX_TENSORS, Node, Param, Tensor,
    Type, Use,
};

/// The position of a score. Parameters and tensors that the closure names here are inputs of each call: they change without recompilation.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The sequence.
    pub batch: Int,
    /// The query head.
    pub head: Int,
    /// The head of keys and values.
    pub kv_head: Int,
    /// The query, from the sequence's first one.
    pub q: Int,
    /// The key, from the sequence's first one.
    pub k: Int,
    /// Queries of the sequence.
    pub seqlen_q: Int,
    /// Keys of the sequence.
    pub seqlen_k: Int,
    trace: u64,
}

impl At {
    pub(super) fn new(trace: u64, symbol: impl Fn(Node) -> Handle) -> At {
        let index = |index| Int::from(symbol(Node::Index(index)));
        At {
            batch: index(Index::Batch),
            head: index(Index::Head),
            kv_head: index(Index::KvHead),
            q: index(Index::Query),
            k: index(Index::Key),
            seqlen_q: index(Index::SeqlenQ),
            seqlen_k: index(Index::SeqlenK),
            trace,
        }
    }

    /// The key at the query's own place, `q + seqlen_k − seqlen_q`: masks are aligned to the bottom right, so the last query stands at the
    /// last key.
    ///
    /// ```
    /// # use ferroflash_expression::Expression;
    /// let causal = Expression::mask(|at| at.k.le(at.place()))?;
    /// assert_eq!(causal.to_string(), "k <= q + seqlen_k - seqlen_q");
    /// # Ok::<(), ferroflash_expression::ExpressionError>(())
    /// ```
    pub fn place(self) -> Int {
        self.q + self.seqlen_k - self.seqlen_q
    }

    /// The distance from the key to the query's own place: 0 there, positive before it, negative after it. The usual scores and masks
    /// are one line with it:
    ///
    /// ```
    /// # use ferroflash_expression::Expression;
    /// let alibi = Expression::score(|s, at| s - at.tensor_f32("slopes", [at.head]) * at.distance().abs().to_f32())?;
    /// let window = Expression::mask(|at| at.distance().ge(0) & at.distance().lt(at.i32("window")))?;
    /// let dilated = Expression::mask(|at| (at.distance() % at.i32("step")).eq(0))?;
    /// # Ok::<(), ferroflash_expression::ExpressionError>(())
    /// ```
    pub fn distance(self) -> Int {
        self.place() - self.k
    }

    /// Whether the query and the key have the same number in a tensor `i32 [batch, seqlen_k]` that each call gives by this name: the
    /// number of a document, of a segment, of an image. The query's is the one at its own place.
    ///
    /// ```
    /// # use ferroflash_expression::Expression;
    /// let documents = Expression::mask(|at| at.same("document"))?;
    /// # Ok::<(), ferroflash_expression::ExpressionError>(())
    /// ```
    pub fn same(self, name: &str) -> Cond {
        let number = |place| self.tensor_i32(name, [self.batch, place]);
        number(self.place()).eq(number(self.k))
    }

    /// A constant as a value, for code that begins with one and continues with values.
    pub fn constant<C: Operand>(self, constant: C) -> C::Handle {
        match constant.raw() {
            Raw::Handle(handle) => C::Handle::from(handle),
            Raw::Constant(node) => C::Handle::from(add_to(self.trace, |trace| {
                trace.add(|interner| interner.add(node))
            })),
        }
    }

    /// A number that each call gives, by its name.
    pub fn f32(self, name: &str) -> Num {
        Num::from(self.param(name, Type::F32))
    }

    /// An integer that each call gives, by its name.
    pub fn i32(self, name: &str) -> Int {
        Int::from(self.param(name, Type::I32))
    }

    /// An element of a tensor of `f32` that each call gives, by its name. It has one dimension for each index, 1 to 4. An index outside the tensor
    /// is clamped to the nearest one inside.
    pub fn tensor_f32(self, name: &str, indices: impl AsRef<[Int]>) -> Num {
        Num::from(self.read(name, ElementType::F32, indices.as_ref()))
    }

    /// As [`At::tensor_f32`], for a tensor of `f16`.
    pub fn tensor_f16(self, name: &str, indices: impl AsRef<[Int]>) -> Num {
        Num::from(self.read(name, ElementType::F16, indices.as_ref()))
    }

    /// As [`At::tensor_f32`], for a tensor of `bf16`.
    pub fn tensor_bf16(self, name: &str, indices: impl AsRef<[Int]>) -> Num {
        Num::from(self.read(name, ElementType::Bf16, indices.as_ref()))
    }

    /// As [`At::tensor_f32`], for a tensor of `i32`.
    pub fn tensor_i32(self, name: &str, indices: impl AsRef<[Int]>) -> Int {
        Int::from(self.read(name, ElementType::I32, indices.as_ref()))
    }

    fn param(self, name: &str, ty: Type) -> Handle {
        add_to(self.trace, |trace| {
            let slot = param_slot(trace, name, ty)?;
            trace.add(|interner| interner.add(Node::Param(slot)))
        })
    }

    fn read(self, name: &str, element: ElementType, indices: &[Int]) -> Handle {
        let mut slot = None;
        let declared = add_to(self.trace, |trace| {
            slot = tensor_slot(trace, name, element, indices.len());
            slot.map(|_| 0)
        });
        let (Some(slot), Some(&first)) = (slot, indices.first()) else {
            return Handle::NONE;
        };
        // The first operand is of this trace, so that indices of another one are found.
        let mut operands = [first.raw(); MAX_RANK + 1];
        operands[0] = Raw::Handle(declared);
        for (operand, index) in operands[1..].iter_mut().zip(indices) {
            *operand = index.raw();
        }
        apply(operands, |[_, a, b, c, d]| Node::Read(slot, [a, b, c, d]))
    }
}

/// Records an error if a name already means something else.
fn check_use(trace: &mut Trace, name: &str, second: Use) -> Option<()> {
    let params = trace.interner.params.iter();
    let params = params.map(|param| (&param.name, Use::Param(param.ty)));
    let tensors = trace.interner.tensors.iter();
    let tensors = tensors.map(|tensor| (&tensor.name, tensor.usage()));
    let first = params
        .chain(tensors)
        .find(|(given, first)| *given == name && *first != second)
        .map(|(_, first)| first);
    let Some(first) = first else {
        return Some(());
    };
    let name = name.to_owned();
    trace.fail(ExpressionError::Conflict {
        name,
        first,
        second,
    });
    None
}

/// The index of a parameter in the list; adds it if it is new.
fn param_slot(trace: &mut Trace, name: &str, ty: Type) -> Option<u8> {
    check_use(trace, name, Use::Param(ty))?;
    let params = &mut trace.interner.params;
    let slot = params.iter().position(|param| param.name == name);
    let slot = slot.unwrap_or(params.len());
    if slot == MAX_PARAMS {
        let (given, allowed) = (slot + 1, MAX_PARAMS);
        trace.fail(ExpressionError::Params { given, allowed });
        return None;
    }
    if slot == params.len() {
        let name = name.to_owned();
        params.push(Param { name, ty });
    }
    Some(slot as u8)
}

/// The index of a tensor in the list; adds it if it is new.
fn tensor_slot(trace: &mut Trace, name: &str, element: ElementType, rank: usize) -> Option<u8> {
    check_use(trace, name, Use::Tensor { element, rank })?;
    if !(1..=MAX_RANK).contains(&rank) {
        let name = name.to_owned();
        trace.fail(ExpressionError::Rank { name, given: rank });
        return None;
    }
    let tensors = &mut trace.interner.tensors;
    let slot = tensors.iter().position(|tensor| tensor.name == name);
    let slot = slot.unwrap_or(tensors.len());
    if slot == MAX_TENSORS {
        let (given, allowed) = (slot + 1, MAX_TENSORS);
        trace.fail(ExpressionError::Tensors { given, allowed });
        return None;
    }
    if slot == tensors.len() {
        let name = name.to_owned();
        let rank = rank as u8;
        tensors.push(Tensor {
            name,
            element,
            rank,
        });
    }
    Some(slot as u8)
}
