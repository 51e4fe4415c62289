//! What a thread may reach of a kernel's text: pure text in, text out.
//!
//! A text serves every mask, so nearly half of it is for features that a spec does not have. ptxas finds that, too, but reads it all
//! and compiles part of it first: the driver takes a fifth less time for a text that lacks these parts.
//!
//! A register that only one reachable statement sets, to a number or by a comparison or logical operation of such registers, has that value
//! everywhere. Branches that ask for it are decided; what they never reach is left out, and so on until nothing changes. Statements that
//! are not understood are kept, and what they name counts as set there.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

/// What labels of LLVM begin with. Labels of inline assembly are local to their braces and begin otherwise.
const LABEL: &str = "$L";

/// The text without the statements that no thread reaches.
pub fn reached(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        result.push_str(line);
        if line.trim_end() == "{" {
            let rest = lines.clone();
            let n = rest.take_while(|line| line.trim_end() != "}").count();
            let body: Vec<&str> = lines.by_ref().take(n).collect();
            match Body::new(&body).reached() {
                Some(reached) => result.push_str(&reached),
                None => result.extend(body),
            }
        }
    }
    result
}

/// What a line of a body is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line<'a> {
    Label(&'a str),
    Branch {
        guard: Option<Guard<'a>>,
        target: &'a str,
    },
    Return,
    /// A statement that sets one register.
    Value(&'a str, Value<'a>),
    /// Anything else, with the registers that it may set.
    Other(Vec<&'a str>),
}

/// A branch is taken where the predicate has this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guard<'a> {
    predicate: &'a str,
    taken: bool,
}

impl Guard<'_> {
    /// None where either may be.
    fn is_taken(self, known: &Known<'_>) -> Option<bool> {
        let value = known.get(self.predicate)?;
        Some((*value != 0) == self.taken)
    }
}

