//! What an implementation in f32 may be off from an expression's value: bounds of first order, node by node.
//!
//! An implementation may reassociate sums and products, as kernels do: so a sum errs by units of its greatest term, however small it is, and the same
//! holds of whole numbers that become numbers. The errors of functions are those that the documentation of
//! [`ptx`](ferroflash_expression::ptx) lists. Only tanh and sigmoid have a fast form that is far from f32's precision: their errors are
//! kept apart, so that the tolerance of expressions without them, and of their exact forms, is that of f32.

use ferroflash_expression::{Binary, Id, Node, Precision, Unary, Value};

/// One rounding to f32.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Of `tanh.approx.f32`: relative. The logistic function made of it has the same, absolute.
const APPROXIMATE: f64 = 1.0 / (1u64 << 11) as f64;

/// What a node's value may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeError {
    /// By roundings.
    pub rounding: f64,
    /// By approximate functions.
    pub approximation: f64,
    /// The greatest of the terms that the value is a sum of.
    pub term: f64,
    /// Whether a truth value may be another one.
    unsure: bool,
}

impl NodeError {
    fn exact(term: f64) -> NodeError {
        NodeError {
            term: term.abs(),
            ..NodeError::default()
        }
    }

    fn error(self) -> f64 {
        self.rounding + self.approximation
    }

    /// Of a function whose derivative is `slope` and whose value is `y`, rounded to so many units.
    fn through(self, slope: f64, y: f64, units: f64) -> NodeError {
        NodeError {
            rounding: slope.abs() * self.rounding + units * UNIT * y.abs(),
            approximation: slope.abs() * self.approximation,
            term: y.abs(),
            unsure: self.unsure,
        }
    }

    /// Of a sum.
    fn plus(self, other: NodeError) -> NodeError {
        let term = self.term.max(other.term);
        NodeError {
            rounding: self.rounding + other.rounding + 4.0 * UNIT * term,
            approximation: self.approximation + other.approximation,
            term,
            unsure: self.unsure || other.unsure,
        }
    }

    /// The larger in each respect.
    fn or(self, other: NodeError) -> NodeError {
        NodeError {
            rounding: self.rounding.max(other.rounding),
            approximation: self.approximation.max(other.approximation),
            term: self.term.max(other.term),
            unsure: self.unsure || other.unsure,
        }
    }
}

/// What the value of an expression's last node may be off, where its nodes have these values and the score itself may be `of_score` off. `errors` is
/// room for those of all nodes.
pub fn of_expression(
    nodes: &[Node],
    values: &[Value<f64>],
    of_score: f64,
    errors: &mut Vec<NodeError>,
) -> NodeError {
    errors.clear();
    for (node, value) in nodes.iter().zip(values) {
        let error = of_node(*node, *value, values, of_score, errors);
        errors.push(error);
    }
    // Kernels go on with the value divided by softmax_scale, and multiply by that again.
    let last = errors.last().copied().unwrap_or_default();
    NodeError {
        rounding: last.rounding + 4.0 * UNIT * last.term,
        ..last
    }
}

fn of_node(
    node: Node,
    y: Value<f64>,
    values: &[Value<f64>],
    of_score: f64,
    errors: &[NodeError],
) -> NodeError {
    let error = |id: Id| errors[id as usize];
    let operand = |id: Id| number(values[id as usize]);
    // Whole numbers and truth values are not rounded.
    let is_exact = !matches!(y, Value::Num(_));
    let error = match node {
        Node::Score => NodeError {
            rounding: of_score,
            ..NodeError::exact(y.num())
        },
        Node::Index(_)
        | Node::F32(_)
        | Node::I32(_)
        | Node::Bool(_)
        | Node::Param(_)
        | Node::Read(..) => NodeError::exact(number(y)),
        Node::Unary(op, a) => of_unary(op, operand(a), number(y), error(a)),
        Node::Binary(op, a, b) => {
            let (x, z) = (operand(a), operand(b));
            of_binary(op, (x, error(a)), (z, error(b)), number(y))
        }
        Node::Compare(_, a, b) => {
            let close = (operand(a) - operand(b)).abs() < error(a).error() + error(b).error();
            NodeError {
                unsure: close || error(a).unsure || error(b).unsure,
                ..NodeError::default()
            }
        }
        Node::Select(c, a, b) if error(c).unsure => {
            let either = error(a).or(error(b));
            NodeError {
                rounding: either.rounding + (operand(a) - operand(b)).abs(),
                ..either
            }
        }
        Node::Select(c, a, b) => error(if values[c as usize].cond() { a } else { b }),
    };
    match is_exact {
        true => NodeError {
            rounding: 0.0,
            approximation: 0.0,
            ..error
        },
        false => error,
    }
}

fn number(value: Value<f64>) -> f64 {
    match value {
        Value::Num(x) => x,
        Value::Int(x) => x.into(),
        Value::Cond(x) => f64::from(u8::from(x)),
    }
}

/// Of y, a function of x.
fn of_unary(op: Unary, x: f64, y: f64, error: NodeError) -> NodeError {
    let fast = |relative: f64, of: NodeError| NodeError {
        approximation: of.approximation + relative,
        ..of
    };
    match op {
        Unary::Neg | Unary::Abs | Unary::Not | Unary::ToI32 => error,
        Unary::ToF32 => NodeError {
            rounding: UNIT * error.term,
            ..error
        },
        Unary::Exp2(_) => error.through(y * std::f64::consts::LN_2, y, 8.0),
        Unary::Ln(Precision::Fast) => error.through(1.0 / x, y.abs().max(1.0), 8.0),
        Unary::Ln(Precision::Full) => error.through(1.0 / x, y, 4.0),
        Unary::Tanh(Precision::Fast) => {
            fast(APPROXIMATE * y.abs(), error.through(1.0 - y * y, y, 2.0))
        }
        Unary::Tanh(Precision::Full) => error.through(1.0 - y * y, y, 8.0),
        Unary::Sigmoid(Precision::Fast) => fast(APPROXIMATE, error.through(y * (1.0 - y), y, 2.0)),
        Unary::Sigmoid(Precision::Full) => error.through(y * (1.0 - y), y, 12.0),
        Unary::Sqrt(_) => error.through(0.5 / y, y, 4.0),
    }
}

