//! Tables with entries that name no page of the pool, which nobody has looked at before the kernels do: rows there are read as zeros, what is appended
//! there is dropped, and no memory beside the pool is read into a result or written to.
//!
//! On the emulator every access outside of a tensor is a fault. On a GPU the tables lie in its memory, and a page of NaN lies on each side of the
//! pools.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer, Queue};
use ferroflash::error::ProblemError;
use ferroflash::prepared::Layouts;
use ferroflash::{
    Algorithm, Append, AppendInputs, AppendOutputs, AppendProblem, Attention, Device, Error,
    Inputs, Layout, Outputs, Tensor, TensorMut, Vector,
};
use half::bf16;

use super::{forward, pool};
use crate::beside::{bits, check_cases};
use crate::buffer::{Arrangement, Buffer};
use crate::cases::pages::PagedCase;
use crate::inputs::Values;
use crate::lengths::Span;
use crate::oracle::Output;
use crate::reference::Reference;
use crate::sample;
use crate::subject::Subject;
use crate::suite::is_eligible;

/// Puts attention over such tables to the test, and the check that one can ask for; panics with every failure.
pub fn check(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[PagedCase]) {
    if subject.cannot_run(algorithm) {
        return;
    }
    check_cases(subject, test, cases, |paged| {
        if !is_eligible(subject.backend, algorithm, &paged.case) {
            return Ok(None);
        }
        let device = open(subject, paged)?;
        let (table, values) = (table(paged), values(paged));
        is_named(&device, paged, &table)?;
        let output = match device.as_cuda() {
            Some(_) => on_gpu(&device, algorithm, paged, &table, &values)
                .map_err(|error| error.to_string())?,
            None => forward::<bf16>(paged, (&values, None), &device, algorithm, Some(&table))
                .map_err(|refusal| format!("{refusal:?}"))?,
        };
        let problem = paged.case.problem().map_err(|error| error.to_string())?;
        let reference = Reference::new(&paged.case, &values, problem.scale());
        let close = reference.judge_output(&paged.case, &output)?;
        Ok(Some(close.worst))
    });
}

/// The same of appends: the rows behind those that a sequence has are new ones.
pub fn check_append(subject: &Subject, test: &str, cases: &[PagedCase]) {
    check_cases(subject, test, cases, |paged| {
        let device = open(subject, paged)?;
        let (table, values) = (table(paged), values(paged));
        let appended = appended(&device, paged, &table, &values.k);
        let (is, beside) = appended.map_err(|error| error.to_string())?;
        let problem = paged.problem().map_err(|error| error.to_string())?;
        // All rows of a sequence are new, so the pool holds what a pool holds.
        let should_be = pool(paged, &table, &values.k, problem.shape_k());
        match (bits(&is) == bits(&should_be), beside) {
            (true, true) => Ok(Some(0.0)),
            (false, _) => Err("the pool has other bits".into()),
            (_, false) => Err("memory beside the pool was written to".into()),
        }
    });
}

fn open(subject: &Subject, paged: &PagedCase) -> Result<Device, String> {
    (subject.open)(paged.case.seed.wrapping_add(sample::seed()))
}

/// Whether a page of a sequence is to be one that the pool does not have: each third one, the last ones of some sequences among them.
fn is_beyond(sequence: usize, slot: usize) -> bool {
    (sequence + slot) % 3 == 2
}

/// The table with entries that name no page: those next to the pool, and those farthest from it.
fn table(paged: &PagedCase) -> Vec<i32> {
    let n_pages = paged.n_pages() as i32;
    let wrong = [-1, n_pages, i32::MIN, i32::MAX, -n_pages, n_pages + 1];
    let mut table = paged.table();
    for (at, entry) in table.iter_mut().enumerate() {
        if is_beyond(at / paged.columns(), at % paged.columns()) {
            *entry = wrong[at / 3 % wrong.len()];
        }
    }
    table
}

/// The numbers, with rows of zeros where there is no page.
fn values(paged: &PagedCase) -> Values {
    let mut values = paged.values();
    let elems = paged.case.sizes.heads_k * paged.case.sizes.head_dim;
    for (sequence, Span { first, len }) in paged.spans().into_iter().enumerate() {
        for row in (0..len).filter(|row| is_beyond(sequence, row / paged.page_size)) {
            for array in [&mut values.k, &mut values.v] {
                array[(first + row) * elems..][..elems].fill(0.0);
            }
        }
    }
    values
}

