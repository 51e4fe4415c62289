//! The suite of roundings to 8 bits, the same for every backend, against f64.

use ferroflash::error::PlanError;
use ferroflash::quantize::Operand;
use ferroflash::{
    Backend, Device, Dtype, Element, Error, Quantize, QuantizeInputs, QuantizeOutputs, Tensor,
};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{F32_UNIT, bits, check_one_in};
use crate::buffer::{Buffer, Number};
use crate::cases::quantize::QuantizeCase;
use crate::sample;
use crate::subject::Subject;
use crate::trial::Rows;

/// The greatest number of e4m3.
const GREATEST: f64 = 448.0;

/// The least scale.
const LEAST_DESCALE: f64 = 1.0 / (1u64 << 60) as f64;

/// Puts the subject through a set of roundings; panics with every failure. `test` is the path of the test.
pub fn check(subject: &Subject, test: &str, cases: &[QuantizeCase]) {
    check_one_in(3, subject, test, cases, |case| match case.dtype {
        Dtype::Bf16 => typed::<bf16>(subject, case),
        Dtype::F16 => typed::<f16>(subject, case),
        Dtype::F32 => typed::<f32>(subject, case),
    });
}

/// What a call writes.
struct Written {
    rounded: Vec<f64>,
    descale: Vec<f32>,
    amax: Vec<f32>,
}

fn typed<T: Element + Number>(
    subject: &Subject,
    case: &QuantizeCase,
) -> Result<Option<f64>, String> {
    let eligible = subject.backend == Backend::Cpu || case.fits_kernels();
    let seed = case.seed.wrapping_add(sample::seed());
    let written = match run::<T>(&(subject.open)(seed)?, case, true) {
        Err(Error::Plan(PlanError::Operation {
            verb: "quantize", ..
        })) if !eligible => {
            return Ok(None);
        }
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(error) => return Err(error.to_string()),
        Ok(written) => written?,
    };
    let close = judge(case, &written)?;
    // Once more, on the emulator under another seed of its scheduler, and without amax.
    let again = run::<T>(&(subject.open)(seed.wrapping_add(1))?, case, false);
    let again = again.map_err(|error| error.to_string())??;
    if bits(&again.rounded) != bits(&written.rounded) || again.descale != written.descale {
        return Err("without amax, other bits were written".into());
    }
    if case.given {
        // Given or found, scales change no bit of amax.
        let found = QuantizeCase {
            given: false,
            ..case.clone()
        };
        let found = run::<T>(&(subject.open)(seed.wrapping_add(2))?, &found, true);
        let found = found.map_err(|error| error.to_string())??;
        if found
            .amax
            .iter()
            .map(|x| x.to_bits())
            .ne(written.amax.iter().map(|x| x.to_bits()))
        {
            return Err("beside scales that are found, amax has other bits".into());
        }
    }
    Ok(Some(close))
}

/// Rounds on a device. The inner error says what was written that should not have been.
fn run<T: Element + Number>(
    device: &Device,
    case: &QuantizeCase,
    wants_amax: bool,
) -> Result<Result<Written, String>, Error> {
    let (shape, [x_at, rounded_at]) = (case.shape(), case.arrangements);
    let quantize = Quantize::new(device, case.problem())?;
    let x = Buffer::<T>::filled(&case.values(), shape, x_at)?;
    let mut rounded = Buffer::<F8E4M3>::unwritten(shape, rounded_at)?;
    let [mut descale, mut amax] = [0; 2].map(|_| Rows::unwritten(case.n_scales()));
    let (cu_seqlens, given) = (case.cu_seqlens(), case.descale());
    let mut inputs = QuantizeInputs::new(&x.view()?);
    inputs.cu_seqlens = cu_seqlens.as_ref().map(Into::into);
    let outputs = rounded.view_mut()?;
    let mut outputs = match case.given {
        true => {
            inputs = inputs.descale(&given);
            QuantizeOutputs::of_given_descale(outputs)
        }
        false => QuantizeOutputs::new(outputs, descale.slice_mut()),
    };
    if wants_amax {
        outputs = outputs.amax(amax.slice_mut());
    }
    quantize.run(&inputs, &mut outputs)?;
    if rounded.strayed().is_some() || descale.strayed() || amax.strayed() {
        return Ok(Err("memory beside the outputs was written to".into()));
    }
    Ok(Ok(Written {
        rounded: rounded.values(),
        descale: match case.given {
            true => given,
            false => descale.slice().to_vec(),
        },
        amax: amax.slice().to_vec(),
    }))
}

/// The largest error, as a part of what is allowed.
fn judge(case: &QuantizeCase, written: &Written) -> Result<f64, String> {
    let expected = Expected::new(case)?;
    for scale in 0..case.n_scales() {
        judge_scale(case, written, &expected, scale)?;
    }
    let mut worst = 0f64;
    for (at, &code) in written.rounded.iter().enumerate() {
        let Some(scale) = expected.scales[at] else {
            if !code.is_nan() {
                return Err(format!("number {at}, of no sequence, was written"));
            }
            continue;
        };
        let descale = f64::from(written.descale[scale]);
        let x = expected.rotated.values[at];
        let becomes_nan = match case.given {
            true => x.is_nan(),
            false => !expected.amax[scale].is_finite(),
        };
        if becomes_nan {
            if !code.is_nan() {
                return Err(format!("number {at} is {code}, beside what is not finite"));
            }
            continue;
        }
        let y = (x / descale).clamp(-GREATEST, GREATEST);
        let exponent = y.abs().log2().floor().max(-6.0);
        let step = (exponent - 3.0).exp2();
        // The inverse of the scale and the product are rounded.
        let allowed = 0.5 * step + 4.0 * F32_UNIT * y.abs() + expected.rotated.slack[at] / descale;
        let error = (code - y).abs();
        if error.is_nan() || error > allowed {
            return Err(format!("number {at} is {code} instead of {y}"));
        }
        worst = worst.max(error / allowed);
    }
    Ok(worst)
}

