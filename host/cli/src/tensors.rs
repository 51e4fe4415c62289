//! The tensors of one problem, on the host or in the memory of a GPU, and what calls are given of them.

use ferroflash::arguments::{Argument, ByArgument};
use ferroflash::backend::cuda::{DeviceBuffer, StreamRef};
use ferroflash::error::ProblemError;
use ferroflash::{
    Attention, Device, Error, Fp8, Gradients, Inputs, Layout, OutputGradients, Outputs, Pass,
    Problem, Queue, Ran, Saved, Scalar, Tensor, TensorMut, Vector, VectorMut,
};
use float8::F8E4M3;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::expressions::{Given, Named};
use crate::failure::Failure;
use crate::input::{Bytes, Input, Lengths, elements};

/// Where numbers are to lie: on the host, or in the memory of this queue's GPU.
pub type Place<'a> = Option<&'a Queue>;

/// Numbers.
#[derive(Debug)]
pub enum Memory<T: Scalar> {
    /// On the host.
    Host(Vec<T>),
    /// In the memory of a GPU.
    Device(DeviceBuffer<T>),
}

impl<T: Scalar> Memory<T> {
    /// These numbers.
    pub fn new(numbers: Vec<T>, place: Place) -> Result<Memory<T>, Failure> {
        Ok(match place {
            None => Memory::Host(numbers),
            Some(queue) => {
                Memory::Device(DeviceBuffer::from_slice(queue.device(), &numbers, queue)?)
            }
        })
    }

    /// To be written to: zeros on the host.
    pub fn empty(n_elems: usize, place: Place) -> Result<Memory<T>, Failure> {
        Ok(match place {
            None => Memory::Host(zeros(n_elems)?),
            Some(queue) => Memory::Device(DeviceBuffer::new(queue.device(), n_elems)?),
        })
    }

    /// The numbers, in the order of the stream if they are a GPU's.
    pub fn to_vec(&self, stream: StreamRef) -> Result<Vec<T>, Failure> {
        Ok(match self {
            Memory::Host(numbers) => numbers.clone(),
            Memory::Device(buffer) => buffer.to_vec(stream)?,
        })
    }

    /// A copy.
    pub fn copy(&self, from: StreamRef, place: Place) -> Result<Memory<T>, Failure> {
        Memory::new(self.to_vec(from)?, place)
    }

    /// To read.
    pub fn vector(&self) -> Vector<'_> {
        match self {
            Memory::Host(numbers) => numbers.into(),
            Memory::Device(buffer) => buffer.slice().into(),
        }
    }

    /// To write.
    pub fn vector_mut(&mut self) -> VectorMut<'_> {
        match self {
            Memory::Host(numbers) => numbers.into(),
            Memory::Device(buffer) => buffer.slice_mut().into(),
        }
    }

    /// To read, as `[batch, seqlen, heads, head_dim]`.
    pub fn tensor(&self, shape: [usize; 4]) -> Result<Tensor<'_>, ProblemError> {
        self.tensor_behind(0, shape)
    }

    /// The same, to write.
    pub fn tensor_mut(&mut self, shape: [usize; 4]) -> Result<TensorMut<'_>, ProblemError> {
        self.tensor_mut_behind(0, shape)
    }

    /// To read what lies behind so many numbers of a GPU.
    pub fn tensor_behind(&self, n: u64, shape: [usize; 4]) -> Result<Tensor<'_>, ProblemError> {
        match self {
            Memory::Host(numbers) => Tensor::bshd(numbers, shape),
            Memory::Device(buffer) => Tensor::device(buffer.slice().skip(n), Layout::bshd(shape)?),
        }
    }

    /// The same, to write.
    pub fn tensor_mut_behind(
        &mut self,
        n: u64,
        shape: [usize; 4],
    ) -> Result<TensorMut<'_>, ProblemError> {
        match self {
            Memory::Host(numbers) => TensorMut::bshd(numbers, shape),
            Memory::Device(buffer) => {
                TensorMut::device(buffer.slice_mut().skip(n), Layout::bshd(shape)?)
            }
        }
    }

    /// So many numbers of the host, again and again.
    pub fn cycled(&self, n: usize) -> Memory<T> {
        Memory::Host(match self {
            Memory::Host(numbers) => numbers.iter().copied().cycle().take(n).collect(),
            Memory::Device(_) => Vec::new(),
        })
    }
}

