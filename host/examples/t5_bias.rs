//! T5's relative position bias: a learned table of a number for each bucket of distances and head, added to the scores, and the table's gradient.
//!
//! `cargo run --release --example t5_bias`. The best device computes it, difference quotients on the processor check the gradients of q, k, v
//! and of the table, and a few steps of gradient descent find a table again from what attention gave with it.
//!
//! Passes give a gradient to a tensor that has an element for every query and key. They give none to this table: a score reads it by the bucket of
//! its distance, so many pairs of query and key read one element. Its gradient follows from forward passes over the keys of one bucket each: if
//! L_b and O_b are their lse and o, and L and O those of all keys, then with the score's gradient dS = P ∘ (dP − rowsum(dO ∘ O)) and P of a
//! bucket's keys adding up to exp(L_b − L),
//!
//! ```text
//! d_table[b] = Σ dS over the pairs of bucket b = Σ over rows of exp(L_b − L) (rowsum(dO ∘ O_b) − rowsum(dO ∘ O))
//! ```
//!
//! It is exact. Buckets share the pairs out, blocks of others are skipped, and no pass holds more than its rows.

use std::error::Error;

use ferroflash::expression::ExpressionError;
use ferroflash::{
    Attention, Device, Dtype, Element, Gradients, Inputs, Mask, MaskExpression, OutputGradients,
    Outputs, Problem, ReadTensor, Saved, Score, Tensor, TensorMut,
};
use half::bf16;

const BATCH: usize = 1;
const SEQLEN: usize = 128;
const HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const N_ELEMS: usize = BATCH * SEQLEN * HEADS * HEAD_DIM;

/// As in T5.
const N_BUCKETS: usize = 32;
const MAX_DISTANCE: usize = 128;

/// `table[bucket][head]`.
type Table = Vec<[f32; HEADS]>;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    /// All: T5's encoder. Keys behind the query have half of the buckets.
    Bidirectional,
    /// Those up to its own place: T5's decoder.
    Causal,
}

/// The bucket of a distance, key − query: half of the buckets are a distance each, the others grow with its logarithm up to the largest, and
/// all that is farther falls into the last (Raffel et al. 2020, section 2.1; `_relative_position_bucket` of the code published with it).
fn bucket(distance: i32, direction: Direction) -> usize {
    let (n, first, distance) = match direction {
        Direction::Bidirectional => {
            let n = N_BUCKETS / 2;
            (n, if distance > 0 { n } else { 0 }, distance.unsigned_abs())
        }
        Direction::Causal => (N_BUCKETS, 0, distance.min(0).unsigned_abs()),
    };
    let (distance, n_exact) = (distance as usize, n / 2);
    if distance < n_exact {
        return first + distance;
    }
    let of = |distance: usize| (distance as f64 / n_exact as f64).ln();
    // Logarithms are not exact where a bucket begins at a whole number.
    let step = of(distance) / of(MAX_DISTANCE) * (n - n_exact) as f64 + 1e-9;
    first + (n_exact + step as usize).min(n - 1)
}

/// The bias of one direction.
struct Bias {
    direction: Direction,
    /// Over all keys, and over those of one bucket.
    problem: Problem,
    of_bucket: Problem,
    /// The bucket of each distance from 1 − SEQLEN on.
    buckets: Vec<i32>,
}

impl Bias {
    fn new(direction: Direction, dtype: Dtype) -> Outcome<Bias> {
        let score = Score::new(|s, at| {
            let bucket = at.tensor_i32("bucket", [at.k - at.q + (SEQLEN as i32 - 1)]);
            s + at.tensor_f32("table", [bucket, at.head])
        })?;
        let mask = match direction {
            Direction::Bidirectional => Mask::Full,
            Direction::Causal => Mask::Causal,
        };
        let problem = Problem::builder(dtype)
            .batch(BATCH)
            .seqlen(SEQLEN)
            .heads(HEADS)
            .head_dim(HEAD_DIM)
            .mask(mask)
            // T5 leaves scores as they are.
            .softmax_scale(1.0)
            .score(score);
        let last = SEQLEN as i32 - 1;
        Ok(Bias {
            direction,
            problem: problem.build()?,
            of_bucket: problem.mask_expression(band()?).build()?,
            buckets: (-last..=last)
                .map(|distance| bucket(distance, direction) as i32)
                .collect(),
        })
    }

    /// The distances of a bucket, the first and the last, if there are any: they lie side by side.
    fn distances(&self, bucket: usize) -> Option<[i32; 2]> {
        let is_own = |&of: &i32| of == bucket as i32;
        let first = self.buckets.iter().position(is_own)? as i32;
        let last = self.buckets.iter().rposition(is_own)? as i32;
        Some([first, last].map(|at| at - (SEQLEN as i32 - 1)))
    }
}

