//! Rows rotated by a rotary position embedding, and rows appended to a cache.
//!
//! A *line* is a row of one head. It is computed from its own elements alone, so the results do not depend on the number of threads.

use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{missing, on_host, output, pool, vector};
use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Dtype, Element, ScalarType};
use crate::error::{Error, ProblemError, RotaryError};
use crate::lengths::new_rows::{NewSpan, of_append, of_rotate};
use crate::lengths::{Paged, scale_entry};
use crate::problem::Fp8Kv;
use crate::problem::append::AppendProblem;
use crate::problem::rotate::RotateProblem;
use crate::quantize::code_of;
use crate::tensor::{Layout, Tensor, TensorMut};
use crate::terms::{Direction, Pairs, Positions, QueryPositions, Turns};
use crate::validate::rotary::{check_append, check_rotate};

/// How rows are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// `[positions, n_pairs]`.
    pub(crate) cos: &'a [f32],
    /// The same.
    pub(crate) sin: &'a [f32],
    /// Pairs of a row.
    pub(crate) n_pairs: usize,
    /// The elements that form pairs.
    pub(crate) pairs: Pairs,
    /// The direction of the rotation.
    pub(crate) direction: Direction,
}

/// Rotates the rows of x into y: tensors on the host, of one shape and type, whose rows have the elements that form pairs. The tables have the positions.
pub(crate) fn turn(
    turn: Turn,
    positions: Positions,
    x: &Tensor,
    y: &mut TensorMut,
) -> Result<(), RotaryError> {
    pool::install(|| match x.describe().dtype {
        ScalarType::Float(Dtype::Bf16) => turn_typed::<bf16>(turn, positions, x, y),
        ScalarType::Float(Dtype::F16) => turn_typed::<f16>(turn, positions, x, y),
        _ => turn_typed::<f32>(turn, positions, x, y),
    })
}

fn turn_typed<T: Element>(
    turn: Turn,
    positions: Positions,
    x: &Tensor,
    y: &mut TensorMut,
) -> Result<(), RotaryError> {
    let (from, to) = (x.layout(), y.layout());
    let overlapping = RotaryError::Overlapping { given: to };
    let (Some(x), Some(y)) = (x.host::<T>(), y.host::<T>()) else {
        return Ok(());
    };
    let [batch, seqlen, heads, head_dim] = from.shape();
    let mut lines = Vec::new();
    for (batch_idx, row) in (0..batch).flat_map(|b| (0..seqlen).map(move |row| (b, row))) {
        let position = match positions {
            Positions::From(first) => first + row,
            Positions::FromEach(firsts) => firsts[batch_idx] as usize + row,
            Positions::OfRows(rows) => rows[batch_idx * seqlen + row] as usize,
        };
        let at = |layout: &Layout, head| place(layout, batch_idx, head, row);
        lines.extend((0..heads).map(|head| Line {
            from: at(&from, head),
            to: at(&to, head),
            position: Some(position),
            factor: 1.0,
        }));
    }
    write(lines, head_dim, Some(x), y, Some(turn)).ok_or(overlapping)
}

/// Rotates the rows of a tensor, or those of its output in place. The arguments have passed [`crate::validate`] for this problem and lie on
/// the host; an error says which one has not or does not.
pub(crate) fn rotate(
    problem: &RotateProblem,
    direction: Direction,
    operands: &mut Operands,
) -> Result<(), Error> {
    on_host(check_rotate(problem, operands.describe())?.location())?;
    pool::install(|| match problem.dtype() {
        Dtype::Bf16 => rotate_typed::<bf16>(problem, direction, operands),
        Dtype::F16 => rotate_typed::<f16>(problem, direction, operands),
        Dtype::F32 => rotate_typed::<f32>(problem, direction, operands),
    })?;
    Ok(())
}

fn rotate_typed<T: Element>(
    problem: &RotateProblem,
    direction: Direction,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let spans = of_rotate(problem, operands)?;
    let turn = tables(problem.turns(), direction, operands)?;
    let ascending = |span: &NewSpan, i: usize| Some(span.before + i);
    turn_rows::<T>(
        [Argument::X, Argument::Y],
        &spans,
        operands,
        turn,
        ascending,
    )
}

/// Appends rows to a cache, and rotates them and the queries, if asked to. The arguments have passed [`crate::validate`] for this
/// problem and lie on the host; an error says which one has not or does not.
pub(crate) fn append(problem: &AppendProblem, operands: &mut Operands) -> Result<(), Error> {
    on_host(check_append(problem, operands.describe())?.location())?;
    pool::install(|| match problem.dtype() {
        Dtype::Bf16 => append_typed::<bf16>(problem, operands),
        Dtype::F16 => append_typed::<f16>(problem, operands),
        Dtype::F32 => append_typed::<f32>(problem, operands),
    })?;
    Ok(())
}