/// Of y, a function of a and b.
fn of_binary(
    op: Binary,
    (a, of_a): (f64, NodeError),
    (b, of_b): (f64, NodeError),
    y: f64,
) -> NodeError {
    match op {
        Binary::Add | Binary::Sub => of_a.plus(of_b),
        Binary::Mul => {
            let term = of_a.term * of_b.term;
            NodeError {
                rounding: a.abs() * of_b.rounding + b.abs() * of_a.rounding + 4.0 * UNIT * term,
                approximation: a.abs() * of_b.approximation + b.abs() * of_a.approximation,
                term,
                unsure: of_a.unsure || of_b.unsure,
            }
        }
        Binary::Div => {
            let term = of_a.term / b.abs();
            NodeError {
                rounding: (of_a.rounding + y.abs() * of_b.rounding) / b.abs() + 8.0 * UNIT * term,
                approximation: (of_a.approximation + y.abs() * of_b.approximation) / b.abs(),
                term,
                unsure: of_a.unsure || of_b.unsure,
            }
        }
        Binary::Min | Binary::Max => of_a.or(of_b),
        // Whole numbers and truth values are exact.
        Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            NodeError {
                unsure: of_a.unsure || of_b.unsure,
                ..NodeError::exact(y)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroflash_expression::{Evaluator, Expression, Index, NoTensors, ScoreIndices};

    use super::*;

    /// At many places and scores, what f32 is off from f64, as a part of what is allowed.
    fn worst(expression: &Expression) -> f64 {
        let mut exact = Evaluator::<f64>::new(expression, &[], &NoTensors).unwrap();
        let mut rounded = Evaluator::<f32>::new(expression, &[], &NoTensors).unwrap();
        let (mut errors, mut worst) = (Vec::new(), 0.0f64);
        for query in 0..40 {
            for key in 0..50 {
                let place = ScoreIndices::default()
                    .with(Index::Query, query)
                    .with(Index::Key, key * 7);
                let score = ((query * 37 + key * 101) % 211 - 105) as f32 / 13.0;
                let value = exact.score(&place, score.into());
                let error = of_expression(expression.nodes(), exact.values(), 0.0, &mut errors);
                let off = (f64::from(rounded.score(&place, score)) - value).abs();
                assert!(off <= error.error(), "{off} {error:?} {expression}");
                worst = worst.max(off / error.error().max(f64::MIN_POSITIVE));
            }
        }
        worst
    }

    /// Bounds hold, and are not so wide that they would hold of anything.
    #[test]
    fn what_f32_is_off_lies_within_the_bounds() {
        let of = |expression: Result<Expression, _>| worst(&expression.unwrap());
        let closest = [
            of(Expression::score(|s, _| (s / 2.5).tanh_full() * 2.5)),
            of(Expression::score(|s, at| {
                s + (at.k - at.q).to_f32() * 0.0123
            })),
            of(Expression::score(|s, _| (s * 0.3).exp_full() - s)),
            of(Expression::score(|s, _| (s.abs() + 0.7).ln_full() * s)),
            of(Expression::score(|s, _| {
                (s.abs() + 0.7).sqrt_full() / (s * s + 1.1)
            })),
            of(Expression::score(|s, _| s.sigmoid_full() * s)),
        ];
        for part in closest {
            assert!(0.02 < part, "{closest:?}");
        }
    }

    /// Only fast functions that are far from f32's precision widen the tolerance, by what the instruction may be off.
    #[test]
    fn approximations_are_those_of_fast_functions() {
        let approximation = |expression: Result<Expression, _>| {
            let expression = expression.unwrap();
            let mut exact = Evaluator::<f64>::new(&expression, &[], &NoTensors).unwrap();
            exact.score(&ScoreIndices::default(), 1.0);
            let error = of_expression(expression.nodes(), exact.values(), 0.0, &mut Vec::new());
            error.approximation
        };
        let fast = approximation(Expression::score(|s, _| s.tanh() * 8.0));
        assert_eq!(fast, 8.0 * APPROXIMATE * 1f64.tanh());
        let fast = approximation(Expression::score(|s, _| s.sigmoid() * 4.0));
        assert_eq!(fast, 4.0 * APPROXIMATE);
        let exact =
            Expression::score(|s, _| s.tanh_full() + s.sigmoid_full() + s.exp2() + s.sqrt());
        assert_eq!(approximation(exact), 0.0);
    }

    /// Where two numbers are as good as equal, f32 may compare them otherwise.
    #[test]
    fn a_choice_that_hangs_on_a_rounding_counts_both() {
        let expression = Expression::score(|s, _| (s / 3.0).lt(1.0).select(s, s + 100.0)).unwrap();
        let mut exact = Evaluator::<f64>::new(&expression, &[], &NoTensors).unwrap();
        let mut error = |score: f64| {
            exact.score(&ScoreIndices::default(), score);
            let nodes = expression.nodes();
            of_expression(nodes, exact.values(), 1e-6, &mut Vec::new()).error()
        };
        assert!(100.0 <= error(3.0) && error(2.9) < 1e-4);
    }
}
