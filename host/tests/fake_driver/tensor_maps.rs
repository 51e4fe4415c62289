//! flash3: tensor maps from the plan's descriptions, encoded when a tensor has moved, and the tile counter in the workspace.

use std::mem::offset_of;

use super::enqueue::{assert_as_planned, only_launches, word};
use super::*;

/// Bytes of a tensor map.
pub const MAP: usize = 128;

/// Where the addresses of lse and the tile counter stand.
const LSE: usize = offset_of!(TmaForwardParams, lse);
const TILE_COUNTER: usize = offset_of!(TmaForwardParams, tile_counter);

/// How many maps are encoded among calls.
pub fn n_encoded(calls: &[Call]) -> usize {
    calls
        .iter()
        .filter(|call| **call == Call::EncodeTensorMap)
        .count()
}

/// The launches among calls.
pub fn launches(calls: Vec<Call>) -> Vec<Launch> {
    only_launches(
        calls
            .into_iter()
            .filter(|call| *call != Call::EncodeTensorMap)
            .collect(),
    )
}

#[test]
fn flash3_serves_first_and_is_enqueued_with_the_drivers_maps() {
    let _turn = turn();
    let device = gpu(0);
    let attention = Attention::new(&device, problem()).unwrap();
    let layouts = Layouts::contiguous();
    let calls = calls_of(|| {
        let prepared = attention.prepare_forward(&layouts).unwrap();
        assert_eq!(prepared.plan().algorithm, Algorithm::Flash3);
    });
    let loaded = calls.iter().filter(|call| **call == Call::Load);
    assert_eq!(loaded.count(), 1, "one problem loads one module");

    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let launches = launches(calls_of(|| forward.enqueue().unwrap()));
    assert_as_planned(&launches, forward.prepared.plan(), forward.queue.stream());
    let addresses = forward.addresses();
    let tile_config = &forward.prepared.plan().launches[0].variant.tile_config;
    let block_k = u64::from(tile_config.block_k);
    let [batch, seqlen, heads, head_dim] = SHAPE.map(|n| n as u64);
    for (at, rows) in [64, block_k, block_k, 64].into_iter().enumerate() {
        let words: Vec<u64> = (0..16)
            .map(|idx| word(&launches[0], at * MAP + idx * 8))
            .collect();
        let row_bytes = 2 * heads * head_dim;
        let expected = [
            [addresses[at], head_dim, seqlen, heads],
            [batch, row_bytes, 2 * head_dim, seqlen * row_bytes],
            [64, rows, 1, 1],
            [9, 0, 0, 0],
        ];
        assert_eq!(words, expected.concat(), "map {at}");
    }
    assert_eq!(word(&launches[0], LSE), forward.lse.slice().address());
}

#[test]
fn maps_are_encoded_once_while_their_tensors_stay() {
    let _turn = turn();
    let device = gpu(0);
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let run = |forward: &mut Forward| calls_of(|| forward.enqueue().unwrap());
    let first = run(&mut forward);
    assert_eq!(n_encoded(&first), 4);
    let second = run(&mut forward);
    assert_eq!(n_encoded(&second), 0);
    assert_eq!(launches(first)[0].params, launches(second)[0].params);

    let cuda = device.as_cuda().unwrap();
    forward.k = DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
    let moved = run(&mut forward);
    assert_eq!(n_encoded(&moved), 1);
    assert_eq!(word(&launches(moved)[0], MAP), forward.k.slice().address());
}

#[test]
fn every_workspace_has_a_tile_counter_of_its_own_that_was_cleared() {
    let _turn = turn();
    let device = gpu(0);
    let mut counters = Vec::new();
    let mut cleared = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut forward = None;
        let calls = calls_of(|| forward = Some(Forward::with(&device, Algorithm::Flash3)));
        let mut forward = forward.expect("it was made");
        for call in calls {
            if let Call::Fill { address, value, .. } = call {
                assert_eq!(value, 0);
                cleared.push(address as u64);
            }
        }
        let launches = launches(calls_of(|| forward.enqueue().unwrap()));
        counters.push(word(&launches[0], TILE_COUNTER));
        kept.push(forward);
    }
    assert_eq!(counters, cleared);
    assert_ne!(counters[0], counters[1]);
}