fn append_typed<T: Element>(
    problem: &AppendProblem,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let spans = of_append(problem, operands)?;
    let turn = match problem.turns() {
        Some(turns) => Some(tables(turns, Direction::Forth, operands)?),
        None => None,
    };
    if let Some(turn) = turn
        && problem.heads_q() > 0
    {
        let names = [Argument::Q, Argument::QOut];
        turn_rows::<T>(names, &spans, operands, turn, |span, i| {
            Some(match problem.query_positions() {
                QueryPositions::Ascending => span.before + i,
                QueryPositions::First => span.before,
            })
        })?;
    }
    let pages = Paged::of_append(problem, operands)?;
    let appended = [
        (Argument::KNew, Argument::KCache, Argument::KDescale, turn),
        (Argument::VNew, Argument::VCache, Argument::VDescale, None),
    ];
    for (from, to, descale, turn) in appended {
        let scales = match problem.fp8_kv() {
            Some(of) => {
                let values = vector::<f32>(operands, descale).ok_or(missing(descale))?;
                Some((of, values))
            }
            None => None,
        };
        append_rows::<T>([from, to], &spans, operands, turn, pages, scales)?;
    }
    if let Some(Operand::VectorMut(mut seqused)) = operands.take(Argument::SeqUsedOut) {
        let argument = Argument::SeqUsedOut;
        let seqused = seqused.host::<i32>().ok_or(missing(argument))?;
        for (seqused, span) in seqused.iter_mut().zip(&spans) {
            // Checked: it is no more than a length that was given as i32, or a size of the tensor.
            *seqused = i32::try_from(span.before + span.rows.len)
                .map_err(|_| ProblemError::SizeOverflow { what: "a length" })?;
        }
    }
    Ok(())
}

/// The tables that a call was given.
fn tables<'a>(
    turns: Turns,
    direction: Direction,
    operands: &mut Operands<'a>,
) -> Result<Turn<'a>, ProblemError> {
    let mut table = |argument| vector::<f32>(operands, argument).ok_or(missing(argument));
    Ok(Turn {
        cos: table(Argument::Cos)?,
        sin: table(Argument::Sin)?,
        n_pairs: turns.rotary_dim / 2,
        pairs: turns.pairs,
        direction,
    })
}

/// A tensor to read, if there is one.
fn input<'a, T: Element>(
    operands: &mut Operands<'a>,
    argument: Argument,
) -> Option<(&'a [T], Layout)> {
    match operands.take(argument) {
        Some(Operand::Tensor(tensor)) => Some((tensor.host()?, tensor.layout())),
        _ => None,
    }
}

/// The rows of sequences rotated, in place without an input.
fn turn_rows<T: Element>(
    [from, to]: [Argument; 2],
    spans: &[NewSpan],
    operands: &mut Operands,
    turn: Turn,
    position: impl Fn(&NewSpan, usize) -> Option<usize>,
) -> Result<(), ProblemError> {
    let input = input::<T>(operands, from);
    let mut output = output(operands, to)?;
    let layout = output.layout();
    let read = input.map_or(layout, |(_, layout)| layout);
    let lines = lines(spans, layout.heads, |span, i, head| {
        let (batch_idx, row) = (span.rows.batch_idx, span.rows.first + i);
        Line {
            from: place(&read, batch_idx, head, row),
            to: place(&layout, batch_idx, head, row),
            position: position(span, i),
            factor: 1.0,
        }
    });
    let written = output.host::<T>().ok_or(missing(to))?;
    let input = input.map(|(data, _)| data);
    write(lines, layout.head_dim, input, written, Some(turn)).ok_or(ProblemError::OutputAliases {
        argument: to,
        layout,
    })
}

/// The rows of sequences written after those that a cache has, rotated and rounded to 8 bits if asked to.
fn append_rows<T: Element>(
    [from, to]: [Argument; 2],
    spans: &[NewSpan],
    operands: &mut Operands,
    turn: Option<Turn>,
    pages: Option<Paged>,
    scales: Option<(Fp8Kv, &[f32])>,
) -> Result<(), ProblemError> {
    let (data, read) = input::<T>(operands, from).ok_or(missing(from))?;
    let mut output = output(operands, to)?;
    let layout = output.layout();
    let lines = lines(spans, layout.heads, |span, i, head| {
        let row = span.before + i;
        let descale = scales.map(|(of, values)| {
            values[scale_entry(of, pages, span.sequence, row) * layout.heads + head]
        });
        Line {
            from: place(&read, span.rows.batch_idx, head, span.rows.first + i),
            to: place_in_cache(&layout, pages, span.sequence, head, row),
            position: turn.map(|_| row),
            factor: descale.map_or(1.0, |descale| 1.0 / descale),
        }
    });
    let written = match scales {
        Some(_) => {
            let written = output.host::<F8E4M3>().ok_or(missing(to))?;
            write_in_8_bits(lines, layout.head_dim, data, written, turn)
        }
        None => {
            let written = output.host::<T>().ok_or(missing(to))?;
            write(lines, layout.head_dim, Some(data), written, turn)
        }
    };
    written.ok_or(ProblemError::OutputAliases {
        argument: to,
        layout,
    })
}

