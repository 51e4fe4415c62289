//! The suite of appends, the same for every backend: the caches, the queries and the lengths against the oracle, every other row of the cache as it
//! was, bit for bit.

mod steps;

pub use steps::{check_rounding, check_steps};

use ferroflash::error::PlanError;
use ferroflash::rotary::{Direction, QueryPositions};
use ferroflash::{Append, AppendInputs, AppendOutputs, Backend, Device, Dtype, Element, Error};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{F32_UNIT, bits, check_cases, judge_numbers, rounding};
use crate::buffer::{Buffer, Number};
use crate::cases::appends::{AppendCase, Sequence, Tables};
use crate::oracle;
use crate::sample;
use crate::subject::Subject;

/// Puts the subject through a set of appends; panics with every failure. `test` is the path of the test.
pub fn check(subject: &Subject, test: &str, cases: &[AppendCase]) {
    check_cases(subject, test, cases, |case| {
        match (case.dtype, case.fp8_kv) {
            (Dtype::Bf16, None) => typed::<bf16, bf16>(subject, case),
            (Dtype::F16, None) => typed::<f16, f16>(subject, case),
            (Dtype::F32, None) => typed::<f32, f32>(subject, case),
            (Dtype::Bf16, Some(_)) => typed::<bf16, F8E4M3>(subject, case),
            (Dtype::F16, Some(_)) => typed::<f16, F8E4M3>(subject, case),
            (Dtype::F32, Some(_)) => typed::<f32, F8E4M3>(subject, case),
        }
    });
}

/// New k, new v, q, and both caches as they are before.
struct Numbers {
    k_new: Vec<f64>,
    v_new: Vec<f64>,
    q: Vec<f64>,
    k_cache: Vec<f64>,
    v_cache: Vec<f64>,
}

/// What an append writes, dense.
#[derive(Debug)]
struct Written {
    q_out: Vec<f64>,
    k_cache: Vec<f64>,
    v_cache: Vec<f64>,
    seqused: Vec<i32>,
}

/// New rows of `T`, a cache of `C`.
fn typed<T: Element + Number, C: Number>(
    subject: &Subject,
    case: &AppendCase,
) -> Result<Option<f64>, String> {
    let problem = case.problem().map_err(|error| error.to_string())?;
    let (new, q, cache) = (
        problem.shape_new(),
        problem.shape_q(),
        problem.shape_cache(),
    );
    let read_q = if case.in_place || case.heads_q == 0 {
        [0; 4]
    } else {
        q
    };
    let eligible =
        subject.backend == Backend::Cpu || case.fits_kernel([new, new, read_q, q, cache]);
    let numbers = Numbers::new::<C>(case);
    let seed = case.seed.wrapping_add(sample::seed());
    let written = match run::<T, C>(&(subject.open)(seed)?, case, &numbers) {
        Err(Error::Plan(PlanError::Operation { verb: "append", .. })) if !eligible => {
            return Ok(None);
        }
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(error) => return Err(error.to_string()),
        Ok(written) => written?,
    };
    let close = judge(case, &numbers, &written)?;
    // Once more, on the emulator under another seed of its scheduler.
    let again = run::<T, C>(&(subject.open)(seed.wrapping_add(1))?, case, &numbers);
    let again = again.map_err(|error| error.to_string())??;
    let same = bits(&again.q_out) == bits(&written.q_out)
        && bits(&again.k_cache) == bits(&written.k_cache)
        && bits(&again.v_cache) == bits(&written.v_cache)
        && again.seqused == written.seqused;
    match same {
        true => Ok(Some(close)),
        false => Err("another run gave other bits".into()),
    }
}

