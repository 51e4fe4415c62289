//! Sinks: what does not fit is refused, plans say what computes their gradients, and sinks of −∞ change not a bit.

use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::plan::{self, DeviceInfo, Plan};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{check, without_tensors};
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Gradients, Inputs, Mask, OutputGradients,
    Outputs, Pass, Problem, ProblemBuilder, Saved, Tensor, TensorMut,
};
use half::f16;

const PASSES: [Pass; 3] = [Pass::Forward, Pass::ForwardWithWeights, Pass::Backward];

fn problem() -> ProblemBuilder {
    Problem::builder(Dtype::F16)
        .batch(2)
        .seqlen_q(40)
        .seqlen_k(70)
        .heads_q(4)
        .heads_k(2)
        .head_dim(64)
        .mask(Mask::Causal)
}

#[test]
fn sinks_that_do_not_fit_are_refused() {
    let (plain, with) = (
        problem().build().unwrap(),
        problem().sinks().build().unwrap(),
    );
    assert!(with.has_sinks() && !plain.has_sinks());
    assert_eq!(with.to_builder().build(), Ok(with));
    for pass in PASSES {
        let argument = Argument::Sinks;
        let of_heads = |n, dtype| VectorDescription::unplaced(n, dtype, Location::Host);
        let outcome = |problem, arguments| check(&problem, pass, arguments).map(|_| ());
        let fitting = *without_tensors(&with, pass, Location::Host)
            .unwrap()
            .arguments();
        assert_eq!(outcome(with, fitting), Ok(()));
        let missing = outcome(with, fitting.without(argument));
        assert_eq!(missing, Err(ProblemError::Missing { argument }));
        for wrong in [of_heads(2, ScalarType::F32), of_heads(4, ScalarType::I32)] {
            assert!(outcome(with, fitting.with(argument, wrong)).is_err());
        }
        let fitting = *without_tensors(&plain, pass, Location::Host)
            .unwrap()
            .arguments();
        // Whoever gives sinks has said that there are some; a gradient alone has nothing to be of.
        let given = fitting.with(argument, of_heads(4, ScalarType::F32));
        assert!(check(&plain, pass, given).unwrap().problem().has_sinks());
        let argument = Argument::DSinks;
        let given = fitting.with(argument, of_heads(4, ScalarType::F32));
        let refused = Err(ProblemError::NotTaken { argument });
        assert_eq!(outcome(plain, given), refused);
    }
}

fn plan_of(problem: &Problem, pass: Pass, without: Option<Argument>, algorithm: Algorithm) -> Plan {
    let checked = without_tensors(problem, pass, Location::Host).unwrap();
    let arguments = without.map_or(*checked.arguments(), |it| checked.arguments().without(it));
    let checked = check(problem, pass, arguments).unwrap();
    plan::plan(
        &checked,
        &DeviceInfo::h200(),
        Backend::Cuda,
        Some(algorithm),
    )
    .unwrap()
}

#[test]
fn gradients_are_a_launch_behind_the_others_where_they_are_wanted() {
    let (plain, with) = (
        problem().build().unwrap(),
        problem().sinks().build().unwrap(),
    );
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3, Algorithm::Standard] {
        let kernels = |problem, pass, without| -> Vec<String> {
            let plan = plan_of(problem, pass, without, algorithm);
            plan.kernels().map(|kernel| kernel.to_string()).collect()
        };
        let all = kernels(&with, Pass::Backward, None);
        let (last, others) = all.split_last().unwrap();
        assert_eq!(last, "sink_gradient_sm80 plain");
        assert_eq!(
            others,
            kernels(&with, Pass::Backward, Some(Argument::DSinks))
        );
        assert!(!kernels(&plain, Pass::Backward, None).contains(last));
        // What the problem does not have, its kernels are compiled without.
        let forward = kernels(&with, Pass::Forward, None).concat();
        assert!(forward.contains("sinks"), "{forward}");
        assert!(
            !kernels(&plain, Pass::Forward, None)
                .concat()
                .contains("sinks")
        );
    }
    let text = plan_of(&with, Pass::Forward, None, Algorithm::Flash3).to_string();
    assert!(text.contains(", sinks scale"), "{text}");
}

