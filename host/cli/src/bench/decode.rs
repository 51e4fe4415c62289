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
//! | [`pool`] | keys and values of all cases: how many views there is room for |
//! | [`new_rows`] | appends |

mod new_rows;
mod pool;

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::Graph;
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Device, Inputs, Outputs, Pass, PreparedForward, Problem, Queue, Scalar, Tensor,
    TensorMut, Vector,
};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::arguments::CacheLengths;
use super::cases::Case;
use super::gpu::{between, cuda, events, host_us};
use super::subject::{Effort, Ready, Subject, Variant, median, n_calls, warm_up};
use crate::failure::Failure;
use crate::input::Bytes;
use crate::tensors::{Memory, Written, normal, zeros};
use new_rows::NewRows;
use pool::{E4M3_FACTOR, open, view_elems};
pub use pool::{Pool, SharedPool};

/// The most bytes of keys and values that are copied for the processor.
const MOST_BYTES: u64 = 16 << 30;

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
}

/// A graph of several calls.
struct Replay {
    graph: Graph,
    n_calls: u64,
}

/// The tensors of one problem.
pub struct Decode<T: Bytes> {
    device: Device,
    queue: Queue,
    cache: Cache<T>,
}

/// Where inputs and outputs of calls lie.
struct Cache<T: Bytes> {
    problem: Problem,
    pool: SharedPool<T>,
    n_views: u64,
    /// Where keys and values lie in pages: the table.
    table: Option<Memory<i32>>,
    /// Where the device says how many keys each sequence has.
    lens: Option<Memory<i32>>,
    /// Where they are in 8 bits: the scales, of k and v alike.
    scales: Option<Memory<f32>>,
    /// Where a call is a layer's step.
    new_rows: Option<NewRows<T>>,
    q: Memory<T>,
    o: Memory<T>,
    lse: Memory<f32>,
}

impl<T: Bytes> Decode<T> {
    /// Views of the pool, and random queries; an error where there is no room for them.
    pub fn new(
        device: &Device,
        case: &Case,
        pool: &SharedPool<T>,
        random: &mut SmallRng,
    ) -> Result<Decode<T>, Failure> {
        let problem = case.problem;
        let n_views = {
            let pool = open(pool);
            pool.room.admit(&problem, case.layers)?;
            pool.n_views(case)
        };
        let queue = Queue::new(cuda(device)?)?;
        let place = Some(&queue);
        let table = problem.pages().map(|pages| {
            let mut table: Vec<i32> = (0..pages.n_pages() as i32).collect();
            table.shuffle(random);
            Memory::new(table, place)
        });
        let has_lens = problem.pages().is_some() || case.cache_lengths == CacheLengths::Device;
        let lens = || Memory::new(vec![problem.seqlen_k() as i32; problem.batch()], place);
        let n_scales = problem.batch() * problem.heads_k();
        let scales = |_| Memory::new(vec![1.0 / E4M3_FACTOR; n_scales], place);
        let cache = Cache {
            problem,
            pool: Arc::clone(pool),
            n_views,
            table: table.transpose()?,
            lens: has_lens.then(lens).transpose()?,
            scales: problem.fp8_kv().map(scales).transpose()?,
            new_rows: match case.layers {
                0 | 1 => None,
                _ => Some(NewRows::new(device, &queue, &problem, random)?),
            },
            q: Memory::new(normal(problem.shape_q().iter().product(), random)?, place)?,
            o: Memory::empty(problem.shape_o().iter().product(), place)?,
            lse: Memory::empty(problem.shape_lse().iter().product(), place)?,
        };
        Ok(Decode {
            device: device.clone(),
            queue,
            cache,
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
            n_calls: n_rounds as u64 * self.cache.n_views,
        })
    }

    /// A call on each view, so many times.
    fn capture(&mut self, prepared: &PreparedForward, n_rounds: usize) -> Result<Graph, Failure> {
        let cache = &mut self.cache;
        Ok(self.queue.capture(|queue| {
            for _ in 0..n_rounds {
                for view in 0..cache.n_views {
                    cache.enqueue(queue, prepared, view)?;
                }
            }
            Ok(())
        })?)
    }

    /// The median of so many replays, by events.
    fn replay_ms(&mut self, graph: &Graph, n_replays: usize) -> Result<f64, Failure> {
        let marks = events(self.queue.device(), n_replays + 1)?;
        for (index, mark) in marks.iter().enumerate() {
            if index > 0 {
                graph.launch(&mut self.queue)?;
            }
            mark.record(&self.queue)?;
        }
        self.queue.synchronize()?;
        Ok(median(between(&marks)?))
    }
}

impl<T: Bytes> Subject<T> for Decode<T> {
    type Call = Call;

