//! Decode on a GPU: few queries over a cache of many keys, timed from a CUDA graph.
//!
//! A call may take as few microseconds as a launch from the host. So calls are captured into a graph, which launches them back
//! to back. Each reads another view of a pool of keys and values, as a model's layers have caches of their own, so that L2 does
//! not hold them; views of less than 2 MiB it may hold after all, for there are `MAX_VIEWS` at most. A graph repeats its round
//! of views until a replay takes [`REPLAY_MS`], so that the launch of the graph itself does not count. The time of a call is that
//! between the ends of two replays, divided by the calls of one; the median of the replays counts. All calls read the same q and
//! write the same o and lse, which are small.
//!
//! With `--layers` a graph is a model's step: as many views as layers, and before each attention an append to the layer's cache
//! ([`new_rows`]), whose lengths attention reads.
//!
//! | file | what |
//! |---|---|
//! | [`pool`] | keys and values of all cases |
//! | [`mod@reference`] | what a call should give |
//! | [`room`] | how much memory there is, how many views |
//! | [`new_rows`] | appends |

mod new_rows;
mod pool;
mod reference;
mod room;

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{DeviceBuffer, Event, Graph};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Device, Inputs, Layout, Outputs, PreparedForward, Problem, Queue, Tensor, TensorMut,
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::cases::Case;
use super::gpu::{cuda, host_us};
use super::host::Written;
use super::subject::{self, Effort, Ready, Variant, median, n_calls, normal, warm_up};
use crate::arguments::CacheLengths;
use crate::failure::Failure;
use crate::input::Bytes;
use new_rows::NewRows;
use pool::E4M3_FACTOR;
use pool::open;
pub use pool::{Pool, SharedPool};
use room::view_elems;

/// Milliseconds that a replay takes at least.
const REPLAY_MS: f64 = 1.0;
/// The most rounds of views that this is worth.
const MAX_ROUNDS: usize = 64;

/// The fewest replays that are timed.
const MIN_REPLAYS: usize = 3;
/// The most.
const MAX_REPLAYS: usize = 1000;

/// Rounds of all views that take long enough, where one takes this long.
fn rounds(round_ms: f64) -> usize {
    let wanted = (REPLAY_MS / round_ms.max(f64::MIN_POSITIVE)).ceil();
    // A number too large for the type becomes the largest.
    (wanted as usize).clamp(1, MAX_ROUNDS)
}

/// A prepared forward pass and, once it is measured, its graph.
pub struct Call {
    prepared: PreparedForward,
    replay: Option<Replay>,
    /// Of the cache.
    pub n_views: u64,
}

/// A graph of several calls.
struct Replay {
    graph: Graph,
    n_calls: u64,
}

/// The tensors of one problem.
pub struct Tensors<T: Bytes> {
    device: Device,
    queue: Queue,
    memory: Memory<T>,
}

