//! A score and a mask of one's own: soft-cap and ALiBi among the tokens of the same document, forward and backward.
//!
//! `cargo run --release --example custom_score`. The best device computes it, the processor checks it, and a difference quotient checks the gradient:
//! it is an error where they are further apart than rounding to bf16 explains.

use std::error::Error;

use ferroflash::{
    Attention, Device, Dtype, Gradients, Inputs, Mask, OutputGradients, Outputs, Problem,
    ReadTensor, Saved, Score, Tensor, TensorMut,
};
use half::bf16;

const BATCH: usize = 2;
const SEQLEN: usize = 256;
const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

/// How far the best device may be from the processor, of the largest value of the tensor. bf16 rounds by up to 2⁻⁹ of a value: weights, gradients of
/// scores and results are rounded, on a GPU before each product. This is ten such steps.
const TOLERANCE: f32 = 2e-2;

/// How far the gradient may be from the quotient of differences, of the quotient: o and q are rounded on both sides of it, and the step is no small one.
const QUOTIENT_TOLERANCE: f32 = 5e-2;

/// o and the gradients of q, k and v.
struct Results([Vec<f32>; 4]);

fn main() -> Result<(), Box<dyn Error>> {
    let score = Score::new(|s, at| {
        let slope = at.tensor_f32("slopes", [at.head]);
        s.soft_cap(at.f32("cap")) - slope * at.distance().to_f32()
    })?;
    let same_document = Mask::new(|at| at.same("document"))?;
    println!("score: {score}\nmask:  {same_document}");
    println!("derivative: {}", score.expression().derivative_by_score()?);
    let problem = Problem::builder(Dtype::Bf16)
        .batch(BATCH)
        .seqlen(SEQLEN)
        .heads(HEADS)
        .head_dim(HEAD_DIM)
        .mask(Mask::Causal)
        .score(score)
        .mask_expression(same_document)
        .build()?;

    let [q, k, v, d_o] = [1, 2, 3, 4].map(values);
    let (best, ran) = compute(&Device::best(), problem, [&q, &k, &v, &d_o])?;
    let (cpu, _) = compute(&Device::cpu(), problem, [&q, &k, &v, &d_o])?;
    println!("{ran}");
    for (name, (best, cpu)) in ["o", "d_q", "d_k", "d_v"]
        .iter()
        .zip(best.0.iter().zip(&cpu.0))
    {
        let apart = best.iter().zip(cpu).map(|(a, b)| (a - b).abs());
        let largest = cpu.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        println!(
            "{name}: at most {:.1e} apart, of values up to {largest:.2}",
            apart.clone().fold(0.0, f32::max)
        );
        // Nor is NaN near enough.
        if !apart.clone().all(|apart| apart <= TOLERANCE * largest) {
            return Err(format!("{name} is not what the processor computes").into());
        }
    }

    // The loss Σ o · d_o, with one element of q a little larger and a little smaller: that of the largest gradient, beside which rounding is small.
    let gradients = best.0[1].iter().enumerate();
    let largest = gradients.max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
    let (place, &gradient) = largest.ok_or("q has no elements")?;
    let loss = |step: f32| -> Result<f32, Box<dyn Error>> {
        let mut q = q.clone();
        q[place] = bf16::from_f32(q[place].to_f32() + step);
        let (results, _) = compute(&Device::cpu(), problem, [&q, &k, &v, &d_o])?;
        let terms = results.0[0].iter().zip(&d_o);
        Ok(terms.map(|(o, d_o)| o * d_o.to_f32()).sum())
    };
    let quotient = (loss(0.5)? - loss(-0.5)?) / 1.0;
    println!("gradient of an element of q: {gradient:.4}; by differences: {quotient:.4}");
    match (gradient - quotient).abs() <= QUOTIENT_TOLERANCE * quotient.abs() {
        true => Ok(()),
        false => Err("the gradient of an element of q is wrong".into()),
    }
}

/// Numbers between −1 and 1 that look random.
fn values(seed: usize) -> Vec<bf16> {
    let value = |idx: usize| (((idx + seed * 7919) * 2_654_435_761) % 65_536) as f32;
    (0..BATCH * SEQLEN * HEADS * HEAD_DIM)
        .map(|idx| bf16::from_f32(value(idx) / 32_768.0 - 1.0))
        .collect()
}

/// Both passes on a device, and what ran.
fn compute(
    device: &Device,
    problem: Problem,
    [q, k, v, d_o]: [&Vec<bf16>; 4],
) -> Result<(Results, String), Box<dyn Error>> {
    let slopes: Vec<f32> = (1..=HEADS)
        .map(|head| (-2.0 * head as f32).exp2())
        .collect();
    let document: Vec<i32> = (0..SEQLEN).map(|place| (place / 60) as i32).collect();
    let shape = problem.shape_q();
    let [q, k, v, d_o] = [q, k, v, d_o].map(|values| Tensor::bshd(values, shape));
    let inputs = Inputs::new(&q?, &k?, &v?)
        .score_param("cap", 20.0)
        .score_tensor("slopes", ReadTensor::new(&slopes, [HEADS]))
        .score_tensor(
            "document",
            // The same in each batch entry.
            ReadTensor::new(&document, [BATCH, SEQLEN]).strides([0, 1]),
        );
    let attention = Attention::new(device, problem)?;
    let n_elems = shape.iter().product();
    let mut results = [const { Vec::new() }; 4].map(|_: Vec<bf16>| vec![bf16::ZERO; n_elems]);
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];
    let [o, d_q, d_k, d_v] = &mut results;
    let ran = attention.forward(
        &inputs,
        &mut Outputs::new(TensorMut::bshd(o, shape)?, &mut lse),
    )?;
    attention.backward(
        &inputs,
        &Saved::new(&Tensor::bshd(o, shape)?, &lse),
        &OutputGradients::new(&d_o?),
        &mut Gradients::new(
            TensorMut::bshd(d_q, shape)?,
            TensorMut::bshd(d_k, shape)?,
            TensorMut::bshd(d_v, shape)?,
        ),
    )?;
    let widened = results.map(|values| values.iter().map(|x| x.to_f32()).collect());
    Ok((Results(widened), ran.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_gradients_are_right() -> Result<(), Box<dyn Error>> {
        main()
    }
}