/// q, k and v in 8 bits, and their scales.
#[derive(Debug)]
struct Codes {
    q: E4m3Tensor,
    k: E4m3Tensor,
    v: E4m3Tensor,
}

/// One of them.
#[derive(Debug)]
struct E4m3Tensor {
    codes: Memory<F8E4M3>,
    descale: Memory<f32>,
}

impl E4m3Tensor {
    /// Of codes that are 64 times as large as numbers of a standard normal distribution: far below e4m3's greatest.
    const DESCALE: f32 = 1.0 / 64.0;

    /// Random codes of this shape, whose sequences have at most so many rows. Scales of neighbouring blocks differ, so results with the wrong one are wrong.
    fn random(
        problem: &Problem,
        (shape, seqlen): ([usize; 4], usize),
        random: &mut SmallRng,
        place: Place,
    ) -> Result<E4m3Tensor, Failure> {
        let numbers: Vec<f32> = normal(shape.iter().product(), random)?;
        let codes = numbers
            .iter()
            .map(|x| F8E4M3::from_f32(x / E4m3Tensor::DESCALE));
        let descale = match problem.fp8() {
            Some(Fp8::PerBlock) => {
                let blocks = seqlen.div_ceil(Fp8::BLOCK).max(1);
                let all = 0..problem.batch() * problem.heads_k() * blocks;
                all.map(|at| E4m3Tensor::DESCALE / (1 << (at % blocks % 3)) as f32)
                    .collect()
            }
            Some(Fp8::PerHead) => vec![E4m3Tensor::DESCALE; problem.batch() * problem.heads_k()],
            Some(Fp8::PerTensor) | None => vec![E4m3Tensor::DESCALE],
        };
        Ok(E4m3Tensor {
            codes: Memory::new(codes.collect(), place)?,
            descale: Memory::new(descale, place)?,
        })
    }

    /// A copy on the host.
    fn on_host(&self, stream: StreamRef) -> Result<E4m3Tensor, Failure> {
        Ok(E4m3Tensor {
            codes: self.codes.copy(stream, None)?,
            descale: self.descale.copy(stream, None)?,
        })
    }
}

impl Codes {
    /// Random ones.
    fn random(problem: &Problem, random: &mut SmallRng, place: Place) -> Result<Codes, Failure> {
        let (of_q, of_k) = (problem.seqlen_q(), problem.seqlen_k());
        let mut of = |shape, seqlen| E4m3Tensor::random(problem, (shape, seqlen), random, place);
        Ok(Codes {
            q: of(problem.shape_q(), of_q)?,
            k: of(problem.shape_k(), of_k)?,
            v: of(problem.shape_v(), of_k)?,
        })
    }

    /// A copy on the host.
    fn on_host(&self, stream: StreamRef) -> Result<Codes, Failure> {
        Ok(Codes {
            q: self.q.on_host(stream)?,
            k: self.k.on_host(stream)?,
            v: self.v.on_host(stream)?,
        })
    }

    /// What a call is given.
    fn inputs(&self, problem: &Problem) -> Result<Inputs<'_>, ProblemError> {
        Ok(Inputs::new(
            &self.q.codes.tensor(problem.shape_q())?,
            &self.k.codes.tensor(problem.shape_k())?,
            &self.v.codes.tensor(problem.shape_v())?,
        )
        .q_descale(self.q.descale.vector())
        .k_descale(self.k.descale.vector())
        .v_descale(self.v.descale.vector()))
    }
}

