//! Roundings to 8 bits on the backends that every machine has: scales of earlier steps, and refusals that leave outputs as they were.

use ferroflash::arguments::{Argument, Arguments};
#[cfg(feature = "emulator")]
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::dtype::ScalarType;
use ferroflash::error::{PlanError, ProblemError};
use ferroflash::plan::{DeviceInfo, Reason, plan_quantize};
use ferroflash::prepared::Layouts;
use ferroflash::quantize::{DelayedScaling, Operand};
use ferroflash::tensor::{Description, Location, VectorDescription};
use ferroflash::validate::quantize::check_quantize;
use ferroflash::{
    Backend, Device, Dtype, Error, Fp8, Quantize, QuantizeInputs, QuantizeOutputs, QuantizeProblem,
    Tensor, TensorMut,
};
use float8::F8E4M3;

/// Three rows of two heads.
const SHAPE: [usize; 4] = [1, 3, 2, 16];

fn problem() -> QuantizeProblem {
    QuantizeProblem::new(Dtype::F32, SHAPE, Fp8::PerHead)
}

fn numbers(factor: f32) -> Vec<f32> {
    (0..96).map(|at| (at as f32 - 48.0) * factor).collect()
}

fn devices() -> Vec<Device> {
    vec![
        Device::cpu(),
        #[cfg(feature = "emulator")]
        Device::emulated(EmulatorOptions::hopper(3)),
    ]
}

#[test]
fn scales_follow_the_amax_of_the_steps_before() {
    for device in devices() {
        let mut scaling = DelayedScaling::new(2);
        let quantize = Quantize::new(&device, problem().giving_descale()).unwrap();
        for (factor, beyond) in [(1.0, false), (64.0, true), (32.0, false)] {
            let (x, descale) = (numbers(factor), scaling.descale());
            let (mut rounded, mut amax) = (vec![F8E4M3::ZERO; 96], vec![0f32; 2]);
            let inputs = QuantizeInputs::new(&Tensor::bshd(&x, SHAPE).unwrap()).descale(&descale);
            let to = TensorMut::bshd(&mut rounded, SHAPE).unwrap();
            let mut outputs = QuantizeOutputs::of_given_descale(to).amax(&mut amax);
            let done = quantize.run(&inputs, &mut outputs).unwrap();
            assert!(done.to_string().contains("quantize on"), "{done}");
            assert_eq!(amax, [48.0 * factor, 47.0 * factor]);
            let of_first = rounded[0].to_f32() * descale[0];
            let is_near = (of_first - x[0]).abs() < 1e-3 * x[0].abs();
            assert_eq!(is_near, !beyond, "{of_first} for {}", x[0]);
            scaling.update(&amax).unwrap();
        }
    }
}

#[test]
fn amax_of_given_scales_is_that_of_the_numbers_before_they_are_cut() {
    // Three tiles of 128 rows; a scale of 1/64 has room for numbers up to 7.
    let (shape, descale) = ([1, 300, 1, 16], [1.0 / 64.0]);
    let mut x: Vec<f32> = (0..300 * 16).map(|at| (at as f32).sin()).collect();
    for (at, number) in [(7, 5.0), (129 * 16, -3000.0), (299 * 16 + 15, 40.0)] {
        x[at] = number;
    }
    for (own, expected) in [
        (0.0, 3000.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::NAN, f32::NAN),
    ] {
        x[200 * 16] = own;
        let mut results = Vec::new();
        for device in devices() {
            for (scales, n_scales) in [(Fp8::PerTensor, 1), (Fp8::PerBlock, 3)] {
                let problem = QuantizeProblem::new(Dtype::F32, shape, scales).giving_descale();
                let quantize = Quantize::new(&device, problem).unwrap();
                let (mut rounded, mut amax) = (vec![F8E4M3::ZERO; x.len()], vec![0f32; n_scales]);
                let given = vec![descale[0]; n_scales];
                let inputs = QuantizeInputs::new(&Tensor::bshd(&x, shape).unwrap());
                let inputs = inputs.descale(&given);
                let to = TensorMut::bshd(&mut rounded, shape).unwrap();
                let mut outputs = QuantizeOutputs::of_given_descale(to).amax(&mut amax);
                quantize.run(&inputs, &mut outputs).unwrap();
                assert_eq!(rounded[129 * 16].to_f32(), -448.0);
                let of_blocks = [5.0, expected, 40.0];
                let expected = match scales {
                    Fp8::PerTensor => &of_blocks[1..2],
                    _ => &of_blocks[..],
                };
                let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
                assert!(amax.iter().zip(expected).all(same), "{amax:?}");
                let codes: Vec<u8> = rounded.iter().map(|x| x.to_bits()).collect();
                results.push((
                    codes,
                    amax.iter().map(|x| x.to_bits()).collect::<Vec<u32>>(),
                ));
            }
        }
        // Every device writes the same bits.
        assert!(
            results
                .chunks(2)
                .all(|of_device| of_device == &results[..2])
        );
    }
}

#[test]
fn the_helper_on_the_host_makes_the_same_bits() {
    let shape = [2, 150, 4, 16];
    let of_sizes = |size: f32| (0..19200).map(move |at| (at as f32 * 0.7).sin() * size);
    for size in [3.0f32, 1e-30, 0.0] {
        let x: Vec<f32> = of_sizes(size).collect();
        let tensor = Tensor::bshd(&x, shape).unwrap();
        let operand = Operand::q(&tensor, 2).unwrap().hadamard(Some(3)).unwrap();
        for scales in [Fp8::PerTensor, Fp8::PerHead, Fp8::PerBlock] {
            let expected = operand.quantize(scales);
            let problem = QuantizeProblem::new(Dtype::F32, shape, scales);
            let problem = problem.heads_k(2).hadamard(Some(3));
            let mut rounded = vec![F8E4M3::ZERO; x.len()];
            let mut descale = vec![0f32; problem.n_scales() as usize];
            let to = TensorMut::bshd(&mut rounded, shape).unwrap();
            let mut outputs = QuantizeOutputs::new(to, &mut descale);
            let quantize = Quantize::new(&Device::cpu(), problem).unwrap();
            quantize
                .run(&QuantizeInputs::new(&tensor), &mut outputs)
                .unwrap();
            assert_eq!(descale, expected.descale());
            assert_eq!(rounded, expected.values());
        }
    }
}

