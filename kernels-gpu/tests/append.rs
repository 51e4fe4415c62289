//! Appends on the emulator with lengths that contradict each other and the cache: rows that are not there are dropped, the others arrive, and
//! nothing outside is touched.
#![cfg(feature = "emulator")]

use ferroflash_kernels::attention::append::{len_after, row_at};
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{
    AppendParams, HALVES, INTERLEAVED, KvCache, NewRows, Params, RotaryParams, TensorView,
};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants;
use half::bf16;

const HEADS_Q: u32 = 3;
const HEADS_K: u32 = 2;
const HEAD_DIM: u32 = 16;
/// Rows of a sequence in the cache.
const CACHE: u32 = 9;

/// One append, and what device memory says of it.
#[derive(Clone, Debug)]
struct Case {
    /// Packed rows where there are ends, else this many rows of each sequence.
    n_rows: u32,
    cu_seqlens: Option<Vec<i32>>,
    seqused: Vec<i32>,
    n_positions: u32,
    pairs: u32,
}

/// A tensor at a multiple of 16 bytes.
struct Tensor {
    data: Vec<u16>,
    first: usize,
}

impl Tensor {
    fn new(n: u32, number: impl Fn(u32) -> u16) -> Tensor {
        let mut data = vec![0; n as usize + 8];
        let first = data.as_ptr().align_offset(16);
        data.truncate(first + n as usize);
        (0..n).for_each(|at| data[first + at as usize] = number(at));
        Tensor { data, first }
    }

    fn slice(&mut self) -> &mut [u16] {
        &mut self.data[self.first..]
    }
}

fn view(base: u64, rows: u32, heads: u32) -> TensorView {
    let head_dim = i64::from(HEAD_DIM);
    TensorView {
        base,
        batch_stride: i64::from(rows) * i64::from(heads) * head_dim,
        row_stride: i64::from(heads) * head_dim,
        head_stride: head_dim,
    }
}

/// What nobody has written.
const UNTOUCHED: u16 = 0x7fc1;

/// Numbers of a tensor: not two rows of which are equal.
fn number(tensor: u32, at: u32) -> u16 {
    bf16::from_f32((tensor * 64 + at / HEAD_DIM) as f32 + at as f32 / 64.0).to_bits()
}

/// What an append has written.
struct Written {
    k_cache: Vec<u16>,
    v_cache: Vec<u16>,
    q_out: Vec<u16>,
    seqused_out: Vec<i32>,
    v_new: Vec<u16>,
}

impl Case {
    fn batch(&self) -> u32 {
        self.seqused.len() as u32
    }

    fn all_rows(&self) -> u32 {
        match self.cu_seqlens {
            Some(_) => self.n_rows,
            None => self.n_rows * self.batch(),
        }
    }

    fn run(&self, seed: u64) -> Written {
        let (batch, rows) = (self.batch(), self.all_rows());
        let of_k = rows * HEADS_K * HEAD_DIM;
        let mut q = Tensor::new(rows * HEADS_Q * HEAD_DIM, |at| number(0, at));
        let mut k_new = Tensor::new(of_k, |at| number(1, at));
        let mut v_new = Tensor::new(of_k, |at| number(2, at));
        let mut q_out = Tensor::new(rows * HEADS_Q * HEAD_DIM, |_| UNTOUCHED);
        let cache = || Tensor::new(batch * CACHE * HEADS_K * HEAD_DIM, |_| UNTOUCHED);
        let (mut k_cache, mut v_cache) = (cache(), cache());
        let mut seqused_out = vec![-7; self.seqused.len()];
        let table = vec![0.5f32; (self.n_positions * HEAD_DIM / 2) as usize];
        let mut memory = GlobalMemory::new();
        let params = AppendParams {
            q: view(memory.input("q", q.slice()), self.n_rows, HEADS_Q),
            q_out: view(memory.output("q_out", q_out.slice()), self.n_rows, HEADS_Q),
            k_new: view(memory.input("k_new", k_new.slice()), self.n_rows, HEADS_K),
            v_new: view(memory.input("v_new", v_new.slice()), self.n_rows, HEADS_K),
            cache: KvCache {
                k: view(memory.output("k_cache", k_cache.slice()), CACHE, HEADS_K),
                v: view(memory.output("v_cache", v_cache.slice()), CACHE, HEADS_K),
                seqlen: CACHE,
                ..KvCache::default()
            },
            rotary: RotaryParams {
                cos: memory.input("cos", &table),
                sin: memory.input("sin", &table),
                n_positions: self.n_positions,
                n_pairs: HEAD_DIM / 2,
                pairs: self.pairs,
                sin_sign: 1.0,
            },
            rows: NewRows {
                cu_seqlens: match &self.cu_seqlens {
                    Some(ends) => memory.input("cu_seqlens", ends),
                    None => 0,
                },
                first: memory.input("seqused", &self.seqused),
                batch,
                seqlen: self.n_rows,
                n_rows: rows,
                q_at_first: 0,
            },
            seqused_out: memory.output("seqused_out", &mut seqused_out),
            heads_q: HEADS_Q,
            heads_k: HEADS_K,
            head_dim: HEAD_DIM,
            appends: 1,
        };
        let variant = variants::by_name("append_sm80_bf16").unwrap();
        let tile_config = &variant.tile_config;
        let lines = rows * params.heads();
        let launch = Launch {
            grid: lines.div_ceil(tile_config.block_q).max(1),
            threads: tile_config.threads,
            shared_bytes: 0,
            resident_blocks: 3,
            blocks_per_sm: tile_config.blocks_per_sm,
            cluster: tile_config.cluster,
            spec: Spec::PLAIN,
        };
        let kernel = entry::emulated(variant.name).unwrap();
        let params = Params::Append(params);
        emu::run(&launch, &Options::seeded(seed), &mut memory, &|| {
            kernel(&params)
        })
        .unwrap_or_else(|fault| panic!("{self:?}: {fault}"));
        drop(memory);
        Written {
            k_cache: k_cache.slice().to_vec(),
            v_cache: v_cache.slice().to_vec(),
            q_out: q_out.slice().to_vec(),
            v_new: v_new.slice().to_vec(),
            seqused_out,
        }
    }

