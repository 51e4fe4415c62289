//! A rounding to 8 bits, enqueued as planned.

use ferroflash::arguments::Argument;
use ferroflash::{Fp8, Quantize, QuantizeInputs, QuantizeOutputs, QuantizeProblem};
use ferroflash_kernels::params::QuantizeParams;
use float8::F8E4M3;

use super::enqueue::{only_launches, word};
use super::*;

#[test]
fn a_rounding_finds_amax_and_then_rounds() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let n_elems = SHAPE.iter().product();
    let [batch, _, heads, _] = SHAPE;
    let x = DeviceBuffer::<bf16>::new(cuda, n_elems).unwrap();
    let mut rounded = DeviceBuffer::<F8E4M3>::new(cuda, n_elems).unwrap();
    let mut descale = DeviceBuffer::<f32>::new(cuda, batch * heads).unwrap();
    let layout = Layout::bshd(SHAPE).unwrap();
    let problem = QuantizeProblem::new(Dtype::Bf16, SHAPE, Fp8::PerHead);
    let quantize = Quantize::new(&device, problem).unwrap();
    let prepared = quantize.prepare(&Layouts::contiguous()).unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let inputs = QuantizeInputs::new(&Tensor::device(x.slice(), layout).unwrap());
    let (rounded_at, descale_at) = (rounded.slice().address(), descale.slice().address());
    let to = TensorMut::device(rounded.slice_mut(), layout).unwrap();
    let mut outputs = QuantizeOutputs::new(to, descale.slice_mut());
    let n_bytes = prepared.plan().workspace.n_bytes();
    queue.reserve_bytes(n_bytes).unwrap();
    assert_eq!(queue.workspace_bytes(), n_bytes);
    let calls = calls_of(|| {
        prepared
            .quantize(&mut queue, &inputs, &mut outputs)
            .unwrap()
    });
    let launches = only_launches(calls);
    let kernels: Vec<&str> = launches.iter().map(|launch| &*launch.kernel).collect();
    assert_eq!(kernels, ["amax_sm89_bf16", "quantize_sm89_bf16"]);
    for (launch, planned) in launches.iter().zip(&prepared.plan().launches) {
        assert_eq!(launch.grid, [planned.grid, 1, 1]);
        assert_eq!(launch.params.len(), size_of::<QuantizeParams>());
        let of_tiles = word(launch, offset_of!(QuantizeParams, of_tiles));
        assert!(of_tiles > 0 && word(launch, offset_of!(QuantizeParams, amax)) == 0);
        for (offset, address) in [
            (offset_of!(QuantizeParams, x), x.slice().address()),
            (offset_of!(QuantizeParams, rounded), rounded_at),
            (offset_of!(QuantizeParams, descale_out), descale_at),
        ] {
            assert_eq!(word(launch, offset), address);
        }
    }
}

#[test]
fn with_given_scales_a_tensor_is_read_once() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    // Three tiles of each of two sequences and heads.
    let shape = [2, 300, 2, 32];
    let (n_elems, n_scales) = (shape.iter().product(), 4);
    let x = DeviceBuffer::<bf16>::new(cuda, n_elems).unwrap();
    let mut rounded = DeviceBuffer::<F8E4M3>::new(cuda, n_elems).unwrap();
    let given = DeviceBuffer::<f32>::new(cuda, n_scales).unwrap();
    let mut amax = DeviceBuffer::<f32>::new(cuda, n_scales).unwrap();
    let layout = Layout::bshd(shape).unwrap();
    let problem = QuantizeProblem::new(Dtype::Bf16, shape, Fp8::PerHead).giving_descale();
    let quantize = Quantize::new(&device, problem).unwrap();
    let layouts = Layouts::contiguous().giving(Argument::Amax);
    let prepared = quantize.prepare(&layouts).unwrap();
    let mut queue = Queue::new(cuda).unwrap();
    let inputs = QuantizeInputs::new(&Tensor::device(x.slice(), layout).unwrap());
    let inputs = inputs.descale(given.slice());
    let amax_at = amax.slice().address();
    let to = TensorMut::device(rounded.slice_mut(), layout).unwrap();
    let mut outputs = QuantizeOutputs::of_given_descale(to).amax(amax.slice_mut());
    queue
        .reserve_bytes(prepared.plan().workspace.n_bytes())
        .unwrap();
    let calls = calls_of(|| {
        prepared
            .quantize(&mut queue, &inputs, &mut outputs)
            .unwrap()
    });
    let launches = only_launches(calls);
    let grids = launches
        .iter()
        .map(|launch| (&*launch.kernel, launch.grid[0]));
    let grids: Vec<(&str, u32)> = grids.collect();
    assert_eq!(grids, [("quantize_sm89_bf16", 12), ("amax_sm89_bf16", 4)]);
    for launch in &launches {
        let of_tiles = word(launch, offset_of!(QuantizeParams, of_tiles));
        assert!(of_tiles > 0);
        for (offset, address) in [
            (offset_of!(QuantizeParams, descale), given.slice().address()),
            (offset_of!(QuantizeParams, amax), amax_at),
        ] {
            assert_eq!(word(launch, offset), address);
        }
    }
    let kernel = prepared.plan().kernel().unwrap().to_string();
    assert!(kernel.contains("quantize_sm89_bf16"), "{kernel}");
    // Nobody wants amax, or each tile has one of its own.
    let plan = |scales, layouts: &Layouts| {
        let problem = QuantizeProblem::new(Dtype::Bf16, shape, scales).giving_descale();
        let prepared = Quantize::new(&device, problem).unwrap().prepare(layouts);
        let plan = prepared.unwrap().plan().clone();
        (plan.launches.len(), plan.workspace.n_bytes())
    };
    assert_eq!(plan(Fp8::PerHead, &Layouts::contiguous()), (1, 0));
    assert_eq!(plan(Fp8::PerBlock, &layouts), (1, 0));
    assert_eq!(plan(Fp8::PerTensor, &layouts).0, 2);
}
