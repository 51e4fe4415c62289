//! Tensors of more than 2³¹ elements on a GPU. Eight of them take 34 GiB of memory on both sides, so no other backend
//! is put through this.

use conformance::buffer::Arrangement;
use conformance::cases::Case;
use conformance::inputs::LseGradient;
use conformance::reference::Reference;
use conformance::subject::CUDA;
use conformance::trial;
use ferroflash::{Algorithm, Dtype, Mask, Order};

fn check(algorithm: Algorithm) {
    if CUDA.cannot_run(algorithm) {
        return;
    }
    let near = Case::new(Dtype::Bf16, Mask::Causal, 64, 130, 150).heads(2, 2, 1);
    let case = Case {
        arrangement: Arrangement::Far,
        lse_gradient: LseGradient::Given,
        ..near
    };
    let values = case.values();
    let reference = Reference::new(&case, &values, case.problem().unwrap().scale());
    let device = (CUDA.open)(0).unwrap();
    let results = trial::run(&case, &values, &device, algorithm, Order::Deterministic).unwrap();
    reference.judge(&case, &results).unwrap();
}

#[test]
fn offsets_that_32_bits_do_not_hold() {
    // One after the other: together they would take twice the memory.
    check(Algorithm::Flash2);
    check(Algorithm::Flash3);
}