/// Keys at distances from `first` to `last`.
fn band() -> Result<MaskExpression, ExpressionError> {
    Mask::new(|at| {
        let distance = || at.k - at.q;
        distance().ge(at.i32("first")) & distance().le(at.i32("last"))
    })
}

/// q, k and v, `[batch, seqlen, heads, head_dim]`.
type Qkv<T> = [Vec<T>; 3];

/// What both passes read; `distances` where keys of one bucket alone are seen.
fn inputs<'a, T: Element>(
    bias: &'a Bias,
    qkv: &'a Qkv<T>,
    table: &'a Table,
    distances: Option<[i32; 2]>,
) -> Outcome<Inputs<'a>> {
    let shape = bias.problem.shape_q();
    let [q, k, v] = qkv.each_ref().map(|values| Tensor::bshd(values, shape));
    let inputs = Inputs::new(&q?, &k?, &v?)
        .score_tensor(
            "bucket",
            ReadTensor::new(&bias.buckets, [bias.buckets.len()]),
        )
        .score_tensor(
            "table",
            ReadTensor::new(table.as_flattened(), [N_BUCKETS, HEADS]),
        );
    Ok(match distances {
        None => inputs,
        Some([first, last]) => inputs.score_param("first", first).score_param("last", last),
    })
}

/// o and lse, and what ran.
fn forward<T: Element>(
    device: &Device,
    problem: Problem,
    inputs: &Inputs,
) -> Outcome<(Vec<T>, Vec<f32>, String)> {
    let mut o = vec![T::from_f32(0.0); N_ELEMS];
    let mut lse = vec![0f32; BATCH * HEADS * SEQLEN];
    let of_o = TensorMut::bshd(&mut o, problem.shape_o())?;
    let ran =
        Attention::new(device, problem)?.forward(inputs, &mut Outputs::new(of_o, &mut lse))?;
    Ok((o, lse, ran.to_string()))
}

/// rowsum(dO ∘ O) of every row, in the order of lse.
fn row_sums<T: Element>(d_o: &[T], o: &[T]) -> Vec<f32> {
    let mut sums = vec![0f32; BATCH * HEADS * SEQLEN];
    let rows = d_o.chunks(HEAD_DIM).zip(o.chunks(HEAD_DIM));
    for (row, (d_o, o)) in rows.enumerate() {
        let (batch, place, head) = (row / HEADS / SEQLEN, row / HEADS % SEQLEN, row % HEADS);
        let terms = d_o.iter().zip(o).map(|(a, b)| a.to_f32() * b.to_f32());
        sums[(batch * HEADS + head) * SEQLEN + place] = terms.sum();
    }
    sums
}

/// The gradient of the table, from that of o.
fn table_gradient<T: Element>(
    device: &Device,
    bias: &Bias,
    qkv: &Qkv<T>,
    table: &Table,
    (o, lse, d_o): (&[T], &[f32], &[T]),
) -> Outcome<Table> {
    let of_all = row_sums(d_o, o);
    let mut gradient = vec![[0f32; HEADS]; N_BUCKETS];
    for (bucket, gradient) in gradient.iter_mut().enumerate() {
        let Some(distances) = bias.distances(bucket) else {
            continue;
        };
        let inputs = inputs(bias, qkv, table, Some(distances))?;
        let (o, lse_of_bucket, _) = forward::<T>(device, bias.of_bucket, &inputs)?;
        let of_bucket = row_sums(d_o, &o);
        for row in 0..lse.len() {
            // A row without a key of the bucket has −∞ there, and adds nothing.
            let weight = (lse_of_bucket[row] - lse[row]).exp();
            gradient[row / SEQLEN % HEADS] += weight * (of_bucket[row] - of_all[row]);
        }
    }
    Ok(gradient)
}

/// Numbers between −1/2 and 1/2 that look random.
fn values<T: Element>(seed: usize) -> Vec<T> {
    let value = |idx: usize| (((idx + seed * 7919) * 2_654_435_761) % 65_536) as f32;
    (0..N_ELEMS)
        .map(|idx| T::from_f32(value(idx) / 65_536.0 - 0.5))
        .collect()
}

/// A table of numbers between −2 and 2.
fn some_table() -> Table {
    let numbers: Vec<f32> = values(9);
    let rows = numbers.chunks(HEADS).take(N_BUCKETS);
    rows.map(|row| std::array::from_fn(|head| 4.0 * row[head]))
        .collect()
}