/// Where inputs and outputs of calls lie.
struct Memory<T: Bytes> {
    problem: Problem,
    pool: SharedPool<T>,
    n_views: u64,
    /// Where keys and values lie in pages: the table.
    table: Option<DeviceBuffer<i32>>,
    /// Where the device says how many keys each sequence has.
    lens: Option<DeviceBuffer<i32>>,
    /// Where they are in 8 bits: the scales, of k and v alike.
    scales: Option<DeviceBuffer<f32>>,
    /// Where a call is a layer's step.
    new_rows: Option<NewRows<T>>,
    q: DeviceBuffer<T>,
    o: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

impl<T: Bytes> Tensors<T> {
    /// Views of the pool, and random queries; an error where there is no room for them.
    pub fn new(
        device: &Device,
        case: &Case,
        pool: &SharedPool<T>,
        random: &mut SmallRng,
    ) -> Result<Tensors<T>, Failure> {
        let problem = case.problem;
        let n_views = {
            let pool = open(pool);
            pool.room.admit(&problem, case.layers)?;
            pool.n_views(case)
        };
        let cuda = cuda(device)?;
        let queue = Queue::new(cuda)?;
        let n_q = problem.shape_q().iter().product();
        let n_o = problem.shape_o().iter().product();
        let n_rows = problem.shape_lse().iter().product();
        let memory = Memory {
            problem,
            pool: Arc::clone(pool),
            n_views,
            table: match problem.pages() {
                Some(pages) => {
                    let mut table: Vec<i32> = (0..pages.n_pages() as i32).collect();
                    table.shuffle(random);
                    Some(DeviceBuffer::from_slice(cuda, &table, &queue)?)
                }
                None => None,
            },
            lens: match (problem.pages(), case.cache_lengths) {
                (None, CacheLengths::Shape) => None,
                _ => {
                    let lens = vec![problem.seqlen_k() as i32; problem.batch()];
                    Some(DeviceBuffer::from_slice(cuda, &lens, &queue)?)
                }
            },
            scales: match problem.fp8_kv() {
                Some(_) => {
                    let scales = vec![1.0 / E4M3_FACTOR; problem.batch() * problem.heads_k()];
                    Some(DeviceBuffer::from_slice(cuda, &scales, &queue)?)
                }
                None => None,
            },
            new_rows: match case.layers {
                0 | 1 => None,
                _ => Some(NewRows::new(device, cuda, &queue, &problem, random)?),
            },
            q: DeviceBuffer::from_slice(cuda, &normal(n_q, random)?, &queue)?,
            o: DeviceBuffer::new(cuda, n_o)?,
            lse: DeviceBuffer::new(cuda, n_rows)?,
        };
        Ok(Tensors {
            device: device.clone(),
            queue,
            memory,
        })
    }

    /// Plans a variant, loads its kernels, reserves its workspace.
    pub fn prepare(&mut self, variant: &Variant) -> Result<Ready, Failure> {
        let attention = variant.attention(&self.device, self.memory.problem)?;
        let has_lengths = self.memory.lens.is_some() || self.memory.new_rows.is_some();
        let layouts = match has_lengths {
            true => Layouts::contiguous().giving(Argument::SeqUsedK),
            false => Layouts::contiguous(),
        };
        let prepared = attention.prepare_forward(&layouts)?;
        let plan = prepared.plan();
        self.queue.reserve(plan)?;
        Ok(Ready {
            algorithm: plan.algorithm,
            extra_bytes: plan.workspace.n_bytes(),
            call: subject::Call::Decode(Box::new(Call {
                prepared,
                replay: None,
                n_views: self.memory.n_views,
            })),
        })
    }

    /// What a call on the first view writes, by name.
    pub fn results(&mut self, call: &Call) -> Result<Written<T>, Failure> {
        // What another variant left is no result of this one.
        self.memory.o.zero(&self.queue)?;
        self.memory.enqueue(&mut self.queue, &call.prepared, 0)?;
        Ok(vec![("o", self.memory.o.to_vec(&self.queue)?)])
    }

    /// Milliseconds of a call: the median of replays.
    pub fn round(&mut self, call: &mut Call, effort: Effort) -> Result<f64, Failure> {
        let replay = match &call.replay {
            Some(replay) => replay,
            None => call.replay.insert(self.replay(&call.prepared)?),
        };
        let one = warm_up(effort.warm_up_ms, || {
            replay.graph.launch(&mut self.queue)?;
            Ok(self.queue.synchronize()?)
        })?;
        let n_replays = n_calls(one, effort.rep_ms).clamp(MIN_REPLAYS, MAX_REPLAYS);
        Ok(self.replay_ms(&replay.graph, n_replays)? / replay.n_calls as f64)
    }

    /// Microseconds of the host per call where calls are enqueued one by one.
    pub fn host_us(&mut self, call: &Call) -> Result<f64, Failure> {
        let cuda = Arc::clone(cuda(&self.device)?);
        host_us(&cuda, || {
            Ok(self.memory.enqueue(&mut self.queue, &call.prepared, 0)?)
        })
    }

