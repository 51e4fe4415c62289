//! Kernels loaded by several threads: each once, different ones at once; a failure is nobody else's.

use std::sync::Barrier;

use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::Variant;

use super::*;

/// Two kernels: a variant, plain and causal.
pub fn two_kernels() -> [(&'static Variant, Spec); 2] {
    let variant = variants::by_name("forward_sm80_bf16_d64").unwrap();
    [Spec::PLAIN, Spec::PLAIN.with(Constant::RightBound)].map(|spec| (variant, spec))
}

#[test]
fn different_kernels_are_compiled_at_once_and_each_once() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    // The driver compiles nothing before it is asked for both.
    fake::state().compile_together = 2;
    let begin = Barrier::new(6);
    let calls = calls_of(|| {
        std::thread::scope(|scope| {
            for (variant, spec) in two_kernels().into_iter().cycle().take(6) {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    let kernel = cuda.kernel(variant, spec).unwrap();
                    assert_eq!((kernel.variant().name, kernel.spec()), (variant.name, spec));
                });
            }
        });
    });
    assert_eq!(calls, [Call::Load, Call::Load]);
    let again = calls_of(|| {
        for (variant, spec) in two_kernels() {
            cuda.kernel(variant, spec).unwrap();
        }
    });
    assert_eq!(again, []);
}

#[test]
fn a_kernel_that_could_not_be_loaded_is_tried_again() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let [(variant, spec), _] = two_kernels();
    fake::state().load_answer = (222, c"of another toolchain");
    // None takes the failure of another for its own kernel.
    std::thread::scope(|scope| {
        let tries = [(); 3].map(|()| scope.spawn(|| cuda.kernel(variant, spec).map(|_| ())));
        for tried in tries {
            let error = tried.join().unwrap().unwrap_err();
            assert!(
                error.to_string().contains("of another toolchain"),
                "{error}"
            );
        }
    });
    assert_eq!(fake::state().compiling, 3);
    fake::state().load_answer = (0, c"");
    let calls = calls_of(|| {
        cuda.kernel(variant, spec).unwrap();
        cuda.kernel(variant, spec).unwrap();
    });
    assert_eq!(calls, [Call::Load]);
}
