//! Factors of the scores of each head: what a call of each head with a softmax_scale of its own gives, on the CPU and by kernels; and
//! kernels that do not read them are refused by their name.

use ferroflash::arguments::Argument;
use ferroflash::error::{Error, PlanError};
use ferroflash::plan::{Outcome, Reason};
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Element, Gradients, Inputs, Mask, OutputGradients,
    Outputs, Pass, Problem, ProblemBuilder, Saved, Tensor, TensorMut, WeightsOf,
};

const FACTORS: [f32; 4] = [0.5, 1.0, 1.75, -0.25];
const SEQLENS: [usize; 2] = [19, 37];
const HEAD_DIM: usize = 64;

fn problem(dtype: Dtype) -> ProblemBuilder {
    Problem::builder(dtype)
        .batch(2)
        .seqlen_q(SEQLENS[0])
        .seqlen_k(SEQLENS[1])
        .heads_q(4)
        .heads_k(2)
        .head_dim(HEAD_DIM)
        .mask(Mask::Causal)
}

/// Numbers between −1 and 1 without a pattern.
fn random<T: Element>(shape: [usize; 4], seed: usize) -> Vec<T> {
    let n = shape.iter().product();
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    (0..n).map(|at| T::from_f32(number(at))).collect()
}

/// o, lse, and where they are wanted the gradients of q, k and v.
struct Results<T> {
    o: Vec<T>,
    lse: Vec<f32>,
    gradients: Option<[Vec<T>; 3]>,
}

fn run<T: Element>(
    attention: &Attention,
    [q, k, v, d_o]: [&[T]; 4],
    factors: Option<&[f32]>,
    backward: bool,
) -> Result<Results<T>, Error> {
    let problem = attention.problem();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let inputs = Inputs::new(
        &Tensor::bshd(q, of_q)?,
        &Tensor::bshd(k, of_k)?,
        &Tensor::bshd(v, of_k)?,
    );
    let inputs = factors.map_or(inputs, |factors| inputs.head_scale(factors));
    let mut o = vec![T::default(); q.len()];
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];
    attention.forward(
        &inputs,
        &mut Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse),
    )?;
    let mut results = Results {
        o,
        lse,
        gradients: None,
    };
    if backward {
        let (mut d_q, [mut d_k, mut d_v]) = (
            vec![T::default(); q.len()],
            [(); 2].map(|()| vec![T::default(); k.len()]),
        );
        attention.backward(
            &inputs,
            &Saved::new(&Tensor::bshd(&results.o, of_q)?, &results.lse),
            &OutputGradients::new(&Tensor::bshd(d_o, of_q)?),
            &mut Gradients::new(
                TensorMut::bshd(&mut d_q, of_q)?,
                TensorMut::bshd(&mut d_k, of_k)?,
                TensorMut::bshd(&mut d_v, of_k)?,
            ),
        )?;
        results.gradients = Some([d_q, d_k, d_v]);
    }
    Ok(results)
}

/// The columns of one head of `[batch, seqlen, heads, head_dim]`.
fn head<T: Copy>(x: &[T], heads: usize, head: usize) -> Vec<T> {
    let rows = x.chunks(heads * HEAD_DIM);
    rows.flat_map(|row| row[head * HEAD_DIM..][..HEAD_DIM].iter().copied())
        .collect()
}

fn assert_near<T: Element>(found: &[T], expected: &[T], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected) = (found.to_f32(), expected.to_f32());
        let near = (found - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(near, "{what} {at}: {found}, expected {expected}");
    }
}

#[test]
fn each_head_is_as_with_a_scale_of_its_own() {
    let problem = problem(Dtype::F32).build().unwrap();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let (q, k, v) = (random(of_q, 1), random(of_k, 2), random(of_k, 3));
    let d_o = random::<f32>(of_q, 4);
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let all = run(&attention, [&q, &k, &v, &d_o], Some(&FACTORS), true).unwrap();
    let [d_q, d_k, d_v] = all.gradients.unwrap();
    let mut sums = [vec![0f32; k.len() / 2], vec![0f32; k.len() / 2]];
    for (head_q, factor) in FACTORS.into_iter().enumerate() {
        // A factor below 0 is that of −q.
        let sign = factor.signum();
        let of_head = |x: &[f32]| head(x, 4, head_q);
        let q: Vec<f32> = of_head(&q).iter().map(|q| q * sign).collect();
        let [k, v] = [&k, &v].map(|x| head(x, 2, head_q / 2));
        let one = problem.to_builder().heads(1);
        let one = one.softmax_scale(problem.scale() * factor.abs());
        let one = Attention::new(&Device::cpu(), one.build().unwrap()).unwrap();
        let alone = run(&one, [&q, &k, &v, &of_head(&d_o)], None, true).unwrap();
        assert_near(&of_head(&all.o), &alone.o, 1e-5, "o");
        let lse = all.lse.chunks(SEQLENS[0]).enumerate();
        let lse = lse.filter(|(row, _)| row % 4 == head_q);
        let lse: Vec<f32> = lse.flat_map(|(_, lse)| lse).copied().collect();
        assert_near(&lse, &alone.lse, 1e-5, "lse");
        let [of_q, of_k, of_v] = alone.gradients.unwrap();
        let of_q: Vec<f32> = of_q.iter().map(|d_q| d_q * sign).collect();
        assert_near(&of_head(&d_q), &of_q, 1e-5, "d_q");
        let [sum_k, sum_v] = &mut sums;
        for (sum, of) in [(sum_k, of_k), (sum_v, of_v)] {
            sum.iter_mut().zip(of).for_each(|(sum, x)| *sum += x);
        }
        if head_q % 2 == 1 {
            assert_near(&head(&d_k, 2, head_q / 2), &sums[0], 1e-5, "d_k");
            assert_near(&head(&d_v, 2, head_q / 2), &sums[1], 1e-5, "d_v");
            sums.iter_mut().for_each(|sum| sum.fill(0.0));
        }
    }
}