#[test]
fn a_call_with_host_tensors_clears_its_own_tile_counter() {
    let _turn = turn();
    let device = gpu(0);
    let attention = Attention::new(&device, problem()).unwrap();
    let n_elems = SHAPE.iter().product();
    let (inputs, mut o) = (vec![bf16::ONE; n_elems], vec![bf16::ZERO; n_elems]);
    let mut lse = vec![0.0; 2 * 4 * 200];
    let tensor = || Tensor::bshd(&inputs, SHAPE).unwrap();
    let calls = calls_of(|| {
        let inputs = Inputs::new(&tensor(), &tensor(), &tensor());
        let o = TensorMut::bshd(&mut o, SHAPE).unwrap();
        let ran = attention
            .forward(&inputs, &mut Outputs::new(o, &mut lse))
            .unwrap();
        assert_eq!(ran.algorithm, Algorithm::Flash3);
    });
    let filled = calls.iter().find_map(|call| match call {
        Call::Fill {
            address, stream, ..
        } => Some((*address as u64, *stream)),
        _ => None,
    });
    let launched = calls.iter().find_map(|call| match call {
        Call::Launch(launch) => Some((word(launch, TILE_COUNTER), launch.stream)),
        _ => None,
    });
    assert!(launched.is_some());
    assert_eq!(filled, launched);
}

/// An empty tensor has no address; the workspace lends its own.
#[test]
fn maps_of_empty_tensors_are_of_memory_that_is_there() {
    let _turn = turn();
    let device = gpu(0);
    let keyless = problem().to_builder().seqlen_k(0).build().unwrap();
    let attention = Attention::new(&device, keyless).unwrap();
    let n_elems = SHAPE.iter().product();
    let (q, mut o) = (vec![bf16::ONE; n_elems], vec![bf16::ZERO; n_elems]);
    let mut lse = vec![0.0; 2 * 4 * 200];
    let calls = calls_of(|| {
        let keys = Tensor::bshd::<bf16>(&[], keyless.shape_k()).unwrap();
        let inputs = Inputs::new(&Tensor::bshd(&q, SHAPE).unwrap(), &keys, &keys);
        let o = TensorMut::bshd(&mut o, SHAPE).unwrap();
        let mut outputs = Outputs::new(o, &mut lse);
        attention.forward(&inputs, &mut outputs).unwrap();
    });
    let mut launched = calls.iter().filter_map(|call| match call {
        Call::Launch(launch) => Some(launch),
        _ => None,
    });
    let launch = launched.next().expect("queries are there");
    let workspace = word(launch, TILE_COUNTER);
    assert_ne!(workspace, 0);
    assert_eq!([word(launch, MAP), word(launch, 2 * MAP)], [workspace; 2]);
}

/// Layers of a model, whose calls are one prepared call: their maps are encoded in the first step alone, and a launch has those of its own tensors.
#[test]
fn maps_of_all_layers_are_kept() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let mut forward = Forward::with(&device, Algorithm::Flash3);
    let tensor = || DeviceBuffer::new(cuda, SHAPE.iter().product()).unwrap();
    let mut layers: Vec<_> = (0..40).map(|_| [tensor(), tensor()]).collect();
    for step in 0..3 {
        let mut n_maps = 0;
        for [k, v] in &mut layers {
            std::mem::swap(&mut forward.k, k);
            std::mem::swap(&mut forward.v, v);
            let calls = calls_of(|| forward.enqueue().unwrap());
            n_maps += n_encoded(&calls);
            let [launch] = launches(calls).try_into().unwrap();
            let encoded = [0, 1, 2, 3].map(|map| word(&launch, map * MAP));
            assert_eq!(encoded, forward.addresses());
            std::mem::swap(&mut forward.k, k);
            std::mem::swap(&mut forward.v, v);
        }
        assert_eq!(n_maps, if step == 0 { 2 + 2 * layers.len() } else { 0 });
    }
}