    /// A graph that takes long enough.
    fn replay(&mut self, prepared: &PreparedForward) -> Result<Replay, Failure> {
        let mut graph = self.capture(prepared, 1)?;
        graph.launch(&mut self.queue)?;
        let n_rounds = rounds(self.replay_ms(&graph, MIN_REPLAYS)?);
        if n_rounds > 1 {
            graph = self.capture(prepared, n_rounds)?;
        }
        Ok(Replay {
            graph,
            n_calls: n_rounds as u64 * self.memory.n_views,
        })
    }

    /// A call on each view, so many times.
    fn capture(&mut self, prepared: &PreparedForward, n_rounds: usize) -> Result<Graph, Failure> {
        let memory = &mut self.memory;
        Ok(self.queue.capture(|queue| {
            for _ in 0..n_rounds {
                for view in 0..memory.n_views {
                    memory.enqueue(queue, prepared, view)?;
                }
            }
            Ok(())
        })?)
    }

    /// The median of so many replays, by events.
    fn replay_ms(&mut self, graph: &Graph, n_replays: usize) -> Result<f64, Failure> {
        let cuda = cuda(&self.device)?;
        let mut marks = Vec::new();
        for _ in 0..=n_replays {
            marks.push(Event::new(cuda)?);
        }
        for (index, mark) in marks.iter().enumerate() {
            if index > 0 {
                graph.launch(&mut self.queue)?;
            }
            mark.record(&self.queue)?;
        }
        self.queue.synchronize()?;
        let mut times = Vec::new();
        for pair in marks.windows(2) {
            times.push(f64::from(pair[1].elapsed_ms(&pair[0])?));
        }
        Ok(median(&mut times))
    }
}

impl<T: Bytes> Memory<T> {
    /// Enqueues a call on a view of the cache, behind its append if there is one.
    fn enqueue(
        &mut self,
        queue: &mut Queue,
        prepared: &PreparedForward,
        view: u64,
    ) -> Result<(), ferroflash::Error> {
        let like_q = Layout::bshd(self.problem.shape_q())?;
        let like_k = Layout::bshd(self.problem.shape_k())?;
        let first = view * view_elems(&self.problem);
        let mut pool = open(&self.pool);
        let table = self.table.as_ref().map(|table| table.slice());
        if let Some(new_rows) = &mut self.new_rows {
            let Pool { k, v, .. } = &mut *pool;
            let caches = [k, v].map(|cache| cache.slice_mut().skip(first));
            new_rows.enqueue(queue, caches, self.q.slice_mut(), table)?;
        }
        let q = Tensor::device(self.q.slice(), like_q)?;
        let k = Tensor::device(pool.k.slice().skip(first), like_k)?;
        let inputs = match self.problem.values_in_keys() {
            true => Inputs::latent(&q, &k),
            false => {
                let v = Tensor::device(pool.v.slice().skip(first), like_k)?;
                Inputs::new(&q, &k, &v)
            }
        };
        let inputs = match table {
            Some(table) => inputs.page_table(table),
            None => inputs,
        };
        let inputs = match (&self.new_rows, &self.lens) {
            (Some(new_rows), _) => inputs.seqused_k(new_rows.lens()),
            (None, Some(lens)) => inputs.seqused_k(lens.slice()),
            (None, None) => inputs,
        };
        let inputs = match &self.scales {
            Some(scales) => inputs.k_descale(scales.slice()).v_descale(scales.slice()),
            None => inputs,
        };
        let like_o = Layout::bshd(self.problem.shape_o())?;
        let o = TensorMut::device(self.o.slice_mut(), like_o)?;
        let mut outputs = Outputs::new(o, self.lse.slice_mut());
        prepared.forward(queue, &inputs, &mut outputs)
    }
}

#[cfg(test)]
mod tests;
