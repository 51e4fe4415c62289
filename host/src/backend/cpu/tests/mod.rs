//! The CPU backend against attention in f64 from the definition, on every vector unit of this processor.

mod naive;

use half::{bf16, f16};

use super::machine::Machine;
use crate::arguments::{Inputs, Operands, Outputs};
use crate::dtype::Element;
use crate::error::ProblemError;
use crate::problem::{Mask, Problem};
use crate::tensor::{Layout, Tensor, TensorMut};
use crate::validate::Pass;
use naive::{Run, Shape, expect, problem};

const SHAPES: &[Shape] = &[
    [1, 1, 1, 1, 1, 1],
    [1, 1, 1, 1, 300, 64],
    [2, 3, 3, 5, 7, 8],
    [1, 4, 2, 33, 65, 20],
    [1, 2, 1, 150, 131, 64],
    [2, 8, 2, 40, 129, 32],
    [1, 6, 1, 3, 270, 16],
    [1, 1, 1, 257, 40, 128],
    [1, 1, 1, 70, 71, 256],
    [1, 1, 1, 40, 40, 300],
    [1, 2, 2, 9, 0, 16],
    [1, 2, 2, 0, 9, 16],
    [0, 2, 2, 4, 4, 16],
    [3, 0, 0, 4, 4, 16],
];

fn matches_f64<T: Element>(machines: &[Machine]) {
    for &shape in SHAPES {
        for mask in [Mask::Full, Mask::Causal] {
            for &machine in machines {
                let run = || Run::<T>::contiguous(problem::<T>(shape, mask));
                for mut run in [run(), run().with_d_lse()] {
                    run.forward(machine);
                    run.backward(machine);
                    run.check();
                }
            }
        }
    }
}

#[test]
fn f32_matches_f64_on_every_vector_unit() {
    matches_f64::<f32>(&Machine::all());
}

#[test]
fn bf16_matches_f64() {
    matches_f64::<bf16>(&[Machine::detect()]);
}

#[test]
fn f16_matches_f64() {
    matches_f64::<f16>(&[Machine::detect()]);
}