#[test]
fn weights_have_them_too() {
    let problem = problem(Dtype::F32).mask(Mask::Full).build().unwrap();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let (q, k) = (random::<f32>(of_q, 1), random::<f32>(of_k, 2));
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let (of_q, of_k) = (
        Tensor::bshd(&q, of_q).unwrap(),
        Tensor::bshd(&k, of_k).unwrap(),
    );
    let inputs = Inputs::latent(&of_q, &of_k).head_scale(&FACTORS);
    let of = WeightsOf {
        batch: 1,
        head: 2,
        rows: 3..4,
    };
    let mut weights = vec![0f32; SEQLENS[1]];
    attention.weights(&inputs, &of, &mut weights).unwrap();
    let row = |x: &[f32], heads: usize, row: usize, head: usize| {
        x[(row * heads + head) * HEAD_DIM..][..HEAD_DIM].to_vec()
    };
    let query = row(&q, 4, SEQLENS[0] + 3, 2);
    let scores: Vec<f32> = (0..SEQLENS[1])
        .map(|key| {
            let key = row(&k, 2, SEQLENS[1] + key, 1);
            let score: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            score * problem.scale() * FACTORS[2]
        })
        .collect();
    let sum: f32 = scores.iter().map(|s| s.exp()).sum();
    let expected: Vec<f32> = scores.iter().map(|s| s.exp() / sum).collect();
    assert_near(&weights, &expected, 1e-5, "weight");
}

#[test]
fn kernels_that_do_not_read_them_are_refused_by_their_name() {
    use ferroflash::plan::{self, DeviceInfo};
    use ferroflash::validate::without_tensors;
    use ferroflash::{Backend, tensor::Location};

    let problem = problem(Dtype::Bf16).giving(Argument::HeadScale);
    let problem = problem.build().unwrap();
    let planned = |pass, asked| {
        let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        plan::plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked)
    };
    let plan = planned(Pass::Forward, None).unwrap();
    assert_eq!(plan.algorithm, Algorithm::Flash2);
    let argument = Argument::HeadScale;
    let refused = [
        (Pass::Forward, Algorithm::Flash3),
        (Pass::Forward, Algorithm::Flash1),
        (Pass::Forward, Algorithm::Standard),
        (Pass::Backward, Algorithm::Flash2),
        (Pass::Backward, Algorithm::Standard),
    ];
    for (pass, algorithm) in refused {
        let Err(PlanError::NoCandidate { candidates, .. }) = planned(pass, Some(algorithm)) else {
            panic!("{algorithm} is planned");
        };
        let candidate = candidates.iter().find(|it| it.algorithm == algorithm);
        let outcome = &candidate.unwrap().outcome;
        let refusal = Outcome::Refused(Reason::NotRead { argument });
        assert_eq!(*outcome, refusal, "{algorithm}");
    }
}

#[cfg(feature = "emulator")]
#[test]
fn flash2_reads_them() {
    use ferroflash::Score;
    use ferroflash::backend::emulated::EmulatorOptions;
    use half::f16;

    let capped = Score::new(|s, _| (s / 5.0).tanh() * 5.0).unwrap();
    let plain = problem(Dtype::F16);
    for problem in [plain, plain.mask(Mask::Full).score(capped)] {
        let problem = problem.build().unwrap();
        let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
        let (q, k, v) = (random(of_q, 1), random(of_k, 2), random(of_k, 3));
        let d_o: Vec<f16> = Vec::new();
        let inputs = [&q[..], &k, &v, &d_o];
        let run =
            |attention: Attention| run::<f16>(&attention, inputs, Some(&FACTORS), false).unwrap();
        let expected = run(Attention::new(&Device::cpu(), problem).unwrap());
        for seed in 0..2 {
            let device = Device::emulated(EmulatorOptions::seeded(seed));
            let emulated = Attention::new(&device, problem).unwrap();
            let found = run(emulated.with_algorithm(Algorithm::Flash2));
            assert_near(&found.o, &expected.o, 2e-3, "o");
            assert_near(&found.lse, &expected.lse, 1e-4, "lse");
        }
    }
}
