//! Rows rotated by their positions: against f64, between rows of NaN, in any layout; and the way back as the gradient.

use std::fmt::Debug;

use ferroflash::rotary::{Pairs, Positions, Rotary, RotaryTable, Scaling};
use ferroflash::{Element, Error, Layout, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::*;

/// A contiguous tensor, rotated.
fn rotated(
    x: &[f32],
    shape: [usize; 4],
    turn: impl Fn(&Tensor, &mut TensorMut) -> Result<(), Error>,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    let x = Tensor::bshd(x, shape).unwrap();
    turn(&x, &mut TensorMut::bshd(&mut y, shape).unwrap()).unwrap();
    y
}

fn rotate(
    table: &RotaryTable,
    pairs: Pairs,
    positions: Positions,
    x: &[f32],
    shape: [usize; 4],
) -> Vec<f32> {
    rotated(x, shape, |x, y| table.rotate(pairs, positions, x, y))
}

/// Numbers between −2 and 2, the same for the same seed.
fn numbers(n: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    })
}

/// A tensor to be rotated.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 4],
    rotary_dim: usize,
    pairs: Pairs,
    heads_first: bool,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let pairs = prop_oneof![Just(Pairs::Halves), Just(Pairs::Interleaved)];
    (
        1usize..4,
        0usize..9,
        1usize..4,
        1usize..20,
        any::<bool>(),
        pairs,
        any::<u64>(),
    )
        .prop_flat_map(|(batch, seqlen, heads, half, heads_first, pairs, seed)| {
            (0..=half, 0usize..3).prop_map(move |(less, odd)| Case {
                shape: [batch, seqlen, heads, 2 * half + odd],
                rotary_dim: 2 * (half - less).max(1),
                pairs,
                heads_first,
                seed,
            })
        })
}

/// Rows between rows of NaN, in x as in y: each row is a position of one head.
fn check<T: Element + Debug>(case: Case, tolerance: f64) {
    let [batch, seqlen, heads, head_dim] = case.shape;
    let n_positions = 1000;
    let table = Rotary::new(case.rotary_dim).table(n_positions).unwrap();
    let firsts: Vec<i32> = (0..batch)
        .map(|i| (case.seed >> (8 * i)) as i32 & 511)
        .collect();
    // A row of NaN behind each.
    let room = 2 * head_dim;
    let (head_stride, row_stride) = if case.heads_first {
        (seqlen * room, room)
    } else {
        (room, heads * room)
    };
    let strides = [seqlen * heads * room, row_stride, head_stride];
    let layout = Layout::strided(case.shape, strides);
    let mut x = vec![T::from_f32(f32::NAN); batch * seqlen * heads * room];
    for (row, numbers) in x.chunks_mut(room).enumerate() {
        let values = self::numbers(head_dim, case.seed ^ row as u64);
        numbers
            .iter_mut()
            .zip(values)
            .for_each(|(x, value)| *x = T::from_f32(value));
    }
    let mut y = vec![T::from_f32(f32::NAN); x.len()];
    let from = Tensor::strided(&x, layout).unwrap();
    let mut to = TensorMut::strided(&mut y, layout).unwrap();
    table
        .rotate(case.pairs, Positions::FromEach(&firsts), &from, &mut to)
        .unwrap();

    let half = case.rotary_dim / 2;
    for (batch_idx, &first) in firsts.iter().enumerate() {
        for row in 0..seqlen {
            for head in 0..heads {
                let start = batch_idx * layout.batch_stride + row * row_stride + head * head_stride;
                let (x, y) = (&x[start..][..room], &y[start..][..room]);
                let exact = |i: usize| f64::from(x[i].to_f32());
                for i in 0..half {
                    let theta = 10_000f64.powf(-(i as f64) / half as f64);
                    let (sin, cos) = ((first as usize + row) as f64 * theta).sin_cos();
                    let (a, b) = match case.pairs {
                        Pairs::Halves => (i, i + half),
                        Pairs::Interleaved => (2 * i, 2 * i + 1),
                    };
                    for (at, expected) in [
                        (a, exact(a) * cos - exact(b) * sin),
                        (b, exact(a) * sin + exact(b) * cos),
                    ] {
                        let given = f64::from(y[at].to_f32());
                        assert!(
                            (given - expected).abs() <= tolerance,
                            "{at}: {given}, {expected}"
                        );
                    }
                }
                assert_eq!(y[case.rotary_dim..head_dim], x[case.rotary_dim..head_dim]);
                assert!(
                    y[head_dim..].iter().all(|y| y.to_f32().is_nan()),
                    "between rows"
                );
            }
        }
    }
}

proptest! {
    /// Half a unit in the last place of 2√2, and of f32 a few.
    #[test]
    fn turns_are_those_of_f64(case in cases()) {
        check::<f32>(case, 2e-6);
        check::<f16>(case, 1.1e-3);
        check::<bf16>(case, 8.2e-3);
    }

    /// ⟨rotated x, g⟩ = ⟨x, g rotated back⟩, also where cosines are multiplied by a factor.
    #[test]
    fn the_way_back_is_the_gradient(case in cases(), factor in 1.0f64..32.0) {
        let scaling = Scaling::Yarn { factor, original_seqlen: 256, beta_fast: 32.0, beta_slow: 1.0, attention_factor: None };
        let table = Rotary::new(case.rotary_dim).scaling(scaling).table(64).unwrap();
        let n = case.shape.iter().product();
        let x: Vec<f32> = numbers(n, case.seed).collect();
        let g: Vec<f32> = numbers(n, !case.seed).collect();
        let positions = Positions::From((case.seed % 32) as usize);
        let y = rotate(&table, case.pairs, positions, &x, case.shape);
        let d_x = rotated(&g, case.shape, |g, d_x| table.rotate_back(case.pairs, positions, g, d_x));
        let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        prop_assert!((dot(&y, &g) - dot(&x, &d_x)).abs() <= 1e-5 * (n as f64 + 1.0));
    }

    /// The three ways to say where rows stand say the same.
    #[test]
    fn positions_are_positions(case in cases(), first in 0i32..500) {
        let [batch, seqlen, ..] = case.shape;
        let table = Rotary::new(case.rotary_dim).table(520).unwrap();
        let x: Vec<f32> = numbers(case.shape.iter().product(), case.seed).collect();
        let rows: Vec<i32> = (0..batch).flat_map(|_| first..first + seqlen as i32).collect();
        let firsts = vec![first; batch];
        let of = |positions| rotate(&table, case.pairs, positions, &x, case.shape);
        let from = of(Positions::From(first as usize));
        prop_assert_eq!(&from, &of(Positions::FromEach(&firsts)));
        prop_assert_eq!(&from, &of(Positions::OfRows(&rows)));
    }
}

/// What attention is to know of positions: a score depends on the distance alone.
#[test]
fn scores_depend_on_the_distance() {
    let table = Rotary::new(32).table(1000).unwrap();
    let (q, k): (Vec<f32>, Vec<f32>) = (numbers(32, 1).collect(), numbers(32, 2).collect());
    for pairs in [Pairs::Halves, Pairs::Interleaved] {
        let score = |at_q, at_k| {
            let shape = [1, 1, 1, 32];
            let q = rotate(&table, pairs, Positions::From(at_q), &q, shape);
            let k = rotate(&table, pairs, Positions::From(at_k), &k, shape);
            q.iter().zip(&k).map(|(q, k)| q * k).sum::<f32>()
        };
        let near = score(17, 10);
        assert!((near - score(907, 900)).abs() < 1e-3);
        assert!((near - score(17, 16)).abs() > 0.1);
    }
}
