//! The serving example in small: a few requests over a few pages, and the engine's parts by themselves.

#[allow(dead_code, reason = "its clock is the training's")]
#[path = "../examples/train/attention.rs"]
mod attention;
#[path = "../examples/serve/check.rs"]
mod check;
#[path = "../examples/serve/engine.rs"]
mod engine;
#[path = "../examples/serve/forward.rs"]
mod forward;
#[allow(dead_code, reason = "a part of it is the training's")]
#[path = "../examples/train/model.rs"]
mod model;
#[path = "../examples/serve/pages.rs"]
mod pages;
#[allow(dead_code, reason = "what it prints is the example's")]
#[path = "../examples/serve/report.rs"]
mod report;
#[path = "../examples/serve/scheduler.rs"]
mod scheduler;
#[path = "../examples/serve/sequence.rs"]
mod sequence;
#[allow(dead_code, reason = "a part of it is the training's")]
#[path = "../examples/train/weights.rs"]
mod weights;
#[path = "../examples/serve/workload.rs"]
mod workload;

use std::time::Duration;

use anyhow::Result;
use candle_core::{DType, Device};
use check::check;
use engine::{Served, Sizes, serve};
use model::{Config, Model};
use pages::Pages;
use report::Sorted;
use scheduler::{Chunk, Limits, Scheduler};
use sequence::Sequence;
use workload::{Request, Workload};

const CPU: &Device = &Device::Cpu;

const WORKLOAD: Workload = Workload {
    requests: 12,
    // All come at once, so steps do not depend on the clock.
    rate: 1e9,
    longest_prompt: 30,
    longest_answer: 14,
    seed: 3,
};

const SIZES: Sizes = Sizes {
    n_pages: 64,
    page_size: 4,
    limits: Limits {
        batch: 5,
        tokens: 16,
    },
};

/// Weights by chance: their answers are nonsense, and as good as any to compare.
fn model(dtype: DType) -> Result<Model> {
    let config = Config {
        layers: 2,
        heads: 2,
        head_dim: 16,
        positions: WORKLOAD.most_rows(),
        dtype,
    };
    Ok(Model::new(config, 1, CPU)?.0.frozen()?)
}

/// Serves, and checks what must hold whatever the sizes.
fn serves(model: &Model, sizes: &Sizes, margin: f32) -> Result<Served> {
    let requests = WORKLOAD.requests();
    let served = serve(model, &requests, sizes, CPU)?;
    assert_eq!(served.sequences.len(), requests.len());
    for sequence in &served.sequences {
        let Request {
            id, prompt, count, ..
        } = &requests[sequence.request.id];
        assert_eq!(sequence.request.id, *id);
        assert!(sequence.tokens.starts_with(prompt));
        assert_eq!(sequence.generated().len(), *count);
        assert_eq!(sequence.times.len(), *count);
        assert!(sequence.times.is_sorted());
    }
    assert_eq!(served.pages_left, 0);
    assert!(served.peak_pages <= sizes.n_pages);
    for step in &served.steps {
        assert!((1..=sizes.limits.batch).contains(&step.sequences));
        assert!((step.sequences..=sizes.limits.tokens).contains(&step.tokens));
        assert!(step.rows <= step.pages * sizes.page_size);
    }
    let checked = check(model, &served.sequences, margin, CPU)?;
    let count = requests.iter().map(|request| request.count).sum::<usize>();
    assert_eq!(checked.bytes, count);
    Ok(served)
}

#[test]
fn every_answer_is_that_of_plain_generation() -> Result<()> {
    let served = serves(&model(DType::F32)?, &SIZES, 0.0)?;
    assert_eq!(served.preemptions, 0);
    let mixed = |step: &engine::StepRecord| step.decoding > 0 && step.decoding < step.sequences;
    assert!(
        served.steps.iter().any(mixed),
        "prefill and decode share steps"
    );
    Ok(())
}

/// Room for the longest request and little more: sequences wait, and are preempted; their answers stay the same.
#[test]
fn a_full_pool_preempts() -> Result<()> {
    let model = model(DType::F32)?;
    for page_size in [1, 3, 16] {
        let n_pages = WORKLOAD.most_rows().div_ceil(page_size) + 1;
        let sizes = Sizes {
            n_pages,
            page_size,
            ..SIZES
        };
        let served = serves(&model, &sizes, 0.0)?;
        if page_size < 16 {
            assert!(served.preemptions > 0, "pages of {page_size}");
            assert!(served.peak_pages + 2 >= n_pages, "{}", served.peak_pages);
        }
    }
    Ok(())
}

/// Scores of a model by chance lie closer together than bf16 tells apart, hence the margin.
#[test]
fn small_types() -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        serves(&model(dtype)?, &SIZES, 0.02)?;
    }
    Ok(())
}