/// Gradients of the loss Σ o · d_o against quotients of differences.
fn check(direction: Direction) -> Outcome<()> {
    let (cpu, bias) = (Device::cpu(), Bias::new(direction, Dtype::F32)?);
    let (qkv, table): (Qkv<f32>, _) = ([1, 2, 3].map(values), some_table());
    let d_o: Vec<f32> = values(4);
    let given = inputs(&bias, &qkv, &table, None)?;
    let (o, lse, _) = forward::<f32>(&cpu, bias.problem, &given)?;
    let shape = bias.problem.shape_q();
    let mut gradients = [const { Vec::new() }; 3].map(|_: Vec<f32>| vec![0f32; N_ELEMS]);
    let [d_q, d_k, d_v] = gradients.each_mut().map(|d| TensorMut::bshd(d, shape));
    Attention::new(&cpu, bias.problem)?.backward(
        &given,
        &Saved::new(&Tensor::bshd(&o, shape)?, &lse),
        &OutputGradients::new(&Tensor::bshd(&d_o, shape)?),
        &mut Gradients::new(d_q?, d_k?, d_v?),
    )?;
    let of_table = table_gradient(&cpu, &bias, &qkv, &table, (&o, &lse, &d_o))?;

    let loss = |qkv: &Qkv<f32>, table: &Table| -> Outcome<f64> {
        let given = inputs(&bias, qkv, table, None)?;
        let (o, ..) = forward::<f32>(&cpu, bias.problem, &given)?;
        let terms = o
            .iter()
            .zip(&d_o)
            .map(|(&o, &d)| f64::from(o) * f64::from(d));
        Ok(terms.sum())
    };
    let compare = |what: &str, gradient: f32, [more, less]: [f64; 2], step: f32| {
        let quotient = (more - less) / f64::from(2.0 * step);
        println!("  gradient of {what}: {gradient:.4}; by differences: {quotient:.4}");
        let apart = (f64::from(gradient) - quotient).abs();
        match apart <= 2e-3 + 1e-2 * quotient.abs() {
            true => Ok(()),
            false => Err(format!("the gradient of {what} is wrong")),
        }
    };
    let (place, step) = (100 * HEADS * HEAD_DIM + 5, 0.01);
    for (of, name) in ["q", "k", "v"].into_iter().enumerate() {
        let moved = |by: f32| {
            let mut qkv = qkv.clone();
            qkv[of][place] += by;
            loss(&qkv, &table)
        };
        compare(
            name,
            gradients[of][place],
            [moved(step)?, moved(-step)?],
            step,
        )?;
    }
    for (bucket, head) in [(0, 0), (3, 1), (11, 0), (15, 1), (20, 1), (31, 0)] {
        let moved = |by: f32| {
            let mut table = table.clone();
            table[bucket][head] += by;
            loss(&qkv, &table)
        };
        let name = format!("table[{bucket}][{head}]");
        compare(
            &name,
            of_table[bucket][head],
            [moved(step)?, moved(-step)?],
            step,
        )?;
    }
    Ok(())
}

/// A table that starts at 0 and comes closer to another one, whose o is the target, by gradient descent on ½ Σ (o − target)².
fn train(direction: Direction) -> Outcome<()> {
    let (device, bias) = (Device::best(), Bias::new(direction, Dtype::Bf16)?);
    let qkv: Qkv<bf16> = [1, 2, 3].map(values);
    let wanted = some_table();
    let given = inputs(&bias, &qkv, &wanted, None)?;
    let (target, _, ran) = forward::<bf16>(&device, bias.problem, &given)?;
    println!("  {}", ran.lines().next().unwrap_or_default());
    let mut table = vec![[0f32; HEADS]; N_BUCKETS];
    let mut losses = Vec::new();
    for step in 0..=STEPS {
        let given = inputs(&bias, &qkv, &table, None)?;
        let (o, lse, _) = forward::<bf16>(&device, bias.problem, &given)?;
        let apart = o
            .iter()
            .zip(&target)
            .map(|(o, target)| o.to_f32() - target.to_f32());
        let d_o: Vec<bf16> = apart.map(bf16::from_f32).collect();
        losses.push(0.5 * d_o.iter().map(|d| d.to_f32().powi(2)).sum::<f32>());
        if step == STEPS {
            break;
        }
        let gradient = table_gradient(&device, &bias, &qkv, &table, (&o, &lse, &d_o))?;
        let numbers = table.as_flattened_mut().iter_mut();
        for (number, gradient) in numbers.zip(gradient.as_flattened()) {
            *number -= RATE * gradient;
        }
    }
    let (first, last) = (losses[0], losses[STEPS]);
    println!("  loss {first:.2} before, {last:.2} after {STEPS} steps");
    match last < 0.5 * first {
        true => Ok(()),
        false => Err("the table did not learn".into()),
    }
}

/// Of gradient descent.
const STEPS: usize = 10;
const RATE: f32 = 0.5;

fn main() -> Outcome<()> {
    for direction in [Direction::Bidirectional, Direction::Causal] {
        let bias = Bias::new(direction, Dtype::Bf16)?;
        let far = [-200, -100, -20, -1, 0, 1, 20, 100, 200];
        let of = far.map(|distance| bucket(distance, bias.direction));
        println!("{direction:?}: distances {far:?} are in buckets {of:?}");
        check(direction)?;
        train(direction)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_right_and_the_table_learns() -> Outcome<()> {
        main()
    }
}