/// amax is that of the numbers, exactly where no sum was rounded, and the scale follows from it exactly.
fn judge_scale(
    case: &QuantizeCase,
    written: &Written,
    expected: &Expected,
    scale: usize,
) -> Result<(), String> {
    let (reference, slack) = (expected.amax[scale], expected.slack[scale]);
    let (amax, descale) = (
        f64::from(written.amax[scale]),
        f64::from(written.descale[scale]),
    );
    let close = match reference.is_finite() {
        true => (amax - reference).abs() <= slack,
        false => {
            !amax.is_finite() && (case.hadamard.is_some() || amax.is_nan() == reference.is_nan())
        }
    };
    if !close {
        return Err(format!("amax {scale} is {amax} instead of {reference}"));
    }
    let of_amax = f64::from((amax / GREATEST) as f32).max(LEAST_DESCALE);
    let needed = match case.power_of_2 {
        _ if amax == 0.0 || !amax.is_finite() => Some(1.0),
        true => (0..)
            .map(|n| LEAST_DESCALE * 2f64.powi(n))
            .find(|&power| power >= of_amax),
        false => Some(of_amax),
    };
    match case.given || needed == Some(descale) {
        true => Ok(()),
        false => Err(format!(
            "descale {scale} is {descale} instead of {needed:?}"
        )),
    }
}

/// What the numbers and the greatest of them are, in f64.
struct Expected {
    rotated: Rotated,
    /// The scale of each number; `None`: it is of no sequence.
    scales: Vec<Option<usize>>,
    /// The greatest magnitude of each scale's numbers.
    amax: Vec<f64>,
    /// How far each of these may be off.
    slack: Vec<f64>,
}

impl Expected {
    fn new(case: &QuantizeCase) -> Result<Expected, String> {
        let rotated = Rotated::new(case)?;
        let [_, seqlen, heads, head_dim] = case.shape();
        let group_size = heads.checked_div(case.sizes[1]).unwrap_or(1);
        let mut scales = vec![None; rotated.values.len()];
        let [mut amax, mut slack] = [0; 2].map(|_| vec![0f64; case.n_scales()]);
        for (sequence, (batch_idx, rows)) in case.spans().into_iter().enumerate() {
            let begin = rows.start;
            for (row, head) in rows.flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let scale = case.scale(sequence, head / group_size, row - begin);
                let first = ((batch_idx * seqlen + row) * heads + head) * head_dim;
                let row = first..first + head_dim;
                scales[row.clone()].fill(Some(scale));
                let sizes = rotated.values[row.clone()].iter().map(|x| x.abs());
                amax[scale] = sizes.fold(amax[scale], greater);
                let slacks = rotated.slack[row].iter().copied();
                slack[scale] = slacks.fold(slack[scale], f64::max);
            }
        }
        Ok(Expected {
            rotated,
            scales,
            amax,
            slack,
        })
    }
}

/// The greater one; NaN is the greatest.
fn greater(a: f64, b: f64) -> f64 {
    if a.is_nan() || a >= b { a } else { b }
}

/// The numbers that are rounded, in f64.
struct Rotated {
    values: Vec<f64>,
    /// How far each may be off, as sums are rounded.
    slack: Vec<f64>,
}

impl Rotated {
    fn new(case: &QuantizeCase) -> Result<Rotated, String> {
        let values = case.values();
        let Some(seed) = case.hadamard else {
            let slack = vec![0.0; values.len()];
            return Ok(Rotated { values, slack });
        };
        let [.., head_dim] = case.shape();
        let width = 1 << head_dim.trailing_zeros();
        let signs = signs(seed, head_dim).map_err(|error| error.to_string())?;
        let unit = 1.0 / (width as f64).sqrt();
        let mut rotated = Rotated {
            values: Vec::new(),
            slack: Vec::new(),
        };
        for row in values.chunks_exact(head_dim.max(1)) {
            for to in 0..head_dim {
                let block = to / width * width;
                let terms = (block..block + width).map(|from| {
                    let is_odd = ((from - block) & (to - block)).count_ones() % 2 == 1;
                    row[from] * signs[from] * if is_odd { -unit } else { unit }
                });
                rotated.values.push(terms.clone().sum());
                let size: f64 = terms.map(f64::abs).sum();
                rotated.slack.push(10.0 * F32_UNIT * size);
            }
        }
        Ok(rotated)
    }
}

/// The signs of columns before a Hadamard transform: what it makes of the rows of the unit matrix has them in its first column.
fn signs(seed: Option<u64>, head_dim: usize) -> Result<Vec<f64>, Error> {
    let width = 1 << head_dim.trailing_zeros();
    let mut unit = vec![0f32; head_dim * head_dim];
    (0..head_dim).for_each(|at| unit[at * head_dim + at] = 1.0);
    let rows = Tensor::bshd(&unit, [1, head_dim, 1, head_dim])?;
    let rotated = Operand::q(&rows, 1)?.hadamard(seed)?;
    let sign = |at: usize| f64::from(rotated.values()[at * head_dim + at / width * width]);
    Ok((0..head_dim).map(|at| sign(at).signum()).collect())
}