/// What both passes read.
#[derive(Debug)]
pub struct Operands<T: Bytes> {
    pub problem: Problem,
    q: Memory<T>,
    k: Memory<T>,
    v: Memory<T>,
    /// In place of q, k and v where they are in 8 bits.
    codes: Option<Codes>,
    lengths: ByArgument<Option<Memory<i32>>>,
    block_mask: Option<Memory<u8>>,
    sinks: Option<Memory<f32>>,
    given: Given,
}

impl<T: Bytes> Operands<T> {
    /// What a file holds for its problem.
    pub fn of_file(problem: Problem, input: &Input, given: Given) -> Operands<T> {
        let of = |bytes: &[u8]| Memory::Host(elements(bytes));
        let lengths = &input.lengths;
        Operands {
            problem,
            q: of(&input.q.bytes),
            k: of(&input.k.bytes),
            v: of(&input.v.bytes),
            codes: None,
            lengths: ByArgument::from_fn(|of| Some(Memory::Host(lengths.get(of)?.to_vec()))),
            block_mask: input
                .block_mask
                .as_ref()
                .map(|map| Memory::Host(map.bytes.clone())),
            sinks: input.sinks.clone().map(Memory::Host),
            given,
        }
    }

    /// The lengths that have been given.
    pub fn lengths(&self) -> impl Iterator<Item = Argument> {
        let lengths = self.lengths.iter();
        lengths.filter_map(|(argument, vector)| vector.as_ref().map(|_| argument))
    }

    /// A copy on the host.
    fn on_host(&self, stream: StreamRef) -> Result<Operands<T>, Failure> {
        let mut lengths = ByArgument::default();
        for (argument, vector) in self.lengths.iter() {
            lengths[argument] = copied(vector, stream)?;
        }
        Ok(Operands {
            problem: self.problem,
            q: self.q.copy(stream, None)?,
            k: self.k.copy(stream, None)?,
            v: self.v.copy(stream, None)?,
            codes: self
                .codes
                .as_ref()
                .map(|codes| codes.on_host(stream))
                .transpose()?,
            lengths,
            block_mask: copied(&self.block_mask, stream)?,
            sinks: copied(&self.sinks, stream)?,
            given: self.given.copy(stream, None)?,
        })
    }

    /// What a call is given.
    pub fn inputs(&self) -> Result<Inputs<'_>, ProblemError> {
        let problem = &self.problem;
        let mut inputs = match &self.codes {
            Some(codes) => codes.inputs(problem)?,
            None => Inputs::new(
                &self.q.tensor(problem.shape_q())?,
                &self.k.tensor(problem.shape_k())?,
                &self.v.tensor(problem.shape_v())?,
            ),
        };
        for (argument, vector) in self.lengths.iter() {
            if let Some(vector) = vector {
                inputs = inputs.with(argument, vector.vector());
            }
        }
        inputs.block_mask = self.block_mask.as_ref().map(Memory::vector);
        inputs.sinks = self.sinks.as_ref().map(Memory::vector);
        if problem.dropout().is_some() {
            inputs = inputs.dropout_rng(0, 0);
        }
        Ok(self.given.put(inputs))
    }
}

fn copied<T: Scalar>(
    memory: &Option<Memory<T>>,
    stream: StreamRef,
) -> Result<Option<Memory<T>>, Failure> {
    let copy = memory.as_ref().map(|memory| memory.copy(stream, None));
    copy.transpose()
}

/// What both passes read and write.
#[derive(Debug)]
pub struct Tensors<T: Bytes> {
    pub operands: Operands<T>,
    d_o: Memory<T>,
    d_lse: Option<Memory<f32>>,
    o: Memory<T>,
    lse: Memory<f32>,
    d_q: Memory<T>,
    d_k: Memory<T>,
    d_v: Memory<T>,
    d_sinks: Option<Memory<f32>>,
}