/// A row of one head: where its elements begin, and by which position they are rotated; `None`: they are copied.
#[derive(Clone, Copy, Debug)]
struct Line {
    from: usize,
    to: usize,
    position: Option<usize>,
    /// What elements are multiplied by before they are rounded to 8 bits.
    factor: f32,
}

/// Those of every row and head.
fn lines(
    spans: &[NewSpan],
    heads: usize,
    line: impl Fn(&NewSpan, usize, usize) -> Line,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for span in spans {
        for i in 0..span.rows.len {
            lines.extend((0..heads).map(|head| line(span, i, head)));
        }
    }
    lines
}

/// Where a row of a tensor begins.
fn place(layout: &Layout, batch_idx: usize, head: usize, row: usize) -> usize {
    batch_idx * layout.batch_stride + row * layout.row_stride + head * layout.head_stride
}

/// Where a row of a cache begins: the one function that knows where a sequence's rows are.
fn place_in_cache(
    layout: &Layout,
    pages: Option<Paged>,
    sequence: usize,
    head: usize,
    row: usize,
) -> usize {
    let Some(paged) = pages else {
        return place(layout, sequence, head, row);
    };
    let page = paged.page_of(sequence, row);
    place(layout, page, head, row % paged.page_size())
}

/// Writes lines, in place if there is no input. `None` if they overlap or exceed the memory.
fn write<T: Element>(
    lines: Vec<Line>,
    head_dim: usize,
    from: Option<&[T]>,
    to: &mut [T],
    turn: Option<Turn>,
) -> Option<()> {
    let written = apart(lines, head_dim, from, to)?;
    written
        .into_par_iter()
        .for_each_init(Vec::new, |own, (line, x, y)| {
            let x = x.unwrap_or_else(|| {
                own.clear();
                own.extend_from_slice(y);
                own
            });
            match (turn, line.position) {
                (Some(turn), Some(position)) => {
                    y[2 * turn.n_pairs..].copy_from_slice(&x[2 * turn.n_pairs..]);
                    turn.row(position, x, |at, number| y[at] = T::from_f32(number));
                }
                _ => y.copy_from_slice(x),
            }
        });
    Some(())
}

/// Writes lines, rounded to 8 bits. `None` if they overlap or exceed the memory.
fn write_in_8_bits<T: Element>(
    lines: Vec<Line>,
    head_dim: usize,
    from: &[T],
    to: &mut [F8E4M3],
    turn: Option<Turn>,
) -> Option<()> {
    let written = apart(lines, head_dim, Some(from), to)?;
    written
        .into_par_iter()
        .for_each_init(Vec::new, |numbers, (line, x, y)| {
            let x = x.unwrap_or_default();
            numbers.clear();
            numbers.extend(x.iter().map(|x| x.to_f32()));
            if let (Some(turn), Some(position)) = (turn, line.position) {
                turn.row(position, x, |at, number| numbers[at] = number);
            }
            for (y, number) in y.iter_mut().zip(numbers) {
                *y = code_of(*number * line.factor);
            }
        });
    Some(())
}

/// A line, what is read, and what is written.
type Written<'a, T, U> = (Line, Option<&'a [T]>, &'a mut [U]);

/// The elements of lines, in the order of memory, so that it can be divided among threads. `None` if they overlap or exceed the memory.
fn apart<'a, T, U>(
    mut lines: Vec<Line>,
    head_dim: usize,
    from: Option<&'a [T]>,
    to: &'a mut [U],
) -> Option<Vec<Written<'a, T, U>>> {
    lines.sort_unstable_by_key(|line| line.to);
    let (mut rest, mut passed) = (to, 0);
    let mut written = Vec::with_capacity(lines.len());
    for line in lines {
        let (_, behind) = rest.split_at_mut_checked(line.to.checked_sub(passed)?)?;
        let (y, after) = behind.split_at_mut_checked(head_dim)?;
        let x = match from {
            Some(from) => Some(from.get(line.from..)?.get(..head_dim)?),
            None => None,
        };
        written.push((line, x, y));
        rest = after;
        passed = line.to + head_dim;
    }
    Some(written)
}

impl Turn<'_> {
    /// The numbers of the pairs of a row, at a position: `put` takes each with its index.
    fn row<T: Element>(&self, position: usize, x: &[T], mut put: impl FnMut(usize, f32)) {
        let n_pairs = self.n_pairs;
        let of_position = position * n_pairs..(position + 1) * n_pairs;
        let angles = self.cos[of_position.clone()]
            .iter()
            .zip(&self.sin[of_position]);
        for (i, (&cos, &sin)) in angles.enumerate() {
            let (first, second) = match self.pairs {
                Pairs::Halves => (i, i + n_pairs),
                Pairs::Interleaved => (2 * i, 2 * i + 1),
            };
            let sin = match self.direction {
                Direction::Forth => sin,
                Direction::Back => -sin,
            };
            let (a, b) = (x[first].to_f32(), x[second].to_f32());
            put(first, a * cos - b * sin);
            put(second, a * sin + b * cos);
        }
    }
}
