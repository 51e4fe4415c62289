//! The training example in small: a few steps of a tiny model.

// The example's own main uses the rest of these files.
#[allow(dead_code)]
#[path = "../examples/train/attention.rs"]
mod attention;
#[allow(dead_code)]
#[path = "../examples/train/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../examples/train/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../examples/train/optimizer.rs"]
mod optimizer;
#[allow(dead_code)]
#[path = "../examples/train/scaling.rs"]
mod scaling;
#[allow(dead_code)]
#[path = "../examples/train/text.rs"]
mod text;
#[allow(dead_code)]
#[path = "../examples/train/trainer.rs"]
mod trainer;
#[allow(dead_code)]
#[path = "../examples/train/weights.rs"]
mod weights;

use anyhow::Result;
use attention::{Attention, Backend};
use candle_core::{DType, Device, Tensor};
use generate::{Choice, Past, generate};
use model::{Cache, Config, Model};
use optimizer::{Hyperparameters, Update};
use scaling::{Change, LossScale};
use text::{Sampler, Text};
use trainer::{Overflow, Trainer};

const STEPS: usize = 12;
const SEQLEN: usize = 48;
const BATCH: usize = 4;
const CPU: &Device = &Device::Cpu;

fn config(dtype: DType) -> Config {
    Config {
        layers: 2,
        heads: 2,
        head_dim: 16,
        positions: 64,
        dtype,
    }
}

fn hyperparameters() -> Hyperparameters {
    Hyperparameters {
        learning_rate: 1e-2,
        weight_decay: 0.1,
        clip: 1.0,
        warm_up: 3,
        steps: STEPS,
    }
}

fn lesson() -> Text {
    let mut text = Text::default();
    let sentence = b"A kernel reads tiles, multiplies them, and writes what it has summed up. ";
    text.add(&sentence.repeat(40));
    text
}

fn trainer(dtype: DType, patience: usize) -> Result<Trainer> {
    Ok(Trainer::new(
        config(dtype),
        hyperparameters(),
        patience,
        1,
        CPU,
    )?)
}

/// The loss of every step, and the model then.
fn trained(dtype: DType, backend: Backend) -> Result<(Vec<f32>, Trainer)> {
    let text = lesson();
    let mut trainer = trainer(dtype, 50)?;
    let mut batches = Sampler::new(&text.train, 2);
    let attention = Attention::new(backend);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let batch = batches.draw(BATCH, SEQLEN, CPU)?;
        let step = trainer.step(&batch, &attention, Overflow::Natural)?;
        assert!(matches!(step.update, Update::Moved { .. }), "{step:?}");
        losses.push(step.loss);
    }
    Ok((losses, trainer))
}

/// Bounds how far losses of the two backends lie apart.
fn compare(dtype: DType, most: f32) -> Result<()> {
    let (ours, trainer) = trained(dtype, Backend::Ferroflash)?;
    let (candles, _) = trained(dtype, Backend::Candle)?;
    for (step, (a, b)) in ours.iter().zip(&candles).enumerate() {
        assert!((a - b).abs() <= most, "{dtype:?}, step {step}: {a} and {b}");
    }
    assert!((ours[0] - 256f32.ln()).abs() < 0.1, "nothing is known yet");
    assert!(ours[STEPS - 1] < 0.7 * ours[0], "the loss falls: {ours:?}");

    let text = lesson();
    let held_out = text.validation(2, BATCH, SEQLEN, CPU)?;
    let loss = trainer.validate(&held_out, &Attention::new(Backend::Ferroflash))?;
    assert!(
        loss < 0.7 * ours[0],
        "so does that of held-out text: {loss}"
    );
    Ok(())
}

#[test]
fn the_loss_falls_and_both_backends_agree_in_f32() -> Result<()> {
    compare(DType::F32, 1e-4)
}

#[test]
fn and_in_the_small_types() -> Result<()> {
    compare(DType::BF16, 0.05)?;
    compare(DType::F16, 0.05)
}

/// Attention in 8 bits costs less than two trainings from other weights differ by.
#[test]
fn in_8_bits_the_loss_follows() -> Result<()> {
    let (exact, _) = trained(DType::BF16, Backend::Ferroflash)?;
    let (in_8_bits, _) = trained(DType::BF16, Backend::Fp8)?;
    assert_ne!(exact, in_8_bits);
    for (step, (a, b)) in exact.iter().zip(&in_8_bits).enumerate() {
        assert!((a - b).abs() <= 0.05, "step {step}: {a} and {b}");
    }
    Ok(())
}

