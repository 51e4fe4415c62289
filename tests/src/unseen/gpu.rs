//! The calls of a case on a GPU: one after another on one queue.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer, Queue};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Device, Error, Gradients, Layout, OutputGradients, Outputs, PreparedBackward,
    PreparedForward, Problem, Saved, Scalar, Tensor, TensorMut, Vector, VectorMut,
};
use half::bf16;

use super::{Bits, DRAWS, Expected, Values, compare, expected, inputs};
use crate::cases::unseen::{Numbers, UnseenCase};

/// Elements on each side of what is written; a multiple of 16 bytes.
const MARGIN: usize = 4096;

/// What nobody writes there.
const NEVER: f32 = 777.0;

/// A case's calls, prepared, and what they read and write.
struct Calls<'a> {
    case: &'a UnseenCase,
    problem: Problem,
    gpu: &'a Arc<CudaDevice>,
    queue: Queue,
    forward: PreparedForward,
    backward: Option<PreparedBackward>,
    /// q, k, v and dO.
    inputs: [DeviceBuffer<bf16>; 4],
}

/// An array behind a margin, a tensor between two.
struct Fenced<T: Scalar> {
    memory: DeviceBuffer<T>,
    n: usize,
}

impl<T: Scalar + PartialEq> Fenced<T> {
    fn new(
        gpu: &Arc<CudaDevice>,
        queue: &Queue,
        (n, behind): (usize, usize),
        never: T,
    ) -> Result<Fenced<T>, Error> {
        let memory = vec![never; MARGIN + n + behind];
        let memory = DeviceBuffer::from_slice(gpu, &memory, queue)?;
        Ok(Fenced { memory, n })
    }

    /// What was written, if nothing was beside it.
    fn read(&self, queue: &Queue, never: T) -> Result<Option<Vec<T>>, Error> {
        let memory = self.memory.to_vec(queue)?;
        let (front, rest) = memory.split_at(MARGIN);
        let (own, behind) = rest.split_at(self.n);
        let is_whole = front.iter().chain(behind).all(|x| *x == never);
        Ok(is_whole.then(|| own.to_vec()))
    }
}

impl Fenced<bf16> {
    fn view(&self, layout: Layout) -> Result<Tensor<'_>, Error> {
        Ok(Tensor::device(
            self.memory.slice().skip(MARGIN as u64),
            layout,
        )?)
    }

    fn view_mut(&mut self, layout: Layout) -> Result<TensorMut<'_>, Error> {
        let slice = self.memory.slice_mut().skip(MARGIN as u64);
        Ok(TensorMut::device(slice, layout)?)
    }
}

/// Every draw of a case: what it gives, and that a call with good numbers then gives what it gave before.
pub(super) fn check(
    device: &Device,
    case: &UnseenCase,
    problem: Problem,
    values: &Values,
) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let mut calls = Calls::new(device, case, problem, values).map_err(text)?;
    let good = (0..DRAWS).find_map(|draw| case.tamed(&case.draw(draw)));
    let good = good.ok_or("no draw contradicts nothing")?;
    let before = calls.run(&good)?;
    for draw in 0..DRAWS {
        let numbers = case.draw(draw);
        let failed = |error: String| format!("draw {draw}, {numbers:?}:\n{error}");
        let wild = calls.run(&numbers).map_err(failed)?;
        let tamed = match expected(case, &numbers) {
            Some(Expected::SameAs(tamed)) => Some(calls.run(&tamed).map_err(failed)?),
            Some(Expected::Nothing) | None => None,
        };
        if tamed.is_some() || matches!(expected(case, &numbers), Some(Expected::Nothing)) {
            compare(&wild, tamed.as_ref()).map_err(failed)?;
        }
        if calls.run(&good).map_err(failed)? != before {
            return Err(failed("a good call gives other bits afterwards".into()));
        }
    }
    Ok(())
}

