//! Chosen rows of the weights of tensors in a GPU's memory: the processor computes them from copies, which give what the host's own tensors
//! give; nothing is launched, and no more is copied than rows of q, one head of k and the vectors.

use ferroflash::{Fp8Kv, Pages, ReadTensor, Score, WeightsOf};
use float8::F8E4M3;

use super::*;

fn values(seed: usize, n: usize) -> Vec<f32> {
    let value = |at: usize| (((at + seed * 7919) * 2_654_435_761) % 65_536) as f32;
    (0..n).map(|at| value(at) / 16_384.0 - 2.0).collect()
}

fn halves(seed: usize, n: usize) -> Vec<bf16> {
    values(seed, n).into_iter().map(bf16::from_f32).collect()
}

const OF: WeightsOf = WeightsOf {
    batch: 1,
    head: 3,
    rows: 17..40,
};

/// The rows by tensors of the host and of the device: the same bits. Says how many bytes were copied.
fn copied(device: &Device, problem: Problem, host: &Inputs, on_device: &Inputs) -> u64 {
    let weights = |device: &Device, inputs: &Inputs| {
        let attention = Attention::new(device, problem).unwrap();
        let mut out = vec![f32::NAN; OF.rows.len() * problem.seqlen_k()];
        let ran = attention.weights(inputs, &OF, &mut out).unwrap();
        assert_eq!(ran.backend, ferroflash::Backend::Cpu);
        (out, ran.copied_bytes)
    };
    let (expected, none) = weights(&Device::cpu(), host);
    assert_eq!(none, 0);
    let mut outcome = None;
    let calls = calls_of(|| outcome = Some(weights(device, on_device)));
    assert!(!calls.iter().any(|call| matches!(call, Call::Launch(_))));
    let (out, copied_bytes) = outcome.unwrap();
    assert_eq!(out, expected);
    // Tensors of the host on a GPU need no copy.
    assert_eq!(weights(device, host), (expected, 0));
    copied_bytes
}

#[test]
fn a_head_is_copied_whatever_its_strides() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let queue = Queue::new(cuda).unwrap();
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let builder = Problem::builder(Dtype::Bf16).batch(batch).seqlen(seqlen);
    let builder = builder.heads_q(heads).heads_k(2).head_dim(head_dim);
    let score = Score::new(|s, at| s + at.tensor_f32("bias", [at.head, at.k - at.q + 200]));
    let builder = builder.mask(Mask::Causal).score(score.unwrap()).sinks();
    let problem = builder.build().unwrap();
    let n_k = batch * seqlen * 2 * head_dim;
    let (q, k) = (halves(1, SHAPE.iter().product()), halves(2, n_k));
    let (bias, sinks, used) = (values(3, heads * 400), values(4, heads), [200, 150]);
    let q_there = DeviceBuffer::from_slice(cuda, &q, &queue).unwrap();
    let k_there = DeviceBuffer::from_slice(cuda, &k, &queue).unwrap();
    let bias_there = DeviceBuffer::from_slice(cuda, &bias, &queue).unwrap();
    let sinks_there = DeviceBuffer::from_slice(cuda, &sinks, &queue).unwrap();
    let used_there = DeviceBuffer::from_slice(cuda, &used, &queue).unwrap();
    let vectors = (bias.len() + sinks.len() + used.len()) * 4;
    let side_by_side = |shape| Layout::bshd(shape).unwrap();
    let by_heads = |shape| Layout::bhsd(shape).unwrap();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let swapped = |[batch, seqlen, heads, head_dim]: [usize; 4]| [batch, heads, seqlen, head_dim];
    for (of_q, of_k, between) in [
        (side_by_side(shape_q), side_by_side(shape_k), [4, 2]),
        (
            by_heads(swapped(shape_q)),
            by_heads(swapped(shape_k)),
            [1, 1],
        ),
    ] {
        let host = Inputs::latent(
            &Tensor::strided(&q, of_q).unwrap(),
            &Tensor::strided(&k, of_k).unwrap(),
        );
        let host = host
            .sinks(&sinks)
            .seqused_k(&used)
            .score_tensor("bias", ReadTensor::new(&bias, [heads, 400]));
        let there = Inputs::latent(
            &Tensor::device(q_there.slice(), of_q).unwrap(),
            &Tensor::device(k_there.slice(), of_k).unwrap(),
        );
        let there = there
            .sinks(sinks_there.slice())
            .seqused_k(used_there.slice())
            .score_tensor("bias", ReadTensor::new(bias_there.slice(), [heads, 400]));
        let n_bytes = copied(&device, problem, &host, &there) as usize;
        // Rows, and what lies between them: the other heads.
        let rows = |n: usize, between: usize| ((n - 1) * between + 1) * head_dim * 2;
        let [q_between, k_between] = between;
        assert_eq!(
            n_bytes,
            rows(23, q_between) + rows(150, k_between) + vectors
        );
    }
}

