//! Scales of the next step from the amax of the steps before.

use std::collections::VecDeque;

use super::rounding::E4M3_MAX;
use crate::error::QuantizeError;

/// Which amax of the history counts.
///
/// [`DelayedScaling`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AmaxAlgorithm {
    /// The greatest of the history.
    Max,
    /// That of the last step.
    MostRecent,
}

/// Scales that follow from the steps before, as TransformerEngine's recipe of this name has them
/// ([`delayed_scaling.cu`](https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/common/recipe/delayed_scaling.cu)). A step then need not
/// wait for its own amax: it quantises with the scales that are there, and notes its amax for the steps to come.
///
/// `scale = 448 / 2^margin / amax`, with the amax of a history of steps. An amax that is 0 or not finite leaves the scale as it is. Scales begin as 1.
/// There is one for each amax, so the tensors of a layer, or the heads of a tensor, can have one object.
///
/// An amax that is not finite is not put into the history. TransformerEngine puts it there: an infinity then holds the scale for the length of the history.
///
/// ```
/// use ferroflash::quantize::{AmaxAlgorithm, DelayedScaling, Operand};
/// use ferroflash::{Fp8, Tensor};
///
/// let mut scaling = DelayedScaling::new(1).amax_history_len(2)?.amax_algorithm(AmaxAlgorithm::Max);
/// let mut found = Vec::new();
/// for step in [[448f32, -7.0], [2.0, -7.0], [3.5, 1.0]] {
///     let k = Operand::k(&Tensor::bshd(&step, [1, 2, 1, 1])?)?;
///     let e4m3 = k.quantize_with(&scaling.descale())?;
///     scaling.update(&k.amax(Fp8::PerTensor))?;
///     found.push((e4m3.descale()[0], scaling.scale()[0]));
/// }
/// assert_eq!(found, [(1.0, 1.0), (1.0, 1.0), (1.0, 64.0)]); // 448 / 448 twice, then 448 / 7
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DelayedScaling {
    algorithm: AmaxAlgorithm,
    margin: u32,
    len: usize,
    /// Of each scale, the oldest first.
    histories: Vec<VecDeque<f32>>,
    scale: Vec<f32>,
}

impl DelayedScaling {
    /// So many scales of 1, with TransformerEngine's defaults: a history of 1024 steps, margin 0, [`AmaxAlgorithm::Max`].
    pub fn new(n_scales: usize) -> DelayedScaling {
        DelayedScaling {
            algorithm: AmaxAlgorithm::Max,
            margin: 0,
            len: 1024,
            histories: vec![VecDeque::new(); n_scales],
            scale: vec![1.0; n_scales],
        }
    }

    /// How many steps the history has. Steps beyond it are forgotten, the oldest first.
    ///
    /// # Errors
    /// It is 0.
    pub fn amax_history_len(mut self, len: usize) -> Result<DelayedScaling, QuantizeError> {
        if len == 0 {
            return Err(QuantizeError::NoHistory);
        }
        self.len = len;
        self.histories.iter_mut().for_each(|history| {
            let beyond = history.len().saturating_sub(len);
            history.drain(..beyond);
        });
        Ok(self)
    }

    /// How many powers of 2 the scale stays below that of amax: room for numbers that grow.
    #[must_use]
    pub fn margin(self, margin: u32) -> DelayedScaling {
        DelayedScaling { margin, ..self }
    }

    /// Which amax of the history counts: [`AmaxAlgorithm`].
    #[must_use]
    pub fn amax_algorithm(self, algorithm: AmaxAlgorithm) -> DelayedScaling {
        DelayedScaling { algorithm, ..self }
    }

    /// Factors that bring numbers to the range of e4m3.
    pub fn scale(&self) -> &[f32] {
        &self.scale
    }

    /// 1 / scale, for [`Operand::quantize_with`](crate::quantize::Operand::quantize_with) and [`Inputs::q_descale`](crate::Inputs::q_descale).
    pub fn descale(&self) -> Vec<f32> {
        self.scale.iter().map(|scale| 1.0 / scale).collect()
    }

