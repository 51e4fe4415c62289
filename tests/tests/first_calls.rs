//! `attend` and `KvCache` in a GPU's memory give what they give on slices of the host. Their rules are tested without a GPU, in `host/tests`.

use conformance::subject::CUDA;
use ferroflash::backend::cuda::StreamRef;
use ferroflash::backend::cuda::memory::DeviceBuffer;
use ferroflash::{Device, KvCache, attend};
use half::bf16;

const HEADS_Q: usize = 8;
const HEADS_K: usize = 2;
const HEAD_DIM: usize = 64;

/// Numbers between −1 and 1 without a pattern.
fn random(rows: usize, heads: usize, seed: usize) -> Vec<bf16> {
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    let n_elems = rows * heads * HEAD_DIM;
    (0..n_elems).map(|at| bf16::from_f32(number(at))).collect()
}

fn to_gpu(device: &Device, elements: &[bf16]) -> DeviceBuffer<bf16> {
    let cuda = device.as_cuda().unwrap();
    DeviceBuffer::from_slice(cuda, elements, StreamRef::DEFAULT).unwrap()
}

fn to_host(buffer: &DeviceBuffer<bf16>) -> Vec<bf16> {
    buffer.to_vec(StreamRef::DEFAULT).unwrap()
}

#[test]
fn cuda_both_passes_in_its_memory_are_those_of_slices() {
    if CUDA.is_absent() {
        return;
    }
    let device = (CUDA.open)(0).unwrap();
    let (of_q, of_k) = ([2, 150, HEADS_Q, HEAD_DIM], [2, 150, HEADS_K, HEAD_DIM]);
    let (q, d_o) = (random(300, HEADS_Q, 1), random(300, HEADS_Q, 2));
    let (k, v) = (random(300, HEADS_K, 3), random(300, HEADS_K, 4));
    let of_host = attend((&q, of_q), (&k, of_k), (&v, of_k)).causal();
    let of_host = of_host.forward(&device).unwrap();
    let from_host = of_host.backward(&d_o).unwrap();

    let [q, k, v, d_o] = [&q, &k, &v, &d_o].map(|elements| to_gpu(&device, elements));
    let there = attend((&q, of_q), (&k, of_k), (&v, of_k)).causal();
    let there = there.forward(&device).unwrap();
    let gradients = there.backward(&d_o).unwrap();
    assert_eq!(to_host(&there.o), of_host.o);
    assert_eq!(there.lse.to_vec(StreamRef::DEFAULT).unwrap(), of_host.lse);
    assert_eq!(to_host(&gradients.d_q), from_host.d_q);
    assert_eq!(to_host(&gradients.d_k), from_host.d_k);
    assert_eq!(to_host(&gradients.d_v), from_host.d_v);
}

/// A prompt that ends within a page, an answer and its fork, which copies that page: each as attention over its own rows.
#[test]
fn cuda_a_cache_gives_what_contiguous_rows_give() {
    if CUDA.is_absent() {
        return;
    }
    let device = (CUDA.open)(0).unwrap();
    let mut cache = KvCache::on_gpu(&device, [16, 16, HEADS_K, HEAD_DIM]).unwrap();
    let prompt = 70;
    let (k, v) = (random(prompt, HEADS_K, 1), random(prompt, HEADS_K, 2));
    let mut rows = [(k.clone(), v.clone()), (k.clone(), v.clone())];
    let [k, v] = [&k, &v].map(|elements| to_gpu(&device, elements));
    let one = cache.begin();
    let shape = [1, prompt, HEADS_K, HEAD_DIM];
    cache.append(&[one], (&k, shape), (&v, shape)).unwrap();
    let batch = [one, cache.fork(one).unwrap()];
    for step in 0..20 {
        let (k, v) = (random(2, HEADS_K, 10 + step), random(2, HEADS_K, 50 + step));
        for (at, (all_k, all_v)) in rows.iter_mut().enumerate() {
            let own = at * HEADS_K * HEAD_DIM..(at + 1) * HEADS_K * HEAD_DIM;
            all_k.extend(&k[own.clone()]);
            all_v.extend(&v[own]);
        }
        let shape = [2, 1, HEADS_K, HEAD_DIM];
        let [k, v] = [&k, &v].map(|elements| to_gpu(&device, elements));
        cache.append(&batch, (&k, shape), (&v, shape)).unwrap();
    }
    let q = random(2, HEADS_Q, 99);
    let of_q = to_gpu(&device, &q);
    let call = cache
        .attend(&batch, (&of_q, [2, 1, HEADS_Q, HEAD_DIM]))
        .unwrap();
    let o = to_host(&call.forward(&device).unwrap().o);
    for (at, (k, v)) in rows.iter().enumerate() {
        let own = at * HEADS_Q * HEAD_DIM..(at + 1) * HEADS_Q * HEAD_DIM;
        let shape_k = [prompt + 20, HEADS_K, HEAD_DIM];
        let call = attend(
            (&q[own.clone()], [1, HEADS_Q, HEAD_DIM]),
            (k, shape_k),
            (v, shape_k),
        );
        let alone = call.forward(&Device::cpu()).unwrap();
        for (paged, alone) in o[own].iter().zip(&alone.o) {
            let error = (paged.to_f32() - alone.to_f32()).abs();
            assert!(error < 4e-3, "{paged} and {alone}");
        }
    }
}
