//! Chosen rows of the weights: what is not there is refused by name, before anything is written; pages and 8 bits give what the same keys side
//! by side give; sinks and hidden rows.

use ferroflash::arguments::Argument;
use ferroflash::error::{Error, ProblemError};
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Element, Fp8Kv, Inputs, Mask, Pages, Problem,
    ProblemBuilder, Tensor, WeightsOf, WeightsRan,
};
use float8::F8E4M3;
use half::bf16;

fn problem(dtype: Dtype) -> ProblemBuilder {
    Problem::builder(dtype)
        .batch(2)
        .seqlen_q(6)
        .seqlen_k(10)
        .heads_q(4)
        .heads_k(2)
        .head_dim(8)
        .mask(Mask::Causal)
}

/// Numbers that look random.
fn values<T: Element>(seed: usize, n: usize) -> Vec<T> {
    let value = |at: usize| (((at + seed * 7919) * 2_654_435_761) % 65_536) as f32;
    (0..n)
        .map(|at| T::from_f32(value(at) / 16_384.0 - 2.0))
        .collect()
}

const OF: WeightsOf = WeightsOf {
    batch: 1,
    head: 3,
    rows: 2..5,
};

/// The rows of contiguous tensors, with what `with` adds to the inputs.
fn weights<'a, T: Element>(
    problem: Problem,
    (q, k): (&'a [T], &'a Tensor<'a>),
    of: &WeightsOf,
    out: &mut [f32],
    with: impl FnOnce(Inputs<'a>) -> Inputs<'a>,
) -> Result<WeightsRan, Error> {
    let inputs = Inputs::latent(&Tensor::bshd(q, problem.shape_q())?, k);
    Attention::new(&Device::cpu(), problem)?.weights(&with(inputs), of, out)
}

#[test]
fn what_is_not_there_is_refused() {
    let problem = problem(Dtype::F32).build().unwrap();
    let (q, k) = (
        values::<f32>(1, 2 * 6 * 4 * 8),
        values::<f32>(2, 2 * 10 * 2 * 8),
    );
    let k = Tensor::bshd(&k, problem.shape_k()).unwrap();
    let refused = |of: &WeightsOf, n_out: usize| {
        let mut out = vec![f32::NAN; n_out];
        let outcome = weights(problem, (&q, &k), of, &mut out, |inputs| inputs);
        assert!(outcome.is_ok() || out.iter().all(|x| x.is_nan()), "{of:?}");
        match outcome {
            Err(Error::Problem(error)) => Some(error),
            other => {
                other.unwrap();
                None
            }
        }
    };
    assert_eq!(refused(&OF, 30), None);
    let (batch, head) = (WeightsOf { batch: 2, ..OF }, WeightsOf { head: 4, ..OF });
    let absent = |what, given, n| Some(ProblemError::WeightsOf { what, given, n });
    assert_eq!(refused(&batch, 30), absent("batch", 2, 2));
    assert_eq!(refused(&head, 30), absent("head", 4, 4));
    assert_eq!(
        refused(&head, 30).unwrap().to_string(),
        "head is 4; allowed: below 4"
    );
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let wrong = [4..7, 5..3, 7..7];
    for rows in wrong {
        let of = WeightsOf {
            rows: rows.clone(),
            ..OF
        };
        let expected = ProblemError::WeightsOfRows {
            given: rows,
            sequence: 1,
            seqlen_q: 6,
        };
        assert_eq!(refused(&of, 30), Some(expected));
    }
    for given in [29, 31, 0] {
        let argument = Argument::Weights;
        let expected = ProblemError::ElementCount {
            argument,
            given,
            needed: 30,
        };
        assert_eq!(refused(&OF, given as usize), Some(expected));
    }
    let none = WeightsOf { rows: 6..6, ..OF };
    assert_eq!(refused(&none, 0), None);
}

#[test]
fn rows_behind_a_sequence_are_refused() {
    let problem = problem(Dtype::F32).build().unwrap();
    let (q, k) = (
        values::<f32>(1, 2 * 6 * 4 * 8),
        values::<f32>(2, 2 * 10 * 2 * 8),
    );
    let k = Tensor::bshd(&k, problem.shape_k()).unwrap();
    let (used_q, used_k) = ([6, 4], [10, 7]);
    let mut out = vec![f32::NAN; 30];
    let outcome = weights(problem, (&q, &k), &OF, &mut out, |inputs| {
        inputs.seqused_q(&used_q).seqused_k(&used_k)
    });
    let expected = ProblemError::WeightsOfRows {
        given: 2..5,
        sequence: 1,
        seqlen_q: 4,
    };
    assert_eq!(outcome, Err(expected.into()));
    let of = WeightsOf { rows: 1..4, ..OF };
    let ran = weights(problem, (&q, &k), &of, &mut out, |inputs| {
        inputs.seqused_q(&used_q).seqused_k(&used_k)
    })
    .unwrap();
    assert_eq!(ran.seqlen_k, 7);
    for (row, query) in out.chunks(10).zip(1..) {
        // Bottom right: query 3 of 4 sees all seven keys.
        let n_seen = query + 1 + 7 - 4;
        assert!(row[..n_seen].iter().all(|&p| p > 0.0), "{row:?}");
        assert!(row[n_seen..].iter().all(|&p| p == 0.0), "{row:?}");
    }
}

#[test]
fn inputs_are_checked_as_in_a_forward_pass() {
    let problem = problem(Dtype::F32).build().unwrap();
    let (q, k) = (
        values::<f32>(1, 2 * 6 * 4 * 8),
        values::<f32>(2, 2 * 10 * 2 * 8),
    );
    let k = Tensor::bshd(&k, problem.shape_k()).unwrap();
    let mut out = vec![f32::NAN; 30];
    let (sinks, lens) = ([0f32; 5], [0i32; 3]);
    let outcome = weights(problem, (&q, &k), &OF, &mut out, |inputs| {
        inputs.sinks(&sinks)
    });
    let argument = Argument::Sinks;
    let counted = ProblemError::ElementCount {
        argument,
        given: 5,
        needed: 4,
    };
    assert_eq!(outcome, Err(counted.into()));
    let outcome = weights(problem, (&q, &k), &OF, &mut out, |inputs| {
        inputs.seqused_k(&lens)
    });
    let counted = ProblemError::ElementCount {
        argument: Argument::SeqUsedK,
        given: 3,
        needed: 2,
    };
    assert_eq!(outcome, Err(counted.into()));
    let with_sinks = problem.to_builder().sinks().build().unwrap();
    let outcome = weights(with_sinks, (&q, &k), &OF, &mut out, |inputs| inputs);
    assert_eq!(outcome, Err(ProblemError::Missing { argument }.into()));
    // Values may be given, and then have to fit.
    let outcome = weights(problem, (&q, &k), &OF, &mut out, |mut inputs| {
        inputs.v = Some(k);
        inputs
    });
    assert_eq!(outcome.unwrap().backend, Backend::Cpu);
    let outcome = weights(problem, (&q, &k), &OF, &mut out, |mut inputs| {
        inputs.v = Some(inputs.q);
        inputs
    });
    assert!(matches!(
        outcome,
        Err(Error::Problem(ProblemError::ShapeMismatch {
            argument: Argument::V,
            ..
        }))
    ));
}

/// The algorithm is that of the passes.
#[test]
fn what_ran_is_said() {
    let problem = problem(Dtype::F32).build().unwrap();
    let (q, k) = (
        values::<f32>(1, 2 * 6 * 4 * 8),
        values::<f32>(2, 2 * 10 * 2 * 8),
    );
    let inputs = Inputs::latent(
        &Tensor::bshd(&q, problem.shape_q()).unwrap(),
        &Tensor::bshd(&k, problem.shape_k()).unwrap(),
    );
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let attention = attention.with_algorithm(Algorithm::Standard);
    let mut out = vec![0f32; 30];
    let ran = attention.weights(&inputs, &OF, &mut out).unwrap();
    let expected = WeightsRan {
        backend: Backend::Cpu,
        copied_bytes: 0,
        seqlen_k: 10,
    };
    assert_eq!(ran, expected);
    assert_eq!(ran.to_string(), "cpu");
}

#[test]
fn a_sink_takes_its_part_and_a_hidden_row_is_0() {
    // One row more than there are keys: the first query sees none.
    let problem = Problem::builder(Dtype::F32)
        .seqlen_q(3)
        .seqlen_k(2)
        .heads(1)
        .head_dim(1)
        .mask(Mask::Causal)
        .sinks();
    let problem = problem.build().unwrap();
    let (q, k) = ([0f32; 3], [0f32; 2]);
    let k = Tensor::bshd(&k, problem.shape_k()).unwrap();
    let of = WeightsOf {
        batch: 0,
        head: 0,
        rows: 0..3,
    };
    let mut out = [f32::NAN; 6];
    for (sink, expected) in [
        (2f32.ln(), [0.0, 0.0, 1.0 / 3.0, 0.0, 0.25, 0.25]),
        (f32::NEG_INFINITY, [0.0, 0.0, 1.0, 0.0, 0.5, 0.5]),
    ] {
        let sinks = [sink];
        weights(problem, (&q[..], &k), &of, &mut out, |inputs| {
            inputs.sinks(&sinks)
        })
        .unwrap();
        let apart = out.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0f32, f32::max) < 1e-6, "{out:?}");
    }
}

