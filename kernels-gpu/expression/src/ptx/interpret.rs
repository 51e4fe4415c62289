//! Runs the PTX that programs write, for tests: straight-line code, one thread.
//!
//! Functions that the GPU approximates are exact here up to rounding, or have the error that a test asks for. A statement that programs never write
//! is an error, and so is reading an unset register.

use std::collections::HashMap;
use std::fmt;

/// A text cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterpretError {
    /// Programs never write this statement.
    Unknown {
        /// The statement.
        statement: String,
    },
    /// The register has no value.
    Unset {
        /// The register.
        register: String,
    },
    /// There is no memory at this address.
    Memory {
        /// The address.
        address: u64,
    },
    /// The parameter has no such bytes.
    Parameter {
        /// Their offset.
        offset: usize,
    },
}

impl fmt::Display for InterpretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InterpretError::Unknown { statement } => write!(f, "unknown statement {statement}"),
            InterpretError::Unset { register } => write!(f, "{register} has no value"),
            InterpretError::Memory { address } => write!(f, "no memory lies at {address:#x}"),
            InterpretError::Parameter { offset } => {
                write!(f, "the parameter has no bytes at {offset}")
            }
        }
    }
}

impl std::error::Error for InterpretError {}

/// A thread, with what it reads.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Registers by their names. A predicate is 0 or 1.
    pub registers: HashMap<String, u64>,
    /// The bytes of the entry's parameter.
    pub parameter: Vec<u8>,
    /// Pieces of global memory: their addresses and bytes.
    pub memory: Vec<(u64, Vec<u8>)>,
    /// The relative error of `ex2.approx` and `rcp.approx`. The GPU's is at most 2⁻²²·⁵ and 2⁻²³ (PTX ISA 8.7, sections 9.7.3.21
    /// and 9.7.3.14).
    pub error: f32,
}

impl Machine {
    /// Runs the statements of a text in order: the body of an entry, or part of one. `ret` does nothing.
    pub fn run(&mut self, text: &str) -> Result<(), InterpretError> {
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        for statement in code.split([';', '{', '}']) {
            self.statement(statement.trim())?;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &str) -> Result<(), InterpretError> {
        if statement.is_empty() || statement == "ret" {
            return Ok(());
        }
        let unknown = || InterpretError::Unknown {
            statement: statement.to_owned(),
        };
        let (opcode, rest) = statement
            .split_once(char::is_whitespace)
            .ok_or_else(unknown)?;
        if opcode == ".reg" {
            let (_, name) = rest.trim().split_once(' ').ok_or_else(unknown)?;
            self.declare(name);
            return Ok(());
        }
        let operands: Vec<&str> = rest.split(',').map(str::trim).collect();
        let (&target, sources) = operands.split_first().ok_or_else(unknown)?;
        let value = if opcode.starts_with("ld.") {
            let [source] = sources else {
                return Err(unknown());
            };
            let source = source.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
            self.load(opcode, source.ok_or_else(unknown)?)?
                .ok_or_else(unknown)?
        } else {
            let values: Result<Vec<u64>, InterpretError> =
                sources.iter().map(|source| self.value(source)).collect();
            instruction(opcode, &values?, self.error).ok_or_else(unknown)?
        };
        self.registers.insert(target.to_owned(), value);
        Ok(())
    }

    /// A declaration makes registers that have no values.
    fn declare(&mut self, name: &str) {
        match name.trim().split_once('<') {
            Some((prefix, _)) => self.registers.retain(|known, _| {
                let number = known.strip_prefix(prefix);
                !number.is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))
            }),
            None => {
                self.registers.remove(name.trim());
            }
        }
    }

    fn value(&self, source: &str) -> Result<u64, InterpretError> {
        if source.starts_with('%') {
            let unset = || InterpretError::Unset {
                register: source.to_owned(),
            };
            return self.registers.get(source).copied().ok_or_else(unset);
        }
        let parsed = if let Some(bits) = source.strip_prefix("0f").or(source.strip_prefix("0x")) {
            u64::from_str_radix(bits, 16).ok()
        } else {
            source.parse::<i64>().ok().map(|x| u64::from(x as u32))
        };
        parsed.ok_or_else(|| InterpretError::Unknown {
            statement: source.to_owned(),
        })
    }

    fn load(&self, opcode: &str, source: &str) -> Result<Option<u64>, InterpretError> {
        let bytes = match opcode.rsplit('.').next() {
            Some("b64") => 8,
            Some("b32") => 4,
            Some("b16" | "u16") => 2,
            _ => return Ok(None),
        };
        let bytes = if opcode.starts_with("ld.param.") {
            let offset = source.rsplit_once("_param_0+");
            let Some(offset) = offset.and_then(|(_, offset)| offset.parse::<usize>().ok()) else {
                return Ok(None);
            };
            let found = self.parameter.get(offset..offset + bytes);
            found.ok_or(InterpretError::Parameter { offset })?
        } else if opcode.starts_with("ld.global.nc.") {
            let address = self.value(source)?;
            let inside = self.memory.iter().find_map(|(begin, piece)| {
                let offset = usize::try_from(address.checked_sub(*begin)?).ok()?;
                piece.get(offset..offset.checked_add(bytes)?)
            });
            inside.ok_or(InterpretError::Memory { address })?
        } else {
            return Ok(None);
        };
        let mut value = 0;
        for &byte in bytes.iter().rev() {
            value = value << 8 | u64::from(byte);
        }
        Ok(Some(value))
    }
}

