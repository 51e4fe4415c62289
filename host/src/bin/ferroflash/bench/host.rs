//! Tensors in the memory of the host, and passes that are called directly: the CPU, the emulator.

use std::time::Instant;

use ferroflash::{
    Attention, Device, Gradients, Inputs, Order, OutputGradients, Outputs, Pass, Problem, Saved,
    Tensor, TensorMut,
};
use rand::rngs::SmallRng;

use super::subject::{Call, Effort, Ready, Variant, median, n_calls, normal, warm_up, zeros};
use crate::expressions::{Given, Named};
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;

/// The tensors of one problem.
pub struct Tensors<T> {
    device: Device,
    problem: Problem,
    lengths: Lengths,
    given: Given,
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

impl<T: Bytes> Tensors<T> {
    /// Random inputs; o and lse as the forward pass gives them.
    pub fn new(
        device: &Device,
        problem: Problem,
        lengths: Lengths,
        named: Named,
        random: &mut SmallRng,
    ) -> Result<Tensors<T>, Failure> {
        let n_q = problem.shape_q().iter().product();
        let n_k = problem.shape_k().iter().product();
        let n_v = problem.shape_v().iter().product();
        let n_o = problem.shape_o().iter().product();
        let mut tensors = Tensors {
            device: device.clone(),
            problem,
            lengths,
            given: Given::default(),
            q: normal(n_q, random)?,
            k: normal(n_k, random)?,
            v: normal(n_v, random)?,
            o: zeros(n_o)?,
            lse: zeros(problem.shape_lse().iter().product())?,
            d_o: normal(n_o, random)?,
            d_q: zeros(n_q)?,
            d_k: zeros(n_k)?,
            d_v: zeros(n_v)?,
            sinks: None,
        };
        tensors.given = Given::new(named, &problem, random)?;
        if problem.has_sinks() {
            let heads = problem.heads_q();
            tensors.sinks = Some([normal(heads, random)?, zeros(heads)?]);
        }
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

    /// What the pass writes, by name.
    pub fn results(
        &mut self,
        attention: &Attention,
        pass: Pass,
    ) -> Result<Vec<(&'static str, Vec<T>)>, Failure> {
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
