//! An expression as text that says all of it, from which it can be read again: the same expression always gives the same text.
//!
//! ```text
//! expression 1
//! param window i32
//! tensor slopes f32 1
//! 0 index q
//! 1 index k
//! 2 sub 0 1
//! 3 param 0
//! 4 lt 2 3
//! ```
//!
//! The first line names the format. Then there are the parameters, the tensors with their ranks, and the nodes with their numbers. Numbers are
//! written by their bits, in hexadecimal digits.

mod parse;

use std::fmt::Write as _;

use super::{Binary, Compare, Expression, Node, Tensor};

/// The first line.
const HEADER: &str = "expression 1";

impl Binary {
    /// All, each with its name.
    const NAMES: [(&'static str, Binary); 12] = [
        ("add", Binary::Add),
        ("sub", Binary::Sub),
        ("mul", Binary::Mul),
        ("div", Binary::Div),
        ("rem", Binary::Rem),
        ("min", Binary::Min),
        ("max", Binary::Max),
        ("and", Binary::And),
        ("or", Binary::Or),
        ("xor", Binary::Xor),
        ("shl", Binary::Shl),
        ("shr", Binary::Shr),
    ];
}

impl Compare {
    /// All, each with its name.
    const NAMES: [(&'static str, Compare); 4] = [
        ("lt", Compare::Lt),
        ("le", Compare::Le),
        ("eq", Compare::Eq),
        ("ne", Compare::Ne),
    ];
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], wanted: T) -> &'static str {
    let name = names.iter().find(|(_, of)| *of == wanted);
    name.map_or("", |(name, _)| name)
}

impl Expression {
    /// All of the expression as text, which [`Expression::parse`] reads.
    pub fn to_text(&self) -> String {
        let mut lines = vec![HEADER.to_owned()];
        for param in &self.params {
            lines.push(format!("param {} {}", param.name, param.ty));
        }
        for tensor in &self.tensors {
            lines.push(format!(
                "tensor {} {} {}",
                tensor.name, tensor.element, tensor.rank
            ));
        }
        for (id, node) in self.nodes.iter().enumerate() {
            lines.push(format!("{id} {}", node_text(node, &self.tensors)));
        }
        lines.join("\n") + "\n"
    }
}

/// A node's function and what it is of.
fn node_text(node: &Node, tensors: &[Tensor]) -> String {
    let mut text = match *node {
        Node::Score => "score".to_owned(),
        Node::Index(index) => format!("index {index}"),
        Node::F32(bits) => format!("f32 {bits:08x}"),
        Node::I32(x) => format!("i32 {x}"),
        Node::Bool(x) => format!("bool {x}"),
        Node::Param(slot) => format!("param {slot}"),
        Node::Unary(op, _) => {
            let (name, is_full) = op.name();
            let to = match name {
                "f32" | "i32" => "to_",
                _ => "",
            };
            format!("{to}{name}{}", if is_full { "_full" } else { "" })
        }
        Node::Binary(op, ..) => name_of(&Binary::NAMES, op).to_owned(),
        Node::Compare(op, ..) => name_of(&Compare::NAMES, op).to_owned(),
        Node::Select(..) => "select".to_owned(),
        Node::Read(slot, _) => format!("read {slot}"),
    };
    node.operands(tensors, |id| {
        // Writing to a string cannot fail.
        let _ = write!(text, " {id}");
    });
    text
}

#[cfg(test)]
mod tests;