    /// The end of a step: notes amax, one for each scale, and renews the scales.
    ///
    /// # Errors
    /// There are not as many values as scales; nothing is noted then.
    pub fn update(&mut self, amax: &[f32]) -> Result<(), QuantizeError> {
        let (given, needed) = (amax.len(), self.scale.len());
        if given != needed {
            return Err(QuantizeError::AmaxCount { given, needed });
        }
        let scales = self.scale.iter_mut().zip(&mut self.histories);
        for ((scale, history), &amax) in scales.zip(amax) {
            if !amax.is_finite() {
                continue;
            }
            if history.len() == self.len {
                history.pop_front();
            }
            history.push_back(amax);
            let counts = match self.algorithm {
                AmaxAlgorithm::MostRecent => amax,
                AmaxAlgorithm::Max => history.iter().copied().fold(0.0, f32::max),
            };
            if counts > 0.0 {
                *scale = scale_for(counts, self.margin);
            }
        }
        Ok(())
    }
}

/// `448 / 2^margin / amax`, kept where both it and its inverse are normal numbers.
fn scale_for(amax: f32, margin: u32) -> f32 {
    let margin = i32::try_from(margin).unwrap_or(i32::MAX);
    let scale = f64::from(E4M3_MAX) * 2f64.powi(-margin) / f64::from(amax);
    scale.clamp(f32::MIN_POSITIVE.into(), (1.0 / f32::MIN_POSITIVE).into()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales(mut scaling: DelayedScaling, steps: &[f32]) -> Vec<f32> {
        let mut step = |&amax| {
            scaling.update(&[amax]).unwrap();
            scaling.scale()[0]
        };
        steps.iter().map(&mut step).collect()
    }

    #[test]
    fn max_forgets_the_oldest_and_most_recent_all_but_the_last() {
        let steps = [7.0, 14.0, 3.5, 1.75, 1.75];
        let max = DelayedScaling::new(1).amax_history_len(3).unwrap();
        assert_eq!(scales(max.clone(), &steps), [64.0, 32.0, 32.0, 32.0, 128.0]);
        let recent = max.amax_algorithm(AmaxAlgorithm::MostRecent);
        assert_eq!(scales(recent, &steps), [64.0, 32.0, 128.0, 256.0, 256.0]);
    }

    #[test]
    fn an_amax_of_no_use_keeps_the_scale() {
        for algorithm in [AmaxAlgorithm::Max, AmaxAlgorithm::MostRecent] {
            let scaling = DelayedScaling::new(1)
                .amax_history_len(1)
                .unwrap()
                .amax_algorithm(algorithm);
            let steps = [0.0, 7.0, f32::NAN, f32::INFINITY, 0.0, 14.0];
            let expected = [1.0, 64.0, 64.0, 64.0, 64.0, 32.0];
            assert_eq!(scales(scaling, &steps), expected, "{algorithm:?}");
        }
    }

    #[test]
    fn each_scale_has_its_history_and_a_margin_halves_it() {
        let mut scaling = DelayedScaling::new(2).margin(3);
        scaling.update(&[448.0, f32::NAN]).unwrap();
        assert_eq!(scaling.scale(), [0.125, 1.0]);
        assert_eq!(scaling.descale(), [8.0, 1.0]);
        let before = scaling.clone();
        assert_eq!(
            scaling.update(&[1.0]),
            Err(QuantizeError::AmaxCount {
                given: 1,
                needed: 2
            })
        );
        assert_eq!(scaling, before);
    }

    #[test]
    fn extremes_have_scales_and_descales_above_0() {
        for (amax, margin) in [
            (f32::from_bits(1), 0),
            (f32::MAX, 0),
            (1.0, 200),
            (1.0, u32::MAX),
        ] {
            let mut scaling = DelayedScaling::new(1).margin(margin);
            scaling.update(&[amax]).unwrap();
            let (scale, descale) = (scaling.scale()[0], scaling.descale()[0]);
            assert!(scale.is_normal() && descale.is_normal(), "{amax} {margin}");
        }
    }

    #[test]
    fn a_shorter_history_forgets_at_once() {
        let scaling = DelayedScaling::new(1).amax_history_len(0);
        assert_eq!(scaling, Err(QuantizeError::NoHistory));
        let mut scaling = DelayedScaling::new(1);
        scaling.update(&[14.0]).unwrap();
        scaling.update(&[7.0]).unwrap();
        let mut scaling = scaling.amax_history_len(1).unwrap();
        scaling.update(&[3.5]).unwrap();
        assert_eq!(scaling.scale(), [128.0]);
    }
}
