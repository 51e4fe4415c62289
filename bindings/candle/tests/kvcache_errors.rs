//! Refusals of attention over caches and of appends: each names the argument, and nothing is written.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    Appended, Error, KvCache, NewRows, Rotary, append_kvcache, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_with_kvcache, flash_attn_with_kvcache,
};
use support::{assert_close, refusal};

const CPU: &Device = &Device::Cpu;

fn zeros(shape: impl Into<candle_core::Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32, CPU).unwrap()
}

fn numbers(numbers: &[u32]) -> Tensor {
    Tensor::new(numbers, CPU).unwrap()
}

/// Two sequences of up to 8 rows in pages of 4, of a pool of 5; each has a query.
struct Paged {
    q: Tensor,
    pool: Tensor,
    table: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
}

impl Paged {
    fn new() -> Paged {
        Paged {
            q: zeros((2, 4, 8)),
            pool: zeros((5, 4, 2, 8)),
            table: Tensor::new(&[[4u32, 0], [2, 9]], CPU).unwrap(),
            ends_q: numbers(&[0, 1, 2]),
            ends_k: numbers(&[0, 7, 10]),
        }
    }

    fn run(&self, page_size: usize, most: usize) -> Result<Tensor> {
        flash_attn_varlen_paged_windowed(
            &self.q,
            &self.pool,
            &self.pool,
            &self.ends_q,
            &self.ends_k,
            &self.table,
            None,
            1,
            most,
            0.5,
            None,
            Some(0),
            page_size,
            None,
        )
    }
}

#[test]
fn pages() {
    assert!(Paged::new().run(4, 8).is_ok(), "page 9 is nobody's");
    let refused = |change: fn(&mut Paged)| {
        let mut paged = Paged::new();
        change(&mut paged);
        refusal(paged.run(4, 8))
    };
    assert_eq!(
        refusal(Paged::new().run(32, 8)),
        "page_block_size is 32; allowed: 4, the rows of a page of k"
    );
    let text = refusal(Paged::new().run(4, 9));
    assert!(text.contains("9"), "{text}");
    assert_eq!(
        refused(|paged| paged.pool = zeros((5, 4, 8))),
        "k has 3 dimensions; allowed: 4"
    );
    assert_eq!(
        refused(|paged| paged.pool = zeros((5, 4, 2, 16))),
        "k has shape [5, 4, 2, 16]; allowed: [5, 4, 2, 8]"
    );
    assert_eq!(
        refused(|paged| paged.table = numbers(&[4, 0, 2, 9])),
        "block_table has 1 dimensions; allowed: 2"
    );
    assert_eq!(
        refused(|paged| paged.table = paged.table.narrow(0, 0, 1).unwrap()),
        "block_table has shape [1, 2]; allowed: [2, 2]"
    );
    assert_eq!(
        refused(|paged| paged.table = zeros((2, 2))),
        "block_table is F32; allowed: [U32, I32]"
    );
    assert_eq!(
        refused(|paged| paged.ends_k = numbers(&[0, 7])),
        "seqlens_k has 2 elements; allowed: 3, as many as of seqlens_q"
    );
    let text = refused(|paged| paged.ends_k = numbers(&[0, 7, 12]));
    assert!(text.contains("sequence 1") && text.contains('9'), "{text}");
    for ends in [[0, 7, 5], [0, 9, 10]] {
        let paged = Paged {
            ends_k: numbers(&ends),
            ..Paged::new()
        };
        let text = refusal(paged.run(4, 8));
        assert!(text.contains("cu_seqlens_k, sequence"), "{text}");
    }
}

#[test]
fn what_is_not_offered() {
    let paged = Paged::new();
    let ranges = Tensor::zeros((2, 1, 2), DType::I32, CPU).unwrap();
    let run = |ranges: Option<&Tensor>, softcap| {
        flash_attn_varlen_paged_windowed(
            &paged.q,
            &paged.pool,
            &paged.pool,
            &paged.ends_q,
            &paged.ends_k,
            &paged.table,
            ranges,
            1,
            8,
            0.5,
            None,
            None,
            4,
            softcap,
        )
    };
    assert!(run(None, Some(0.0)).is_ok());
    assert_eq!(
        refusal(run(Some(&ranges), None)),
        "mm_prefix_ranges is a tensor [2, 1, 2] of I32; allowed: none: ferroflash's masks have no ranges of their own for each sequence"
    );
    assert_eq!(
        refusal(run(None, Some(-30.0))),
        "softcap is -30; allowed: 0, which is none, or a number greater than 0"
    );
}