#[test]
fn an_overflow_skips_the_step_and_halves_the_scale() -> Result<()> {
    let text = lesson();
    let mut trainer = trainer(DType::F16, 3)?;
    let attention = Attention::new(Backend::Ferroflash);
    let batch = Sampler::new(&text.train, 2).draw(BATCH, SEQLEN, CPU)?;
    let scale = |trainer: &Trainer| trainer.loss_scale.as_ref().map(LossScale::scale);
    let first = scale(&trainer).expect("f16 has a scale");

    let step = trainer.step(&batch, &attention, Overflow::Forced)?;
    assert_eq!((step.update, step.scale), (Update::Skipped, Change::Halved));
    assert_eq!(scale(&trainer), Some(first / 2.0));

    for good in 1..=3 {
        let before = step.loss;
        let step = trainer.step(&batch, &attention, Overflow::Natural)?;
        assert!(matches!(step.update, Update::Moved { .. }), "{step:?}");
        let expected = if good == 3 {
            Change::Doubled
        } else {
            Change::Kept
        };
        assert_eq!(step.scale, expected);
        if good == 1 {
            assert_eq!(step.loss, before, "the skipped step has moved nothing");
        }
    }
    assert_eq!(scale(&trainer), Some(first));
    Ok(())
}

#[test]
fn bf16_and_f32_have_no_loss_scale() -> Result<()> {
    for dtype in [DType::BF16, DType::F32] {
        assert!(trainer(dtype, 3)?.loss_scale.is_none());
    }
    Ok(())
}

#[test]
fn generation_is_the_same_with_a_cache_and_without() -> Result<()> {
    for backend in [Backend::Ferroflash, Backend::Candle] {
        let (_, trainer) = trained(DType::F32, backend)?;
        let model = trainer.model.frozen()?;
        let attention = Attention::new(backend);
        let sampled = Choice::Sampled {
            temperature: 0.8,
            seed: 3,
        };
        for choice in [Choice::Greedy, sampled] {
            let write = |past| generate(&model, &attention, b"A kernel ", 40, choice, past, CPU);
            let text = write(Past::Cached)?;
            assert_eq!(text.len(), 40);
            assert_eq!(text, write(Past::Recomputed)?, "{backend}");
        }
    }
    Ok(())
}

#[test]
fn a_cached_token_gets_the_scores_of_the_whole_text() -> Result<()> {
    let (model, _) = Model::new(config(DType::F32), 1, CPU)?;
    let attention = Attention::new(Backend::Ferroflash);
    let tokens = Tensor::arange(40u32, 60, CPU)?.unsqueeze(0)?;
    let whole = model.forward(&tokens, &attention)?;
    let mut cache = Cache::default();
    let mut parts = vec![model.forward_cached(&tokens.narrow(1, 0, 7)?, &attention, &mut cache)?];
    for place in 7..20 {
        let token = tokens.narrow(1, place, 1)?;
        parts.push(model.forward_cached(&token, &attention, &mut cache)?);
    }
    let difference = (Tensor::cat(&parts, 1)? - whole)?.abs()?.max_all()?;
    let difference = difference.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[test]
fn a_model_is_written_and_read() -> Result<()> {
    let (model, _) = Model::new(config(DType::F32), 1, CPU)?;
    let file = temporary();
    weights::save(&model, &file)?;
    let bytes = std::fs::read(&file)?;
    std::fs::remove_file(&file)?;
    let read = weights::load(&bytes, 64, DType::F32, CPU)?;
    assert_eq!((read.config().layers, read.config().heads), (2, 2));
    for ((name, a), (_, b)) in model.named().into_iter().zip(read.named()) {
        let rounded = a.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let difference = (rounded - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert_eq!(difference, 0.0, "{name}");
    }
    assert!(weights::load(&bytes[..100], 64, DType::F32, CPU).is_err());
    Ok(())
}

/// A place for a file of this process alone.
fn temporary() -> std::path::PathBuf {
    let name = format!("weights-{}.safetensors", std::process::id());
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn too_long_a_text_is_an_error() -> Result<()> {
    let (model, _) = Model::new(config(DType::F32), 1, CPU)?;
    let attention = Attention::new(Backend::Candle);
    let write = |prompt: &[u8], count| {
        generate(
            &model,
            &attention,
            prompt,
            count,
            Choice::Greedy,
            Past::Cached,
            CPU,
        )
    };
    assert!(write(b"", 5).is_err());
    assert!(write(b"A", 64).is_err());
    assert_eq!(write(b"A", 63)?.len(), 63);
    assert!(lesson().check(SEQLEN).is_ok());
    assert!(
        lesson().check(1000).is_err(),
        "longer than what is held out"
    );
    Ok(())
}

#[test]
fn the_learning_rate_rises_and_falls() {
    let hyperparameters = hyperparameters();
    let rates: Vec<f64> = (0..=STEPS).map(|step| hyperparameters.rate(step)).collect();
    assert!(rates[..3].is_sorted());
    assert_eq!(rates[3], 1e-2);
    assert!(rates[3..].is_sorted_by(|a, b| a >= b));
    assert!((rates[STEPS] - 1e-3).abs() < 1e-12);
}
