//! Attention on memory and on a stream of the crate cust, which opens the device: the library joins its context.
//!
//! ```console
//! $ cargo run --release --features cust --example cust
//! ```

use std::error::Error;

use cust::context::Context;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Device, Dtype, Inputs, Layout, Mask, Outputs, Problem, Queue, Tensor, TensorMut,
    VectorMut,
};
use half::bf16;

/// `[batch, seqlen, heads, head_dim]` of q, k, v and o.
const SHAPE: [usize; 4] = [2, 1024, 8, 64];

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = cust::init(cust::CudaFlags::empty()) {
        println!("no GPU to run on: {error}");
        return Ok(());
    }
    // The primary context of the device: the library uses the same.
    let _context = Context::new(cust::device::Device::get_device(0)?)?;
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;

    // cust knows no bf16: its bits.
    let n_elems = SHAPE.iter().product();
    let number = |at: usize| bf16::from_f32((at * 7 % 23) as f32 / 11.0 - 1.0).to_bits();
    let numbers: Vec<u16> = (0..n_elems).map(number).collect();
    let [q, k, v] = [
        DeviceBuffer::from_slice(&numbers)?,
        DeviceBuffer::from_slice(&numbers)?,
        DeviceBuffer::from_slice(&numbers)?,
    ];
    let o = DeviceBuffer::<u16>::zeroed(n_elems)?;
    let [batch, seqlen, heads, head_dim] = SHAPE;
    let lse = DeviceBuffer::<f32>::zeroed(batch * heads * seqlen)?;

    let device = Device::cuda(0)?;
    let gpu = device.as_cuda().ok_or("a device of CUDA is one")?;
    let problem = Problem::builder(Dtype::Bf16)
        .batch(batch)
        .seqlen(seqlen)
        .heads(heads)
        .head_dim(head_dim)
        .mask(Mask::Causal)
        .build()?;
    // ANCHOR: prepared
    let prepared = Attention::new(&device, problem)?.prepare_forward(&Layouts::contiguous())?;
    println!("{}", prepared.plan());
    // ANCHOR_END: prepared

    let layout = Layout::bshd(SHAPE)?;
    let read = |buffer: &DeviceBuffer<u16>| {
        let address = buffer.as_device_ptr().as_raw();
        // SAFETY: the buffers are alive until the stream has been waited for, and nobody writes to those that are read.
        unsafe { slice_from_raw(gpu, address, n_elems as u64, Dtype::Bf16) }
    };
    let inputs = Inputs::new(
        &Tensor::device(read(&q), layout)?,
        &Tensor::device(read(&k), layout)?,
        &Tensor::device(read(&v), layout)?,
    );
    let (to, sums) = (o.as_device_ptr().as_raw(), lse.as_device_ptr().as_raw());
    // SAFETY: as above; nobody else uses what is written.
    let (to, sums) = unsafe {
        let n_rows = lse.len() as u64;
        (
            slice_from_raw_mut(gpu, to, n_elems as u64, Dtype::Bf16),
            slice_from_raw_mut(gpu, sums, n_rows, Dtype::F32),
        )
    };
    let mut outputs = Outputs::new(TensorMut::device(to, layout)?, VectorMut::device(sums));
    // ANCHOR: queue
    // SAFETY: the stream outlives the queue; nobody captures it.
    let mut queue = unsafe { Queue::borrow(gpu, stream.as_inner().cast())? };
    prepared.forward(&mut queue, &inputs, &mut outputs)?;
    stream.synchronize()?;
    // ANCHOR_END: queue

    let (mut output, mut rows) = (vec![0; n_elems], vec![0.0; lse.len()]);
    o.copy_to(&mut output)?;
    lse.copy_to(&mut rows)?;
    // A causal mask shows the first query its own key alone, so that its row of o is the first row of v.
    assert_eq!(output[..head_dim], numbers[..head_dim]);
    let first = output[..4].iter().map(|bits| bf16::from_bits(*bits));
    println!("o begins with {:?}", first.collect::<Vec<_>>());
    println!("lse begins with {:?}", &rows[..4]);
    Ok(())
}
