//! Tracing: a closure is called once with symbols, and what it computes with them becomes an expression.
//!
//! ```
//! use ferroflash_expression::Expression;
//!
//! let alibi = Expression::score(|score, at| {
//!     let slope = at.tensor_f32("slopes", [at.head]);
//!     score + slope * (at.k - at.q).to_f32()
//! })?;
//! let window = Expression::mask(|at| at.q.ge(at.k) & (at.q - at.k).lt(at.i32("window")))?;
//! assert!(alibi.uses_score() && window.is_mask());
//! # Ok::<(), ferroflash_expression::ExpressionError>(())
//! ```
//!
//! A handle is two numbers, the trace's and the node's, so that it can be copied; the nodes are in a thread-local list, which has one trace for each
//! closure that is being called. A trace grows by at most a few nodes with each operation, no matter how often its operands are used.

mod at;

mod handles;

pub use at::At;
pub use handles::{Cond, Int, Num, Operand};

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::intern::Interner;
use super::{Expression, ExpressionError, Id, Node};
use handles::{Handle, Raw};

/// Most nodes of a trace, before unused nodes are removed.
const MAX_TRACED: usize = 1 << 16;

/// An expression while its closure is called.
struct Trace {
    /// Unique among all traces of the process, from 1 on.
    number: u64,
    interner: Interner,
    error: Option<ExpressionError>,
}

thread_local! {
    /// The innermost is the last.
    static TRACES: RefCell<Vec<Trace>> = const { RefCell::new(Vec::new()) };
}

/// Numbers given to traces.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Trace {
    /// Records an error; tracing returns the first.
    fn fail(&mut self, error: ExpressionError) {
        self.error.get_or_insert(error);
    }

    /// A new node; `None` after an error.
    fn add(&mut self, add: impl FnOnce(&mut Interner) -> Id) -> Option<Id> {
        if self.interner.len() >= MAX_TRACED {
            let (given, allowed) = (self.interner.len(), MAX_TRACED);
            self.fail(ExpressionError::Nodes { given, allowed });
        }
        self.error.is_none().then(|| add(&mut self.interner))
    }
}

/// Ends the innermost trace even if its closure panics.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        TRACES.with_borrow_mut(Vec::pop);
    }
}

/// A handle to the node that `add` adds to the trace `number`. Without that trace, a handle of no trace.
fn add_to(number: u64, add: impl FnOnce(&mut Trace) -> Option<Id>) -> Handle {
    TRACES.with_borrow_mut(|traces| {
        let trace = traces.iter_mut().find(|trace| trace.number == number);
        let id = trace.and_then(add);
        id.map_or(Handle::NONE, |id| Handle { trace: number, id })
    })
}

/// A node with these operands, which must be constants or belong to one trace.
fn apply<const N: usize>(operands: [Raw; N], node: impl FnOnce([Id; N]) -> Node) -> Handle {
    let handles = || operands.iter().filter_map(|operand| operand.handle());
    let number = handles()
        .map(|handle| handle.trace)
        .next()
        .unwrap_or_default();
    if handles().any(|handle| handle.trace != number) {
        TRACES.with_borrow_mut(|traces| {
            let innermost = traces.last().map(|trace| trace.number);
            for trace in traces {
                let is_named = handles().any(|handle| handle.trace == trace.number);
                if is_named || Some(trace.number) == innermost {
                    trace.fail(ExpressionError::Foreign);
                }
            }
        });
        return Handle::NONE;
    }
    add_to(number, |trace| {
        trace.add(|interner| {
            let ids = operands.map(|operand| match operand {
                Raw::Handle(handle) => handle.id,
                Raw::Constant(node) => interner.add(node),
            });
            interner.add(node(ids))
        })
    })
}

/// The expression that a closure computes from symbols.
fn trace<R: Operand>(f: impl FnOnce(Num, At) -> R) -> Result<Expression, ExpressionError> {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let interner = Interner::new(&[], &[]);
    TRACES.with_borrow_mut(|traces| {
        traces.push(Trace {
            number,
            interner,
            error: None,
        });
    });
    let guard = Guard;
    let symbol = |node| add_to(number, |trace| trace.add(|interner| interner.add(node)));
    let value = f(Num::from(symbol(Node::Score)), At::new(number, symbol)).raw();
    let result = TRACES.with_borrow_mut(|traces| {
        let trace = traces.last_mut().ok_or(ExpressionError::Foreign)?;
        if let Some(error) = trace.error.take() {
            return Err(error);
        }
        let root = match value {
            Raw::Constant(node) => trace.interner.add(node),
            Raw::Handle(handle) if handle.trace == number => handle.id,
            Raw::Handle(_) => return Err(ExpressionError::Foreign),
        };
        trace.interner.expression(root)
    });
    drop(guard);
    result
}

impl Expression {
    /// A replacement for a score: the value of a closure of the score, q · k times softmax_scale, and its position.
    pub fn score<R: Operand<Handle = Num>>(
        f: impl FnOnce(Num, At) -> R,
    ) -> Result<Expression, ExpressionError> {
        trace(f)
    }

    /// Whether a score is visible: the value of a closure of its position.
    pub fn mask<R: Operand<Handle = Cond>>(
        f: impl FnOnce(At) -> R,
    ) -> Result<Expression, ExpressionError> {
        trace(|_, at| f(at))
    }
}

#[cfg(test)]
mod tests;
