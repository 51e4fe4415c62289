//! Keys and values of all cases, in the memory of a GPU: how many views a case has, and how large they are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer};
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::{Problem, Queue, Scalar, Tensor, TensorMut};
use float8::F8E4M3;
use rand::rngs::SmallRng;

use super::super::cases::Case;
use crate::failure::Failure;
use crate::input::Bytes;
use crate::tensors::{BLOCK, Memory, normal};

/// Blocks of random values that are copied to the pool at once: the host need not hold as many as the GPU.
const FILL_BLOCKS: usize = 16;

/// Bytes of keys and values that a round of views reads: several times what an L2 cache holds. Views of less than 8 MiB read less,
/// being [`MAX_VIEWS`] at most.
const ROUND_BYTES: u64 = 384 << 20;

/// The most views, as many as the peers' script has.
const MAX_VIEWS: u64 = 48;

/// Views begin at multiples of so many elements: of 256 bytes and more, as allocations do.
const VIEW_ALIGNMENT: u64 = 128;

/// What normally distributed numbers are multiplied by to use most of the range of e4m3, and its inverse, the scale.
pub const E4M3_FACTOR: f32 = 64.0;

/// Keys and values of all cases.
pub struct Pool<T: Bytes> {
    pub(super) k: Elements<T>,
    pub(super) v: Elements<T>,
    /// Elements of each.
    n_elems: u64,
    /// What each was filled with, again and again: on the host.
    pub(super) filled: [Elements<T>; 2],
    pub(super) room: Room,
}

/// Keys or values.
pub enum Elements<T: Bytes> {
    Same(Memory<T>),
    E4m3(Memory<F8E4M3>),
}

impl<T: Bytes> Elements<T> {
    /// On the host, so many of these: again and again.
    pub fn cycled(&self, n_elems: usize) -> Elements<T> {
        match self {
            Elements::Same(memory) => Elements::Same(memory.cycled(n_elems)),
            Elements::E4m3(memory) => Elements::E4m3(memory.cycled(n_elems)),
        }
    }

    /// Those behind so many, to read.
    pub fn tensor(&self, behind: u64, shape: [usize; 4]) -> Result<Tensor<'_>, ProblemError> {
        match self {
            Elements::Same(memory) => memory.tensor_behind(behind, shape),
            Elements::E4m3(memory) => memory.tensor_behind(behind, shape),
        }
    }

    /// The same, to write.
    pub fn tensor_mut(
        &mut self,
        behind: u64,
        shape: [usize; 4],
    ) -> Result<TensorMut<'_>, ProblemError> {
        match self {
            Elements::Same(memory) => memory.tensor_mut_behind(behind, shape),
            Elements::E4m3(memory) => memory.tensor_mut_behind(behind, shape),
        }
    }
}

impl<T: Bytes> Pool<T> {
    /// For the largest case that there is room for, and for as many views of smaller ones as they should have; random.
    pub fn new(
        device: &Arc<CudaDevice>,
        cases: &[Case],
        random: &mut SmallRng,
    ) -> Result<Pool<T>, Failure> {
        let room = Room::of(device.memory()?.free_bytes);
        let fits = |case: &&Case| room.admit(&case.problem, case.layers).is_ok();
        let elems =
            |case: &Case| room.n_views(&case.problem, case.layers) * view_elems(&case.problem);
        let n_elems = cases.iter().filter(fits).map(elems).max().unwrap_or(0);
        let queue = Queue::new(device)?;
        let in_8_bits = cases.iter().any(|case| case.problem.fp8_kv().is_some());
        let mut filled = |n_elems: usize| -> Result<_, Failure> {
            let n_random = n_elems.min(FILL_BLOCKS * BLOCK);
            if in_8_bits {
                let numbers: Vec<f32> = normal(n_random, random)?;
                let numbers = numbers.iter().map(|x| F8E4M3::from_f32(x * E4M3_FACTOR));
                let [pool, numbers] = pool_of(numbers.collect(), n_elems, &queue)?;
                return Ok((Elements::E4m3(pool), Elements::E4m3(numbers)));
            }
            let [pool, numbers] = pool_of(normal(n_random, random)?, n_elems, &queue)?;
            Ok((Elements::Same(pool), Elements::Same(numbers)))
        };
        let has_values = cases.iter().any(|case| !case.problem.values_in_keys());
        let n_values = if has_values { n_elems } else { 0 };
        let ((k, of_k), (v, of_v)) = (filled(n_elems as usize)?, filled(n_values as usize)?);
        Ok(Pool {
            k,
            v,
            n_elems,
            filled: [of_k, of_v],
            room,
        })
    }

