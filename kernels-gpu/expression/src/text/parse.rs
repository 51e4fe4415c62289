//! Reading an expression's text. What comes out has been checked as every expression; what does not fit is an error, whatever the text is.

use std::str::{FromStr, SplitAsciiWhitespace};

use super::HEADER;
use crate::{
    Binary, Compare, ElementType, Expression, ExpressionError, Id, Index, MAX_NODES, MAX_PARAMS,
    MAX_RANK, MAX_TENSORS, Node, Param, Precision, Tensor, Type, Unary,
};

/// What is wrong with a line.
type Reason = &'static str;

/// The lists, as far as they have been read.
#[derive(Default)]
struct Lists {
    nodes: Vec<Node>,
    params: Vec<Param>,
    tensors: Vec<Tensor>,
}

impl Expression {
    /// The expression of a text as [`Expression::to_text`] writes it.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        let mut lists = Lists::default();
        let mut lines = text.lines().zip(1..);
        if lines.next().map(|(line, _)| line.trim_end()) != Some(HEADER) {
            let (line, reason) = (1, "the first line must be `expression 1`");
            return Err(ExpressionError::Text { line, reason });
        }
        for (text, line) in lines {
            let mut words = text.split_ascii_whitespace();
            let read = lists.line(&mut words);
            let read = read.and_then(|()| match words.next() {
                Some(_) => Err("there are words behind its end"),
                None => Ok(()),
            });
            read.map_err(|reason| ExpressionError::Text { line, reason })?;
            lists.check_lengths()?;
        }
        Expression::from_nodes(&lists.nodes, &lists.params, &lists.tensors)
    }
}

impl FromStr for Expression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Expression, ExpressionError> {
        Expression::parse(text)
    }
}

fn next<'a>(words: &mut SplitAsciiWhitespace<'a>) -> Result<&'a str, Reason> {
    words.next().ok_or("it ends too soon")
}

/// A number without signs or zeros before it, so that it has one text.
fn number<T: FromStr>(words: &mut SplitAsciiWhitespace) -> Result<T, Reason> {
    let reason = "a number is expected";
    let word = next(words)?;
    let digits = word.strip_prefix('-').unwrap_or(word);
    let is_plain = digits.starts_with(|c: char| c.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    word.parse().ok().filter(|_| is_plain).ok_or(reason)
}

impl Lists {
    /// Stops a text that cannot become an expression any more.
    fn check_lengths(&self) -> Result<(), ExpressionError> {
        if self.nodes.len() > MAX_NODES {
            let (given, allowed) = (self.nodes.len(), MAX_NODES);
            return Err(ExpressionError::Nodes { given, allowed });
        }
        if self.params.len() > MAX_PARAMS {
            let (given, allowed) = (self.params.len(), MAX_PARAMS);
            return Err(ExpressionError::Params { given, allowed });
        }
        if self.tensors.len() > MAX_TENSORS {
            let (given, allowed) = (self.tensors.len(), MAX_TENSORS);
            return Err(ExpressionError::Tensors { given, allowed });
        }
        Ok(())
    }

    fn line(&mut self, words: &mut SplitAsciiWhitespace) -> Result<(), Reason> {
        let first = next(&mut words.clone())?;
        match first {
            "param" | "tensor" if !self.nodes.is_empty() => {
                Err("parameters and tensors come before the nodes")
            }
            "param" if !self.tensors.is_empty() => Err("parameters come before tensors"),
            "param" => {
                let name = name(words)?;
                let ty = match next(words)? {
                    "f32" => Type::F32,
                    "i32" => Type::I32,
                    _ => return Err("a parameter is of type f32 or i32"),
                };
                self.params.push(Param { name, ty });
                Ok(())
            }
            "tensor" => {
                let name = name(words)?;
                let element = match next(words)? {
                    "f32" => ElementType::F32,
                    "f16" => ElementType::F16,
                    "bf16" => ElementType::Bf16,
                    "i32" => ElementType::I32,
                    _ => return Err("elements are of type f32, f16, bf16 or i32"),
                };
                let rank = number(words)?;
                self.tensors.push(Tensor {
                    name,
                    element,
                    rank,
                });
                Ok(())
            }
            _ => {
                if number(words) != Ok(self.nodes.len()) {
                    return Err("nodes are numbered from 0 on");
                }
                let node = self.node(words)?;
                self.nodes.push(node);
                Ok(())
            }
        }
    }

    fn node(&self, words: &mut SplitAsciiWhitespace) -> Result<Node, Reason> {
        let word = next(words)?;
        let node = match word {
            "score" => Node::Score,
            "index" => {
                let name = next(words)?;
                let index = Index::ALL
                    .into_iter()
                    .find(|index| index.to_string() == name);
                Node::Index(index.ok_or("there is no such index")?)
            }
            "f32" => Node::F32(bits(next(words)?)?),
            "i32" => Node::I32(number(words)?),
            "bool" => Node::Bool(match next(words)? {
                "true" => true,
                "false" => false,
                _ => return Err("true or false is expected"),
            }),
            "param" => Node::Param(number(words)?),
            "select" => Node::Select(number(words)?, number(words)?, number(words)?),
            "read" => {
                let slot = number(words)?;
                let tensor = self.tensors.get(usize::from(slot));
                let rank = usize::from(tensor.ok_or("there is no such tensor")?.rank);
                let mut ids: [Id; MAX_RANK] = [0; MAX_RANK];
                for id in ids.iter_mut().take(rank) {
                    *id = number(words)?;
                }
                Node::Read(slot, ids)
            }
            word => {
                let find = |(name, _): &&(&str, Binary)| *name == word;
                if let Some((_, op)) = Binary::NAMES.iter().find(find) {
                    return Ok(Node::Binary(*op, number(words)?, number(words)?));
                }
                let find = |(name, _): &&(&str, Compare)| *name == word;
                if let Some((_, op)) = Compare::NAMES.iter().find(find) {
                    return Ok(Node::Compare(*op, number(words)?, number(words)?));
                }
                Node::Unary(unary(word)?, number(words)?)
            }
        };
        Ok(node)
    }
}

fn name(words: &mut SplitAsciiWhitespace) -> Result<String, Reason> {
    // The word that says what the line is.
    next(words)?;
    next(words).map(str::to_owned)
}

/// A number's bits.
fn bits(word: &str) -> Result<u32, Reason> {
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let is_plain = word.len() == 8 && word.bytes().all(is_digit);
    let bits = u32::from_str_radix(word, 16).ok();
    bits.filter(|_| is_plain)
        .ok_or("eight hexadecimal digits are expected")
}

fn unary(word: &str) -> Result<Unary, Reason> {
    let (name, precision) = match word.strip_suffix("_full") {
        Some(name) => (name, Precision::Full),
        None => (word, Precision::Fast),
    };
    let op = match name {
        "exp2" => Unary::Exp2(precision),
        "ln" => Unary::Ln(precision),
        "tanh" => Unary::Tanh(precision),
        "sigmoid" => Unary::Sigmoid(precision),
        "sqrt" => Unary::Sqrt(precision),
        _ => match word {
            "neg" => Unary::Neg,
            "abs" => Unary::Abs,
            "not" => Unary::Not,
            "to_f32" => Unary::ToF32,
            "to_i32" => Unary::ToI32,
            _ => return Err("there is no such function"),
        },
    };
    Ok(op)
}