    /// The rows of a sequence among all new rows, where they ascend.
    fn rows(&self, sequence: u32) -> std::ops::Range<u32> {
        match &self.cu_seqlens {
            None => sequence * self.n_rows..(sequence + 1) * self.n_rows,
            Some(ends) => {
                let end = |at: u32| ends[at as usize].clamp(0, self.n_rows as i32) as u32;
                end(sequence)..end(sequence + 1)
            }
        }
    }
}

const ROW: usize = (HEADS_K * HEAD_DIM) as usize;

/// Against a model that goes through rows one by one.
fn check(case: &Case, seed: u64) {
    let written = case.run(seed);
    let room = CACHE.min(case.n_positions);
    let mut expected_v = vec![UNTOUCHED; written.v_cache.len()];
    let mut touched_q = vec![false; case.all_rows() as usize];
    for sequence in 0..case.batch() {
        let first = case.seqused[sequence as usize];
        let own = case.rows(sequence);
        for (i, row) in own.clone().enumerate() {
            touched_q[row as usize] = row_at(first, i as u32, case.n_positions).is_some();
            if let Some(at) = row_at(first, i as u32, room) {
                let to = (sequence * CACHE + at) as usize * ROW;
                let from = &written.v_new[row as usize * ROW..][..ROW];
                expected_v[to..to + ROW].copy_from_slice(from);
            }
        }
        let len = len_after(first, own.len() as u32, room);
        assert_eq!(
            written.seqused_out[sequence as usize], len as i32,
            "{case:?}"
        );
    }
    assert_eq!(written.v_cache, expected_v, "{case:?}");
    let is_untouched = |row: &[u16]| row.iter().all(|&x| x == UNTOUCHED);
    for (k, v) in written.k_cache.chunks(ROW).zip(expected_v.chunks(ROW)) {
        assert_eq!(is_untouched(k), is_untouched(v), "{case:?}");
    }
    let q_rows = written.q_out.chunks((HEADS_Q * HEAD_DIM) as usize);
    for (q, touched) in q_rows.zip(touched_q) {
        assert_eq!(is_untouched(q), !touched, "{case:?}");
    }
}

const SEQUSED: [i32; 12] = [
    0,
    8,
    9,
    10,
    -1,
    -3,
    7,
    1 << 20,
    i32::MAX,
    i32::MIN,
    i32::MAX - 1,
    5,
];

#[test]
fn rows_beyond_the_cache_and_the_tables_are_dropped() {
    for (seed, n_positions) in [CACHE, 6, 20, 0].into_iter().enumerate() {
        for pairs in [HALVES, INTERLEAVED] {
            let padded = Case {
                n_rows: 4,
                cu_seqlens: None,
                seqused: SEQUSED.to_vec(),
                n_positions,
                pairs,
            };
            check(&padded, seed as u64);
            // The first rows are of no sequence, one has none, and the last ones are said to have more than there are.
            let packed = Case {
                n_rows: 30,
                cu_seqlens: Some(vec![2, 5, 5, 8, 12, 13, 13, 16, 20, 22, 24, 29, 40]),
                ..padded
            };
            check(&packed, seed as u64);
        }
    }
}

#[test]
fn ends_before_the_first_row_and_behind_the_last_are_cut() {
    let case = |cu_seqlens: &[i32]| Case {
        n_rows: 6,
        cu_seqlens: Some(cu_seqlens.to_vec()),
        seqused: vec![2; cu_seqlens.len() - 1],
        n_positions: CACHE,
        pairs: HALVES,
    };
    for ends in [
        &[-5, -2, 3][..],
        &[i32::MIN, i32::MAX],
        &[7, 8, 9],
        &[0, 6, i32::MAX],
    ] {
        check(&case(ends), 1);
    }
    let none = Case {
        seqused: Vec::new(),
        ..case(&[0, 0])
    };
    let written = none.run(1);
    assert!(written.q_out.iter().all(|&x| x == UNTOUCHED));
}

/// Ends in any order: every row of the cache is as it was, or a new row.
#[test]
fn ends_that_make_no_sense_touch_nothing_outside() {
    let mut state = 1u64;
    let mut random = |n: i64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
        (state >> 33) as i64 % n
    };
    for seed in 0..40 {
        let batch = 1 + random(6);
        let case = Case {
            n_rows: 11,
            cu_seqlens: Some((0..=batch).map(|_| (random(20) - 4) as i32).collect()),
            seqused: (0..batch).map(|_| (random(14) - 3) as i32).collect(),
            n_positions: CACHE,
            pairs: INTERLEAVED,
        };
        let written = case.run(seed);
        let new: Vec<&[u16]> = written.v_new.chunks(ROW).collect();
        for row in written.v_cache.chunks(ROW) {
            assert!(row.iter().all(|&x| x == UNTOUCHED) || new.contains(&row));
        }
        let lengths = &written.seqused_out;
        assert!(
            lengths.iter().all(|len| (0..=CACHE as i32).contains(len)),
            "{case:?}"
        );
    }
}