/// Of a 32-bit register or a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'a> {
    Of(&'a str),
    IsEqual(&'a str, &'a str),
    IsUnequal(&'a str, &'a str),
    And(&'a str, &'a str),
    Or(&'a str, &'a str),
    Not(&'a str),
}

/// Values of registers that have one. Predicates are 0 or 1.
type Known<'a> = HashMap<&'a str, i64>;

impl<'a> Value<'a> {
    fn parse(opcode: &str, sources: &[&'a str]) -> Option<Value<'a>> {
        Some(match (opcode, sources) {
            ("mov.b32" | "mov.u32" | "mov.s32" | "mov.pred", &[a]) => Value::Of(a),
            ("setp.eq.b32" | "setp.eq.u32" | "setp.eq.s32", &[a, b]) => Value::IsEqual(a, b),
            ("setp.ne.b32" | "setp.ne.u32" | "setp.ne.s32", &[a, b]) => Value::IsUnequal(a, b),
            ("and.pred", &[a, b]) => Value::And(a, b),
            ("or.pred", &[a, b]) => Value::Or(a, b),
            ("not.pred", &[a]) => Value::Not(a),
            _ => return None,
        })
    }

    fn number(self, known: &Known<'_>) -> Option<i64> {
        // What does not fit 31 bits may be the same number in another writing.
        let of = |x: &str| match x.parse::<i32>() {
            Ok(number) => (number >= 0).then_some(i64::from(number)),
            Err(_) => known.get(x).copied(),
        };
        match self {
            Value::Of(a) => of(a),
            Value::IsEqual(a, b) => Some(i64::from(of(a)? == of(b)?)),
            Value::IsUnequal(a, b) => Some(i64::from(of(a)? != of(b)?)),
            Value::And(a, b) => match (of(a), of(b)) {
                (Some(0), _) | (_, Some(0)) => Some(0),
                (a, b) => a.and(b),
            },
            Value::Or(a, b) => match (of(a), of(b)) {
                (Some(1), _) | (_, Some(1)) => Some(1),
                (a, b) => a.and(b),
            },
            Value::Not(a) => Some(1 - of(a)?),
        }
    }
}

/// The registers that a text names.
fn registers(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = text.match_indices('%').map(|(at, _)| at);
    begins
        .map(|at| {
            let name = &text[at + 1..];
            let len = name.find(|c| !is_name(c)).unwrap_or(name.len());
            &text[at..=at + len]
        })
        .collect()
}

impl<'a> Line<'a> {
    /// A line. `continues`: the statement of the line before is not at its end.
    fn parse(line: &'a str, continues: bool) -> Line<'a> {
        let code = code(line);
        let statement = code.strip_suffix(';').map(str::trim_end);
        let is_whole = |text: &str| !continues && !text.contains([';', '/']);
        match statement {
            Some(statement) if is_whole(statement) => Line::statement(statement),
            None if code.starts_with(LABEL) && code.ends_with(':') => {
                Line::Label(code.trim_end_matches(':'))
            }
            _ => Line::Other(registers(code)),
        }
    }

    fn statement(statement: &'a str) -> Line<'a> {
        let (guard, text) = match statement.strip_prefix('@') {
            Some(guarded) => {
                let (guard, text) = guarded.split_once(char::is_whitespace).unwrap_or_default();
                (Some(guard), text.trim_start())
            }
            None => (None, statement),
        };
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands = operands.trim_start();
        match opcode {
            "ret" if guard.is_none() => return Line::Return,
            "bra" | "bra.uni" if operands.starts_with(LABEL) => {
                let guard = guard.map(|guard| match guard.strip_prefix('!') {
                    Some(predicate) => (predicate, false),
                    None => (guard, true),
                });
                return Line::Branch {
                    guard: guard.map(|(predicate, taken)| Guard { predicate, taken }),
                    target: operands,
                };
            }
            _ => {}
        }
        if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) || operands.contains(LABEL) {
            return Line::Other(registers(statement));
        }
        // The first operand is what is set; a list of registers may be one.
        let (set, sources) = match operands.find('}') {
            Some(end) if operands.starts_with('{') => operands.split_at(end),
            _ => operands.split_once(',').unwrap_or((operands, "")),
        };
        let sources: Vec<&str> = sources.split(',').map(str::trim).collect();
        let value = Value::parse(opcode, &sources).filter(|_| guard.is_none());
        match (value, registers(set).as_slice()) {
            (Some(value), &[register]) if register == set.trim() => Line::Value(register, value),
            (_, set) => Line::Other(set.to_vec()),
        }
    }
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line).trim()
}

/// What stands between the braces of a kernel or function.
struct Body<'a> {
    text: &'a [&'a str],
    lines: Vec<Line<'a>>,
    labels: HashMap<&'a str, usize>,
}

impl<'a> Body<'a> {
    fn new(text: &'a [&'a str]) -> Body<'a> {
        let mut continues = false;
        let lines: Vec<Line<'a>> = text
            .iter()
            .map(|line| {
                let parsed = Line::parse(line, continues);
                let code = code(line);
                if !code.is_empty() {
                    continues = !code.ends_with([';', ':', '{', '}']);
                }
                parsed
            })
            .collect();
        let labels = lines.iter().enumerate().filter_map(|(idx, line)| {
            let Line::Label(label) = line else {
                return None;
            };
            Some((*label, idx))
        });
        let labels = labels.collect();
        Body {
            text,
            lines,
            labels,
        }
    }

    /// The lines that are reached, with branches that are always taken; none where a line mentions a label in another way than
    /// branches do.
    fn reached(&self) -> Option<String> {
        let is_mentioned = |(text, line): (&&str, &Line<'_>)| {
            matches!(line, Line::Other(_)) && code(text).contains(LABEL)
        };
        if self.text.iter().zip(&self.lines).any(is_mentioned) {
            return None;
        }
        let mut known = Known::new();
        let reached = loop {
            let reached = self.reached_with(&known)?;
            let n = known.len();
            known.extend(self.known_in(&reached));
            if known.len() == n {
                break reached;
            }
        };
        let mut text = String::new();
        for (idx, line) in self
            .text
            .iter()
            .enumerate()
            .filter(|(idx, _)| reached[*idx])
        {
            let branch = match &self.lines[idx] {
                Line::Branch { guard, target } => {
                    let is_taken = guard.and_then(|guard| guard.is_taken(&known));
                    is_taken.map(|is_taken| (is_taken, target))
                }
                _ => None,
            };
            match branch {
                Some((true, target)) => text += &format!("\tbra.uni \t{target};\n"),
                Some((false, _)) => {}
                None => text += line,
            }
        }
        Some(text)
    }

    /// Which lines are reached where registers have these values; none where a branch leads nowhere.
    fn reached_with(&self, known: &Known<'_>) -> Option<Vec<bool>> {
        let mut reached = vec![false; self.lines.len()];
        let mut starts = vec![0];
        while let Some(start) = starts.pop() {
            for (idx, line) in self.lines.iter().enumerate().skip(start) {
                if std::mem::replace(&mut reached[idx], true) {
                    break;
                }
                match line {
                    Line::Return => break,
                    Line::Branch { guard, target } => {
                        let is_taken = guard.map_or(Some(true), |guard| guard.is_taken(known));
                        if is_taken != Some(false) {
                            starts.push(*self.labels.get(target)?);
                        }
                        if is_taken == Some(true) {
                            break;
                        }
                    }
                    _ => {}
                }
            }
        }
        Some(reached)
    }

    /// The registers that have one value, whichever of the reached lines run.
    fn known_in(&self, reached: &[bool]) -> Known<'a> {
        let lines = self.lines.iter().zip(reached);
        let lines = lines.filter_map(|(line, &reached)| reached.then_some(line));
        let mut set: HashMap<&str, usize> = HashMap::new();
        let mut values = Vec::new();
        for line in lines {
            let registers = match line {
                Line::Value(register, value) => {
                    values.push((*register, *value));
                    std::slice::from_ref(register)
                }
                Line::Other(registers) => registers,
                _ => &[],
            };
            for register in registers {
                *set.entry(register).or_default() += 1;
            }
        }
        values.retain(|(register, _)| set[register] == 1);
        let mut known = Known::new();
        loop {
            let n = values.len();
            values.retain(|(register, value)| match value.number(&known) {
                Some(number) => {
                    known.insert(register, number);
                    false
                }
                None => true,
            });
            if values.len() == n {
                return known;
            }
        }
    }
}
