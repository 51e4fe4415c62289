//! The forward kernels on the emulator, in bf16: P and O have 8 bits of mantissa there.
//!
//! Backward kernels are left to the suites of `tests/`: where this crate is compiled without optimisation, their frames are larger than the stacks of the
//! emulator's threads.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{Algorithm, Attention, Device, Dtype, Error, Inputs, Outputs, Problem};
use ferroflash::{Tensor, TensorMut, bf16};
use ferroflash_book::programs::Attended;
use ferroflash_book::programs::decode::split_kv;

use super::forward::all;
use super::{Random, assert_near, elements, of_f32};

/// What the kernels of an algorithm give, with so many keys in each part of the keys.
fn emulated<const D: usize>(
    random: &Random<D>,
    algorithm: Algorithm,
    split: Option<usize>,
) -> Result<Attended<D>, Error> {
    let mut problem = Problem::builder(Dtype::Bf16).heads(1).head_dim(D);
    problem = problem.seqlen_q(random.q.len()).seqlen_k(random.k.len());
    if let Some(keys) = split {
        problem = problem.split_kv(keys);
    }
    let problem = problem.build()?;
    let [q, k, v] = [&random.q, &random.k, &random.v].map(|x| elements(x, bf16::from_f32));
    let inputs = Inputs::new(
        &Tensor::bshd(&q, problem.shape_q())?,
        &Tensor::bshd(&k, problem.shape_k())?,
        &Tensor::bshd(&v, problem.shape_v())?,
    );
    let (mut o, mut lse) = (vec![bf16::ZERO; q.len()], vec![0f32; random.q.len()]);
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    let device = Device::emulated(EmulatorOptions::hopper(1));
    let attention = Attention::new(&device, problem)?.with_algorithm(algorithm);
    attention.forward(&inputs, &mut outputs)?;
    let o: Vec<f32> = o.iter().map(|x| x.to_f32()).collect();
    Ok(of_f32(&o, &lse))
}

#[test]
fn the_kernels_give_the_same() -> Result<(), Error> {
    let random = Random::<64>::new(80, 144);
    for (algorithm, given) in all(&random.head(), [64, 64]) {
        let kernel = emulated(&random, algorithm, None)?;
        let name = algorithm.to_string();
        assert_near(&name, given.0.as_flattened(), kernel.0.as_flattened(), 4e-3);
        assert_near(&name, &given.1, &kernel.1, 1e-4);
    }
    Ok(())
}

/// One query, and its keys in three parts.
#[test]
fn split_keys_give_the_same() -> Result<(), Error> {
    let random = Random::<64>::new(1, 384);
    let (o, lse) = split_kv(&random.head(), 3);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let kernel = emulated(&random, algorithm, Some(128))?;
        let name = algorithm.to_string();
        assert_near(&name, &o, kernel.0.as_flattened(), 4e-3);
        assert_near(&name, &[lse], &kernel.1, 1e-4);
    }
    Ok(())
}
