//! A whole step of decoding in one graph: in each of 32 layers an append at the lengths that lie on the device, and attention over
//! that layer's cache by splits. The graph hands the lengths on, so that a replay is the next step.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer, Graph, Queue};
use ferroflash::prepared::{Layouts, PreparedAppend};
use ferroflash::{
    Algorithm, Append, AppendInputs, AppendOutputs, Attention, Device, Error, Inputs, Layout,
    Outputs, PreparedForward, TensorMut,
};
use ferroflash_kernels::spec::Constant;
use half::bf16;

use super::model::{BATCH, BEFORE, Model, N_LAYERS, N_STEPS, Rows, Shape};
use super::{NEVER, subjects, tensor};

/// Layers that are looked at after every step. After the last one all are.
const LOOKED_AT: [usize; 3] = [0, 13, N_LAYERS - 1];

/// Which lengths attention is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lens {
    /// Those that the append writes.
    After,
    /// Those before the step: a mistake.
    Before,
}

/// What a layer reads and writes.
struct Layer {
    q: DeviceBuffer<bf16>,
    k_new: DeviceBuffer<bf16>,
    v_new: DeviceBuffer<bf16>,
    rotated: DeviceBuffer<bf16>,
    caches: Caches,
    o: DeviceBuffer<bf16>,
    lse: DeviceBuffer<f32>,
}

/// Keys and values of a layer.
struct Caches {
    k: DeviceBuffer<bf16>,
    v: DeviceBuffer<bf16>,
}

impl Caches {
    fn written(&mut self, layout: Layout) -> Result<AppendOutputs<'_>, Error> {
        let k = TensorMut::device(self.k.slice_mut(), layout)?;
        let v = TensorMut::device(self.v.slice_mut(), layout)?;
        Ok(AppendOutputs::new(k, v))
    }
}

/// The calls of a step, and their memory.
struct Decode {
    shape: Shape,
    append: PreparedAppend,
    hand_on: PreparedAppend,
    attention: PreparedForward,
    queue: Queue,
    layers: Vec<Layer>,
    cos: DeviceBuffer<f32>,
    sin: DeviceBuffer<f32>,
    /// Rows of each sequence before the step.
    before: DeviceBuffer<i32>,
    /// The same with the step's.
    after: DeviceBuffer<i32>,
    /// Where new rows begin if there are none.
    no_rows: DeviceBuffer<i32>,
    table: Option<DeviceBuffer<i32>>,
}

impl Layer {
    fn new(device: &Arc<CudaDevice>, shape: Shape) -> Result<Layer, Error> {
        let (append, attention) = (shape.append(), shape.attention());
        let buffer = |shape: [usize; 4]| DeviceBuffer::new(device, shape.iter().product());
        Ok(Layer {
            q: buffer(append.shape_q())?,
            k_new: buffer(append.shape_new())?,
            v_new: buffer(append.shape_new())?,
            rotated: buffer(append.shape_q())?,
            caches: Caches {
                k: buffer(append.shape_cache())?,
                v: buffer(append.shape_cache())?,
            },
            o: buffer(append.shape_q())?,
            lse: DeviceBuffer::new(device, attention.shape_lse().iter().product())?,
        })
    }
}

impl Decode {
    fn new(device: &Device, algorithm: Algorithm, model: &Model) -> Result<Decode, Error> {
        let (cuda, shape) = (device.as_cuda().unwrap(), model.shape);
        let table = shape.table();
        let in_pages = |layouts: Layouts| match table.is_empty() {
            true => layouts,
            false => layouts.giving(Argument::PageTable),
        };
        let lengths = in_pages(Layouts::contiguous()).giving(Argument::SeqUsedOut);
        let attention = Attention::new(device, shape.attention())?.with_algorithm(algorithm);
        let of_attention = in_pages(Layouts::contiguous()).giving(Argument::SeqUsedK);
        let attention = attention.prepare_forward(&of_attention)?;
        let mut queue = Queue::new(cuda)?;
        queue.reserve(attention.plan())?;
        let layers = (0..N_LAYERS).map(|_| Layer::new(cuda, shape));
        let (cos, sin) = (model.rotary.cos(), model.rotary.sin());
        Ok(Decode {
            shape,
            append: Append::new(device, shape.append())?.prepare(&lengths)?,
            hand_on: Append::new(device, shape.hand_on())?.prepare(&lengths)?,
            attention,
            layers: layers.collect::<Result<_, Error>>()?,
            cos: DeviceBuffer::from_slice(cuda, cos, &queue)?,
            sin: DeviceBuffer::from_slice(cuda, sin, &queue)?,
            before: DeviceBuffer::new(cuda, BATCH)?,
            after: DeviceBuffer::new(cuda, BATCH)?,
            no_rows: DeviceBuffer::from_slice(cuda, &[0; BATCH + 1], &queue)?,
            table: match table.is_empty() {
                true => None,
                false => Some(DeviceBuffer::from_slice(cuda, &table, &queue)?),
            },
            queue,
        })
    }

