//! A cache of keys and values gives what contiguous keys and values give, whatever was appended, forked, truncated and removed before.

use ferroflash::error::CacheError;
use ferroflash::kv_cache::Sequence;
use ferroflash::{Device, Error, KvCache, attend};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADS_K: usize = 2;
const HEAD_DIM: usize = 4;
const ROW: usize = HEADS_K * HEAD_DIM;
const POOL: [usize; 4] = [12, 4, HEADS_K, HEAD_DIM];

/// What a program does with a cache. Numbers choose sequences among those that there are.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    Append(Vec<usize>, usize),
    Fork(usize),
    Truncate(usize, usize),
    Remove(usize),
    Attend(Vec<usize>, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..64usize;
    prop_oneof![
        2 => Just(Step::Begin),
        6 => (vec(which.clone(), 1..4), 0..6usize).prop_map(|(which, n)| Step::Append(which, n)),
        2 => which.clone().prop_map(Step::Fork),
        1 => (which.clone(), 0..10usize).prop_map(|(which, n)| Step::Truncate(which, n)),
        1 => which.clone().prop_map(Step::Remove),
        3 => (vec(which, 1..4), 1..3usize).prop_map(|(which, n)| Step::Attend(which, n)),
    ]
}

/// Numbers that no two calls share.
struct Numbers(u32);

