//! The calls of [`Attention`]: what they compute on the backends that every machine has, and what they refuse.

use ferroflash::error::{Argument, PlanError, ProblemError};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Error, Gradients, Inputs, Mask, OutputGradients,
    Outputs, Pass, Problem, Ran, Saved, Tensor, TensorMut, Vector,
};
use half::f16;

const SHAPE_Q: [usize; 4] = [1, 40, 2, 32];
const SHAPE_K: [usize; 4] = [1, 70, 1, 32];

fn problem() -> Problem {
    Problem::builder(Dtype::F16)
        .seqlen_q(40)
        .seqlen_k(70)
        .heads_q(2)
        .heads_k(1)
        .head_dim(32)
        .mask(Mask::Causal)
        .build()
        .unwrap()
}

/// Waves of several lengths: no two rows alike.
fn waves(n_elems: usize, step: f32) -> Vec<f16> {
    (0..n_elems)
        .map(|index| f16::from_f32((index as f32 * step).sin()))
        .collect()
}

/// Results of both passes.
struct Results {
    o: Vec<f16>,
    lse: Vec<f32>,
    d_q: Vec<f16>,
    d_k: Vec<f16>,
    d_v: Vec<f16>,
    ran: [Ran; 2],
}

/// With a gradient of o and one of lse.
fn both_passes(attention: &Attention) -> Result<Results, Error> {
    let d_lse: Vec<f32> = (0..80).map(|row| (row as f32 * 0.37).cos()).collect();
    both_passes_with(attention, Some((&d_lse).into()))
}

fn both_passes_with(attention: &Attention, d_lse: Option<Vector>) -> Result<Results, Error> {
    let (n_q, n_k) = (40 * 2 * 32, 70 * 32);
    let (q, k, v, d_o) = (
        waves(n_q, 0.13),
        waves(n_k, 0.29),
        waves(n_k, 0.41),
        waves(n_q, 0.73),
    );
    let [mut o, mut d_q] = [vec![f16::NAN; n_q], vec![f16::NAN; n_q]];
    let [mut d_k, mut d_v] = [vec![f16::NAN; n_k], vec![f16::NAN; n_k]];
    let mut lse = vec![f32::NAN; 80];
    let inputs = Inputs::new(
        &Tensor::bshd(&q, SHAPE_Q)?,
        &Tensor::bshd(&k, SHAPE_K)?,
        &Tensor::bshd(&v, SHAPE_K)?,
    );
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, SHAPE_Q)?, &mut lse);
    let forward = attention.forward(&inputs, &mut outputs)?;
    let saved = Saved::new(&Tensor::bshd(&o, SHAPE_Q)?, &lse);
    let mut gradients = Gradients::new(
        TensorMut::bshd(&mut d_q, SHAPE_Q)?,
        TensorMut::bshd(&mut d_k, SHAPE_K)?,
        TensorMut::bshd(&mut d_v, SHAPE_K)?,
    );
    let mut of_output = OutputGradients::new(&Tensor::bshd(&d_o, SHAPE_Q)?);
    of_output.d_lse = d_lse;
    let backward = attention.backward(&inputs, &saved, &of_output, &mut gradients)?;
    Ok(Results {
        o,
        lse,
        d_q,
        d_k,
        d_v,
        ran: [forward, backward],
    })
}

/// The gradients, bit by bit.
fn gradient_bits(results: &Results) -> Vec<u16> {
    let gradients = [&results.d_q, &results.d_k, &results.d_v];
    gradients
        .into_iter()
        .flatten()
        .map(|x| x.to_bits())
        .collect()
}

/// A gradient of lse that is left out is one of zeros, to the bit, and takes no less memory or kernels.
fn assert_absent_is_zero(attention: &Attention) {
    let zeros = both_passes_with(attention, Some((&[0f32; 80]).into())).unwrap();
    let absent = both_passes_with(attention, None).unwrap();
    assert_eq!(gradient_bits(&absent), gradient_bits(&zeros));
    assert_eq!(absent.ran, zeros.ran);
    let given = both_passes(attention).unwrap();
    assert_eq!(given.ran, zeros.ran);
    assert_ne!(gradient_bits(&given), gradient_bits(&zeros));
    let bits = |d_v: &[f16]| d_v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(
        bits(&given.d_v),
        bits(&zeros.d_v),
        "values do not enter lse"
    );
}

#[test]
fn on_the_cpu_a_gradient_of_lse_that_is_left_out_is_zero() {
    assert_absent_is_zero(&Attention::new(&Device::cpu(), problem()).unwrap());
}

#[test]
fn a_gradient_of_lse_of_other_rows_is_refused() {
    let attention = Attention::new(&Device::cpu(), problem()).unwrap();
    let Err(refused) = both_passes_with(&attention, Some((&[0f32; 79]).into())) else {
        panic!("79 rows were taken for 80")
    };
    let expected = ProblemError::ElementCount {
        argument: Argument::DLse,
        given: 79,
        needed: 80,
    };
    assert_eq!(refused, Error::Problem(expected));
}

