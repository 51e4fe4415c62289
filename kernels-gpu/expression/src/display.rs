//! An expression in readable form: `let a = q - k; score + slopes[head] * f32(a)`. A node that is used more than once has a name.

use std::fmt::{self, Write as _};

use super::{Binary, Compare, Expression, Id, Index, Node, Precision, Unary};

/// How strongly operators bind, as in Rust.
mod binding {
    pub const COMPARE: u8 = 1;
    pub const OR: u8 = 2;
    pub const XOR: u8 = 3;
    pub const AND: u8 = 4;
    pub const SHIFT: u8 = 5;
    pub const SUM: u8 = 6;
    pub const PRODUCT: u8 = 7;
    pub const SIGN: u8 = 8;
    pub const ATOM: u8 = 9;
}

impl Unary {
    /// Its name, and whether it is the exact form of a function that has a fast one.
    pub(super) fn name(self) -> (&'static str, bool) {
        let (name, precision) = match self {
            Unary::Neg => return ("neg", false),
            Unary::Abs => return ("abs", false),
            Unary::Not => return ("not", false),
            Unary::ToF32 => return ("f32", false),
            Unary::ToI32 => return ("i32", false),
            Unary::Exp2(precision) => ("exp2", precision),
            Unary::Ln(precision) => ("ln", precision),
            Unary::Tanh(precision) => ("tanh", precision),
            Unary::Sigmoid(precision) => ("sigmoid", precision),
            Unary::Sqrt(precision) => ("sqrt", precision),
        };
        (name, precision == Precision::Full)
    }
}

impl Binary {
    /// The operator and how strongly it binds, or the function's name.
    fn operator(self) -> (&'static str, Option<u8>) {
        match self {
            Binary::Add => ("+", Some(binding::SUM)),
            Binary::Sub => ("-", Some(binding::SUM)),
            Binary::Mul => ("*", Some(binding::PRODUCT)),
            Binary::Div => ("/", Some(binding::PRODUCT)),
            Binary::Rem => ("%", Some(binding::PRODUCT)),
            Binary::Min => ("min", None),
            Binary::Max => ("max", None),
            Binary::And => ("&", Some(binding::AND)),
            Binary::Or => ("|", Some(binding::OR)),
            Binary::Xor => ("^", Some(binding::XOR)),
            Binary::Shl => ("<<", Some(binding::SHIFT)),
            Binary::Shr => (">>", Some(binding::SHIFT)),
        }
    }
}

/// A node's text and how strongly its outermost operator binds.
struct Text {
    text: String,
    binds: u8,
}

impl Text {
    fn atom(text: String) -> Text {
        let binds = binding::ATOM;
        Text { text, binds }
    }

    /// In parentheses unless it binds at least as strongly.
    fn within(&self, binds: u8) -> String {
        if self.binds >= binds {
            self.text.clone()
        } else {
            format!("({})", self.text)
        }
    }
}

fn call(name: &str, arguments: &[&Text]) -> Text {
    let arguments: Vec<&str> = arguments.iter().map(|text| text.text.as_str()).collect();
    Text::atom(format!("{name}({})", arguments.join(", ")))
}

fn infix(a: &Text, operator: &str, b: &Text, binds: u8) -> Text {
    // Operators bind to the left; comparisons do not follow each other.
    let left = if binds == binding::COMPARE {
        binds + 1
    } else {
        binds
    };
    let text = format!("{} {operator} {}", a.within(left), b.within(binds + 1));
    Text { text, binds }
}

