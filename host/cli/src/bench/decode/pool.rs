//! Keys and values of all cases, in the memory of a GPU.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroflash::Queue;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer};
use ferroflash::tensor::{DeviceSlice, DeviceSliceMut};
use float8::F8E4M3;
use rand::rngs::SmallRng;

use super::super::cases::Case;
use super::super::subject::{self, normal};
use super::reference::Filled;
use super::room::{Room, view_elems};
use crate::failure::Failure;
use crate::input::Bytes;

/// Blocks of random values that are copied to the pool at once: the host need not hold as many as the GPU.
const FILL_BLOCKS: usize = 16;

/// Keys and values of all cases.
pub struct Pool<T: Bytes> {
    pub(super) k: Elements<T>,
    pub(super) v: Elements<T>,
    /// What it was filled with.
    pub(super) filled: [Filled<T>; 2],
    pub(super) room: Room,
}

/// Keys or values.
pub enum Elements<T: Bytes> {
    Same(DeviceBuffer<T>),
    E4m3(DeviceBuffer<F8E4M3>),
}

impl<T: Bytes> Elements<T> {
    fn len(&self) -> usize {
        match self {
            Elements::Same(buffer) => buffer.len(),
            Elements::E4m3(buffer) => buffer.len(),
        }
    }

    pub fn slice(&self) -> DeviceSlice<'_> {
        match self {
            Elements::Same(buffer) => buffer.slice(),
            Elements::E4m3(buffer) => buffer.slice(),
        }
    }

    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_> {
        match self {
            Elements::Same(buffer) => buffer.slice_mut(),
            Elements::E4m3(buffer) => buffer.slice_mut(),
        }
    }
}

/// What normally distributed numbers are multiplied by to use most of the range of e4m3, and its inverse, the scale.
pub const E4M3_FACTOR: f32 = 64.0;

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
        let n_elems = cases.iter().filter(fits).map(elems).max().unwrap_or(0) as usize;
        let queue = Queue::new(device)?;
        let in_8_bits = cases.iter().any(|case| case.problem.fp8_kv().is_some());
        let mut filled = |n_elems: usize| -> Result<(Elements<T>, Filled<T>), Failure> {
            let n_random = n_elems.min(FILL_BLOCKS * subject::BLOCK);
            if in_8_bits {
                let numbers: Vec<f32> = normal(n_random, random)?;
                let numbers = numbers.iter().map(|x| F8E4M3::from_f32(x * E4M3_FACTOR));
                let numbers: Vec<_> = numbers.collect();
                let mut buffer = DeviceBuffer::new(device, n_elems)?;
                buffer.fill_from(&numbers, &queue)?;
                return Ok((Elements::E4m3(buffer), Filled::E4m3(numbers)));
            }
            let numbers = normal(n_random, random)?;
            let mut buffer = DeviceBuffer::new(device, n_elems)?;
            buffer.fill_from(&numbers, &queue)?;
            Ok((Elements::Same(buffer), Filled::Same(numbers)))
        };
        let has_values = cases.iter().any(|case| !case.problem.values_in_keys());
        let n_values = if has_values { n_elems } else { 0 };
        let ((k, of_k), (v, of_v)) = (filled(n_elems)?, filled(n_values)?);
        let filled = [of_k, of_v];
        Ok(Pool { k, v, filled, room })
    }

    /// How many views of a case it has.
    pub fn n_views(&self, case: &Case) -> u64 {
        let held = (self.k.len() as u64).checked_div(view_elems(&case.problem));
        let wanted = self.room.n_views(&case.problem, case.layers);
        wanted.min(held.unwrap_or(1)).max(1)
    }
}

/// The pool of all cases, which appends write to.
pub type SharedPool<T> = Arc<Mutex<Pool<T>>>;

/// A case that failed half way has left the pool as good as it was.
pub fn open<T: Bytes>(pool: &Mutex<Pool<T>>) -> MutexGuard<'_, Pool<T>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}
