//! Tensors in the memory of the host, and passes that are called directly: the CPU, the emulator.

use std::sync::Arc;
use std::time::Instant;

use ferroflash::{
    Attention, Backend, Device, Gradients, Inputs, Order, OutputGradients, Outputs, Pass, Problem,
    Saved, Tensor, TensorMut,
};
use rand::rngs::SmallRng;

use super::subject::{Call, Effort, Ready, Variant, median, n_calls, normal, warm_up, zeros};
use crate::expressions::{Given, Named};
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;

/// What a pass writes, by name.
pub type Written<T> = Vec<(&'static str, Vec<T>)>;

/// What a pass over these numbers gives on the processor.
pub fn on_processor<T: Bytes>(
    problem: Problem,
    numbers: Numbers<T>,
    pass: Pass,
) -> Result<Written<T>, Failure> {
    let device = Device::cpu();
    let attention = Attention::new(&device, problem)?;
    Tensors::of(&device, problem, numbers)?.results(&attention, pass)
}

/// The tensors of one problem.
pub struct Tensors<T> {
    device: Device,
    problem: Problem,
    lengths: Lengths,
    given: Arc<Given>,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    o: Vec<T>,
    lse: Vec<f32>,
    d_o: Vec<T>,
    d_q: Vec<T>,
    d_k: Vec<T>,
    d_v: Vec<T>,
    /// Sinks and their gradients, where the problem has some.
    sinks: Option<[Vec<f32>; 2]>,
}

/// The numbers of one problem, in the memory of the host.
pub struct Numbers<T> {
    pub lengths: Lengths,
    pub given: Arc<Given>,
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
    pub d_o: Vec<T>,
    pub sinks: Option<Vec<f32>>,
}

impl<T: Bytes> Tensors<T> {
    /// Random inputs; o and lse as the forward pass gives them.
    pub fn new(
        device: &Device,
        problem: Problem,
        lengths: Lengths,
        named: Named,
        random: &mut SmallRng,
    ) -> Result<Tensors<T>, Failure> {
        let n_o = problem.shape_o().iter().product();
        let numbers = Numbers {
            lengths,
            q: normal(problem.shape_q().iter().product(), random)?,
            k: normal(problem.shape_k().iter().product(), random)?,
            v: normal(problem.shape_v().iter().product(), random)?,
            d_o: normal(n_o, random)?,
            given: Arc::new(Given::new(named, &problem, random)?),
            sinks: match problem.has_sinks() {
                true => Some(normal(problem.heads_q(), random)?),
                false => None,
            },
        };
        Tensors::of(device, problem, numbers)
    }

    /// These inputs; o and lse as the forward pass gives them.
    pub fn of(
        device: &Device,
        problem: Problem,
        numbers: Numbers<T>,
    ) -> Result<Tensors<T>, Failure> {
        let Numbers {
            lengths,
            given,
            q,
            k,
            v,
            d_o,
            sinks,
        } = numbers;
        let mut tensors = Tensors {
            device: device.clone(),
            problem,
            lengths,
            given,
            o: zeros(d_o.len())?,
            lse: zeros(problem.shape_lse().iter().product())?,
            d_q: zeros(q.len())?,
            d_k: zeros(k.len())?,
            d_v: zeros(v.len())?,
            sinks: match sinks {
                Some(sinks) => Some([sinks, zeros(problem.heads_q())?]),
                None => None,
            },
            q,
            k,
            v,
            d_o,
        };
        let variant = Variant {
            pass: Pass::Forward,
            algorithm: None,
            order: Order::Deterministic,
        };
        let attention = variant.attention(device, problem)?;
        tensors.call(&attention, Pass::Forward)?;
        Ok(tensors)
    }

    /// Plans a variant.
    pub fn prepare(&mut self, variant: &Variant) -> Result<Ready, Failure> {
        let attention = variant.attention(&self.device, self.problem)?;
        let plan = attention
            .explain(variant.pass)?
            .plan
            .map_err(ferroflash::Error::from)?;
        Ok(Ready {
            algorithm: plan.algorithm,
            extra_bytes: plan.extra_bytes(),
            call: Call::Host(Box::new(attention), variant.pass),
        })
    }

    /// What a pass should give: as the processor works it out. `None` where it is the device itself.
    pub fn reference(&self, pass: Pass) -> Result<Option<Written<T>>, Failure> {
        if self.device.backend() == Backend::Cpu {
            return Ok(None);
        }
        let numbers = Numbers {
            lengths: self.lengths.clone(),
            given: Arc::clone(&self.given),
            q: self.q.clone(),
            k: self.k.clone(),
            v: self.v.clone(),
            d_o: self.d_o.clone(),
            sinks: self.sinks.as_ref().map(|[sinks, _]| sinks.clone()),
        };
        on_processor(self.problem, numbers, pass).map(Some)
    }

    /// What the pass writes, by name.
    pub fn results(&mut self, attention: &Attention, pass: Pass) -> Result<Written<T>, Failure> {
        self.call(attention, pass)?;
        Ok(match pass {
            Pass::Backward => vec![
                ("d_q", self.d_q.clone()),
                ("d_k", self.d_k.clone()),
                ("d_v", self.d_v.clone()),
            ],
            _ => vec![("o", self.o.clone())],
        })
    }

    /// The median by the wall clock.
    pub fn round(
        &mut self,
        attention: &Attention,
        pass: Pass,
        effort: Effort,
    ) -> Result<f64, Failure> {
        let one = warm_up(effort.warm_up_ms, || self.call(attention, pass))?;
        let mut times = Vec::new();
        for _ in 0..n_calls(one, effort.rep_ms) {
            let start = Instant::now();
            self.call(attention, pass)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(&mut times))
    }

    fn call(&mut self, attention: &Attention, pass: Pass) -> Result<(), Failure> {
        let (shape_q, shape_k) = (self.problem.shape_q(), self.problem.shape_k());
        let (shape_v, shape_o) = (self.problem.shape_v(), self.problem.shape_o());
        let inputs = self.lengths.put(Inputs::new(
            &Tensor::bshd(&self.q, shape_q)?,
            &Tensor::bshd(&self.k, shape_k)?,
            &Tensor::bshd(&self.v, shape_v)?,
        ));
        let mut inputs = self.given.put(inputs);
        if self.problem.dropout().is_some() {
            inputs = inputs.dropout_rng(0, 0);
        }
        let mut d_sinks = None;
        if let Some([sinks, gradients]) = &mut self.sinks {
            inputs = inputs.sinks(&*sinks);
            d_sinks = Some(gradients.into());
        }
        match pass {
            Pass::Backward => {
                let saved = Saved::new(&Tensor::bshd(&self.o, shape_o)?, &self.lse);
                let of_output = OutputGradients::new(&Tensor::bshd(&self.d_o, shape_o)?);
                let mut gradients = Gradients::new(
                    TensorMut::bshd(&mut self.d_q, shape_q)?,
                    TensorMut::bshd(&mut self.d_k, shape_k)?,
                    TensorMut::bshd(&mut self.d_v, shape_v)?,
                );
                gradients.d_sinks = d_sinks;
                attention.backward(&inputs, &saved, &of_output, &mut gradients)?;
            }
            _ => {
                let o = TensorMut::bshd(&mut self.o, shape_o)?;
                attention.forward(&inputs, &mut Outputs::new(o, &mut self.lse))?;
            }
        }
        Ok(())
    }
}