/// Keys in pages, in 8 bits with scales, as a pool and side by side: the same bits.
#[test]
fn pages_and_8_bits_give_what_keys_side_by_side_give() {
    let (page_size, table) = (4, [5, 0, 2, 3, 1, 4]);
    let pool = problem(Dtype::Bf16)
        .pages(Pages::new(6, page_size))
        .build()
        .unwrap();
    let q = values::<bf16>(1, 2 * 6 * 4 * 8);
    let codes: Vec<F8E4M3> = values::<f32>(3, 6 * page_size * 2 * 8)
        .into_iter()
        .map(|x| F8E4M3::from_f32(x * 8.0))
        .collect();
    // Powers of 2: bf16 holds the products.
    let of_pages: Vec<f32> = (0..12).map(|at| (at as f32 % 5.0 - 2.0).exp2()).collect();
    let lens = [9, 10];
    for per_page in [true, false] {
        let scale = |sequence: usize, page: usize, head: usize| match per_page {
            true => of_pages[page * 2 + head],
            false => of_pages[sequence * 2 + head],
        };
        // Side by side, multiplied.
        let mut k = vec![bf16::ZERO; 2 * 10 * 2 * 8];
        for (at, k) in k.iter_mut().enumerate() {
            let (sequence, row, head, column) = (at / 160, at / 16 % 10, at / 8 % 2, at % 8);
            let page = table[sequence * 3 + row / page_size] as usize;
            let code = codes[((page * page_size + row % page_size) * 2 + head) * 8 + column];
            *k = bf16::from_f32(code.to_f32() * scale(sequence, page, head));
        }
        let plain = problem(Dtype::Bf16).build().unwrap();
        let (fp8, n_scales) = match per_page {
            true => (Fp8Kv::PerPage, 12),
            false => (Fp8Kv::PerSequence, 4),
        };
        let paged = pool.to_builder().fp8_kv(fp8).build().unwrap();
        let k = Tensor::bshd(&k, plain.shape_k()).unwrap();
        let in_pages = Tensor::bshd(&codes, paged.shape_k()).unwrap();
        for (batch, head) in [(0, 0), (0, 3), (1, 1), (1, 2)] {
            let of = WeightsOf {
                batch,
                head,
                rows: 1..6,
            };
            let mut out = [[f32::NAN; 50]; 2];
            let [side_by_side, of_pool] = &mut out;
            weights(plain, (&q[..], &k), &of, side_by_side, |inputs| {
                inputs.seqused_k(&lens)
            })
            .unwrap();
            weights(paged, (&q[..], &in_pages), &of, of_pool, |inputs| {
                inputs
                    .seqused_k(&lens)
                    .page_table(&table)
                    .k_descale(&of_pages[..n_scales])
            })
            .unwrap();
            assert_eq!(out[0], out[1], "{of:?}");
        }
    }
}