impl Expression {
    /// The text of a node; `of` has those of its operands.
    fn node_text(&self, node: Node, of: &dyn Fn(Id) -> Text) -> Text {
        match node {
            Node::Score => Text::atom("score".to_owned()),
            Node::Index(index) => Text::atom(index.to_string()),
            Node::F32(bits) => constant(format!("{:?}", f32::from_bits(bits))),
            Node::I32(x) => constant(x.to_string()),
            Node::Bool(x) => Text::atom(x.to_string()),
            Node::Param(slot) => Text::atom(self.params[usize::from(slot)].name.clone()),
            Node::Unary(Unary::Neg, a) => prefix("-", &of(a)),
            Node::Unary(Unary::Not, a) => prefix("!", &of(a)),
            Node::Unary(op, a) => match op.name() {
                (name, false) => call(name, &[&of(a)]),
                (name, true) => call(&format!("{name}_full"), &[&of(a)]),
            },
            Node::Binary(op, a, b) => match op.operator() {
                (name, None) => call(name, &[&of(a), &of(b)]),
                (_, Some(binds)) if op == Binary::Add => self.sum(a, b, binds, of),
                (operator, Some(binds)) => infix(&of(a), operator, &of(b), binds),
            },
            Node::Compare(op, a, b) => {
                let operator = match op {
                    Compare::Lt => "<",
                    Compare::Le => "<=",
                    Compare::Eq => "==",
                    Compare::Ne => "!=",
                };
                infix(&of(a), operator, &of(b), binding::COMPARE)
            }
            Node::Select(c, a, b) => call("select", &[&of(c), &of(a), &of(b)]),
            Node::Read(slot, ids) => {
                let tensor = &self.tensors[usize::from(slot)];
                let ids = ids.iter().take(usize::from(tensor.rank));
                let ids: Vec<String> = ids.map(|&id| of(id).text).collect();
                Text::atom(format!("{}[{}]", tensor.name, ids.join(", ")))
            }
        }
    }

    /// A sum; with a negative constant a difference.
    fn sum(&self, a: Id, b: Id, binds: u8, of: &dyn Fn(Id) -> Text) -> Text {
        let opposite = |id: Id| match self.nodes[id as usize] {
            Node::I32(x) if x < 0 => x.checked_neg().map(|x| x.to_string()),
            Node::F32(bits) => {
                let x = f32::from_bits(bits);
                (x < 0.0).then(|| format!("{:?}", -x))
            }
            _ => None,
        };
        match (opposite(a), opposite(b)) {
            (_, Some(b)) => infix(&of(a), "-", &Text::atom(b), binds),
            (Some(a), None) => infix(&of(b), "-", &Text::atom(a), binds),
            (None, None) => infix(&of(a), "+", &of(b), binds),
        }
    }

    /// Names for nodes that are used more than once and are not a symbol or a constant.
    fn names(&self) -> Vec<Option<String>> {
        let mut uses = vec![0; self.nodes.len()];
        for node in &self.nodes {
            node.operands(&self.tensors, |id| uses[id as usize] += 1);
        }
        let is_taken = |name: &str| {
            Index::ALL.iter().any(|index| index.to_string() == name)
                || self.params.iter().any(|param| param.name == name)
                || self.tensors.iter().any(|tensor| tensor.name == name)
        };
        let round = |number: usize| match number {
            0 => String::new(),
            number => number.to_string(),
        };
        let letters =
            (0..).flat_map(|number| ('a'..='z').map(move |c| format!("{c}{}", round(number))));
        let mut free = letters.filter(|name| !is_taken(name));
        let names = self.nodes.iter().zip(uses).map(|(node, uses)| {
            let is_made = matches!(
                node,
                Node::Unary(..)
                    | Node::Binary(..)
                    | Node::Compare(..)
                    | Node::Select(..)
                    | Node::Read(..)
            );
            (is_made && uses > 1).then(|| free.next()).flatten()
        });
        names.collect()
    }
}

fn constant(text: String) -> Text {
    let binds = if text.starts_with('-') {
        binding::SIGN
    } else {
        binding::ATOM
    };
    Text { text, binds }
}

fn prefix(operator: &str, a: &Text) -> Text {
    // Two signs would read as one operator.
    let text = format!("{operator}{}", a.within(binding::ATOM));
    let binds = binding::SIGN;
    Text { text, binds }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names();
        let mut texts: Vec<Text> = Vec::with_capacity(self.nodes.len());
        let mut result = String::new();
        for (node, name) in self.nodes.iter().zip(names) {
            let of = |id: Id| {
                let Text { text, binds } = &texts[id as usize];
                let (text, binds) = (text.clone(), *binds);
                Text { text, binds }
            };
            let text = self.node_text(*node, &of);
            texts.push(match name {
                Some(name) => {
                    write!(result, "let {name} = {}; ", text.text)?;
                    Text::atom(name)
                }
                None => text,
            });
        }
        f.write_str(&result)?;
        texts.last().map_or(Ok(()), |text| f.write_str(&text.text))
    }
}