/// What a call is given, and the error that it must have.
type Case = (
    QuantizeProblem,
    for<'a> fn(QuantizeInputs<'a>) -> QuantizeInputs<'a>,
    ProblemError,
);

#[test]
fn what_does_not_fit_is_named_and_nothing_is_written() {
    static SCALES: [f32; 3] = [1.0, 0.0, f32::NAN];
    static ENDS: [i32; 3] = [0, 2, 3];
    let given = problem().giving_descale();
    let scale = |at: usize, given| ProblemError::Descale {
        argument: Argument::Descale,
        at,
        given,
    };
    let packed = QuantizeProblem::packed(Dtype::F32, 2, 1, [3, 2, 16], Fp8::PerHead);
    let cases: [Case; 6] = [
        (
            given,
            |inputs| inputs,
            ProblemError::Missing {
                argument: Argument::Descale,
            },
        ),
        (given, |inputs| inputs.descale(&SCALES[..2]), scale(1, 0.0)),
        (
            given,
            |inputs| inputs.descale(&SCALES),
            ProblemError::ElementCount {
                argument: Argument::Descale,
                given: 3,
                needed: 2,
            },
        ),
        (
            problem(),
            |inputs| inputs.descale(&SCALES[..2]),
            ProblemError::NotTaken {
                argument: Argument::Descale,
            },
        ),
        (
            problem(),
            |inputs| inputs.cu_seqlens(&ENDS),
            ProblemError::NotTaken {
                argument: Argument::CuSeqlens,
            },
        ),
        (
            packed,
            |inputs| inputs.cu_seqlens(&ENDS),
            ProblemError::Length {
                argument: Argument::CuSeqlens,
                sequence: 0,
                given: 2,
                min: 0,
                max: 1,
            },
        ),
    ];
    let x = numbers(1.0);
    for device in devices() {
        for (problem, give, expected) in &cases {
            let quantize = Quantize::new(&device, *problem).unwrap();
            let (mut rounded, mut descale) = (vec![F8E4M3::NAN; 96], vec![7f32; 4]);
            let n_scales = problem.n_scales() as usize;
            let shape = problem.shape();
            let inputs = give(QuantizeInputs::new(&Tensor::bshd(&x, shape).unwrap()));
            let to = TensorMut::bshd(&mut rounded, shape).unwrap();
            let mut outputs = match *problem == given {
                true => QuantizeOutputs::of_given_descale(to),
                false => QuantizeOutputs::new(to, &mut descale[..n_scales]),
            };
            let refused = quantize.run(&inputs, &mut outputs);
            assert_eq!(refused, Err(Error::Problem(expected.clone())));
            assert!(rounded.iter().all(|x| x.is_nan()) && descale == [7.0; 4]);
        }
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |problem| Quantize::new(&Device::cpu(), problem).unwrap_err();
    assert_eq!(
        refused(problem().heads_k(0)),
        Error::Problem(ProblemError::HeadsNotMultiple {
            heads_q: 2,
            heads_k: 0
        })
    );
    let wide = QuantizeProblem::new(Dtype::F32, [1, 1, 1, 577], Fp8::PerTensor);
    assert!(matches!(
        refused(wide),
        Error::Problem(ProblemError::HeadDimOutOfRange { given: 577, .. })
    ));
    let prepared = Quantize::new(&Device::cpu(), problem()).unwrap();
    assert!(matches!(
        prepared.prepare(&Layouts::contiguous()),
        Err(Error::Plan(PlanError::NotAsynchronous { .. }))
    ));
}

#[test]
fn a_gpu_says_what_it_cannot_round() {
    let plan = |problem: &QuantizeProblem, device: &DeviceInfo| {
        let location = Location::Cuda(0);
        let x = Description::contiguous(problem.shape(), problem.dtype(), location).unwrap();
        let rounded = Description {
            dtype: ScalarType::E4m3,
            ..x
        };
        let scales = VectorDescription::unplaced(problem.n_scales(), Dtype::F32, location);
        let arguments = Arguments::default()
            .with(Argument::X, x)
            .with(Argument::Rounded, rounded)
            .with(Argument::DescaleOut, scales);
        let checked = check_quantize(problem, arguments).unwrap();
        plan_quantize(&checked, device, Backend::Cuda)
    };
    let reason = |problem: &QuantizeProblem, device: &DeviceInfo| match plan(problem, device) {
        Err(PlanError::Operation { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let odd = QuantizeProblem::new(Dtype::Bf16, [1, 3, 2, 24], Fp8::PerHead);
    assert!(matches!(
        reason(&odd, &DeviceInfo::h200()),
        Reason::HeadDimMultiple { .. }
    ));
    assert!(matches!(
        reason(&problem(), &DeviceInfo::a100()),
        Reason::ComputeCapability { .. }
    ));
    let planned = plan(&problem(), &DeviceInfo::h200()).unwrap();
    let text = planned.to_string();
    assert!(
        text.contains("amax_sm89_f32") && text.contains("quantize_sm89_f32"),
        "{text}"
    );
}