#[test]
fn lengths_of_a_cache() {
    let (q, k) = (zeros((2, 1, 4, 8)), zeros((2, 8, 2, 8)));
    let run = |k: &Tensor, used: &Tensor| {
        flash_attn_with_kvcache(&q, &KvCache::new(k, k, used), 0.5, None, None)
    };
    assert!(run(&k, &numbers(&[8, 0])).is_ok());
    assert_eq!(
        refusal(run(&k, &numbers(&[8]))),
        "seqused_k has 1 elements; allowed: 2, one for each sequence of q"
    );
    let text = refusal(run(&k, &numbers(&[8, 9])));
    assert!(
        text.contains("seqused_k, sequence 1: 9; allowed: 0 to 8"),
        "{text}"
    );
    assert_eq!(
        refusal(run(&zeros((3, 8, 2, 8)), &numbers(&[8, 0]))),
        "k has shape [3, 8, 2, 8]; allowed: [2, 8, 2, 8]"
    );
    let cache = (numbers(&[8, 0]), numbers(&[0]));
    let cache = (KvCache::new(&k, &k, &cache.0), &cache.1);
    let packed =
        flash_attn_varlen_with_kvcache(&zeros((2, 4, 8)), cache.1, 1, &cache.0, 0.5, None, None);
    assert_eq!(
        refusal(packed),
        "seqlens_q has 1 elements; allowed: 2 or more"
    );
}

#[test]
fn no_gradient_goes_through_a_cache() -> Result<()> {
    let (q, k, used) = (zeros((2, 1, 4, 8)), zeros((2, 8, 2, 8)), numbers(&[8, 3]));
    let q = Var::from_tensor(&q)?;
    let o = flash_attn_with_kvcache(&q, &KvCache::new(&k, &k, &used), 0.5, None, None)?;
    let gradient = "q asks for a gradient; allowed: tensors without, since attention over a cache has no backward pass";
    assert_eq!(refusal(o.sum_all()?.backward()), gradient);
    let detached = q.as_tensor().detach();
    let o = flash_attn_with_kvcache(&detached, &KvCache::new(&k, &k, &used), 0.5, None, None)?;
    assert!(!o.track_op());
    Ok(())
}