    /// How many views of a case it has.
    pub fn n_views(&self, case: &Case) -> u64 {
        let held = self.n_elems.checked_div(view_elems(&case.problem));
        let wanted = self.room.n_views(&case.problem, case.layers);
        wanted.min(held.unwrap_or(1)).max(1)
    }
}

/// Memory of a GPU filled with these numbers, and the numbers.
fn pool_of<T: Scalar>(
    numbers: Vec<T>,
    n_elems: usize,
    queue: &Queue,
) -> Result<[Memory<T>; 2], Failure> {
    let mut buffer = DeviceBuffer::new(queue.device(), n_elems)?;
    buffer.fill_from(&numbers, queue)?;
    Ok([Memory::Device(buffer), Memory::Host(numbers)])
}

/// The pool of all cases, which appends write to.
pub type SharedPool<T> = Arc<Mutex<Pool<T>>>;

/// A case that failed half way has left the pool as good as it was.
pub fn open<T: Bytes>(pool: &Mutex<Pool<T>>) -> MutexGuard<'_, Pool<T>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that there is for a case.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    free_bytes: u64,
}

impl Room {
    pub fn of(free_bytes: u64) -> Room {
        Room { free_bytes }
    }

    /// What tensors may take: a part is left for workspaces and kernels.
    fn bytes(self) -> u64 {
        self.free_bytes - self.free_bytes / 16
    }

    /// An error where so many layers have no room; one view is enough for one layer.
    pub fn admit(self, problem: &Problem, layers: usize) -> Result<(), Failure> {
        let others = (layers.max(1) as u64 - 1).saturating_mul(view_bytes(problem));
        let needed = tensor_bytes(problem).saturating_add(others);
        if needed <= self.bytes() {
            return Ok(());
        }
        let gib = |n_bytes: u64| n_bytes as f64 / f64::from(1 << 30);
        Err(Failure::Option(format!(
            "skipped: q, k, v and o take {:.1} GiB, and {:.1} of the {:.1} GiB that are free may be theirs",
            gib(needed),
            gib(self.bytes()),
            gib(self.free_bytes)
        )))
    }

    /// How many views a round should have, as far as there is room: as many as layers, where there are several.
    pub fn n_views(self, problem: &Problem, layers: usize) -> u64 {
        if layers > 1 {
            return layers as u64;
        }
        let view_bytes = view_bytes(problem);
        let wanted = ROUND_BYTES.div_ceil(view_bytes).min(MAX_VIEWS);
        let others = tensor_bytes(problem).saturating_sub(view_bytes);
        let held = self.bytes().saturating_sub(others) / view_bytes;
        wanted.min(held).max(1)
    }
}

/// Bytes of q, k, v, o and lse.
fn tensor_bytes(problem: &Problem) -> u64 {
    let elems = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let of_q = elems(&problem.shape_q());
    let size = |dtype: ScalarType| 2 * dtype.size_bytes() as u64;
    let of_q = of_q.saturating_mul(size(problem.dtype().into()));
    let of_k = view_elems(problem).saturating_mul(size(problem.dtype_k()));
    let tensors = of_q.saturating_add(of_k);
    tensors.saturating_add(elems(&problem.shape_lse()).saturating_mul(size_of::<f32>() as u64))
}

/// Bytes of a view of k and v, 1 where they are empty.
fn view_bytes(problem: &Problem) -> u64 {
    let element = problem.dtype_k().size_bytes() as u64;
    (2 * element).saturating_mul(view_elems(problem)).max(1)
}

/// Elements from one view of k to the next.
pub fn view_elems(problem: &Problem) -> u64 {
    let n_elems = problem.shape_k().iter().product::<usize>() as u64;
    n_elems.next_multiple_of(VIEW_ALIGNMENT)
}
