//! Both passes of attention on the best device, and what ran. `cargo run --release --example attention`.

use std::error::Error;

use ferroflash::{
    Attention, Device, Dtype, Gradients, Inputs, Mask, OutputGradients, Outputs, Pass, Problem,
    Saved, Tensor, TensorMut,
};
use half::bf16;

/// Numbers between −1 and 1.
fn numbers(n: usize, step: usize) -> Vec<bf16> {
    let number = |at: usize| bf16::from_f32((at * step % 23) as f32 / 11.0 - 1.0);
    (0..n).map(number).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: forward
    // Two sequences of 256 tokens, eight query heads over two heads of keys and values.
    let problem = Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen(256)
        .heads_q(8)
        .heads_k(2)
        .head_dim(64)
        .mask(Mask::Causal)
        .build()?;
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let q = numbers(of_q.iter().product(), 7);
    let k = numbers(of_k.iter().product(), 5);
    let v = numbers(of_k.iter().product(), 3);
    let mut o = vec![bf16::ZERO; q.len()];
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];

    let attention = Attention::new(&Device::best(), problem)?;
    let inputs = Inputs::new(
        &Tensor::bshd(&q, of_q)?,
        &Tensor::bshd(&k, of_k)?,
        &Tensor::bshd(&v, of_k)?,
    );
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse);
    let ran = attention.forward(&inputs, &mut outputs)?;
    println!("{ran}"); // the device, the algorithm, the kernels, and why not the others
    // ANCHOR_END: forward

    // ANCHOR: backward
    let d_o = numbers(o.len(), 11);
    let mut d_q = vec![bf16::ZERO; q.len()];
    let mut d_k = vec![bf16::ZERO; k.len()];
    let mut d_v = vec![bf16::ZERO; v.len()];
    attention.backward(
        &inputs,
        &Saved::new(&Tensor::bshd(&o, of_q)?, &lse),
        &OutputGradients::new(&Tensor::bshd(&d_o, of_q)?),
        &mut Gradients::new(
            TensorMut::bshd(&mut d_q, of_q)?,
            TensorMut::bshd(&mut d_k, of_k)?,
            TensorMut::bshd(&mut d_v, of_k)?,
        ),
    )?;
    // ANCHOR_END: backward
    assert!(d_q.iter().chain(&d_k).chain(&d_v).all(|x| x.is_finite()));

    // ANCHOR: explain
    let explanation = attention.explain(Pass::Backward)?;
    println!("{explanation}"); // the plan: kernels, grids, workspace, and each candidate with its reason
    // ANCHOR_END: explain
    Ok(())
}