#[test]
fn pages_are_copied_one_by_one() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let queue = Queue::new(cuda).unwrap();
    let (page_size, n_pages) = (16, 30);
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let builder = Problem::builder(Dtype::Bf16).batch(batch).seqlen(seqlen);
    let builder = builder.heads_q(heads).heads_k(2).head_dim(head_dim);
    let builder = builder.pages(Pages::new(n_pages, page_size));
    let q = halves(1, SHAPE.iter().product());
    let codes: Vec<F8E4M3> = values(2, n_pages * page_size * 2 * head_dim)
        .into_iter()
        .map(|x| F8E4M3::from_f32(x * 4.0))
        .collect();
    let table: Vec<i32> = (0..26).map(|slot| (slot * 7 % n_pages) as i32).collect();
    let (used, leftpad) = ([200, 130], [0, 37]);
    for (fp8, n_scales) in [
        (Fp8Kv::PerSequence, batch * 2),
        (Fp8Kv::PerPage, n_pages * 2),
    ] {
        let problem = builder.fp8_kv(fp8).build().unwrap();
        let scales = values(5, n_scales);
        let q_there = DeviceBuffer::from_slice(cuda, &q, &queue).unwrap();
        let k_there = DeviceBuffer::from_slice(cuda, &codes, &queue).unwrap();
        let scales_there = DeviceBuffer::from_slice(cuda, &scales, &queue).unwrap();
        let table_there = DeviceBuffer::from_slice(cuda, &table, &queue).unwrap();
        let lengths =
            [used, leftpad].map(|of| DeviceBuffer::from_slice(cuda, &of, &queue).unwrap());
        let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
        let (of_q, of_k) = (Layout::bshd(of_q).unwrap(), Layout::bshd(of_k).unwrap());
        let host = Inputs::latent(
            &Tensor::strided(&q, of_q).unwrap(),
            &Tensor::strided(&codes, of_k).unwrap(),
        );
        let host = host
            .page_table(&table)
            .k_descale(&scales)
            .seqused_k(&used)
            .leftpad_k(&leftpad);
        let there = Inputs::latent(
            &Tensor::device(q_there.slice(), of_q).unwrap(),
            &Tensor::device(k_there.slice(), of_k).unwrap(),
        );
        let there = there
            .page_table(table_there.slice())
            .k_descale(scales_there.slice())
            .seqused_k(lengths[0].slice())
            .leftpad_k(lengths[1].slice());
        copied(&device, problem, &host, &there);
    }
}

#[test]
fn tensors_of_another_device_are_refused() {
    let _turn = turn();
    let (device, other) = (gpu(0), gpu(1));
    let n_elems = SHAPE.iter().product();
    let there = DeviceBuffer::<bf16>::new(other.as_cuda().unwrap(), n_elems).unwrap();
    let tensor = Tensor::device(there.slice(), Layout::bshd(SHAPE).unwrap()).unwrap();
    let mut out = vec![0f32; OF.rows.len() * SHAPE[1]];
    for (device, needed) in [
        (&device, ferroflash::tensor::Location::Cuda(0)),
        (&Device::cpu(), ferroflash::tensor::Location::Host),
    ] {
        let attention = Attention::new(device, problem()).unwrap();
        let outcome = attention.weights(&Inputs::latent(&tensor, &tensor), &OF, &mut out);
        let given = ferroflash::tensor::Location::Cuda(1);
        let elsewhere = ProblemError::OtherDevice { given, needed };
        assert_eq!(outcome, Err(elsewhere.into()));
    }
}
