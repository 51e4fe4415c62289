//! Queries, keys and values in 8 bits against the oracle, which has what they stand for. Gradients: of that rounded to the type of o.

use ferroflash::error::ProblemError;
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Element, Inputs, OutputGradients, Problem, Saved,
};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::e4m3::{E4m3Case, PAGE_SIZE};
use crate::edits::{self, Edits};
use crate::inputs::Values;
use crate::oracle::{Gradients, Output};
use crate::pages::output;
use crate::reference::Reference;
use crate::sample;
use crate::subject::Subject;
use crate::tolerance::Arithmetic;
use crate::trial::{Refusal, Results, Rows, Vectors, refusal};

/// Puts the subject through those cases of a set that have these numbers; panics with every failure.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[E4m3Case],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, case, |_| ())
    });
}

/// The numbers, as `f64` that are exact, and the scales, of q, k and v.
struct Codes {
    codes: [Vec<f64>; 3],
    scales: [Vec<f32>; 3],
}

impl Codes {
    /// Of a case's inputs, which become what the numbers stand for. Rows of no sequence are NaN.
    fn new(e4m3: &E4m3Case, values: &mut Values) -> Codes {
        let sizes = e4m3.case.sizes;
        let (scales, [of_q, of_k]) = (e4m3.scales(), e4m3.spans());
        let group_size = sizes.heads_q.checked_div(sizes.heads_k).unwrap_or(1);
        let mut codes = [&values.q, &values.k, &values.v].map(|x| vec![f64::NAN; x.len()]);
        // The last number says which side it is.
        let tensors = [
            (&mut values.q, &of_q, sizes.heads_q, group_size, 0),
            (&mut values.k, &of_k, sizes.heads_k, 1, 1),
            (&mut values.v, &of_k, sizes.heads_k, 1, 1),
        ];
        for ((stands_for, spans, heads, group_size, side), (codes, scales)) in
            tensors.into_iter().zip(codes.iter_mut().zip(&scales))
        {
            for (sequence, span) in spans.iter().enumerate() {
                for row in span.first..span.first + span.len {
                    for head in 0..heads {
                        let of_sides = e4m3.scale(sequence, head / group_size, row - span.first);
                        let scale = f64::from(scales[of_sides[side]]);
                        let at = (row * heads + head) * sizes.head_dim;
                        for at in at..at + sizes.head_dim {
                            // Normally distributed numbers use most of the range.
                            let code = F8E4M3::from_f64(stands_for[at] * 60.0).to_f64();
                            codes[at] = code;
                            stands_for[at] = code * scale;
                        }
                    }
                }
            }
        }
        Codes { codes, scales }
    }
}

/// `spoil` changes what the backend is given, and not what it should be.
fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    e4m3: &E4m3Case,
    spoil: impl FnOnce(&mut Codes),
) -> Result<Option<f64>, String> {
    let mut values = e4m3.case.values();
    let mut codes = Codes::new(e4m3, &mut values);
    spoil(&mut codes);
    let trial = Trial {
        subject,
        algorithm,
        e4m3,
        codes,
        values,
    };
    match e4m3.case.dtype {
        Dtype::Bf16 => trial.run::<bf16>(),
        Dtype::F16 => trial.run::<f16>(),
        Dtype::F32 => trial.run::<f32>(),
    }
}

/// A case, what a backend is given of it, and what that stands for.
struct Trial<'c> {
    subject: &'c Subject,
    algorithm: Algorithm,
    e4m3: &'c E4m3Case,
    codes: Codes,
    values: Values,
}