#[test]
fn a_wrong_byte_is_found() -> Result<()> {
    let model = model(DType::F32)?;
    let mut served = serves(&model, &SIZES, 0.0)?;
    let sequence = &mut served.sequences[7];
    let index = sequence.tokens.len() - 1;
    sequence.tokens[index] ^= 1;
    let id = sequence.request.id;
    let error = check(&model, &served.sequences, 0.0, CPU).map(|_| ());
    let text = error.unwrap_err().to_string();
    let place = index - served.sequences[7].request.prompt.len();
    assert!(
        text.starts_with(&format!("request {id}, byte {place}: ")),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_request_that_fits_nowhere_is_an_error() -> Result<()> {
    let model = model(DType::F32)?;
    let refused = |request: Request, sizes: Sizes| {
        let error = serve(&model, &[request], &sizes, CPU).map(|_| ());
        error.unwrap_err().to_string()
    };
    let request = |length, count| Request {
        id: 0,
        arrival: Duration::ZERO,
        prompt: vec![b'a'; length],
        count,
    };
    let small = Sizes {
        n_pages: 2,
        ..SIZES
    };
    assert!(refused(request(8, 2), small).starts_with("request 0 needs 9 rows; allowed: 8"));
    assert!(refused(request(40, 5), SIZES).contains("needs 44 rows"));
    assert!(refused(request(0, 5), SIZES).contains("a prompt of 0 bytes"));
    let limits = Limits {
        batch: 5,
        tokens: 4,
    };
    let narrow = Sizes { limits, ..SIZES };
    assert!(refused(request(8, 2), narrow).contains("4 tokens of 5 sequences"));
    assert!(serve(&model, &[request(8, 1)], &small, CPU).is_ok());
    Ok(())
}

#[test]
fn pages_are_reused_and_never_shared() {
    let mut pages = Pages::new(5, 4);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    assert!(pages.grow(&mut a, 5) && pages.grow(&mut b, 4));
    assert_eq!((a.len(), b.len(), pages.in_use()), (2, 1, 3));
    assert!(pages.grow(&mut b, 4), "it lacks none");
    assert!(!pages.grow(&mut b, 13), "three more, and two are free");
    assert_eq!(b.len(), 1, "none of them is taken then");
    assert!(pages.grow(&mut b, 12));
    let mut all = [a.clone(), b.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
    pages.free(&mut a);
    assert!(a.is_empty() && pages.in_use() == 3);
    assert!(pages.grow(&mut a, 1));
    assert_eq!((pages.in_use(), pages.peak()), (4, 5));
}

#[test]
fn decoding_comes_first_and_prompts_share_the_rest() {
    let limits = Limits {
        batch: 3,
        tokens: 8,
    };
    let mut scheduler = Scheduler::new(limits, Pages::new(8, 4));
    for (id, length) in [5, 6, 4, 2].into_iter().enumerate() {
        scheduler.submit(Sequence::new(Request {
            id,
            arrival: Duration::ZERO,
            prompt: vec![b'a'; length],
            count: 9,
        }));
    }
    let chunk = |sequence, tokens| Chunk { sequence, tokens };
    let step = |scheduler: &mut Scheduler| {
        let chunks = scheduler.step();
        for chunk in &chunks {
            let sequence = &mut scheduler.running[chunk.sequence];
            sequence.cached += chunk.tokens;
            if sequence.pending() == 0 {
                sequence.tokens.push(b'b');
            }
        }
        chunks
    };
    assert_eq!(step(&mut scheduler), [chunk(0, 5), chunk(1, 3)]);
    assert_eq!(
        step(&mut scheduler),
        [chunk(0, 1), chunk(1, 3), chunk(2, 4)]
    );
    assert_eq!(
        step(&mut scheduler),
        [chunk(0, 1), chunk(1, 1), chunk(2, 1)]
    );
    assert_eq!(scheduler.pages.in_use(), 6);
    // The first grows to three pages, then the second: the pool is full. The third has to go when the first wants a fourth.
    let mut longest = 0;
    while scheduler.preemptions == 0 {
        longest = scheduler.running[0].tokens.len();
        step(&mut scheduler);
        assert!(longest < 20);
    }
    assert_eq!(scheduler.running.len(), 2);
    let ids = scheduler.running.iter().map(|running| running.request.id);
    assert_eq!(ids.collect::<Vec<_>>(), [0, 1]);
    assert!(longest > 8);
}

#[test]
fn percentiles_are_ranks() {
    let durations = Sorted::new((1..=10).rev().map(Duration::from_secs).collect());
    let seconds = |percent| durations.percentile(percent).as_secs();
    assert_eq!([50, 90, 99, 100].map(seconds), [5, 9, 10, 10]);
    assert_eq!(Sorted::new(Vec::new()).percentile(50), Duration::ZERO);
}

#[test]
fn one_seed_gives_the_same_requests() {
    let texts = |seed| {
        let requests = Workload { seed, ..WORKLOAD }.requests();
        assert!(requests.is_sorted_by_key(|request| request.arrival));
        requests
            .into_iter()
            .map(|request| (request.prompt, request.count, request.arrival))
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(3), texts(3));
    assert_ne!(texts(3), texts(4));
}
