//! The suite of rotations, the same for every backend: forth and back against the oracle, at positions from 0 on and from offsets on.

use ferroflash::error::PlanError;
use ferroflash::rotary::Direction;
use ferroflash::{Backend, Device, Dtype, Element, Error, Rotate, RotateInputs};
use half::{bf16, f16};

use crate::append::{Row, judge_row, row_of};
use crate::beside::{bits, check_cases};
use crate::buffer::{Buffer, Number};
use crate::cases::appends::{AppendCase, Tables};
use crate::sample;
use crate::subject::Subject;

/// Puts the subject through the rotations of q of a set of appends, those that turn some; panics with every failure. `test` is the path of the
/// test.
pub fn check(subject: &Subject, test: &str, cases: &[AppendCase]) {
    let turns = |case: &&AppendCase| case.rotary.is_some() && case.heads_q > 0;
    // Nothing is written in 8 bits.
    let cases = cases.iter().filter(turns).map(|&case| AppendCase {
        fp8_kv: None,
        ..case
    });
    let cases: Vec<AppendCase> = cases.collect();
    check_cases(subject, test, &cases, |case| {
        let of = |direction, has_offsets| match case.dtype {
            Dtype::Bf16 => typed::<bf16>(subject, case, direction, has_offsets),
            Dtype::F16 => typed::<f16>(subject, case, direction, has_offsets),
            Dtype::F32 => typed::<f32>(subject, case, direction, has_offsets),
        };
        let forth = of(Direction::Forth, case.seed % 4 != 0)?;
        let back = of(Direction::Back, case.seed % 4 != 1)?;
        Ok(forth.zip(back).map(|(forth, back)| forth.max(back)))
    });
}

fn typed<T: Element + Number>(
    subject: &Subject,
    case: &AppendCase,
    direction: Direction,
    has_offsets: bool,
) -> Result<Option<f64>, String> {
    let rotation = case.rotation().ok_or("nothing is rotated")?;
    let shape = rotation.shape();
    let read = if case.in_place { [0; 4] } else { shape };
    let eligible =
        subject.backend == Backend::Cpu || case.fits_kernel([[0; 4], [0; 4], read, shape, [0; 4]]);
    let rotated = case.rotary.map_or(0, |rotary| rotary.rotary_dim);
    let x = case.numbers(4, shape.iter().product(), rotated);
    let seed = case.seed.wrapping_add(sample::seed());
    let device = (subject.open)(seed)?;
    let y = match run::<T>(&device, case, direction, has_offsets, &x) {
        Err(Error::Plan(PlanError::Operation { verb: "rotate", .. })) if !eligible => {
            return Ok(None);
        }
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(error) => return Err(error.to_string()),
        Ok(y) => y?,
    };
    judge(case, direction, has_offsets, &x, &y).map(Some)
}

/// Turns on a device. The inner error says what was written that should not have been.
fn run<T: Element + Number>(
    device: &Device,
    case: &AppendCase,
    direction: Direction,
    has_offsets: bool,
    x: &[f64],
) -> Result<Result<Vec<f64>, String>, Error> {
    let Some((problem, Tables { cos, sin, .. })) = case.rotation().zip(case.tables()) else {
        return Ok(Err("nothing is rotated".into()));
    };
    let [.., x_at, y_at, _] = case.arrangements;
    let from = Buffer::<T>::filled(x, problem.shape(), x_at)?;
    let mut y = match case.in_place {
        true => Buffer::<T>::filled(x, problem.shape(), y_at)?,
        false => Buffer::<T>::unwritten(problem.shape(), y_at)?,
    };
    let view = from.view()?;
    let mut inputs = match case.in_place {
        true => RotateInputs::in_place(cos.slice(), sin.slice()),
        false => RotateInputs::new(&view, cos.slice(), sin.slice()),
    };
    let sequences = case.sequences();
    let offsets: Vec<i32> = sequences.iter().map(|own| own.before as i32).collect();
    let cu_seqlens = case.cu_seqlens();
    inputs.cu_seqlens = cu_seqlens.as_ref().map(Into::into);
    inputs.seqlen_offsets = has_offsets.then_some((&offsets).into());
    let rotate = Rotate::new(device, problem)?;
    let mut to = y.view_mut()?;
    match direction {
        Direction::Forth => rotate.forward(&inputs, &mut to)?,
        Direction::Back => rotate.backward(&inputs, &mut to)?,
    };
    Ok(match y.strayed() {
        Some(_) => Err("memory beside the output was written to".into()),
        None => Ok(y.values()),
    })
}

/// Every row; those of no sequence are as they were.
fn judge(
    case: &AppendCase,
    direction: Direction,
    has_offsets: bool,
    x: &[f64],
    y: &[f64],
) -> Result<f64, String> {
    let tables = case.tables();
    let (mut worst, mut seen) = (0.0f64, Vec::new());
    for own in case.sequences() {
        let sizes = [case.total().unwrap_or(own.len), case.heads_q, case.head_dim];
        for (i, head) in (0..own.len).flat_map(|i| (0..case.heads_q).map(move |head| (i, head))) {
            let place = [own.batch_idx, own.first + i, head];
            seen.push(place[1]);
            let row = Row {
                from: row_of(x, sizes, place),
                to: row_of(y, sizes, place),
                position: Some(if has_offsets { own.before + i } else { i }),
                descale: None,
            };
            let close = judge_row(case.dtype, tables.as_ref(), direction, &row);
            worst = worst.max(close.map_err(|failure| format!("{place:?}: {failure}"))?);
        }
    }
    let none = (0..case.total().unwrap_or(0)).filter(|row| !seen.contains(row));
    for row in none {
        for head in 0..case.heads_q {
            let sizes = [0, case.heads_q, case.head_dim];
            let after = row_of(y, sizes, [0, row, head]);
            let before = row_of(x, sizes, [0, row, head]);
            let is_as_it_was = match case.in_place {
                true => bits(after) == bits(before),
                false => after.iter().all(|y| y.is_nan()),
            };
            if !is_as_it_was {
                return Err(format!("row {row} is of no sequence and was written to"));
            }
        }
    }
    Ok(worst)
}