impl Trial<'_> {
    /// `T` is the type of o.
    fn run<T: Element + Number>(self) -> Result<Option<f64>, String> {
        match self.e4m3.backward {
            true => self.gradients::<T>(),
            false => self.output::<T>(),
        }
    }

    fn output<T: Element + Number>(&self) -> Result<Option<f64>, String> {
        let reference = match (self.subject.backend, self.algorithm) {
            // flash2 multiplies in 16 bits, and rounds P to these.
            (Backend::Cpu, _) | (_, Algorithm::Flash2) => self.reference()?,
            _ => {
                let arithmetic = Arithmetic::E4m3(self.e4m3.case.dtype);
                self.reference()?.of_products(arithmetic)
            }
        };
        let output = self.twice(
            |device| forward::<T>(self.e4m3, &self.codes, device, self.algorithm),
            |output| vec![bits(&output.o), bits(&output.lse)],
        )?;
        let close = reference.judge_output(&self.e4m3.case, &output)?;
        Ok(Some(close.worst))
    }

    /// Gradients are those of what q, k and v stand for, rounded to the type of o.
    fn gradients<T: Element + Number>(mut self) -> Result<Option<f64>, String> {
        let case = &self.e4m3.case;
        // What comes behind the kernel that takes them out is any algorithm's; flash3 has none of f32.
        let algorithm = match (self.algorithm, case.dtype) {
            (Algorithm::Flash3, Dtype::F32) => Algorithm::Flash2,
            (other, _) => other,
        };
        let Values { q, k, v, .. } = &mut self.values;
        for value in [q, k, v].into_iter().flatten() {
            *value = T::from_f32(*value as f32).value();
        }
        let arithmetic = case.arithmetic(self.subject.backend);
        let reference = self.reference()?.of_products(arithmetic);
        let saved = &reference.output;
        let gradients = self.twice(
            |device| {
                let given = (&self.codes, &self.values, saved);
                backward::<T>(self.e4m3, given, device, algorithm)
            },
            |of| {
                [&of.d_q, &of.d_k, &of.d_v, &of.d_sinks]
                    .map(|x| bits(x))
                    .to_vec()
            },
        )?;
        let results = Results {
            output: saved.clone(),
            gradients,
            tensors: Vec::new(),
            forward_kernels: Vec::new(),
            backward_kernels: Vec::new(),
        };
        let close = reference.judge(case, &results)?;
        Ok(Some(close.worst))
    }

    /// What the values give.
    fn reference(&self) -> Result<Reference, String> {
        let case = &self.e4m3.case;
        let problem = case.problem().map_err(|error| error.to_string())?;
        let edits = self.e4m3.edits();
        let reference = Reference::edited(case, &self.values, problem.scale(), edits.as_ref());
        Ok(reference)
    }

    /// What two runs, which differ in the emulator's order, write; an error if their bits differ.
    fn twice<R, B: PartialEq>(
        &self,
        run: impl Fn(&Device) -> Result<R, Refusal>,
        all_bits: impl Fn(&R) -> B,
    ) -> Result<R, String> {
        let once = |more| {
            let seed = self.e4m3.case.seed.wrapping_add(sample::seed());
            let device = (self.subject.open)(seed.wrapping_add(more))?;
            run(&device).map_err(|refusal| format!("{refusal:?}"))
        };
        let (written, again) = (once(0)?, once(1)?);
        match all_bits(&written) == all_bits(&again) {
            true => Ok(written),
            false => Err("a second run gave other bits".to_owned()),
        }
    }
}

/// A pool of this shape with the rows of every sequence in its pages; all else is NaN.
fn pool(e4m3: &E4m3Case, table: &[i32], codes: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let sizes = e4m3.case.sizes;
    let row_len = shape[2] * shape[3];
    let pages = sizes.seqlen_k.div_ceil(PAGE_SIZE);
    let mut pool = vec![f64::NAN; shape.iter().product()];
    for (from, row) in codes.chunks(row_len.max(1)).enumerate() {
        let (sequence, at) = (from / sizes.seqlen_k, from % sizes.seqlen_k);
        let page = table[sequence * pages + at / PAGE_SIZE] as usize;
        let to = (page * PAGE_SIZE + at % PAGE_SIZE) * row_len;
        pool[to..to + row_len].copy_from_slice(row);
    }
    pool
}

/// Memory that a call reads, in both passes.
struct Memory<'c> {
    problem: Problem,
    /// Of q, k and v.
    codes: Vec<Buffer<F8E4M3>>,
    scales: &'c [Vec<f32>; 3],
    vectors: Vectors,
    table: Option<Vec<i32>>,
    edits: Option<Edits>,
    of_edits: Vec<edits::memory::Memory>,
}