/// Bits of o, lse, d_q, d_k, d_v; the gradients of sinks if they are wanted.
fn both_passes(
    attention: &Attention,
    sinks: Option<&[f32]>,
    d_sinks: Option<&mut [f32]>,
) -> [Vec<u32>; 5] {
    let problem = *attention.problem();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let waves = |shape: [usize; 4], step: f32| -> Vec<f16> {
        let n_elems = shape.iter().product::<usize>();
        (0..n_elems)
            .map(|at| f16::from_f32((at as f32 * step).sin()))
            .collect()
    };
    let (q, d_o) = (waves(shape_q, 0.13), waves(shape_q, 0.37));
    let (k, v) = (waves(shape_k, 0.29), waves(shape_k, 0.41));
    let mut inputs = Inputs::new(
        &Tensor::bshd(&q, shape_q).unwrap(),
        &Tensor::bshd(&k, shape_k).unwrap(),
        &Tensor::bshd(&v, shape_k).unwrap(),
    );
    inputs.sinks = sinks.map(Into::into);
    let mut o = vec![f16::NAN; q.len()];
    let mut lse = vec![f32::NAN; problem.shape_lse().iter().product()];
    let o_mut = TensorMut::bshd(&mut o, shape_q).unwrap();
    attention
        .forward(&inputs, &mut Outputs::new(o_mut, &mut lse))
        .unwrap();
    let mut d_q = vec![f16::NAN; q.len()];
    let (mut d_k, mut d_v) = (vec![f16::NAN; k.len()], vec![f16::NAN; k.len()]);
    let mut gradients = Gradients::new(
        TensorMut::bshd(&mut d_q, shape_q).unwrap(),
        TensorMut::bshd(&mut d_k, shape_k).unwrap(),
        TensorMut::bshd(&mut d_v, shape_k).unwrap(),
    );
    gradients.d_sinks = d_sinks.map(Into::into);
    let saved = Saved::new(&Tensor::bshd(&o, shape_q).unwrap(), &lse);
    let of_output = OutputGradients::new(&Tensor::bshd(&d_o, shape_q).unwrap());
    attention
        .backward(&inputs, &saved, &of_output, &mut gradients)
        .unwrap();
    let bits = |x: &[f16]| x.iter().map(|x| u32::from(x.to_bits())).collect();
    let lse = lse.iter().map(|x| x.to_bits()).collect();
    [bits(&o), lse, bits(&d_q), bits(&d_k), bits(&d_v)]
}

/// Sinks of −∞ are none; gradients of the others are the same whether those of sinks are wanted or not.
fn assert_nothing_changes(device: &Device, algorithm: Algorithm) {
    let attention = |builder: ProblemBuilder| {
        let attention = Attention::new(device, builder.build().unwrap()).unwrap();
        attention.with_algorithm(algorithm)
    };
    let plain = both_passes(&attention(problem()), None, None);
    let with = attention(problem().sinks());
    let mut d_sinks = [f32::NAN; 4];
    let none = [f32::NEG_INFINITY; 4];
    assert!(plain == both_passes(&with, Some(&none), Some(&mut d_sinks)));
    assert_eq!(d_sinks, [0.0; 4]);
    let sinks = [0.5, -1.0, 2.0, 0.0];
    let unwanted = both_passes(&with, Some(&sinks), None);
    let wanted = both_passes(&with, Some(&sinks), Some(&mut d_sinks));
    assert!(unwanted == wanted && wanted != plain);
    assert!(d_sinks.iter().all(|x| x.is_finite() && *x != 0.0));
}

#[test]
fn on_the_cpu() {
    assert_nothing_changes(&Device::cpu(), Algorithm::Tiled);
}

#[cfg(feature = "emulator")]
#[test]
fn on_the_emulated_kernels() {
    use ferroflash::backend::emulated::EmulatorOptions;

    for algorithm in [Algorithm::Flash3, Algorithm::Flash2, Algorithm::Standard] {
        let hopper = Device::emulated(EmulatorOptions::hopper(0));
        assert_nothing_changes(&hopper, algorithm);
    }
}
