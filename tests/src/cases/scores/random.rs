//! Random expressions whose values stay small, so that a backend in f32 and the oracle in f64 agree: what becomes of numbers is continuous, and
//! conditions are of whole numbers.

use ferroflash_expression::random::Random;
use ferroflash_expression::{At, Cond, Int, Num};

/// How deep an expression nests.
const DEPTH: usize = 4;

/// A score by a seed: it depends on the score, and lies between −6 and 6.
pub fn score(seed: u64, s: Num, at: At) -> Num {
    let mut random = Random(seed);
    let other = number(&mut random, s, at, DEPTH);
    let score = match random.below(3) {
        0 => s + other,
        1 => s * 0.5 + other * s,
        _ => condition(&mut random, at, 2).select(s, other + s * 0.25),
    };
    score.max(-6.0).min(6.0)
}

/// A mask by a seed.
pub fn mask(seed: u64, at: At) -> Cond {
    let mut random = Random(!seed);
    // One key of five in any case, so that most rows see some.
    condition(&mut random, at, 3) | (at.k % 5).eq(2)
}

/// A number between −4 and 4.
fn number(random: &mut Random, s: Num, at: At, depth: usize) -> Num {
    if depth == 0 {
        return match random.below(7) {
            0 | 1 => s.max(-4.0).min(4.0),
            2 => at.constant(random.below(9) as f32 * 0.5 - 2.0),
            3 => at.f32("weight"),
            4 => at.tensor_f32("slopes", [at.head]),
            5 => at.tensor_f16("table", [at.head, at.k - at.q + at.i32("n")]),
            _ => (whole(random, at, 1) % 8).to_f32() * 0.125,
        };
    }
    let a = number(random, s, at, depth - 1);
    match random.below(16) {
        0 => a.tanh(),
        1 => a.tanh_full() * 3.0,
        2 => a.sigmoid(),
        3 => a.sigmoid_full() - 0.5,
        4 => (a * 0.25).exp2(),
        5 => (a * 0.25).exp_full(),
        6 => (a.abs() + 1.0).ln(),
        7 => (a.abs() + 1.0).ln_full(),
        8 => (a.abs() + 0.5).sqrt_full() - 1.0,
        9 => -a,
        10 => a / (number(random, s, at, depth - 1).abs() + 1.0),
        11 => a * number(random, s, at, depth - 1) * 0.25,
        12 => a.min(number(random, s, at, depth - 1)),
        13 => (a - number(random, s, at, depth - 1)) * 0.5,
        14 => condition(random, at, 1).select(a, number(random, s, at, depth - 1)),
        _ => (a + number(random, s, at, depth - 1)).max(-4.0).min(4.0),
    }
}

/// A whole number.
fn whole(random: &mut Random, at: At, depth: usize) -> Int {
    if depth == 0 {
        return match random.below(6) {
            0 => at.q,
            1 => at.k,
            2 => at.k - at.q,
            3 => at.head + at.kv_head * 3,
            4 => at.seqlen_k - at.seqlen_q + at.batch,
            _ => at.constant(random.below(90) as i32 - 20),
        };
    }
    let a = whole(random, at, depth - 1);
    match random.below(8) {
        0 => a / at.i32("period"),
        1 => a % (random.below(30) as i32 + 2),
        2 => a + whole(random, at, depth - 1),
        3 => a - whole(random, at, depth - 1),
        4 => a.abs(),
        5 => a >> 2,
        6 => a & 12,
        _ => a.max(whole(random, at, depth - 1)),
    }
}

/// A condition of whole numbers.
fn condition(random: &mut Random, at: At, depth: usize) -> Cond {
    let (a, b) = (whole(random, at, 2), whole(random, at, 1));
    let compared = match random.below(4) {
        0 => a.lt(b),
        1 => a.le(b),
        2 => (a % 7).ne(b % 7),
        _ => a.ge(b),
    };
    match (depth, random.below(3)) {
        (0, _) => compared,
        (_, 0) => !condition(random, at, depth - 1),
        (_, 1) => compared | condition(random, at, depth - 1),
        _ => compared & !condition(random, at, depth - 1),
    }
}