impl<'c> Memory<'c> {
    fn new(e4m3: &E4m3Case, codes: &'c Codes) -> Result<Memory<'c>, Refusal> {
        let problem = e4m3.problem().map_err(broken)?;
        let table = e4m3.in_pages.then(|| e4m3.table());
        let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()];
        let mut buffers = Vec::new();
        for (at, (codes, shape)) in codes.codes.iter().zip(shapes).enumerate() {
            let table = table.as_ref().filter(|_| at > 0);
            let pooled = table.map(|table| pool(e4m3, table, codes, shape));
            let codes = pooled.as_ref().unwrap_or(codes);
            let buffer = Buffer::filled(codes, shape, e4m3.case.arrangement);
            buffers.push(buffer.map_err(broken)?);
        }
        let edits = e4m3.edits();
        Ok(Memory {
            problem,
            codes: buffers,
            scales: &codes.scales,
            vectors: Vectors::of(&e4m3.case),
            table,
            of_edits: edits.as_ref().map(Edits::memory).unwrap_or_default(),
            edits,
        })
    }

    fn inputs(&self) -> Result<Inputs<'_>, Refusal> {
        let view = |at: usize| self.codes[at].view().map_err(broken);
        let [of_q, of_k, of_v] = self.scales;
        let mut given = Inputs::new(&view(0)?, &view(1)?, &view(2)?)
            .q_descale(of_q)
            .k_descale(of_k)
            .v_descale(of_v);
        given.page_table = self.table.as_ref().map(Into::into);
        if let Some(edits) = &self.edits {
            given = edits.give(given, &self.of_edits);
        }
        Ok(self.vectors.give(given))
    }
}

fn broken(error: ProblemError) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// The gradients, from o and lse as they should be.
fn backward<T: Element + Number>(
    e4m3: &E4m3Case,
    (codes, values, saved): (&Codes, &Values, &Output),
    device: &Device,
    algorithm: Algorithm,
) -> Result<Gradients, Refusal> {
    let (case, memory) = (&e4m3.case, Memory::new(e4m3, codes)?);
    let problem = memory.problem;
    let filled = |values: &[f64]| {
        Buffer::<T>::filled(values, problem.shape_o(), case.arrangement).map_err(broken)
    };
    let (o, d_o, lse) = (
        filled(&saved.o)?,
        filled(&values.d_o)?,
        Rows::filled(&saved.lse),
    );
    let d_lse = values.d_lse.as_deref().map(Rows::filled);
    let outputs = case.arrangement.of_outputs();
    let unwritten = |shape| Buffer::<T>::unwritten(shape, outputs).map_err(broken);
    let [mut d_q, mut d_k, mut d_v] = [
        unwritten(problem.shape_q())?,
        unwritten(problem.shape_k())?,
        unwritten(problem.shape_v())?,
    ];
    let mut gradients = ferroflash::Gradients::new(
        d_q.view_mut().map_err(broken)?,
        d_k.view_mut().map_err(broken)?,
        d_v.view_mut().map_err(broken)?,
    );
    let n_sinks = case.sink_values().map_or(0, |sinks| sinks.len());
    let mut d_sinks = Rows::unwritten(n_sinks);
    gradients.d_sinks = (n_sinks > 0).then(|| d_sinks.slice_mut().into());
    let d_o = d_o.view().map_err(broken)?;
    let mut of_output = OutputGradients::new(&d_o);
    of_output.d_lse = d_lse.as_ref().map(|d_lse| d_lse.slice().into());
    let saved = Saved::new(&o.view().map_err(broken)?, lse.slice());
    let refused = |error| refusal(error, algorithm);
    Attention::new(device, problem)
        .map_err(refused)?
        .with_algorithm(algorithm)
        .backward(&memory.inputs()?, &saved, &of_output, &mut gradients)
        .map_err(refused)?;
    Ok(Gradients {
        d_q: d_q.values(),
        d_k: d_k.values(),
        d_v: d_v.values(),
        d_sinks: d_sinks.values(),
    })
}

/// o and lse.
fn forward<T: Element + Number>(
    e4m3: &E4m3Case,
    codes: &Codes,
    device: &Device,
    algorithm: Algorithm,
) -> Result<Output, Refusal> {
    let memory = Memory::new(e4m3, codes)?;
    let (problem, arrangement) = (memory.problem, e4m3.case.arrangement);
    output::<T>(device, algorithm, problem, &memory.inputs()?, arrangement)
}