#[test]
fn the_cpu_says_what_ran() {
    let attention = Attention::new(&Device::cpu(), problem()).unwrap();
    let results = both_passes(&attention).unwrap();
    assert!(
        results
            .o
            .iter()
            .chain(&results.d_q)
            .chain(&results.d_k)
            .chain(&results.d_v)
            .all(|x| x.is_finite())
    );
    assert!(results.lse.iter().all(|lse| lse.is_finite()));
    for ran in results.ran {
        assert_eq!(
            (ran.backend, ran.algorithm),
            (Backend::Cpu, Algorithm::Tiled)
        );
        assert!(ran.kernels.is_empty());
        assert_eq!(ran.standard_bytes, 80 * 72 * 6);
    }
}

#[cfg(feature = "emulator")]
mod emulated {
    use super::*;
    use ferroflash::backend::emulated::EmulatorOptions;

    fn device() -> Device {
        Device::emulated(EmulatorOptions::seeded(7))
    }

    /// The kernels that ran, with what they were compiled with.
    fn names(ran: &Ran) -> Vec<String> {
        ran.kernels
            .iter()
            .map(|kernel| kernel.to_string())
            .collect()
    }

    fn close(left: &[f16], right: &[f16]) {
        let worst = left
            .iter()
            .zip(right)
            .map(|(l, r)| (l.to_f32() - r.to_f32()).abs())
            .fold(0.0, f32::max);
        assert!(worst < 4e-3, "{worst}");
    }

    fn agrees_with_the_cpu(emulated: &Results) {
        let cpu = both_passes(&Attention::new(&Device::cpu(), problem()).unwrap()).unwrap();
        close(&cpu.o, &emulated.o);
        close(&cpu.d_q, &emulated.d_q);
        close(&cpu.d_k, &emulated.d_k);
        close(&cpu.d_v, &emulated.d_v);
        let mut lse = cpu.lse.iter().zip(&emulated.lse);
        assert!(lse.all(|(l, r)| (l - r).abs() < 1e-5));
    }

    #[test]
    fn flash2_agrees_with_the_cpu() {
        let emulated = both_passes(&Attention::new(&device(), problem()).unwrap()).unwrap();
        assert_eq!(
            names(&emulated.ran[0]),
            ["forward_sm80_f16_d32 right_bound"]
        );
        assert_eq!(emulated.ran[1].kernels.len(), 3);
        assert_eq!(emulated.ran[1].algorithm, Algorithm::Flash2);
        agrees_with_the_cpu(&emulated);
    }

    #[test]
    fn flash3_agrees_with_the_cpu() {
        let hopper = Device::emulated(EmulatorOptions::hopper(7));
        let emulated = both_passes(&Attention::new(&hopper, problem()).unwrap()).unwrap();
        assert_eq!(
            names(&emulated.ran[0]),
            ["forward_sm90a_f16_d64_compact right_bound"]
        );
        assert_eq!(emulated.ran[0].algorithm, Algorithm::Flash3);
        assert_eq!(
            names(&emulated.ran[1]),
            [
                "backward_preprocess_sm90a_f16_d64 plain",
                "backward_sm90a_f16_d64 right_bound"
            ]
        );
        assert_eq!(emulated.ran[1].algorithm, Algorithm::Flash3);
        agrees_with_the_cpu(&emulated);
    }

    #[test]
    fn standard_agrees_with_the_cpu() {
        let attention = Attention::new(&device(), problem())
            .unwrap()
            .with_algorithm(Algorithm::Standard);
        let emulated = both_passes(&attention).unwrap();
        assert_eq!(emulated.ran[0].kernels.len(), 3);
        assert_eq!(emulated.ran[1].kernels.len(), 8);
        agrees_with_the_cpu(&emulated);
    }

    #[test]
    fn a_gradient_of_lse_that_is_left_out_is_zero() {
        let attention = Attention::new(&device(), problem()).unwrap();
        for algorithm in [Algorithm::Flash2, Algorithm::Standard] {
            assert_absent_is_zero(&attention.clone().with_algorithm(algorithm));
        }
        let hopper = Device::emulated(EmulatorOptions::hopper(0));
        let attention = Attention::new(&hopper, problem()).unwrap();
        assert_absent_is_zero(&attention.with_algorithm(Algorithm::Flash3));
    }