impl<'a> Calls<'a> {
    fn new(
        device: &'a Device,
        case: &'a UnseenCase,
        problem: Problem,
        values: &Values,
    ) -> Result<Calls<'a>, Error> {
        let gpu = device.as_cuda().expect("the caller asked");
        let attention = Attention::new(device, problem)?.with_algorithm(case.algorithm);
        let mut layouts = Layouts::contiguous();
        for (argument, is_given) in given(case) {
            if is_given {
                layouts = layouts.giving(argument);
            }
        }
        let forward = attention.prepare_forward(&layouts)?;
        let backward = match case.backward {
            true => Some(attention.prepare_backward(&layouts)?),
            false => None,
        };
        let queue = Queue::new(gpu)?;
        let filled = |values: &[f64]| {
            let values: Vec<bf16> = values.iter().map(|&x| bf16::from_f64(x)).collect();
            DeviceBuffer::from_slice(gpu, &values, &queue)
        };
        let inputs = [
            filled(&values.q)?,
            filled(&values.k)?,
            filled(&values.v)?,
            filled(&values.d_o)?,
        ];
        Ok(Calls {
            case,
            problem,
            gpu,
            queue,
            forward,
            backward,
            inputs,
        })
    }

    /// What a call with these numbers writes.
    fn run(&mut self, numbers: &Numbers) -> Result<Bits, String> {
        let written = self.enqueue(numbers).map_err(|error| error.to_string())?;
        written.ok_or_else(|| "memory beside the results was written to".into())
    }

    fn enqueue(&mut self, numbers: &Numbers) -> Result<Option<Bits>, Error> {
        let (problem, gpu) = (self.problem, self.gpu);
        let mut numbers = numbers.clone();
        for used in &mut numbers.seqused {
            used.get_or_insert_with(|| vec![i32::MAX; self.case.batch()]);
        }
        let mut vectors = Vec::new();
        for (argument, numbers) in numbers.given() {
            vectors.push((
                argument,
                DeviceBuffer::from_slice(gpu, numbers, &self.queue)?,
            ));
        }
        let of_q = Layout::bshd(problem.shape_q())?;
        let (of_k, of_v) = (
            Layout::bshd(problem.shape_k())?,
            Layout::bshd(problem.shape_v())?,
        );
        let of_o = Layout::bshd(problem.shape_o())?;
        let [q, k, v, d_o] = &self.inputs;
        let (q, k) = (
            Tensor::device(q.slice(), of_q)?,
            Tensor::device(k.slice(), of_k)?,
        );
        let v = Tensor::device(v.slice(), of_v)?;
        let mut given = inputs(self.case, [&q, &k, &v]);
        for (argument, numbers) in &vectors {
            given = given.with(*argument, numbers.slice());
        }

        let never = bf16::from_f32(NEVER);
        let fenced = |shape: [usize; 4], queue: &Queue| {
            Fenced::new(gpu, queue, (shape.iter().product(), MARGIN), never)
        };
        let mut o = fenced(problem.shape_o(), &self.queue)?;
        let n_rows = problem.shape_lse().iter().product();
        // A vector ends where its memory does.
        let mut lse = Fenced::new(gpu, &self.queue, (n_rows, 0), NEVER)?;
        let rows = lse.memory.slice_mut().skip(MARGIN as u64);
        let mut outputs = Outputs::new(o.view_mut(of_o)?, VectorMut::device(rows));
        self.forward
            .forward(&mut self.queue, &given, &mut outputs)?;
        let mut tensors = vec![];
        if let Some(backward) = &self.backward {
            let mut gradients = [
                fenced(problem.shape_q(), &self.queue)?,
                fenced(problem.shape_k(), &self.queue)?,
                fenced(problem.shape_v(), &self.queue)?,
            ];
            let [d_q, d_k, d_v] = &mut gradients;
            let (d_q, d_k) = (d_q.view_mut(of_q)?, d_k.view_mut(of_k)?);
            let mut into = Gradients::new(d_q, d_k, d_v.view_mut(of_v)?);
            let d_o = Tensor::device(d_o.slice(), of_o)?;
            let rows = lse.memory.slice().skip(MARGIN as u64);
            let saved = Saved::new(&o.view(of_o)?, Vector::device(rows));
            let of_output = OutputGradients::new(&d_o);
            backward.backward(&mut self.queue, &given, &saved, &of_output, &mut into)?;
            tensors.extend(gradients);
        }
        let bits = |x: &bf16| x.to_f32().to_bits();
        let read = |tensor: &Fenced<bf16>| -> Result<Option<Vec<u32>>, Error> {
            let read = tensor.read(&self.queue, never)?;
            Ok(read.map(|read| read.iter().map(bits).collect()))
        };
        let rows = lse.read(&self.queue, NEVER)?;
        let rows = rows.map(|rows| rows.iter().map(|x| x.to_bits()).collect());
        let mut written = vec![read(&o)?, rows];
        for tensor in &tensors {
            written.push(read(tensor)?);
        }
        Ok(written.into_iter().collect())
    }
}

/// Which vectors a case gives: those of its numbers, and how many rows each sequence uses, by which tamed ones say what they have to.
fn given(case: &UnseenCase) -> [(Argument, bool); 6] {
    [
        (Argument::CuSeqlensQ, case.packed[0].is_some()),
        (Argument::CuSeqlensK, case.packed[1].is_some()),
        (Argument::SeqUsedQ, true),
        (Argument::SeqUsedK, true),
        (Argument::LeftpadK, case.leftpad),
        (Argument::PageTable, case.page_size.is_some()),
    ]
}