    fn prepare(&mut self, variant: &Variant) -> Result<Ready<Call>, Failure> {
        let attention = variant.attention(&self.device, self.cache.problem)?;
        let has_lengths = self.cache.lens.is_some() || self.cache.new_rows.is_some();
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
            call: Call {
                prepared,
                replay: None,
            },
        })
    }

    /// Of a call on the first view, which the host knows, as it has filled the pool; `None` where appends write to it
    /// before, and where it is too large to be copied.
    fn reference(&self, _: Pass) -> Result<Option<Written<T>>, Failure> {
        let cache = &self.cache;
        let problem = &cache.problem;
        let n_elems: usize = problem.shape_k().iter().product();
        let n_bytes = 2 * (n_elems as u64).saturating_mul(problem.dtype_k().size_bytes() as u64);
        if cache.new_rows.is_some() || MOST_BYTES < n_bytes {
            return Ok(None);
        }
        let [k, v] = open(&cache.pool)
            .filled
            .each_ref()
            .map(|filled| filled.cycled(n_elems));
        let stream = self.queue.stream();
        fn on_host<T: Scalar>(
            memory: &Option<Memory<T>>,
            stream: ferroflash::backend::cuda::StreamRef,
        ) -> Result<Option<Vec<T>>, Failure> {
            let copy = memory.as_ref().map(|memory| memory.to_vec(stream));
            copy.transpose()
        }
        let (table, lens) = (
            on_host(&cache.table, stream)?,
            on_host(&cache.lens, stream)?,
        );
        let (scales, q) = (on_host(&cache.scales, stream)?, cache.q.to_vec(stream)?);
        let inputs = inputs(
            problem,
            Tensor::bshd(&q, problem.shape_q())?,
            k.tensor(0, problem.shape_k())?,
            || v.tensor(0, problem.shape_v()),
            [
                table.as_ref().map(Into::into),
                lens.as_ref().map(Into::into),
                scales.as_ref().map(Into::into),
            ],
        )?;
        let mut o = zeros::<T>(problem.shape_o().iter().product())?;
        let attention = Attention::new(&Device::cpu(), *problem)?;
        let target = TensorMut::bshd(&mut o, problem.shape_o())?;
        attention.forward(&inputs, &mut Outputs::without_lse(target))?;
        Ok(Some(vec![("o", o)]))
    }

    /// Of a call on the first view.
    fn results(&mut self, call: &Call) -> Result<Written<T>, Failure> {
        // What another variant left is no result of this one.
        if let Memory::Device(o) = &mut self.cache.o {
            o.zero(&self.queue)?;
        }
        self.cache.enqueue(&mut self.queue, &call.prepared, 0)?;
        Ok(vec![("o", self.cache.o.to_vec(self.queue.stream())?)])
    }

    /// By replays.
    fn round(&mut self, call: &mut Call, effort: Effort) -> Result<f64, Failure> {
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

    /// Of calls that are enqueued one by one.
    fn host_us(&mut self, call: &Call) -> Result<Option<f64>, Failure> {
        let cuda = Arc::clone(self.queue.device());
        let enqueue = || Ok(self.cache.enqueue(&mut self.queue, &call.prepared, 0)?);
        host_us(&cuda, enqueue).map(Some)
    }

    fn n_views(&self) -> Option<u64> {
        Some(self.cache.n_views)
    }
}

impl<T: Bytes> Cache<T> {
    /// Enqueues a call on a view of the cache, behind its append if there is one.
    fn enqueue(
        &mut self,
        queue: &mut Queue,
        prepared: &PreparedForward,
        view: u64,
    ) -> Result<(), ferroflash::Error> {
        let problem = &self.problem;
        let first = view * view_elems(problem);
        let mut pool = open(&self.pool);
        let table = self.table.as_ref().map(Memory::vector);
        if let Some(new_rows) = &mut self.new_rows {
            let Pool { k, v, .. } = &mut *pool;
            let shape = new_rows.problem.shape_cache();
            let caches = [k.tensor_mut(first, shape)?, v.tensor_mut(first, shape)?];
            let q = self.q.tensor_mut(new_rows.problem.shape_q())?;
            new_rows.enqueue(queue, caches, q, table)?;
        }
        let lens = match &self.new_rows {
            Some(new_rows) => Some(new_rows.lens()),
            None => self.lens.as_ref().map(Memory::vector),
        };
        let inputs = inputs(
            problem,
            self.q.tensor(problem.shape_q())?,
            pool.k.tensor(first, problem.shape_k())?,
            || pool.v.tensor(first, problem.shape_v()),
            [table, lens, self.scales.as_ref().map(Memory::vector)],
        )?;
        let o = self.o.tensor_mut(problem.shape_o())?;
        prepared.forward(queue, &inputs, &mut Outputs::new(o, self.lse.vector_mut()))
    }
}

/// What a call is given, of which some may be `None`: the table of pages, lengths, the scales of k and v.
fn inputs<'a>(
    problem: &Problem,
    q: Tensor<'a>,
    k: Tensor<'a>,
    v: impl FnOnce() -> Result<Tensor<'a>, ferroflash::error::ProblemError>,
    [table, lens, scales]: [Option<Vector<'a>>; 3],
) -> Result<Inputs<'a>, ferroflash::error::ProblemError> {
    let mut inputs = match problem.values_in_keys() {
        true => Inputs::latent(&q, &k),
        false => Inputs::new(&q, &k, &v()?),
    };
    (inputs.page_table, inputs.seqused_k) = (table, lens);
    (inputs.k_descale, inputs.v_descale) = (scales, scales);
    Ok(inputs)
}

#[cfg(test)]
mod tests;
