//! The real inputs on every backend, against results that PyTorch worked out in float64.

use conformance::buffer::Arrangement;
use conformance::cases::Case;
use conformance::inputs::{Fill, LseGradient};
use conformance::real::{FILES, read};
use conformance::reference::Reference;
use conformance::subject::{CPU, CUDA, EMULATED, EMULATED_HOPPER, Subject};
use conformance::trial;
use ferroflash::{Algorithm, Order, Precision};

fn check(subject: &Subject, algorithm: Algorithm, orders: &[Order]) {
    if subject.cannot_run(algorithm) {
        return;
    }
    for name in FILES {
        let real = read(name).unwrap();
        let case = Case {
            sizes: real.sizes,
            dtype: real.dtype,
            precision: Precision::Tensor,
            mask: real.mask,
            softmax_scale: Some(real.softmax_scale),
            lengths: None,
            blocks: None,
            split_kv: None,
            fill: Fill::Normal,
            arrangement: Arrangement::Bshd,
            lse_gradient: LseGradient::Absent,
            dropout: None,
            sinks: conformance::sinks::Sinks::Absent,
            seed: 0,
        };
        let oracle = Reference::new(&case, &real.values, real.softmax_scale);
        let stored = Reference {
            output: real.output,
            gradients: real.gradients,
            ..oracle
        };
        let device = (subject.open)(0).unwrap();
        for &order in orders {
            let results = trial::run(&case, &real.values, &device, algorithm, order)
                .unwrap_or_else(|refusal| panic!("{name}, {order:?}: {refusal:?}"));
            let judged = stored.judge(&case, &results);
            let close = judged.unwrap_or_else(|failure| panic!("{name}, {order:?}: {failure}"));
            println!(
                "{name} on {} with {algorithm}: {:.2} of the tolerance",
                subject.backend, close.worst
            );
        }
    }
}

#[test]
fn cpu() {
    check(&CPU, Algorithm::Tiled, &[Order::Deterministic]);
}

#[test]
fn emulated_flash1() {
    check(&EMULATED, Algorithm::Flash1, &[Order::Deterministic]);
}

#[test]
fn emulated_flash2() {
    check(&EMULATED, Algorithm::Flash2, &[Order::Deterministic]);
}

#[test]
fn emulated_flash3() {
    check(
        &EMULATED_HOPPER,
        Algorithm::Flash3,
        &[Order::Deterministic, Order::Fastest],
    );
}

#[test]
fn emulated_standard() {
    check(&EMULATED, Algorithm::Standard, &[Order::Deterministic]);
}

#[test]
fn cuda_flash1() {
    check(&CUDA, Algorithm::Flash1, &[Order::Deterministic]);
}

#[test]
fn cuda_flash2() {
    check(
        &CUDA,
        Algorithm::Flash2,
        &[Order::Deterministic, Order::Fastest],
    );
}

#[test]
fn cuda_flash3() {
    check(
        &CUDA,
        Algorithm::Flash3,
        &[Order::Deterministic, Order::Fastest],
    );
}

#[test]
fn cuda_standard() {
    check(&CUDA, Algorithm::Standard, &[Order::Deterministic]);
}