/// One new row for each of two sequences with 3 rows and 1 row.
struct Step {
    k_cache: Tensor,
    v_cache: Tensor,
    used: Tensor,
    k: Tensor,
    v: Tensor,
    q: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Step {
    fn new() -> Step {
        let ones = |shape| Tensor::ones::<(usize, usize, usize, usize)>(shape, DType::F32, CPU);
        Step {
            k_cache: zeros((2, 8, 2, 8)),
            v_cache: zeros((2, 8, 2, 8)),
            used: numbers(&[3, 1]),
            k: ones((2, 1, 2, 8)).unwrap(),
            v: ones((2, 1, 2, 8)).unwrap(),
            q: ones((2, 1, 4, 8)).unwrap(),
            cos: Tensor::ones((6, 4), DType::F32, CPU).unwrap(),
            sin: zeros((6, 4)),
        }
    }

    fn run(&self) -> Result<Appended> {
        append_kvcache(
            &KvCache::new(&self.k_cache, &self.v_cache, &self.used),
            &NewRows::new(&self.k, &self.v).with_q(&self.q),
            Some(&Rotary::halves(&self.cos, &self.sin)),
        )
    }
}

/// What is said of a step with a change; nothing is written then.
#[track_caller]
fn refused(change: impl FnOnce(&mut Step)) -> String {
    let mut step = Step::new();
    change(&mut step);
    let text = refusal(step.run());
    for cache in [&step.k_cache, &step.v_cache] {
        let cache = cache.to_dtype(DType::F32).unwrap();
        assert_close("untouched", &cache, &cache.zeros_like().unwrap(), 0.0);
    }
    text
}

#[test]
fn shapes_and_types_of_an_append() {
    assert!(Step::new().run().is_ok());
    assert_eq!(
        refused(|step| step.v = zeros((2, 2, 2, 8))),
        "v has shape [2, 2, 2, 8]; allowed: [2, 1, 2, 8]"
    );
    assert_eq!(
        refused(|step| step.q = zeros((2, 2, 4, 8))),
        "q has shape [2, 2, 4, 8]; allowed: [2, 1, 4, 8]"
    );
    assert_eq!(
        refused(|step| step.k = zeros((2, 2, 8))),
        "k has 3 dimensions; allowed: 4"
    );
    assert_eq!(
        refused(|step| step.k_cache = zeros((3, 8, 2, 8))),
        "k_cache has shape [3, 8, 2, 8]; allowed: [2, 8, 2, 8]"
    );
    assert_eq!(
        refused(|step| step.v_cache = zeros((2, 7, 2, 8))),
        "v_cache has shape [2, 7, 2, 8]; allowed: [2, 8, 2, 8]"
    );
    assert_eq!(
        refused(|step| step.v_cache = step.v_cache.to_dtype(DType::BF16).unwrap()),
        "v_cache is BF16; allowed: [F32]"
    );
    assert_eq!(
        refused(|step| step.sin = zeros((5, 4))),
        "sin has shape [5, 4]; allowed: [6, 4]"
    );
    assert_eq!(
        refused(|step| step.cos = step.cos.to_dtype(DType::BF16).unwrap()),
        "cos is BF16; allowed: [F32]"
    );
    let text = refused(|step| (step.cos, step.sin) = (zeros((6, 5)), zeros((6, 5))));
    assert!(
        text.contains("rotary_dim is 10; allowed: at most head_dim, 8"),
        "{text}"
    );
    let step = Step::new();
    let cache = KvCache::new(&step.k_cache, &step.v_cache, &step.used);
    let without = append_kvcache(
        &cache,
        &NewRows::new(&step.k, &step.v).with_q(&step.q),
        None,
    );
    assert_eq!(
        refusal(without),
        "rotary was not set; the builder has no default for it"
    );
}

#[test]
fn lengths_of_an_append() {
    let text = refused(|step| step.used = numbers(&[3, 6]));
    assert!(
        text.contains("seqused_k, sequence 1: 6; allowed: 0 to 5"),
        "{text}"
    );
    assert_eq!(
        refused(|step| step.used = numbers(&[3, 1, 0])),
        "seqused_k has 3 elements; allowed: 2, one for each sequence"
    );
    assert_eq!(
        refused(|step| step.used = step.used.to_dtype(DType::I64).unwrap()),
        "seqused_k is I64; allowed: [U32, I32]"
    );
    let (step, pool) = (Step::new(), [zeros((2, 4, 2, 8)), zeros((2, 4, 2, 8))]);
    let table = Tensor::new(&[[0u32, 1], [2, 1]], CPU).unwrap();
    let cache = KvCache::paged(&pool[0], &pool[1], &table, 8, &step.used);
    let text = refusal(append_kvcache(
        &cache,
        &NewRows::new(&step.k, &step.v),
        None,
    ));
    assert!(text.contains("sequence 1") && text.contains("2"), "{text}");
}

#[test]
fn memory_that_is_written_is_the_caches_own() {
    let shared = |change: fn(&mut Step)| refused(change);
    assert_eq!(
        shared(|step| step.v_cache = step.k_cache.clone()),
        "v_cache lies in the memory of k_cache; allowed: memory of its own"
    );
    assert_eq!(
        shared(|step| step.v = step.v_cache.narrow(1, 7, 1).unwrap()),
        "v_cache lies in the memory of v; allowed: memory of its own"
    );
    assert_eq!(
        shared(|step| step.k_cache = zeros((2, 1, 2, 8)).broadcast_as((2, 8, 2, 8)).unwrap()),
        "k_cache has strides [16, 0, 8, 1], which repeat elements; allowed: a place for each"
    );
    assert_eq!(
        shared(|step| step.k = Var::from_tensor(&step.k).unwrap().as_tensor().clone()),
        "k asks for a gradient; allowed: tensors without, since an append has no backward pass"
    );
    let step = Step {
        k_cache: Var::from_tensor(&zeros((2, 8, 2, 8)))
            .unwrap()
            .as_tensor()
            .clone(),
        ..Step::new()
    };
    let error = step.run().unwrap_err();
    assert!(matches!(
        Error::of(&error),
        Some(Error::Gradient {
            argument: "k_cache",
            ..
        })
    ));
}