/// [`Attention::check_lengths`] says of which sequence and which of its pages the first entry is that names none.
fn is_named(device: &Device, paged: &PagedCase, table: &[i32]) -> Result<(), String> {
    let wrong = paged
        .lens()
        .into_iter()
        .enumerate()
        .find_map(|(sequence, n)| {
            let mut slots = 0..n.div_ceil(paged.page_size);
            let slot = slots.find(|&slot| is_beyond(sequence, slot))?;
            Some(ProblemError::Page {
                sequence,
                slot,
                given: table[sequence * paged.columns() + slot],
                n_pages: paged.n_pages(),
            })
        });
    let given = checked(device, paged, table).map_err(|error| error.to_string())?;
    match (&given, &wrong) {
        (Err(Error::Problem(given)), Some(wrong)) if given == wrong => Ok(()),
        _ => Err(format!("the check says {given:?} and not {wrong:?}")),
    }
}

/// What the check says. Only lengths and tables matter to it; on a GPU they are in its memory.
fn checked(device: &Device, paged: &PagedCase, table: &[i32]) -> Result<Result<(), Error>, Error> {
    let problem = paged.problem()?;
    let q = Buffer::<bf16>::unwritten(problem.shape_q(), Arrangement::Bshd)?;
    let k = Buffer::<bf16>::unwritten(problem.shape_k(), Arrangement::Bshd)?;
    let (q, k) = (q.view()?, k.view()?);
    let mut lengths = paged.case.vectors().into_iter();
    let lens = lengths.find(|(argument, _)| *argument == Argument::SeqUsedK);
    let attention = Attention::new(device, problem)?;
    let check = |table: Vector, lens: Option<Vector>| {
        let mut inputs = Inputs::new(&q, &k, &k).page_table(table);
        inputs.seqused_k = lens;
        attention.check_lengths(&inputs)
    };
    let Some(gpu) = device.as_cuda() else {
        let lens = lens.as_ref().map(|(_, lens)| lens.into());
        return Ok(check(table.into(), lens));
    };
    let queue = Queue::new(gpu)?;
    let table = DeviceBuffer::from_slice(gpu, table, &queue)?;
    let lens = lens.map(|(_, lens)| DeviceBuffer::from_slice(gpu, &lens, &queue));
    let lens = lens.transpose()?;
    let lens = lens.as_ref().map(|lens| lens.slice().into());
    Ok(check(table.slice().into(), lens))
}

/// A pool in a GPU's memory between two pages of NaN.
struct Fenced {
    memory: DeviceBuffer<bf16>,
    fence: usize,
    layout: Layout,
}

impl Fenced {
    fn new(
        gpu: &Arc<CudaDevice>,
        queue: &Queue,
        pool: &[f64],
        shape: [usize; 4],
    ) -> Result<Fenced, Error> {
        let [_, page_size, heads, head_dim] = shape;
        // A multiple of 16 bytes.
        let fence = (page_size * heads * head_dim).next_multiple_of(8);
        let mut memory = vec![bf16::NAN; pool.len() + 2 * fence];
        for (to, &from) in memory[fence..].iter_mut().zip(pool) {
            *to = bf16::from_f64(from);
        }
        Ok(Fenced {
            memory: DeviceBuffer::from_slice(gpu, &memory, queue)?,
            fence,
            layout: Layout::bshd(shape)?,
        })
    }

    fn view(&self) -> Result<Tensor<'_>, ProblemError> {
        let slice = self.memory.slice().skip(self.fence as u64);
        Tensor::device(slice, self.layout)
    }

    fn view_mut(&mut self) -> Result<TensorMut<'_>, ProblemError> {
        let slice = self.memory.slice_mut().skip(self.fence as u64);
        TensorMut::device(slice, self.layout)
    }

    /// The pool, and whether the fences are as they were.
    fn read(&self, queue: &Queue) -> Result<(Vec<f64>, bool), Error> {
        let memory = self.memory.to_vec(queue)?;
        let (front, rest) = memory.split_at(self.fence);
        let (pool, behind) = rest.split_at(rest.len() - self.fence);
        let is_whole = front.iter().chain(behind).all(|x| x.is_nan());
        Ok((pool.iter().map(|x| x.to_f64()).collect(), is_whole))
    }
}