#[cfg(test)]
mod tests {
    use ferroflash::{Fp8, Fp8Sums, Mask};
    use half::f16;

    use super::*;
    use crate::cases::Case;
    use crate::subject::{CPU, EMULATED_HOPPER};

    const HEADS_K: usize = 2;
    const HEAD_DIM: usize = 64;

    fn case() -> E4m3Case {
        E4m3Case {
            case: Case::new(Dtype::Bf16, Mask::Full, HEAD_DIM, 70, 144).heads(2, 4, HEADS_K),
            scales: Fp8::PerHead,
            sums: Fp8Sums::TwoLevels,
            in_pages: false,
            rule: None,
            backward: false,
        }
    }

    /// The rows of v, 16 keys at a time, in another order: the `i`-th becomes the one of this number.
    fn reorder_keys(codes: &mut Codes, order: [usize; 16]) {
        let row = HEADS_K * HEAD_DIM;
        for keys in codes.codes[2].chunks_exact_mut(16 * row) {
            let given = keys.to_vec();
            for (to, from) in order.into_iter().enumerate() {
                keys[to * row..][..row].copy_from_slice(&given[from * row..][..row]);
            }
        }
    }

    /// The same with scales of blocks: two of queries and two of keys.
    fn case_of_blocks() -> E4m3Case {
        E4m3Case {
            case: Case::new(Dtype::Bf16, Mask::Full, HEAD_DIM, 200, 230).heads(1, 4, HEADS_K),
            scales: Fp8::PerBlock,
            ..case()
        }
    }

    fn is_noticed(what: &str, spoil: fn(&mut Codes)) {
        is_noticed_in(case(), what, spoil);
    }

    /// By o and lse, and by the gradients.
    fn is_noticed_in(case: E4m3Case, what: &str, spoil: fn(&mut Codes)) {
        for (subject, algorithm) in [
            (CPU, Algorithm::Tiled),
            (EMULATED_HOPPER, Algorithm::Flash3),
        ] {
            for backward in [false, true] {
                let case = E4m3Case { backward, ..case };
                let words = check_case(&subject, algorithm, &case, spoil).expect_err(what);
                assert!(words.contains("beyond tolerance"), "{what}: {words}");
            }
        }
    }

    #[test]
    fn mistakes_with_8_bits_are_noticed() {
        for (subject, algorithm) in [
            (CPU, Algorithm::Tiled),
            (EMULATED_HOPPER, Algorithm::Flash3),
        ] {
            for backward in [false, true] {
                for case in [case(), case_of_blocks()] {
                    let case = E4m3Case { backward, ..case };
                    check_case(&subject, algorithm, &case, |_| ()).unwrap();
                }
            }
        }
        is_noticed("the order of P's registers, not undone", |codes| {
            let order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
            reorder_keys(codes, order);
        });
        is_noticed("the bytes of a register in the wrong order", |codes| {
            reorder_keys(codes, std::array::from_fn(|at| at ^ 3));
        });
        is_noticed("a scale twice", |codes| {
            codes.scales[1]
                .iter_mut()
                .for_each(|scale| *scale *= *scale);
        });
        is_noticed("the scale of another head", |codes| {
            codes.scales[2].rotate_left(1);
        });
        fn neighbours<const SIDE: usize>(codes: &mut Codes) {
            let pairs = codes.scales[SIDE].chunks_exact_mut(2);
            pairs.for_each(<[f32]>::reverse);
        }
        let sides: [(_, fn(&mut Codes)); 3] = [
            ("q", neighbours::<0>),
            ("k", neighbours::<1>),
            ("v", neighbours::<2>),
        ];
        for (of, spoil) in sides {
            let what = format!("the scale of the neighbouring block of {of}");
            is_noticed_in(case_of_blocks(), &what, spoil);
        }
        is_noticed("e5m2 instead of e4m3", |codes| {
            for code in &mut codes.codes[1] {
                let bits = F8E4M3::from_f64(*code).to_bits();
                *code = f16::from_bits(u16::from(bits) << 8).to_f64();
            }
        });
    }
}