/// The value of an instruction of registers; none where it is unknown.
fn instruction(opcode: &str, args: &[u64], error: f32) -> Option<u64> {
    let found = match args {
        [a] => one(opcode, *a as u32, error).map(u64::from),
        [a, b] => two(opcode, *a as u32, *b as u32).map(u64::from),
        [a, b, c] => three(opcode, *a as u32, *b as u32, *c as u32).map(u64::from),
        _ => None,
    };
    found
        .or_else(|| wide(opcode, args))
        .or_else(|| predicate(opcode, args).map(u64::from))
}

fn float(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// 0 in place of a denormal, of the same sign.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0_f32.copysign(x)
    } else {
        x
    }
}

fn one(opcode: &str, a: u32, error: f32) -> Option<u32> {
    let x = float(a);
    let near = |x: f32| x * (1.0 + error);
    let number = match opcode {
        "neg.f32" => -x,
        "abs.f32" => x.abs(),
        "cvt.rn.f32.s32" => (a as i32) as f32,
        "cvt.f32.f16" => half(a as u16),
        "ex2.approx.ftz.f32" => flushed(near(flushed(x).exp2())),
        "ex2.approx.f32" => near(x.exp2()),
        "lg2.approx.ftz.f32" => flushed(flushed(x).log2()),
        "tanh.approx.f32" => x.tanh(),
        "sqrt.approx.ftz.f32" => flushed(flushed(x).sqrt()),
        "sqrt.rn.f32" => x.sqrt(),
        "rcp.approx.ftz.f32" => flushed(near(1.0 / flushed(x))),
        _ => {
            return match opcode {
                "mov.b32" => Some(a),
                "neg.s32" => Some((a as i32).wrapping_neg() as u32),
                "abs.s32" => Some((a as i32).wrapping_abs() as u32),
                "cvt.rzi.s32.f32" => Some(x as i32 as u32),
                _ => None,
            };
        }
    };
    Some(number.to_bits())
}

fn two(opcode: &str, a: u32, b: u32) -> Option<u32> {
    let (x, y) = (float(a), float(b));
    let number = match opcode {
        "add.f32" => x + y,
        "sub.f32" => x - y,
        "mul.f32" | "mul.rn.f32" => x * y,
        "min.f32" => x.min(y),
        "max.f32" => x.max(y),
        "min.NaN.f32" | "max.NaN.f32" if x.is_nan() || y.is_nan() => f32::NAN,
        "min.NaN.f32" => x.min(y),
        "max.NaN.f32" => x.max(y),
        "div.full.f32" => x / y,
        "div.approx.ftz.f32" => flushed(flushed(x) / flushed(y)),
        _ => return whole(opcode, a as i32, b as i32).map(|x| x as u32),
    };
    Some(number.to_bits())
}

