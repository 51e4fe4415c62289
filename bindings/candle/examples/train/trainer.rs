//! One step of training: forward, scaled loss, backward, update.

use candle_core::{DType, Device, Result, Tensor};

use crate::attention::Attention;
use crate::model::{Config, Model, VOCABULARY};
use crate::optimizer::{Hyperparameters, Optimizer, Update};
use crate::scaling::{Change, LossScale};
use crate::text::Batch;

/// A model and all that moves its weights.
pub struct Trainer {
    pub model: Model,
    optimizer: Optimizer,
    /// For f16 alone: bf16 and f32 have the range of f32.
    pub loss_scale: Option<LossScale>,
    step: usize,
}

/// Whether a step overflows on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Only if the gradients do.
    Natural,
    /// The loss is scaled by 2³² once more, more than f16 holds.
    Forced,
}

/// What a step found and did.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Mean of −log p of the next byte, in nats.
    pub loss: f32,
    pub update: Update,
    pub scale: Change,
}

impl Trainer {
    /// `patience`: good steps in a row that double the loss scale.
    pub fn new(
        config: Config,
        hyperparameters: Hyperparameters,
        patience: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Trainer> {
        let loss_scale = (config.dtype == DType::F16).then(|| LossScale::new(patience));
        let (model, variables) = Model::new(config, seed, device)?;
        Ok(Trainer {
            model,
            optimizer: Optimizer::new(variables, hyperparameters)?,
            loss_scale,
            step: 0,
        })
    }

    /// Learns from a batch.
    pub fn step(
        &mut self,
        batch: &Batch,
        attention: &Attention,
        overflow: Overflow,
    ) -> Result<Step> {
        let scale = self.loss_scale.as_ref().map_or(1.0, LossScale::scale);
        let loss = loss(&self.model, batch, attention)?;
        let factor = match overflow {
            Overflow::Natural => scale,
            Overflow::Forced => scale * 2f64.powi(32),
        };
        let gradients = (&loss * factor)?.backward()?;
        let update = self.optimizer.update(gradients, factor, self.step)?;
        self.step += 1;
        let change = match (&mut self.loss_scale, update) {
            (Some(scale), Update::Moved { .. }) => scale.succeeded(),
            (Some(scale), Update::Skipped) => scale.overflowed(),
            (None, _) => Change::Kept,
        };
        Ok(Step {
            loss: loss.to_scalar()?,
            update,
            scale: change,
        })
    }

    /// The mean loss of batches that are not learnt from.
    pub fn validate(&self, batches: &[Batch], attention: &Attention) -> Result<f32> {
        let model = self.model.frozen()?;
        let mut sum = 0.0;
        let mut tokens = 0;
        for batch in batches {
            let count = batch.next.elem_count();
            sum += loss(&model, batch, attention)?.to_scalar::<f32>()? * count as f32;
            tokens += count;
        }
        Ok(sum / tokens as f32)
    }
}

/// Cross entropy of the next byte.
fn loss(model: &Model, batch: &Batch, attention: &Attention) -> Result<Tensor> {
    let scores = model.forward(&batch.tokens, attention)?;
    candle_nn::loss::cross_entropy(&scores.reshape(((), VOCABULARY))?, &batch.next)
}
