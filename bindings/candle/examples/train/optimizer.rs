//! AdamW over the f32 master weights, behind a check for overflow, unscaling and clipping; the learning rate's schedule.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer as _, ParamsAdamW};

/// What an optimizer may be told.
#[derive(Clone, Debug)]
pub struct Hyperparameters {
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// Bound of the norm of all gradients together.
    pub clip: f64,
    pub warm_up: usize,
    pub steps: usize,
}

impl Hyperparameters {
    /// The learning rate of a step: up in a line, then down by a cosine to a tenth.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warm_up {
            return self.learning_rate * (step + 1) as f64 / self.warm_up as f64;
        }
        let rest = self.steps.saturating_sub(self.warm_up).max(1) as f64;
        let progress = ((step - self.warm_up) as f64 / rest).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.learning_rate * (0.1 + 0.9 * cosine)
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// The weights have moved. The norm is that before clipping.
    Moved { norm: f64 },
    /// A gradient is inf or NaN: nothing has changed.
    Skipped,
}

/// AdamW for all variables; only matrices decay.
pub struct Optimizer {
    variables: Vec<Var>,
    matrices: AdamW,
    vectors: AdamW,
    hyperparameters: Hyperparameters,
}

impl Optimizer {
    pub fn new(variables: Vec<Var>, hyperparameters: Hyperparameters) -> Result<Optimizer> {
        let (matrices, vectors) = variables.iter().cloned().partition(|x| x.rank() > 1);
        let parameters = |weight_decay| ParamsAdamW {
            lr: hyperparameters.learning_rate,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay,
        };
        Ok(Optimizer {
            matrices: AdamW::new(matrices, parameters(hyperparameters.weight_decay))?,
            vectors: AdamW::new(vectors, parameters(0.0))?,
            variables,
            hyperparameters,
        })
    }

    /// Moves the weights by gradients of `scale` times the loss.
    pub fn update(&mut self, mut gradients: GradStore, scale: f64, step: usize) -> Result<Update> {
        let norm = self.norm(&gradients)? / scale;
        if !norm.is_finite() {
            return Ok(Update::Skipped);
        }
        let factor = (self.hyperparameters.clip / norm).min(1.0) / scale;
        for variable in &self.variables {
            if let Some(gradient) = gradients.remove(variable) {
                gradients.insert(variable, (gradient * factor)?);
            }
        }
        let rate = self.hyperparameters.rate(step);
        for optimizer in [&mut self.matrices, &mut self.vectors] {
            optimizer.set_learning_rate(rate);
            optimizer.step(&gradients)?;
        }
        Ok(Update::Moved { norm })
    }

    /// The norm of all gradients together: one number to read from the device, and inf or NaN if any gradient holds such.
    fn norm(&self, gradients: &GradStore) -> Result<f64> {
        let squares = self
            .variables
            .iter()
            .filter_map(|x| gradients.get(x))
            .map(|gradient| gradient.sqr()?.sum_all())
            .collect::<Result<Vec<_>>>()?;
        let sum = Tensor::stack(&squares, 0)?.sum_all()?.to_scalar::<f32>()?;
        Ok(f64::from(sum).sqrt())
    }
}