#[test]
fn strided_rows_are_read_and_written_alone() {
    let problem = problem::<bf16>([2, 4, 2, 37, 45, 24], Mask::Causal);
    let [batch, seqlen_q, heads_q, head_dim] = problem.shape_q();
    let [_, seqlen_k, heads_k, _] = problem.shape_k();
    let layout =
        |seqlen, heads, strides| Layout::strided([batch, seqlen, heads, head_dim], strides);
    // Heads outside rows; rows outside heads with gaps; batch entries innermost.
    let layouts = [
        (
            layout(seqlen_q, heads_q, [7000, 31, 1200]),
            layout(seqlen_k, heads_k, [6000, 25, 2000]),
        ),
        (
            layout(seqlen_q, heads_q, [9000, 200, 30]),
            layout(seqlen_k, heads_k, [4000, 80, 40]),
        ),
        (
            layout(seqlen_q, heads_q, [24, 300, 50]),
            layout(seqlen_k, heads_k, [30, 60, 3000]),
        ),
    ];
    for (layout_q, layout_k) in layouts {
        assert!(layout_q.nests() && layout_k.nests());
        let mut run = Run::<bf16>::with_layouts(problem, layout_q, layout_k);
        run.forward(Machine::detect());
        run.backward(Machine::detect());
        run.check();
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (shape, mask) in [
        ([1, 4, 2, 500, 700, 32], Mask::Causal),
        ([2, 1, 1, 333, 290, 40], Mask::Full),
    ] {
        let run_with = |n_threads| {
            let mut run = Run::<f32>::contiguous(problem::<f32>(shape, mask));
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(n_threads)
                .build()
                .unwrap();
            pool.install(|| {
                run.forward(Machine::detect());
                run.backward(Machine::detect());
            });
            let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let [d_q, d_k, d_v] = &run.gradients;
            [
                bits(&run.o),
                bits(&run.lse),
                bits(d_q),
                bits(d_k),
                bits(d_v),
            ]
        };
        let alone = run_with(1);
        for n_threads in [2, 3, 16] {
            assert!(
                alone == run_with(n_threads),
                "{n_threads} threads gave other bits"
            );
        }
        assert!(alone == run_with(2), "a second run gave other bits");
    }
}

#[test]
fn rows_that_see_no_key_give_zeros() {
    let run = Run::<f32>::contiguous(problem::<f32>([1, 2, 1, 90, 50, 16], Mask::Causal));
    let mut run = run.with_d_lse();
    run.forward(Machine::detect());
    run.backward(Machine::detect());
    let blind = 40;
    for row in 0..blind {
        let at = row * 32..(row + 1) * 32;
        assert!(
            run.o[at.clone()].iter().all(|x| x.to_bits() == 0),
            "o of row {row}"
        );
        assert!(
            run.gradients[0][at].iter().all(|x| *x == 0.0),
            "d_q of row {row}"
        );
        assert_eq!([run.lse[row], run.lse[90 + row]], [f32::NEG_INFINITY; 2]);
    }
    assert!(run.lse[blind].is_finite());
    let run = Run::<f32>::contiguous(problem::<f32>([1, 1, 1, 8, 0, 4], Mask::Full));
    let mut run = run.with_d_lse();
    run.forward(Machine::detect());
    run.backward(Machine::detect());
    assert!(run.o.iter().chain(&run.gradients[0]).all(|x| *x == 0.0));
    assert!(run.lse.iter().all(|x| *x == f32::NEG_INFINITY));
}

#[test]
fn a_key_that_no_row_sees_has_no_gradient() {
    let mut run = Run::<f32>::contiguous(problem::<f32>([1, 1, 1, 0, 70, 8], Mask::Causal));
    run.forward(Machine::detect());
    run.backward(Machine::detect());
    let [_, d_k, d_v] = &run.gradients;
    assert!(d_k.iter().chain(d_v).all(|x| *x == 0.0));
}

#[test]
fn nan_is_not_lost_and_stays_out_of_panels_that_do_not_see_it() {
    // Row and key 160 begin a panel of every width. Within a panel, a NaN in v reaches earlier rows too: 0 · NaN.
    for machine in Machine::all() {
        for poisoned in 0..3 {
            let mut run =
                Run::<f32>::contiguous(problem::<f32>([1, 1, 1, 200, 200, 8], Mask::Causal));
            run.inputs[poisoned][160 * 8 + 3] = f32::NAN;
            run.forward(machine);
            let row_is_nan = |row: usize| run.o[row * 8..(row + 1) * 8].iter().any(|x| x.is_nan());
            assert!(
                row_is_nan(160),
                "a NaN in input {poisoned} was lost on {machine:?}"
            );
            assert!(
                !(0..160).any(row_is_nan),
                "a NaN in input {poisoned} spread on {machine:?}"
            );
        }
    }
}

fn with_scale(problem: &Problem, scale: f32) -> Problem {
    problem.to_builder().softmax_scale(scale).build().unwrap()
}

#[test]
fn huge_scores_neither_overflow_nor_vanish() {
    let mut run = Run::<f32>::contiguous(problem::<f32>([1, 1, 1, 40, 300, 16], Mask::Full));
    run.problem = with_scale(&run.problem, 3000.0);
    run.forward(Machine::detect());
    assert!(run.o.iter().chain(&run.lse).all(|x| x.is_finite()));
    let expected = expect(&run);
    for (given, expected) in run.lse.iter().zip(&expected.lse) {
        assert!(
            (given - expected).abs() <= 1e-6 * expected.abs(),
            "lse {given}, expected {expected}"
        );
    }
    run.problem = with_scale(&run.problem, f32::MIN_POSITIVE);
    run.forward(Machine::detect());
    assert!(
        run.lse.iter().all(|lse| (lse - 300f32.ln()).abs() < 1e-6),
        "an even softmax over 300 keys"
    );
}

#[test]
fn tensors_that_do_not_fit_the_problem_are_refused() {
    let problem = problem::<f32>([1, 1, 1, 4, 4, 8], Mask::Full);
    let (data, halves) = (vec![0.0f32; 64], vec![bf16::ZERO; 64]);
    let (mut out, mut lse) = (vec![0.0f32; 64], vec![0.0f32; 5]);
    let fits = Tensor::bshd(&data[..32], problem.shape_q()).unwrap();
    let other_type = Tensor::bshd(&halves[..32], problem.shape_q()).unwrap();
    let other_shape = Tensor::bshd(&data, [1, 8, 1, 8]).unwrap();
    let aliasing = Layout {
        row_stride: 4,
        ..fits.layout()
    };
    let mut call = |q: &Tensor, layout, n_rows: usize| {
        let o = TensorMut::strided(&mut out, layout).unwrap();
        let mut outputs = Outputs::new(o, &mut lse[..n_rows]);
        let inputs = Inputs::new(q, &fits, &fits);
        let mut operands = Operands::forward(&inputs, &mut outputs);
        super::run(&problem, Pass::Forward, &mut operands)
    };
    assert_eq!(call(&fits, fits.layout(), 4), Ok(()));
    assert!(matches!(
        call(&other_type, fits.layout(), 4),
        Err(ProblemError::DtypeMismatch { .. })
    ));
    assert!(matches!(
        call(&other_shape, fits.layout(), 4),
        Err(ProblemError::ShapeMismatch { .. })
    ));
    assert!(matches!(
        call(&fits, aliasing, 4),
        Err(ProblemError::OutputAliases { .. })
    ));
    assert!(matches!(
        call(&fits, fits.layout(), 5),
        Err(ProblemError::ElementCount { .. })
    ));
}