impl Numbers {
    fn new<C: Number>(case: &AppendCase) -> Numbers {
        let total = case.total();
        let n_rows = |heads: usize| {
            let n_new = case.sequences().first().map_or(0, |own| own.len);
            total.unwrap_or(case.batch * n_new) * heads * case.head_dim
        };
        let rotated = case.rotary.map_or(0, |rotary| rotary.rotary_dim);
        let cache = |of| {
            let n = case.batch * case.seqlen_cache * case.heads_k * case.head_dim;
            let mut numbers = case.numbers(of, n, case.head_dim);
            let rows = numbers.chunks_mut((case.heads_k * case.head_dim).max(1));
            let sequences = case.sequences();
            // NaN in every row that is not used yet.
            for (at, row) in rows.enumerate() {
                let (sequence, row_idx) = (at / case.seqlen_cache, at % case.seqlen_cache);
                if row_idx >= sequences[sequence].before {
                    row.fill(f64::NAN);
                }
            }
            numbers.iter().map(|&x| C::of(x).value()).collect()
        };
        let mut numbers = Numbers {
            k_new: case.numbers(2, n_rows(case.heads_k), rotated),
            v_new: case.numbers(3, n_rows(case.heads_k), 0),
            q: case.numbers(4, n_rows(case.heads_q), rotated),
            k_cache: cache(5),
            v_cache: cache(6),
        };
        numbers.forget_rows_of_none(case);
        numbers
    }

    /// Packed rows of no sequence are NaN.
    fn forget_rows_of_none(&mut self, case: &AppendCase) {
        let Some(total) = case.total() else {
            return;
        };
        let sequences = case.sequences();
        let is_none = |row: usize| {
            !sequences
                .iter()
                .any(|own| (own.first..own.first + own.len).contains(&row))
        };
        for row in (0..total).filter(|&row| is_none(row)) {
            for (numbers, heads) in [
                (&mut self.k_new, case.heads_k),
                (&mut self.v_new, case.heads_k),
                (&mut self.q, case.heads_q),
            ] {
                let elems = heads * case.head_dim;
                numbers[row * elems..(row + 1) * elems].fill(f64::NAN);
            }
        }
    }
}

/// Appends on a device. The inner error says what was written that should not have been.
fn run<T: Element + Number, C: Number>(
    device: &Device,
    case: &AppendCase,
    numbers: &Numbers,
) -> Result<Result<Written, String>, Error> {
    let problem = case.problem()?;
    let append = Append::new(device, problem)?;
    let [k_new_at, v_new_at, q_at, q_out_at, cache_at] = case.arrangements;
    let (new, like_q, cache) = (
        problem.shape_new(),
        problem.shape_q(),
        problem.shape_cache(),
    );
    let k_new = Buffer::<T>::filled(&numbers.k_new, new, k_new_at)?;
    let v_new = Buffer::<T>::filled(&numbers.v_new, new, v_new_at)?;
    let q = Buffer::<T>::filled(&numbers.q, like_q, q_at)?;
    let mut q_out = match case.in_place {
        true => Buffer::<T>::filled(&numbers.q, like_q, q_out_at)?,
        false => Buffer::<T>::unwritten(like_q, q_out_at)?,
    };
    let mut k_cache = Buffer::<C>::filled(&case.pool(&numbers.k_cache), cache, cache_at)?;
    let mut v_cache = Buffer::<C>::filled(&case.pool(&numbers.v_cache), cache, cache_at)?;
    let sequences = case.sequences();
    let before: Vec<i32> = sequences.iter().map(|own| own.before as i32).collect();
    let mut seqused = vec![-1; case.batch];
    let (tables, cu_seqlens) = (case.tables(), case.cu_seqlens());
    let (k_new_view, v_new_view, q_view) = (k_new.view()?, v_new.view()?, q.view()?);
    let mut inputs = AppendInputs::new(&k_new_view, &v_new_view, &before);
    if let Some(Tables { cos, sin, .. }) = &tables {
        inputs = inputs.rotary(cos.slice(), sin.slice());
    }
    inputs.cu_seqlens_new = cu_seqlens.as_ref().map(Into::into);
    let page_table = case.page_table();
    inputs.page_table = page_table.as_ref().map(Into::into);
    let (k_scales, v_scales) = (case.scales(9), case.scales(10));
    inputs.k_descale = k_scales.as_ref().map(|scales| (&scales.numbers).into());
    inputs.v_descale = v_scales.as_ref().map(|scales| (&scales.numbers).into());
    let mut outputs = AppendOutputs::new(k_cache.view_mut()?, v_cache.view_mut()?);
    if case.heads_q > 0 {
        outputs = outputs.q_out(q_out.view_mut()?);
        inputs.q = (!case.in_place).then_some(q_view);
    }
    append.run(&inputs, &mut outputs.seqused_out(&mut seqused))?;
    // Without the lengths the same comes out.
    let mut alone = Buffer::<C>::filled(&case.pool(&numbers.k_cache), cache, cache_at)?;
    let mut outputs = AppendOutputs::new(alone.view_mut()?, v_cache.view_mut()?);
    let mut unused = match case.in_place {
        true => Buffer::<T>::filled(&numbers.q, like_q, q_out_at)?,
        false => Buffer::<T>::unwritten(like_q, q_out_at)?,
    };
    if case.heads_q > 0 {
        outputs = outputs.q_out(unused.view_mut()?);
    }
    append.run(&inputs, &mut outputs)?;
    let caches = [&k_cache, &v_cache, &alone].map(|cache| case.out_of_pool(&cache.values()));
    let [Some(k_rows), Some(v_rows), Some(alone)] = caches else {
        return Ok(Err("a row of no sequence's page was written to".into()));
    };
    let written = Written {
        q_out: q_out.values(),
        k_cache: k_rows,
        v_cache: v_rows,
        seqused,
    };
    let strayed = [q_out.strayed(), k_cache.strayed(), v_cache.strayed()];
    let strayed = strayed.iter().any(Option::is_some);
    Ok(if strayed {
        Err("memory beside the outputs was written to".into())
    } else if bits(&alone) != bits(&written.k_cache) {
        Err("without seqused_out, the cache has other bits".into())
    } else {
        Ok(written)
    })
}