    /// Caches and lengths as they are before the first step.
    fn begin(&mut self, model: &Model) -> Result<(), Error> {
        let queue = &self.queue;
        for (number, layer) in self.layers.iter_mut().enumerate() {
            let [k, v] = model.memory(number);
            layer.caches.k.copy_from(&k, queue)?;
            layer.caches.v.copy_from(&v, queue)?;
        }
        self.before.copy_from(&BEFORE, queue)?;
        Ok(self.after.copy_from(&[-1; BATCH], queue)?)
    }

    /// A whole step.
    fn capture(&mut self, lens: Lens) -> Result<Graph, Error> {
        let Decode {
            shape,
            append,
            hand_on,
            attention,
            queue,
            layers,
            cos,
            sin,
            before,
            after,
            no_rows,
            table,
        } = self;
        let (of_append, of_hand_on) = (shape.append(), shape.hand_on());
        let layout = |shape| Layout::bshd(shape).unwrap();
        let (of_q, of_new) = (layout(of_append.shape_q()), layout(of_append.shape_new()));
        let of_cache = layout(of_append.shape_cache());
        queue.capture(|queue| {
            for layer in layers.iter_mut() {
                let (k_new, v_new) = (tensor(&layer.k_new, of_new), tensor(&layer.v_new, of_new));
                let mut inputs = AppendInputs::new(&k_new, &v_new, before.slice())
                    .rotary(cos.slice(), sin.slice())
                    .q(tensor(&layer.q, of_q));
                if let Some(table) = table {
                    inputs = inputs.page_table(table.slice());
                }
                let mut outputs = layer
                    .caches
                    .written(of_cache)?
                    .q_out(TensorMut::device(layer.rotated.slice_mut(), of_q)?)
                    .seqused_out(after.slice_mut());
                append.append(queue, &inputs, &mut outputs)?;

                let (k, v) = (&layer.caches.k, &layer.caches.v);
                let seqused = match lens {
                    Lens::After => after.slice(),
                    Lens::Before => before.slice(),
                };
                let (k, v) = (tensor(k, of_cache), tensor(v, of_cache));
                let mut inputs = Inputs::new(&tensor(&layer.rotated, of_q), &k, &v);
                inputs = inputs.seqused_k(seqused);
                if let Some(table) = table {
                    inputs = inputs.page_table(table.slice());
                }
                let o = TensorMut::device(layer.o.slice_mut(), of_q)?;
                attention.forward(queue, &inputs, &mut Outputs::new(o, layer.lse.slice_mut()))?;
            }
            // An append without rows writes no cache. Its lengths afterwards are those before: the next step's.
            let layer = &mut layers[0];
            let new = tensor(&layer.k_new, layout(of_hand_on.shape_new()));
            let mut inputs =
                AppendInputs::new(&new, &new, after.slice()).cu_seqlens_new(no_rows.slice());
            if let Some(table) = table {
                inputs = inputs.page_table(table.slice());
            }
            let outputs = layer.caches.written(of_cache)?;
            let mut outputs = outputs.seqused_out(before.slice_mut());
            hand_on.append(queue, &inputs, &mut outputs)
        })
    }