/// o and lse of a case whose lengths and tables lie in a GPU's memory.
fn on_gpu(
    device: &Device,
    algorithm: Algorithm,
    paged: &PagedCase,
    table: &[i32],
    values: &Values,
) -> Result<Output, Error> {
    let (problem, gpu) = (paged.problem()?, cuda(device));
    let (mut layouts, mut queue) = (Layouts::contiguous(), Queue::new(gpu)?);
    let mut lengths = Vec::new();
    for (argument, numbers) in paged.case.vectors() {
        layouts = layouts.giving(argument);
        lengths.push((argument, DeviceBuffer::from_slice(gpu, &numbers, &queue)?));
    }
    let attention = Attention::new(device, problem)?.with_algorithm(algorithm);
    let prepared = attention.prepare_forward(&layouts)?;
    queue.reserve(prepared.plan())?;
    let fenced = |numbers: &[f64], shape| Fenced::new(gpu, &queue, numbers, shape);
    let of_pool = |rows: &[f64]| {
        fenced(
            &pool(paged, table, rows, problem.shape_k()),
            problem.shape_k(),
        )
    };
    let (k, v) = (of_pool(&values.k)?, of_pool(&values.v)?);
    let q = fenced(&values.q, problem.shape_q())?;
    let mut o = fenced(&vec![f64::NAN; values.q.len()], problem.shape_q())?;
    let mut lse = DeviceBuffer::<f32>::new(gpu, problem.shape_lse().iter().product())?;
    let table = DeviceBuffer::from_slice(gpu, table, &queue)?;
    let (q, k, v) = (q.view()?, k.view()?, v.view()?);
    let mut inputs = Inputs::new(&q, &k, &v).page_table(table.slice());
    for (argument, numbers) in &lengths {
        inputs = inputs.with(*argument, numbers.slice());
    }
    let mut outputs = Outputs::new(o.view_mut()?, lse.slice_mut());
    prepared.forward(&mut queue, &inputs, &mut outputs)?;
    let lse = lse.to_vec(&queue)?;
    Ok(Output {
        o: o.read(&queue)?.0,
        lse: lse.into_iter().map(f64::from).collect(),
    })
}

/// The pool after all rows were appended to sequences that had none, and whether memory beside it is as it was.
fn appended(
    device: &Device,
    paged: &PagedCase,
    table: &[i32],
    rows: &[f64],
) -> Result<(Vec<f64>, bool), Error> {
    let (sizes, spans) = (paged.case.sizes, paged.spans());
    let elems = sizes.heads_k * sizes.head_dim;
    // One sequence behind the other.
    let of_span = |span: &Span| &rows[span.first * elems..(span.first + span.len) * elems];
    let packed: Vec<f64> = spans.iter().flat_map(of_span).copied().collect();
    let mut ends = vec![0];
    for span in &spans {
        ends.push(ends[ends.len() - 1] + span.len as i32);
    }
    let before = vec![0; spans.len()];
    let problem = AppendProblem::builder(paged.case.dtype)
        .batch(spans.len())
        .packed_new(packed.len() / elems)
        .heads_k(sizes.heads_k)
        .head_dim(sizes.head_dim)
        .seqlen_cache(sizes.seqlen_k)
        .pages(paged.pages())
        .build()?;
    let (shape_new, shape) = (problem.shape_new(), problem.shape_cache());
    let nothing = vec![f64::NAN; shape.iter().product()];
    let append = Append::new(device, problem)?;
    let Some(gpu) = device.as_cuda() else {
        let new = Buffer::<bf16>::filled(&packed, shape_new, Arrangement::Bshd)?;
        let mut pools = [
            Buffer::<bf16>::unwritten(shape, Arrangement::Bshd)?,
            Buffer::<bf16>::unwritten(shape, Arrangement::Bshd)?,
        ];
        let new = new.view()?;
        let inputs = AppendInputs::new(&new, &new, &before).page_table(table);
        let [k, v] = &mut pools;
        let mut outputs = AppendOutputs::new(k.view_mut()?, v.view_mut()?);
        append.run(&inputs.cu_seqlens_new(&ends), &mut outputs)?;
        let is_whole = k.strayed().is_none() && v.strayed().is_none();
        return Ok((
            k.values(),
            is_whole && bits(&k.values()) == bits(&v.values()),
        ));
    };
    let (prepared, mut queue) = (append.prepare(&Layouts::contiguous())?, Queue::new(gpu)?);
    let numbers = |numbers: &[i32]| DeviceBuffer::from_slice(gpu, numbers, &queue);
    let (before, ends, table) = (numbers(&before)?, numbers(&ends)?, numbers(table)?);
    let new = Fenced::new(gpu, &queue, &packed, shape_new)?;
    let (mut k, mut v) = (
        Fenced::new(gpu, &queue, &nothing, shape)?,
        Fenced::new(gpu, &queue, &nothing, shape)?,
    );
    let new = new.view()?;
    let inputs = AppendInputs::new(&new, &new, before.slice())
        .page_table(table.slice())
        .cu_seqlens_new(ends.slice());
    let mut outputs = AppendOutputs::new(k.view_mut()?, v.view_mut()?);
    prepared.append(&mut queue, &inputs, &mut outputs)?;
    let ((k, is_whole), (v, is_too)) = (k.read(&queue)?, v.read(&queue)?);
    Ok((k.clone(), is_whole && is_too && bits(&k) == bits(&v)))
}

/// The GPU that a device is.
fn cuda(device: &Device) -> &Arc<CudaDevice> {
    device.as_cuda().expect("the caller asked")
}