/// A row of a head, where it was written.
pub(crate) struct Row<'a> {
    /// What was rotated or copied.
    pub from: &'a [f64],
    /// What came of it.
    pub to: &'a [f64],
    /// By which position it was rotated; `None`: it was copied.
    pub position: Option<usize>,
    /// By which scale it was divided before it was rounded to 8 bits.
    pub descale: Option<f32>,
}

/// The greatest number of e4m3.
const E4M3_MAX: f64 = 448.0;
/// The relative error of a rounding to e4m3, and that of its subnormal numbers.
const E4M3_ROUNDING: (f64, f64) = (1.0 / 16.0, 1.0 / 1024.0);

impl Row<'_> {
    /// Whether these elements were copied: with the same bits, or to the nearest numbers of 8 bits.
    fn is_copied(&self, from: usize) -> bool {
        let expected = self.from[from..].iter().map(|&x| match self.descale {
            None => x,
            Some(descale) => {
                let x = x as f32 * (1.0 / descale);
                F8E4M3::from_f32(x.clamp(-448.0, 448.0)).value()
            }
        });
        let expected: Vec<f64> = expected.collect();
        bits(&expected) == bits(&self.to[from..])
    }
}

/// How close a row came to the oracle's. What is copied has the same bits.
pub(crate) fn judge_row(
    dtype: Dtype,
    tables: Option<&Tables>,
    direction: Direction,
    row: &Row,
) -> Result<f64, String> {
    let (Some(position), Some(tables)) = (row.position, tables) else {
        return match row.is_copied(0) {
            true => Ok(0.0),
            false => Err("a copied row has other bits".into()),
        };
    };
    let (pairs, rotary_dim) = (tables.turns.pairs, tables.turns.rotary_dim);
    let of = |table: &crate::cases::appends::Table| table.at(position, rotary_dim / 2);
    let rotated = oracle::turn(
        row.from,
        pairs,
        direction,
        &of(&tables.cos),
        &of(&tables.sin),
    );
    if !row.is_copied(rotary_dim) {
        return Err("elements behind rotary_dim have other bits".into());
    }
    let (unit, smallest) = match row.descale {
        None => rounding(dtype),
        Some(_) => E4M3_ROUNDING,
    };
    // The reciprocal of the scale is rounded, and the product with it.
    let (factor, most, more) = match row.descale {
        None => (1.0, f64::INFINITY, 0.0),
        Some(descale) => (1.0 / f64::from(descale), E4M3_MAX, 2.0),
    };
    let exact: Vec<f64> = rotated.y.iter().map(|y| y * factor).collect();
    let allowed = |at: usize| {
        let of_f32 = 2.0 * rotated.terms[at] * factor + more * exact[at].abs();
        unit * exact[at].abs().min(most) + F32_UNIT * of_f32 + smallest
    };
    let cut: Vec<f64> = exact.iter().map(|y| y.clamp(-most, most)).collect();
    judge_numbers(&row.to[..rotary_dim], &cut[..rotary_dim], allowed)
}