    #[test]
    fn without_queries_the_gradients_of_keys_are_zero() {
        let problem = problem().to_builder().seqlen_q(0).build().unwrap();
        let (k, v) = (waves(70 * 32, 0.29), waves(70 * 32, 0.41));
        let none = Tensor::bshd::<f16>(&[], [1, 0, 2, 32]).unwrap();
        let inputs = Inputs::new(
            &none,
            &Tensor::bshd(&k, SHAPE_K).unwrap(),
            &Tensor::bshd(&v, SHAPE_K).unwrap(),
        );
        let saved = Saved::new(&none, &[0f32; 0]);
        let hopper = Device::emulated(EmulatorOptions::hopper(0));
        for device in [device(), hopper] {
            let attention = Attention::new(&device, problem).unwrap();
            let (mut d_k, mut d_v) = (vec![f16::NAN; 70 * 32], vec![f16::NAN; 70 * 32]);
            let mut gradients = Gradients::new(
                TensorMut::bshd::<f16>(&mut [], [1, 0, 2, 32]).unwrap(),
                TensorMut::bshd(&mut d_k, SHAPE_K).unwrap(),
                TensorMut::bshd(&mut d_v, SHAPE_K).unwrap(),
            );
            let of_output = OutputGradients::new(&none);
            attention
                .backward(&inputs, &saved, &of_output, &mut gradients)
                .unwrap();
            assert!(
                d_k.iter()
                    .chain(&d_v)
                    .all(|&gradient| gradient == f16::ZERO)
            );
        }
    }

    #[test]
    fn the_weights_of_a_row_sum_to_one() {
        let attention = Attention::new(&device(), problem()).unwrap();
        let layout = problem().weights_layout().unwrap();
        let (n_q, n_k) = (40 * 2 * 32, 70 * 32);
        let (q, k, v) = (waves(n_q, 0.13), waves(n_k, 0.29), waves(n_k, 0.41));
        let (mut o, mut lse) = (vec![f16::ZERO; n_q], vec![0f32; 80]);
        let mut weights = vec![f16::NAN; layout.n_elems().unwrap()];
        let inputs = Inputs::new(
            &Tensor::bshd(&q, SHAPE_Q).unwrap(),
            &Tensor::bshd(&k, SHAPE_K).unwrap(),
            &Tensor::bshd(&v, SHAPE_K).unwrap(),
        );
        let o = TensorMut::bshd(&mut o, SHAPE_Q).unwrap();
        let mut outputs =
            Outputs::new(o, &mut lse).weights(TensorMut::strided(&mut weights, layout).unwrap());
        let ran = attention.forward(&inputs, &mut outputs).unwrap();
        assert_eq!(ran.algorithm, Algorithm::Standard);
        for (row, weights) in weights.chunks_exact(72).enumerate() {
            let sum: f32 = weights[..70].iter().map(|weight| weight.to_f32()).sum();
            assert!((sum - 1.0).abs() < 1e-2, "row {row}: {sum}");
            let unseen = &weights[row % 40 + 31..70];
            assert!(
                unseen.iter().all(|&weight| weight == f16::ZERO),
                "row {row} sees what it must not"
            );
        }
    }
}

#[test]
fn the_cpu_holds_no_weights() {
    let attention = Attention::new(&Device::cpu(), problem()).unwrap();
    let explanation = attention.explain(Pass::ForwardWithWeights).unwrap();
    assert!(matches!(
        explanation.plan,
        Err(PlanError::NoCandidate { .. })
    ));
    let text = explanation.to_string();
    assert!(
        text.contains("tiled     cannot run: it never holds the weights"),
        "{text}"
    );
}

#[test]
fn an_algorithm_by_name_is_an_error_where_it_cannot_serve() {
    let attention = Attention::new(&Device::cpu(), problem())
        .unwrap()
        .with_algorithm(Algorithm::Flash2);
    let Err(Error::Plan(PlanError::NoCandidate { asked, .. })) = both_passes(&attention) else {
        panic!()
    };
    assert_eq!(asked, Some(Algorithm::Flash2));
}

#[test]
fn only_a_gpu_has_streams() {
    let attention = Attention::new(&Device::cpu(), problem()).unwrap();
    let refused = attention
        .prepare_forward(&Layouts::contiguous())
        .unwrap_err();
    assert_eq!(
        refused,
        Error::Plan(PlanError::NotAsynchronous {
            backend: Backend::Cpu
        })
    );
}

#[test]
fn a_problem_that_makes_no_sense_is_refused_before_any_tensor() {
    let problem = problem().to_builder().head_dim(0).build().unwrap();
    let refused = Attention::new(&Device::cpu(), problem).unwrap_err();
    assert!(matches!(
        refused,
        Error::Problem(ProblemError::HeadDimOutOfRange { given: 0, .. })
    ));
}

#[test]
fn handles_go_from_thread_to_thread() {
    fn may<T: Send + Sync>() {}
    may::<Attention>();
    may::<Device>();
    may::<Tensor>();
    may::<TensorMut>();
    may::<ferroflash::PreparedForward>();
    may::<ferroflash::PreparedBackward>();
    may::<ferroflash::Queue>();
    may::<ferroflash::Graph>();
    may::<Error>();
}

#[test]
fn the_best_device_says_why() {
    let device = Device::best();
    match device.backend() {
        Backend::Cpu => assert!(device.why().starts_with("no GPU: "), "{}", device.why()),
        backend => assert_eq!(backend, Backend::Cuda),
    }
}