fn whole(opcode: &str, a: i32, b: i32) -> Option<i32> {
    Some(match opcode {
        "add.s32" => a.wrapping_add(b),
        "sub.s32" => a.wrapping_sub(b),
        "add.sat.s32" => a.saturating_add(b),
        "sub.sat.s32" => a.saturating_sub(b),
        "mul.lo.s32" => a.wrapping_mul(b),
        // What PTX leaves open is unknown.
        "div.s32" => a.checked_div(b)?,
        "rem.s32" => a.checked_rem(b)?,
        "min.s32" => a.min(b),
        "max.s32" => a.max(b),
        "and.b32" => a & b,
        "or.b32" => a | b,
        "xor.b32" => a ^ b,
        "shl.b32" => a.checked_shl(b as u32).unwrap_or(0),
        "shr.s32" => a >> (b as u32).min(31),
        _ => return None,
    })
}

fn three(opcode: &str, a: u32, b: u32, c: u32) -> Option<u32> {
    Some(match opcode {
        "fma.rn.f32" => float(a).mul_add(float(b), float(c)).to_bits(),
        "mad.lo.s32" => a.wrapping_mul(b).wrapping_add(c),
        "selp.b32" => {
            if c != 0 {
                a
            } else {
                b
            }
        }
        _ => return None,
    })
}

fn wide(opcode: &str, args: &[u64]) -> Option<u64> {
    Some(match (opcode, args) {
        ("cvt.s64.s32", &[a]) => i64::from(a as i32) as u64,
        ("add.s64", &[a, b]) => a.wrapping_add(b),
        ("mul.lo.s64", &[a, b]) => a.wrapping_mul(b),
        ("mad.lo.s64", &[a, b, c]) => a.wrapping_mul(b).wrapping_add(c),
        ("shl.b64", &[a, b]) => a.checked_shl(b as u32).unwrap_or(0),
        ("mad.wide.s32", &[a, b, c]) => {
            let product = i64::from(a as i32) * i64::from(b as i32);
            c.wrapping_add(product as u64)
        }
        _ => return None,
    })
}

fn predicate(opcode: &str, args: &[u64]) -> Option<bool> {
    if let ("not.pred", &[p]) = (opcode, args) {
        return Some(p == 0);
    }
    let &[a, b] = args else { return None };
    let (i, j) = (a as i32, b as i32);
    let (x, y) = (float(a as u32), float(b as u32));
    Some(match opcode {
        "and.pred" => a & b != 0,
        "or.pred" => a | b != 0,
        "xor.pred" => a != b,
        "setp.lt.s32" => i < j,
        "setp.le.s32" => i <= j,
        "setp.gt.s32" => i > j,
        "setp.ge.s32" => i >= j,
        "setp.eq.s32" => i == j,
        "setp.ne.s32" => i != j,
        "setp.lt.u32" => (i as u32) < j as u32,
        "setp.ge.u32" => i as u32 >= j as u32,
        "setp.lt.f32" => x < y,
        "setp.le.f32" => x <= y,
        "setp.gt.f32" => x > y,
        "setp.eq.f32" => x == y,
        "setp.neu.f32" => x != y,
        "setp.geu.f32" => x >= y || x.is_nan() || y.is_nan(),
        "setp.gtu.f32" => x > y || x.is_nan() || y.is_nan(),
        _ => return None,
    })
}

/// The number that 16 bits are.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let mantissa = f32::from(bits & 0x3FF);
    sign * match bits >> 10 & 0x1F {
        0 => mantissa * 2.0_f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        exponent => (1024.0 + mantissa) * 2.0_f32.powi(i32::from(exponent) - 25),
    }
}