/// Elements of a row of a head in a dense tensor of so many rows.
pub(crate) fn row_of(
    numbers: &[f64],
    [rows, heads, head_dim]: [usize; 3],
    [batch_idx, row, head]: [usize; 3],
) -> &[f64] {
    &numbers[((batch_idx * rows + row) * heads + head) * head_dim..][..head_dim]
}

/// Every row of every output.
fn judge(case: &AppendCase, numbers: &Numbers, written: &Written) -> Result<f64, String> {
    let (sequences, tables) = (case.sequences(), case.tables());
    let mut worst = 0.0f64;
    let mut touched = vec![false; case.batch * case.seqlen_cache];
    for (b, own) in sequences.iter().enumerate() {
        if written.seqused[b] as usize != own.before + own.len {
            return Err(format!("sequence {b} has length {}", written.seqused[b]));
        }
        for i in 0..own.len {
            touched[b * case.seqlen_cache + own.before + i] = true;
            let rows = rows(case, numbers, written, own, [b, i]);
            for (at, row) in rows.iter().enumerate() {
                let close = judge_row(case.dtype, tables.as_ref(), Direction::Forth, row);
                worst =
                    worst
                        .max(close.map_err(|failure| {
                            format!("sequence {b}, row {i}, {at}: {failure}")
                        })?);
            }
        }
    }
    // Every other row is as it was.
    let elems = (case.heads_k * case.head_dim).max(1);
    for (name, before, after) in [
        ("k", &numbers.k_cache, &written.k_cache),
        ("v", &numbers.v_cache, &written.v_cache),
    ] {
        let rows = before.chunks(elems).zip(after.chunks(elems));
        for (at, (before, after)) in rows.enumerate() {
            if !touched[at] && bits(before) != bits(after) {
                return Err(format!("row {at} of the cache of {name} was written to"));
            }
        }
    }
    untouched_queries(case, numbers, written)?;
    Ok(worst)
}

/// The rows that new row i of sequence b becomes: of q, of k, of v.
fn rows<'a>(
    case: &AppendCase,
    numbers: &'a Numbers,
    written: &'a Written,
    own: &Sequence,
    [b, i]: [usize; 2],
) -> Vec<Row<'a>> {
    let n_new = case.total().unwrap_or(own.len);
    let at = own.before + i;
    let rotated = case.rotary.map(|_| at);
    let scales = [9, 10].map(|of| case.scales(of));
    let [k_descale, v_descale] = scales
        .each_ref()
        .map(|scales| move |head| Some(case.scale_of(scales.as_ref()?, b, at, head)));
    let mut rows = Vec::new();
    for head in 0..case.heads_q {
        let (sizes, place) = (
            [n_new, case.heads_q, case.head_dim],
            [own.batch_idx, own.first + i, head],
        );
        rows.push(Row {
            from: row_of(&numbers.q, sizes, place),
            to: row_of(&written.q_out, sizes, place),
            position: Some(match case.query_positions {
                QueryPositions::Ascending => at,
                QueryPositions::First => own.before,
            }),
            descale: None,
        });
    }
    for head in 0..case.heads_k {
        let (sizes, place) = (
            [n_new, case.heads_k, case.head_dim],
            [own.batch_idx, own.first + i, head],
        );
        let (cache, place_there) = (
            [case.seqlen_cache, case.heads_k, case.head_dim],
            [b, at, head],
        );
        rows.push(Row {
            from: row_of(&numbers.k_new, sizes, place),
            to: row_of(&written.k_cache, cache, place_there),
            position: rotated,
            descale: k_descale(head),
        });
        rows.push(Row {
            from: row_of(&numbers.v_new, sizes, place),
            to: row_of(&written.v_cache, cache, place_there),
            position: None,
            descale: v_descale(head),
        });
    }
    rows
}

/// Packed rows of no sequence: q_out is as it was, NaN.
fn untouched_queries(
    case: &AppendCase,
    numbers: &Numbers,
    written: &Written,
) -> Result<(), String> {
    let elems = (case.heads_q * case.head_dim).max(1);
    let is_none = |row: &[f64]| row.iter().all(|x| x.is_nan());
    let rows = numbers.q.chunks(elems).zip(written.q_out.chunks(elems));
    for (at, (before, after)) in rows.enumerate() {
        if is_none(before) && bits(before) != bits(after) {
            return Err(format!("row {at} of q_out is of no sequence"));
        }
    }
    Ok(())
}
