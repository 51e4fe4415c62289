//! A sequence has the same bits in whatever batch it is, where its keys are divided into splits of a fixed length.

use conformance::inputs::{Fill, Values};
use conformance::oracle::Sizes;
use conformance::subject::{CPU, CUDA, EMULATED_HOPPER, EMULATED_SHORT, Subject};
use ferroflash::{Algorithm, Attention, Dtype, Inputs, Mask, Outputs, Problem, Tensor, TensorMut};
use half::bf16;

const SEQLEN_Q: usize = 3;
const ROOM_K: usize = 704;
const HEADS_Q: usize = 8;
const HEADS_K: usize = 2;
const HEAD_DIM: usize = 64;
const SPLIT: usize = 128;
/// How much of its room in the cache each sequence uses: several splits, none, one and a bit, one key.
const USED: [i32; 5] = [700, 0, 130, 1, 513];

/// A sequence of the cache, with its queries.
#[derive(Clone, Copy)]
struct Sequence<'a> {
    q: &'a [bf16],
    k: &'a [bf16],
    v: &'a [bf16],
    used: i32,
}

/// The bits of o and lse of each sequence.
type Bits = Vec<(Vec<u16>, Vec<u32>)>;

fn forward(subject: &Subject, algorithm: Algorithm, batch: &[Sequence]) -> Bits {
    let n = batch.len();
    let all = |part: fn(&Sequence) -> Vec<bf16>| batch.iter().flat_map(part).collect::<Vec<_>>();
    let (q, k, v) = (
        all(|s| s.q.into()),
        all(|s| s.k.into()),
        all(|s| s.v.into()),
    );
    let used: Vec<i32> = batch.iter().map(|sequence| sequence.used).collect();
    let (shape_q, shape_k) = (
        [n, SEQLEN_Q, HEADS_Q, HEAD_DIM],
        [n, ROOM_K, HEADS_K, HEAD_DIM],
    );
    let (mut o, mut lse) = (vec![bf16::NAN; q.len()], vec![f32::NAN; q.len() / HEAD_DIM]);
    let problem = Problem::builder(Dtype::Bf16)
        .batch(n)
        .seqlen_q(SEQLEN_Q)
        .seqlen_k(ROOM_K)
        .heads_q(HEADS_Q)
        .heads_k(HEADS_K)
        .head_dim(HEAD_DIM)
        .mask(Mask::Causal)
        .split_kv(SPLIT)
        .build()
        .unwrap();
    let device = (subject.open)(n as u64).unwrap();
    let attention = Attention::new(&device, problem).unwrap();
    let [q, k, v] = [(&q, shape_q), (&k, shape_k), (&v, shape_k)]
        .map(|(data, shape)| Tensor::bshd(data, shape).unwrap());
    attention
        .with_algorithm(algorithm)
        .forward(
            &Inputs::new(&q, &k, &v).seqused_k(&used),
            &mut Outputs::new(TensorMut::bshd(&mut o, shape_q).unwrap(), &mut lse),
        )
        .unwrap();
    let (rows, elems) = (SEQLEN_Q * HEADS_Q, SEQLEN_Q * HEADS_Q * HEAD_DIM);
    o.chunks(elems)
        .zip(lse.chunks(rows))
        .map(|(o, lse)| {
            let o = o.iter().map(|x| x.to_bits()).collect();
            (o, lse.iter().map(|x| x.to_bits()).collect())
        })
        .collect()
}

fn check(subject: &Subject, algorithm: Algorithm) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let sizes = Sizes {
        batch: USED.len(),
        seqlen_q: SEQLEN_Q,
        seqlen_k: ROOM_K,
        heads_q: HEADS_Q,
        heads_k: HEADS_K,
        head_dim: HEAD_DIM,
        head_dim_v: HEAD_DIM,
    };
    let values = Values::new(Fill::Normal, sizes, Dtype::Bf16, 1);
    let [q, k, v] = [&values.q, &values.k, &values.v].map(|x| {
        x.iter()
            .map(|&x| bf16::from_f32(x as f32))
            .collect::<Vec<_>>()
    });
    let sequences: Vec<Sequence> = (0..USED.len())
        .map(|i| {
            let [q, k, v] = [&q, &k, &v].map(|x| {
                let n_elems = x.len() / USED.len();
                &x[i * n_elems..][..n_elems]
            });
            Sequence {
                q,
                k,
                v,
                used: USED[i],
            }
        })
        .collect();
    let together = forward(subject, algorithm, &sequences);
    assert!(
        together[0]
            .0
            .iter()
            .all(|&x| bf16::from_bits(x).is_finite())
    );
    assert_ne!(together[0], together[2], "the sequences are different ones");
    for (i, sequence) in sequences.iter().enumerate() {
        let alone = forward(subject, algorithm, &[*sequence]);
        assert_eq!(alone[0], together[i], "sequence {i}");
    }
    let reversed: Vec<Sequence> = sequences.iter().rev().copied().collect();
    let mut reversed = forward(subject, algorithm, &reversed);
    reversed.reverse();
    assert_eq!(reversed, together, "in another order");
}

#[test]
fn cpu() {
    check(&CPU, Algorithm::Tiled);
}

#[test]
fn emulated() {
    check(&EMULATED_HOPPER, Algorithm::Flash3);
    check(&EMULATED_SHORT, Algorithm::Flash3);
}

#[test]
fn cuda() {
    check(&CUDA, Algorithm::Flash3);
}