impl Numbers {
    fn rows(&mut self, n: usize) -> Vec<f32> {
        let next = |_| {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(next).collect()
    }
}

/// A sequence and its rows, kept as anyone would.
#[derive(Clone)]
struct Kept {
    sequence: Sequence,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Those that numbers choose, each once.
fn chosen(which: &[usize], n: usize) -> Vec<usize> {
    let mut all: Vec<_> = which.iter().map(|at| at % n).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// As many pages as the sequences have, each that is shared counted once: no page is lost or free twice.
fn pages_add_up(cache: &KvCache<f32>, kept: &[Kept]) {
    let sequences: Vec<_> = kept.iter().map(|kept| kept.sequence).collect();
    let tables = cache.tables(&sequences).unwrap();
    let mut pages = Vec::<i32>::new();
    for (entries, &seqlen) in tables
        .page_table
        .chunks(tables.columns)
        .zip(&tables.seqused)
    {
        pages.extend(&entries[..(seqlen as usize).div_ceil(POOL[1])]);
    }
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(cache.free_pages(), POOL[0] - pages.len());
}

fn check_rows(cache: &mut KvCache<f32>, kept: &[&Kept], seqlen_q: usize, numbers: &mut Numbers) {
    let heads_q = 2 * HEADS_K;
    let of_one = seqlen_q * heads_q * HEAD_DIM;
    let q = numbers.rows(kept.len() * of_one);
    let batch: Vec<_> = kept.iter().map(|kept| kept.sequence).collect();
    let shape = [kept.len(), seqlen_q, heads_q, HEAD_DIM];
    let call = cache.attend(&batch, (&q, shape)).unwrap().causal();
    let attended = call.forward(&Device::cpu()).unwrap();
    for (at, kept) in kept.iter().enumerate() {
        let own = &q[at * of_one..(at + 1) * of_one];
        let shape_k = [kept.k.len() / ROW, HEADS_K, HEAD_DIM];
        let call = attend(
            (own, [seqlen_q, heads_q, HEAD_DIM]),
            (&kept.k, shape_k),
            (&kept.v, shape_k),
        );
        let alone = call.causal().forward(&Device::cpu()).unwrap();
        for (paged, alone) in attended.o[at * of_one..].iter().zip(&alone.o) {
            assert!((paged - alone).abs() < 1e-5, "{paged} and {alone}");
        }
    }
}

proptest! {
    #[test]
    fn rows_are_those_that_were_appended(steps in vec(step(), 1..40), seed in any::<u32>()) {
        let mut cache = KvCache::<f32>::on_host(POOL).unwrap();
        let (mut kept, mut numbers) = (Vec::<Kept>::new(), Numbers(seed));
        for step in steps {
            if kept.is_empty() {
                kept.push(Kept { sequence: cache.begin(), k: vec![], v: vec![] });
            }
            match step {
                Step::Begin => kept.push(Kept { sequence: cache.begin(), k: vec![], v: vec![] }),
                Step::Append(which, n) => {
                    let which = chosen(&which, kept.len());
                    let batch: Vec<_> = which.iter().map(|&at| kept[at].sequence).collect();
                    let [k, v] = [(); 2].map(|()| numbers.rows(batch.len() * n * ROW));
                    let shape = [batch.len(), n, HEADS_K, HEAD_DIM];
                    let free = cache.free_pages();
                    match cache.append(&batch, (&k, shape), (&v, shape)) {
                        Ok(()) => {
                            for (at, which) in which.into_iter().enumerate() {
                                let own = at * n * ROW..(at + 1) * n * ROW;
                                kept[which].k.extend(&k[own.clone()]);
                                kept[which].v.extend(&v[own]);
                            }
                        }
                        Err(Error::Cache(CacheError::NoPages { needed, free: given })) => {
                            assert!(needed > given && given == free && cache.free_pages() == free);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Step::Fork(which) => {
                    let of = kept[which % kept.len()].clone();
                    let sequence = cache.fork(of.sequence).unwrap();
                    kept.push(Kept { sequence, ..of });
                }
                Step::Truncate(which, n) => {
                    let which = which % kept.len();
                    let kept = &mut kept[which];
                    cache.truncate(kept.sequence, n).unwrap();
                    kept.k.truncate(n * ROW);
                    kept.v.truncate(n * ROW);
                }
                Step::Remove(which) => {
                    let which = which % kept.len();
                    cache.remove(kept.swap_remove(which).sequence).unwrap();
                }
                Step::Attend(which, n) => {
                    let which = chosen(&which, kept.len());
                    let which: Vec<_> = which.into_iter().map(|at| &kept[at]).collect();
                    check_rows(&mut cache, &which, n, &mut numbers);
                }
            }
            for kept in &kept {
                assert_eq!(cache.seqlen(kept.sequence).unwrap() * ROW, kept.k.len());
            }
            pages_add_up(&cache, &kept);
        }
        let all: Vec<_> = kept.iter().collect();
        if !all.is_empty() {
            check_rows(&mut cache, &all, 1, &mut numbers);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    for pool in [[0, 4, 1, 4], [4, 0, 1, 4], [4, 4, 0, 4], [4, 4, 1, 0]] {
        let error = KvCache::<f32>::on_host(pool).unwrap_err();
        assert_eq!(error, CacheError::Pool { given: pool }.into());
    }
    let mut cache = KvCache::<f32>::on_host([2, 4, 1, 4]).unwrap();
    let sequence = cache.begin();
    let rows = [1f32; 9 * 4];
    let of = |n: usize| (&rows, [1, n, 1, 4]);
    let error = cache.append(&[sequence], of(9), of(9)).unwrap_err();
    assert_eq!(error, CacheError::NoPages { needed: 3, free: 2 }.into());
    let twice = [sequence, sequence];
    let of_two = (&rows, [2, 1, 1, 4]);
    let error = cache.append(&twice, of_two, of_two).unwrap_err();
    assert_eq!(error, CacheError::Twice { sequence }.into());
    let error = cache.append(&[sequence], of_two, of_two).unwrap_err();
    assert_eq!(
        error,
        CacheError::Batch {
            given: 2,
            needed: 1
        }
        .into()
    );
    // Rows of v are as many as those of k, and have the pool's columns.
    assert!(cache.append(&[sequence], of(2), of(1)).is_err());
    let narrow = (&rows, [1, 2, 1, 2]);
    assert!(cache.append(&[sequence], narrow, narrow).is_err());
    assert_eq!(
        (cache.seqlen(sequence).unwrap(), cache.free_pages()),
        (0, 2)
    );

    cache.append(&[sequence], of(8), of(8)).unwrap();
    let fork = cache.fork(sequence).unwrap();
    let error = cache.append(&[fork], of(1), of(1)).unwrap_err();
    assert_eq!(error, CacheError::NoPages { needed: 1, free: 0 }.into());
    cache.remove(fork).unwrap();
    let unknown: Error = CacheError::Unknown { sequence: fork }.into();
    assert_eq!(cache.remove(fork).unwrap_err(), unknown);
    assert_eq!(cache.fork(fork).unwrap_err(), unknown);
    assert_eq!(cache.seqlen(fork).unwrap_err(), unknown);
    assert_eq!(cache.truncate(fork, 0).unwrap_err(), unknown);
    assert_eq!(cache.attend(&[fork], of(1)).unwrap_err(), unknown);
    let error = KvCache::<f32, _>::on_gpu(&Device::cpu(), [2, 4, 1, 4]).unwrap_err();
    let given = Device::cpu().backend();
    assert_eq!(error, CacheError::NotOnGpu { given }.into());
    // The first sequence of another cache.
    let other = KvCache::<f32, _>::on_host([2, 4, 1, 4]).unwrap().begin();
    let unknown: Error = CacheError::Unknown { sequence: other }.into();
    assert_eq!(cache.remove(other).unwrap_err(), unknown);
}
