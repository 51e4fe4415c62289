//! What calls on one CUDA device share: ferroflash's device, its prepared calls, its queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroflash::backend::cuda::CudaDevice;
use ferroflash::error::PlanError;
use ferroflash::{Device, PlanCache, Queue};

use crate::error::Error;

/// How many calls of each pass stay prepared.
const N_PLANS: usize = 256;

/// The devices that calls have used, by ordinal.
static SESSIONS: Mutex<Option<HashMap<u32, Session>>> = Mutex::new(None);

/// What calls on one device share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Session(Arc<Shared>);

struct Shared {
    device: Device,
    plans: PlanCache,
    queue: Mutex<Queue>,
}

impl Session {
    /// That of the CUDA device with this ordinal, opened when it is first used.
    pub(super) fn on(ordinal: u32) -> Result<Session, Error> {
        let mut sessions = lock(&SESSIONS);
        let sessions = sessions.get_or_insert_default();
        if let Some(session) = sessions.get(&ordinal) {
            return Ok(session.clone());
        }
        let device = Device::cuda(ordinal)?;
        let queue = Queue::new(gpu(&device)?).map_err(ferroflash::Error::from)?;
        let session = Session(Arc::new(Shared {
            device,
            plans: PlanCache::new(N_PLANS),
            queue: Mutex::new(queue),
        }));
        sessions.insert(ordinal, session.clone());
        Ok(session)
    }

    /// The device.
    pub(super) fn device(&self) -> &Device {
        &self.0.device
    }

    /// The device as a CUDA device.
    pub(super) fn gpu(&self) -> Result<&Arc<CudaDevice>, Error> {
        gpu(&self.0.device)
    }

    /// Calls that are prepared.
    pub(super) fn plans(&self) -> &PlanCache {
        &self.0.plans
    }

    /// Enqueues work, and waits until it is done.
    pub(super) fn run(
        &self,
        enqueue: impl FnOnce(&mut Queue) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut queue = lock(&self.0.queue);
        enqueue(&mut queue)?;
        Ok(queue.synchronize().map_err(ferroflash::Error::from)?)
    }
}

fn gpu(device: &Device) -> Result<&Arc<CudaDevice>, Error> {
    let backend = device.backend();
    let not_asynchronous = || ferroflash::Error::from(PlanError::NotAsynchronous { backend });
    Ok(device.as_cuda().ok_or_else(not_asynchronous)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