/// What a pass writes, by name.
pub type Written<T> = Vec<(&'static str, Vec<T>)>;

impl<T: Bytes> Tensors<T> {
    /// With room for what passes write; for that of a backward pass, if there is one.
    fn new(
        operands: Operands<T>,
        d_o: Option<Memory<T>>,
        d_lse: Option<Memory<f32>>,
        place: Place,
    ) -> Result<Tensors<T>, Failure> {
        let problem = operands.problem;
        let n_elems = |shape: &[usize]| shape.iter().product::<usize>();
        let gradient = |shape: [usize; 4]| {
            let n_elems = if d_o.is_some() { n_elems(&shape) } else { 0 };
            Memory::empty(n_elems, place)
        };
        Ok(Tensors {
            o: Memory::empty(n_elems(&problem.shape_o()), place)?,
            lse: Memory::empty(n_elems(&problem.shape_lse()), place)?,
            d_q: gradient(problem.shape_q())?,
            d_k: gradient(problem.shape_k())?,
            d_v: gradient(problem.shape_v())?,
            d_sinks: match problem.has_sinks() {
                true => Some(Memory::empty(problem.heads_q(), place)?),
                false => None,
            },
            d_o: d_o.unwrap_or(Memory::Host(Vec::new())),
            d_lse,
            operands,
        })
    }

    /// What a file holds for its problem.
    pub fn of_file(problem: Problem, input: &Input, given: Given) -> Result<Tensors<T>, Failure> {
        let d_o = input.d_o.as_ref();
        let d_o = d_o.map(|stored| Memory::Host(elements(&stored.bytes)));
        let d_lse = input.d_lse.clone().map(Memory::Host);
        Tensors::new(Operands::of_file(problem, input, given), d_o, d_lse, None)
    }

    /// Random inputs.
    pub fn random(
        problem: Problem,
        lengths: &Lengths,
        named: Named,
        random: &mut SmallRng,
        place: Place,
    ) -> Result<Tensors<T>, Failure> {
        let mut of_place = ByArgument::default();
        for (argument, vector) in lengths.iter() {
            of_place[argument] = Some(Memory::new(vector.to_vec(), place)?);
        }
        let mut filled =
            |shape: [usize; 4]| Memory::new(normal(shape.iter().product(), random)?, place);
        let in_8_bits = problem.fp8().is_some();
        let mut input = |shape: [usize; 4]| match in_8_bits {
            true => Memory::new(Vec::new(), None),
            false => filled(shape),
        };
        let (q, k) = (input(problem.shape_q())?, input(problem.shape_k())?);
        let (v, d_o) = (input(problem.shape_v())?, filled(problem.shape_o())?);
        let codes = match in_8_bits {
            true => Some(Codes::random(&problem, random, place)?),
            false => None,
        };
        let given = Given::random(named, &problem, random)?;
        let operands = Operands {
            problem,
            q,
            k,
            v,
            codes,
            lengths: of_place,
            block_mask: None,
            sinks: match problem.has_sinks() {
                true => Some(Memory::new(normal(problem.heads_q(), random)?, place)?),
                false => None,
            },
            given: given.copy(StreamRef::DEFAULT, place)?,
        };
        Tensors::new(operands, Some(d_o), None, place)
    }

    /// The forward pass, by whom `run` says.
    pub fn forward<R>(
        &mut self,
        run: impl FnOnce(&Inputs, &mut Outputs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let o = self.o.tensor_mut(self.operands.problem.shape_o())?;
        run(
            &self.operands.inputs()?,
            &mut Outputs::new(o, self.lse.vector_mut()),
        )
    }

    /// The backward pass, by whom `run` says.
    pub fn backward<R>(
        &mut self,
        run: impl FnOnce(&Inputs, &Saved, &OutputGradients, &mut Gradients) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let problem = &self.operands.problem;
        let saved = Saved::new(&self.o.tensor(problem.shape_o())?, self.lse.vector());
        let mut of_output = OutputGradients::new(&self.d_o.tensor(problem.shape_o())?);
        of_output.d_lse = self.d_lse.as_ref().map(Memory::vector);
        let mut gradients = Gradients::new(
            self.d_q.tensor_mut(problem.shape_q())?,
            self.d_k.tensor_mut(problem.shape_k())?,
            self.d_v.tensor_mut(problem.shape_v())?,
        );
        gradients.d_sinks = self.d_sinks.as_mut().map(Memory::vector_mut);
        run(&self.operands.inputs()?, &saved, &of_output, &mut gradients)
    }

    /// A pass, which copies what lies elsewhere.
    pub fn run(&mut self, attention: &Attention, pass: Pass) -> Result<Ran, Error> {
        match pass {
            Pass::Backward => self.backward(|inputs, saved, of_output, gradients| {
                attention.backward(inputs, saved, of_output, gradients)
            }),
            _ => self.forward(|inputs, outputs| attention.forward(inputs, outputs)),
        }
    }

    /// What a pass has written in the problem's type, by name.
    pub fn written(&self, pass: Pass, stream: StreamRef) -> Result<Written<T>, Failure> {
        let tensors = match pass {
            Pass::Backward => vec![("d_q", &self.d_q), ("d_k", &self.d_k), ("d_v", &self.d_v)],
            _ => vec![("o", &self.o)],
        };
        let tensors = tensors.into_iter();
        tensors
            .map(|(name, memory)| Ok((name, memory.to_vec(stream)?)))
            .collect()
    }

    /// What it has written in f32 beside that: statistics, or gradients of sinks.
    pub fn written_f32(&self, pass: Pass, stream: StreamRef) -> Result<Written<f32>, Failure> {
        let vector = match pass {
            Pass::Backward => self.d_sinks.as_ref().map(|d_sinks| ("d_sinks", d_sinks)),
            _ => Some(("lse", &self.lse)),
        };
        let vector = vector.into_iter();
        vector
            .map(|(name, memory)| Ok((name, memory.to_vec(stream)?)))
            .collect()
    }

    /// What a pass should give: as the processor works it out.
    pub fn reference(&self, pass: Pass, stream: StreamRef) -> Result<Written<T>, Failure> {
        let operands = self.operands.on_host(stream)?;
        let attention = Attention::new(&Device::cpu(), operands.problem)?;
        let d_o = Some(self.d_o.copy(stream, None)?);
        let mut tensors = Tensors::new(operands, d_o, None, None)?;
        tensors.run(&attention, Pass::Forward)?;
        if pass == Pass::Backward {
            tensors.run(&attention, pass)?;
        }
        tensors.written(pass, stream)
    }
}

/// Random values that are not repeated. An odd number, so that no two rows of a power-of-two length are alike.
pub const BLOCK: usize = (1 << 20) + 7;

/// Values of a standard normal distribution; a block of them, repeated.
pub fn normal<T: Bytes>(n_elems: usize, random: &mut SmallRng) -> Result<Vec<T>, Failure> {
    let mut all = with_room(n_elems)?;
    let mut block = Vec::with_capacity(BLOCK.min(n_elems));
    while block.len() < BLOCK.min(n_elems) {
        // Box and Muller: two uniform numbers make a normal one.
        let (radius, angle) = (1.0 - random.random::<f32>(), random.random::<f32>());
        let value = (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos();
        block.push(T::from_f32(value));
    }
    all.extend(block.iter().copied().cycle().take(n_elems));
    Ok(all)
}

/// Zeros.
pub fn zeros<T: Scalar>(n_elems: usize) -> Result<Vec<T>, Failure> {
    let mut all = with_room(n_elems)?;
    all.resize(n_elems, T::default());
    Ok(all)
}

/// A vector with room for so many elements; where the host has no memory for them, an error.
fn with_room<T>(n_elems: usize) -> Result<Vec<T>, Failure> {
    let mut empty = Vec::new();
    match empty.try_reserve_exact(n_elems) {
        Ok(()) => Ok(empty),
        Err(_) => Err(Failure::Option(format!(
            "no memory for a tensor of {n_elems} elements of {} bytes",
            size_of::<T>()
        ))),
    }
}