    /// Gives every layer what a step brings, over outputs that nobody wrote, and replays the graph.
    fn step(&mut self, graph: &Graph, step: usize) -> Result<(), Error> {
        let queue = &self.queue;
        for (number, layer) in self.layers.iter_mut().enumerate() {
            let Rows { q, k, v } = Rows::new(self.shape, step, number);
            layer.q.copy_from(&q, queue)?;
            layer.k_new.copy_from(&k, queue)?;
            layer.v_new.copy_from(&v, queue)?;
            let never = bf16::from_f32(NEVER);
            layer.rotated.copy_from(&vec![never; q.len()], queue)?;
            layer.o.copy_from(&vec![never; q.len()], queue)?;
            let n_rows = layer.lse.len();
            layer.lse.copy_from(&vec![NEVER; n_rows], queue)?;
        }
        graph.launch(&mut self.queue)
    }

    /// o and lse of a layer.
    fn results(&self, layer: usize) -> Result<(Vec<bf16>, Vec<f32>), Error> {
        let layer = &self.layers[layer];
        Ok((layer.o.to_vec(&self.queue)?, layer.lse.to_vec(&self.queue)?))
    }

    /// Every row of a layer's caches, bit for bit: what was appended is there, and nothing else was written.
    fn check_caches(&self, model: &Model, number: usize) -> Result<(), Error> {
        let Caches { k, v } = &self.layers[number].caches;
        let bits = |values: &[bf16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (buffer, expected) in [k, v].into_iter().zip(model.memory(number)) {
            let cache = buffer.to_vec(&self.queue)?;
            assert!(bits(&cache) == bits(&expected), "caches of layer {number}");
        }
        Ok(())
    }
}

/// Every step, by replays of one graph.
fn decode(device: &Device, algorithm: Algorithm, shape: Shape) -> Result<(), Error> {
    let mut model = Model::new(shape)?;
    let mut decode = Decode::new(device, algorithm, &model)?;
    let plan = decode.attention.plan();
    let splits = |launch: &ferroflash::plan::PlannedLaunch| launch.spec.has(Constant::SplitKv);
    assert!(plan.launches.iter().any(splits), "no splits: {plan}");
    decode.begin(&model)?;
    let graph = decode.capture(Lens::After)?;
    let wrong = decode.capture(Lens::Before)?;
    for step in 0..N_STEPS {
        decode.step(&graph, step)?;
        model.grow(step)?;
        let is_last = step + 1 == N_STEPS;
        for layer in (0..N_LAYERS).filter(|layer| is_last || LOOKED_AT.contains(layer)) {
            let (o, lse) = decode.results(layer)?;
            let judged = model.judge(layer, &o, &lse);
            judged.unwrap_or_else(|why| panic!("{algorithm} {shape:?}, step {step}: {why}\n"));
            assert!(
                !model.could_be_stale(layer, &o, &lse),
                "{algorithm} {shape:?}, step {step}: layer {layer} without its newest row would pass"
            );
        }
        let lens = decode.before.to_vec(&decode.queue)?;
        assert_eq!(lens, model.lens, "lengths after step {step}");
    }
    (0..N_LAYERS).try_for_each(|layer| decode.check_caches(&model, layer))?;

    // Attention over the lengths before the step is noticed at once.
    let mut model = Model::new(shape)?;
    decode.begin(&model)?;
    decode.step(&wrong, 0)?;
    model.grow(0)?;
    for layer in LOOKED_AT {
        let (o, lse) = decode.results(layer)?;
        let judged = model.judge(layer, &o, &lse);
        assert!(judged.is_err(), "stale lengths of layer {layer} pass");
    }
    Ok(())
}

/// By each algorithm that the device runs and that divides keys.
fn by_all(page_size: Option<usize>) {
    for (device, algorithm) in subjects() {
        if algorithm == Algorithm::Standard {
            continue;
        }
        for head_dim in [64, 128] {
            let shape = Shape {
                head_dim,
                page_size,
            };
            decode(&device, algorithm, shape).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn a_graph_of_all_layers_is_every_step() {
    by_all(None);
}

#[test]
fn a_graph_of_all_layers_is_every_step_in_pages() {
    by_all(Some(16));
}
