//! A cache of prepared calls, for callers that learn the shapes only at each call.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::append::Append;
use crate::attention::Attention;
use crate::device::Device;
use crate::error::Error;
use crate::fp8::Quantize;
use crate::plan::{Algorithm, DeviceInfo};
use crate::prepared::{
    Layouts, PreparedAppend, PreparedBackward, PreparedForward, PreparedQuantize, PreparedRotate,
};
use crate::problem::Problem;
use crate::problem::append::AppendProblem;
use crate::problem::quantize::QuantizeProblem;
use crate::problem::rotate::RotateProblem;
use crate::rotary::Direction;
use crate::rotate::Rotate;

/// The most recent prepared calls, by problem, layouts, algorithm and device. A call that is in the cache costs a look-up.
///
/// A binding to a framework learns shapes at each call and cannot prepare ahead, so it keeps such a cache. Threads may share it. A call in it stays
/// prepared, with its kernels loaded and its device open, until newer calls replace it.
///
/// ```no_run
/// use ferroflash::prepared::Layouts;
/// use ferroflash::{Attention, Device, Dtype, PlanCache, Problem};
///
/// let cache = PlanCache::new(256);
/// let device = Device::cuda(0)?;
/// for seqlen in [4096, 512, 4096] {
///     let problem = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(16).head_dim(128).build()?;
///     // The third time there is nothing left to plan.
///     let prepared = cache.forward(&Attention::new(&device, problem)?, &Layouts::contiguous())?;
///     println!("{} bytes of workspace", prepared.plan().workspace.n_bytes());
/// }
/// # Ok::<(), ferroflash::Error>(())
/// ```
pub struct PlanCache {
    forward: Kept<OfAttention, PreparedForward>,
    backward: Kept<OfAttention, PreparedBackward>,
    append: Kept<AppendProblem, PreparedAppend>,
    rotate: Kept<(RotateProblem, Direction), PreparedRotate>,
    quantize: Kept<QuantizeProblem, PreparedQuantize>,
}

/// What a pass of attention computes, and by which algorithm, if one was asked for.
type OfAttention = (Problem, Option<Algorithm>);

/// Calls of one kind, by problems `P`.
type Kept<P, T> = Mutex<LruCache<Key<P>, Arc<T>>>;

/// All that a prepared call depends on.
#[derive(Clone, PartialEq, Eq)]
struct Key<P> {
    /// The address of the open device. A call in the cache keeps the device open, so no other device gets this address.
    device: usize,
    limits: Arc<DeviceInfo>,
    problem: P,
    layouts: Layouts,
}

/// Without the limits: those of one device differ only in tests, and they are long.
impl<P: Hash> Hash for Key<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Key {
            device,
            limits: _,
            problem,
            layouts,
        } = self;
        (device, problem, layouts).hash(state);
    }
}

impl<P> Key<P> {
    fn new(device: &Device, problem: P, layouts: &Layouts) -> Key<P> {
        Key {
            device: device
                .as_cuda()
                .map_or(0, |device| Arc::as_ptr(device).addr()),
            limits: device.shared_info(),
            problem,
            layouts: *layouts,
        }
    }
}

impl Key<OfAttention> {
    fn of_attention(attention: &Attention, layouts: &Layouts) -> Key<OfAttention> {
        let problem = (*attention.problem(), attention.algorithm());
        Key::new(attention.device(), problem, layouts)
    }
}

impl PlanCache {
    /// A cache for this many calls of each kind, at least one.
    pub fn new(capacity: usize) -> PlanCache {
        let capacity = NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN);
        PlanCache {
            forward: Mutex::new(LruCache::new(capacity)),
            backward: Mutex::new(LruCache::new(capacity)),
            append: Mutex::new(LruCache::new(capacity)),
            rotate: Mutex::new(LruCache::new(capacity)),
            quantize: Mutex::new(LruCache::new(capacity)),
        }
    }

    /// [`Attention::prepare_forward`], or its result from the cache.
    pub fn forward(
        &self,
        attention: &Attention,
        layouts: &Layouts,
    ) -> Result<Arc<PreparedForward>, Error> {
        let key = Key::of_attention(attention, layouts);
        kept(&self.forward, key, || attention.prepare_forward(layouts))
    }

    /// [`Attention::prepare_backward`], or its result from the cache.
    pub fn backward(
        &self,
        attention: &Attention,
        layouts: &Layouts,
    ) -> Result<Arc<PreparedBackward>, Error> {
        let key = Key::of_attention(attention, layouts);
        kept(&self.backward, key, || attention.prepare_backward(layouts))
    }

    /// [`Append::prepare`], or its result from the cache.
    pub fn append(&self, append: &Append, layouts: &Layouts) -> Result<Arc<PreparedAppend>, Error> {
        let key = Key::new(append.device(), *append.problem(), layouts);
        kept(&self.append, key, || append.prepare(layouts))
    }

    /// [`Rotate::prepare`], or its result from the cache.
    pub fn rotate(
        &self,
        rotate: &Rotate,
        direction: Direction,
        layouts: &Layouts,
    ) -> Result<Arc<PreparedRotate>, Error> {
        let key = Key::new(rotate.device(), (*rotate.problem(), direction), layouts);
        kept(&self.rotate, key, || rotate.prepare(direction, layouts))
    }

    /// [`Quantize::prepare`], or its result from the cache.
    pub fn quantize(
        &self,
        quantize: &Quantize,
        layouts: &Layouts,
    ) -> Result<Arc<PreparedQuantize>, Error> {
        let key = Key::new(quantize.device(), *quantize.problem(), layouts);
        kept(&self.quantize, key, || quantize.prepare(layouts))
    }

    /// The number of calls in the cache, of all kinds.
    pub fn len(&self) -> usize {
        let passes = lock(&self.forward).len() + lock(&self.backward).len();
        let others = lock(&self.append).len() + lock(&self.rotate).len();
        passes + others + lock(&self.quantize).len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all calls.
    pub fn clear(&self) {
        lock(&self.forward).clear();
        lock(&self.backward).clear();
        lock(&self.append).clear();
        lock(&self.rotate).clear();
        lock(&self.quantize).clear();
    }
}

/// The call under this key, prepared if there is none. Others may use the cache meanwhile.
fn kept<P: Eq + Hash, T>(
    calls: &Kept<P, T>,
    key: Key<P>,
    prepare: impl FnOnce() -> Result<T, Error>,
) -> Result<Arc<T>, Error> {
    if let Some(found) = lock(calls).get(&key) {
        return Ok(Arc::clone(found));
    }
    let prepared = Arc::new(prepare()?);
    let pushed_out = lock(calls).push(key, Arc::clone(&prepared));
    // It may close a device, which waits: not while the lock is held.
    drop(pushed_out);
    Ok(prepared)
}

fn lock<P: Eq + Hash, T>(calls: &Kept<P, T>) -> MutexGuard<'_, LruCache<Key<P>, Arc<T>>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache")
            .field("n_forward", &lock(&self.forward).len())
            .field("n_backward", &lock(&self.backward).len())
            .field("n_append", &lock(&self.append).len())
            .field("n_rotate", &lock(&self.rotate).len())
            .field("n_quantize", &lock(&self.quantize).len())
            .finish()
    }
}
