//! The frequency of each pair, and how models scale it for longer sequences than they were trained on.

use std::f64::consts::TAU;

use super::RotaryTable;
use crate::error::RotaryError;

/// The rotation frequencies of the pairs of a row.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    rotary_dim: usize,
    base: f64,
    scaling: Scaling,
}

/// A change of the frequencies, by which a model reads sequences `factor` times as long as those it was trained on.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scaling {
    /// No change.
    None,
    /// Position interpolation (Chen et al. 2023, arXiv 2306.15595): every frequency is divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// "NTK-aware": the base grows by factor^(d / (d − 2)), d = rotary_dim, so that the slowest pair's frequency is divided by `factor` and the
    /// fastest one is unchanged.
    Ntk {
        /// At least 1.
        factor: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): pairs that rotate more than `beta_fast` times within `original_seqlen` are unchanged, those that
    /// rotate less than `beta_slow` times are divided by `factor`; in between the change grows with the pair's index.
    /// Cosines and sines are multiplied by `attention_factor`.
    Yarn {
        /// At least 1.
        factor: f64,
        /// Length that the model was trained on.
        original_seqlen: usize,
        /// 32 in the paper.
        beta_fast: f64,
        /// 1 in the paper.
        beta_slow: f64,
        /// `None`: 0.1 ln(factor) + 1, as the paper has it.
        attention_factor: Option<f64>,
    },
    /// Llama 3.1: frequencies of wavelengths longer than `original_seqlen / low_freq_factor` are divided by `factor`, those shorter than
    /// `original_seqlen / high_freq_factor` are unchanged; in between the change grows with the wavelength.
    Llama3 {
        /// At least 1; 8 in Llama 3.1.
        factor: f64,
        /// 1 in Llama 3.1.
        low_freq_factor: f64,
        /// 4 in Llama 3.1; greater than `low_freq_factor`.
        high_freq_factor: f64,
        /// Length that the model was trained on; 8192 in Llama 3.1.
        original_seqlen: usize,
    },
}

impl Rotary {
    /// For the first `rotary_dim` elements of a row, with a base of 10,000.
    pub fn new(rotary_dim: usize) -> Rotary {
        Rotary {
            rotary_dim,
            base: 10_000.0,
            scaling: Scaling::None,
        }
    }

    /// With another base (`rope_theta`).
    pub fn base(self, base: f64) -> Rotary {
        Rotary { base, ..self }
    }

    /// With scaled frequencies.
    pub fn scaling(self, scaling: Scaling) -> Rotary {
        Rotary { scaling, ..self }
    }

    /// θ of each pair, in radians for each position: `[rotary_dim / 2]`.
    ///
    /// # Errors
    /// rotary_dim is 0, odd, or greater than [`MAX_ROTARY_DIM`](super::MAX_ROTARY_DIM); a factor is out of the scaling's range.
    pub fn frequencies(&self) -> Result<Vec<f64>, RotaryError> {
        self.check()?;
        let d = self.rotary_dim as f64;
        let powers =
            |base: f64| (0..self.rotary_dim / 2).map(move |i| base.powf(-2.0 * i as f64 / d));
        Ok(match self.scaling {
            Scaling::None => powers(self.base).collect(),
            Scaling::Linear { factor } => powers(self.base).map(|theta| theta / factor).collect(),
            // The only pair of two elements turns by 1 whatever the base is.
            Scaling::Ntk { .. } if self.rotary_dim == 2 => powers(self.base).collect(),
            Scaling::Ntk { factor } => powers(self.base * factor.powf(d / (d - 2.0))).collect(),
            Scaling::Yarn {
                factor,
                original_seqlen,
                beta_fast,
                beta_slow,
                ..
            } => {
                // The index of the pair that turns so many times within the original length.
                let index = |turns: f64| {
                    d * (original_seqlen as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln())
                };
                let first = index(beta_fast).floor().max(0.0);
                let last = index(beta_slow).ceil().min(d - 1.0);
                // Where both are one pair, it is the last that is left as it is.
                let width = if last > first { last - first } else { 0.001 };
                let stretched = |i: usize| ((i as f64 - first) / width).clamp(0.0, 1.0);
                let thetas = powers(self.base).enumerate();
                thetas
                    .map(|(i, theta)| mix(theta, theta / factor, stretched(i)))
                    .collect()
            }
            Scaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_seqlen,
            } => {
                let stretched = |theta: f64| {
                    let turns = original_seqlen as f64 * theta / TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    1.0 - kept.clamp(0.0, 1.0)
                };
                powers(self.base)
                    .map(|theta| mix(theta, theta / factor, stretched(theta)))
                    .collect()
            }
        })
    }

    /// The factor of cosines and sines: 1 except for [`Scaling::Yarn`].
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn {
                factor,
                attention_factor,
                ..
            } => attention_factor.unwrap_or(0.1 * factor.ln() + 1.0),
            _ => 1.0,
        }
    }

    /// Cosines and sines of the positions 0 to `n_positions` − 1, computed in f64 and rounded once.
    ///
    /// # Errors
    /// As [`Rotary::frequencies`]; there is no memory for the table.
    pub fn table(&self, n_positions: usize) -> Result<RotaryTable, RotaryError> {
        let frequencies = self.frequencies()?;
        let factor = self.attention_factor();
        let too_many = RotaryError::TooManyPositions { given: n_positions };
        let n_elems = n_positions.checked_mul(frequencies.len());
        let n_elems = n_elems.ok_or_else(|| too_many.clone())?;
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for table in [&mut cos, &mut sin] {
            table
                .try_reserve_exact(n_elems)
                .map_err(|_| too_many.clone())?;
        }
        for position in 0..n_positions {
            for theta in &frequencies {
                let (s, c) = (position as f64 * theta).sin_cos();
                cos.push((c * factor) as f32);
                sin.push((s * factor) as f32);
            }
        }
        RotaryTable::new(self.rotary_dim, cos, sin)
    }

    /// Whether every number is finite and at least its minimum.
    fn check(&self) -> Result<(), RotaryError> {
        crate::validate::rotary::check_dim(self.rotary_dim)?;
        let positive = f64::MIN_POSITIVE;
        let mut rules = match self.scaling {
            Scaling::None => vec![],
            Scaling::Linear { factor } | Scaling::Ntk { factor } => vec![("factor", factor, 1.0)],
            Scaling::Yarn {
                factor,
                original_seqlen,
                beta_fast,
                beta_slow,
                attention_factor,
            } => vec![
                ("factor", factor, 1.0),
                ("original_seqlen", original_seqlen as f64, 1.0),
                ("beta_slow", beta_slow, positive),
                ("beta_fast", beta_fast, beta_slow),
                (
                    "attention_factor",
                    attention_factor.unwrap_or(1.0),
                    positive,
                ),
            ],
            Scaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_seqlen,
            } => vec![
                ("factor", factor, 1.0),
                ("original_seqlen", original_seqlen as f64, 1.0),
                ("low_freq_factor", low, positive),
                ("high_freq_factor", high, low.next_up()),
            ],
        };
        rules.push(match self.scaling {
            // Its logarithm divides.
            Scaling::Yarn { .. } => ("base", self.base, 1f64.next_up()),
            _ => ("base", self.base, positive),
        });
        let broken = |&&(_, given, from): &&(&str, f64, f64)| !given.is_finite() || given < from;
        match rules.iter().find(broken) {
            Some(&(what, given, from)) => Err(RotaryError::Factor { what, given, from }),
            None => Ok(()),
        }
    }
}

fn mix(x: f64, y: f64, of_y: f64) -> f64 {
    x * (1.0 - of_y) + y * of_y
}
