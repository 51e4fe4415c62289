//! Addresses: candle's memory, stream and context as ferroflash takes them. The only file with `unsafe`.
//!
//! All work of a call is enqueued on candle's stream, on which candle allocates and frees, in this order. So memory that is
//! dropped when a call has been enqueued is freed behind it. Where other streams are in use, cudarc's events keep them apart: a
//! [`Reading`] or [`Writing`] waits for them when it is made, and records one when it is dropped.
#![allow(unsafe_code)]

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::{CudaDevice, Result};
use ferroflash::Error;
use ferroflash::backend::cuda::memory::{slice_from_raw, slice_from_raw_mut};
use ferroflash::backend::cuda::{self, Queue};
use ferroflash::dtype::{Scalar, ScalarType};
use ferroflash::plan::Plan;
use ferroflash::tensor::{DeviceSlice, DeviceSliceMut};

use super::CallContext;

/// The shortest piece of memory that is asked for: the driver gives none of 0 bytes.
const LEAST_BYTES: usize = 256;

/// ferroflash's device in a context of candle's, which is never destroyed: [`super::context`] keeps it.
pub(super) fn device(
    context: &Arc<CudaContext>,
) -> std::result::Result<Arc<cuda::CudaDevice>, Error> {
    // SAFETY: the context is alive, and `super::context` keeps it for the life of the program.
    Ok(unsafe { cuda::CudaDevice::from_context(context.cu_ctx().cast())? })
}

/// Elements of a tensor that a pass writes as a whole.
pub(super) fn elements<T: DeviceRepr>(
    candle: &CudaDevice,
    shape: &[usize],
) -> Result<CudaSlice<T>> {
    let n_elems = shape.iter().product::<usize>().max(1);
    // SAFETY: passes write every element of their outputs, rows of no sequence among them, or give an error, and then the
    // memory is dropped. Of an empty tensor nobody reads the one element.
    unsafe { candle.alloc::<T>(n_elems) }
}

/// Memory for the intermediate results of a plan.
pub(super) fn workspace(candle: &CudaDevice, plan: &Plan) -> Result<CudaSlice<u8>> {
    scratch(candle, plan.workspace.n_bytes())
}

/// Memory that kernels may write, this much or the least that is given.
pub(super) fn scratch(candle: &CudaDevice, n_bytes: u64) -> Result<CudaSlice<u8>> {
    let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
    // SAFETY: kernels read of the workspace what they have written; its counters are cleared by the queue.
    unsafe { candle.alloc::<u8>(n_bytes.max(LEAST_BYTES)) }
}

/// Device memory that a call reads.
pub(super) struct Reading<'a> {
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
    context: &'a CallContext,
    _order: SyncOnDrop<'a>,
}

/// Device memory that a call writes.
pub(super) struct Writing<'a> {
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
    context: &'a CallContext,
    _order: SyncOnDrop<'a>,
}

/// A queue on candle's stream, in a workspace of candle's memory.
pub(super) struct Lent<'a> {
    queue: Queue,
    _order: SyncOnDrop<'a>,
}

impl<'a> Reading<'a> {
    /// The elements from this one on, as numbers of this type, which has the size of `T`.
    pub(super) fn of<T>(
        elements: &'a CudaSlice<T>,
        first: usize,
        dtype: ScalarType,
        context: &'a CallContext,
    ) -> Reading<'a> {
        let (address, order) = elements.device_ptr(context.stream());
        // An empty tensor may begin behind the end.
        let first = first.min(elements.len());
        Reading {
            address: address + (first * size_of::<T>()) as u64,
            n_elems: (elements.len() - first) as u64,
            dtype,
            context,
            _order: order,
        }
    }

    /// The first elements only.
    pub(super) fn shortened(self, n_elems: usize) -> Reading<'a> {
        Reading {
            n_elems: self.n_elems.min(n_elems as u64),
            ..self
        }
    }

    pub(super) fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: the elements lie in a slice of candle's, borrowed for as long as this; it is freed behind the call, and what
        // writes it is enqueued behind the call, too.
        unsafe { slice_from_raw(self.context.cuda(), self.address, self.n_elems, self.dtype) }
    }
}

impl<'a> Writing<'a> {
    /// All elements.
    pub(super) fn of<T: Scalar>(
        elements: &'a mut CudaSlice<T>,
        context: &'a CallContext,
    ) -> Writing<'a> {
        Writing::from(elements, 0, T::TYPE, context)
    }

    /// The elements from this one on, as numbers of this type, which has the size of `T`.
    pub(super) fn from<T>(
        elements: &'a mut CudaSlice<T>,
        first: usize,
        dtype: ScalarType,
        context: &'a CallContext,
    ) -> Writing<'a> {
        let n_elems = elements.len();
        let (address, order) = elements.device_ptr_mut(context.stream());
        // An empty tensor may begin behind the end.
        let first = first.min(n_elems);
        Writing {
            address: address + (first * size_of::<T>()) as u64,
            n_elems: (n_elems - first) as u64,
            dtype,
            context,
            _order: order,
        }
    }

    /// The first elements only.
    pub(super) fn shortened(self, n_elems: usize) -> Writing<'a> {
        Writing {
            n_elems: self.n_elems.min(n_elems as u64),
            ..self
        }
    }

    pub(super) fn slice(&mut self) -> DeviceSliceMut<'_> {
        // SAFETY: as of a reading; the slice is borrowed exclusively.
        unsafe { slice_from_raw_mut(self.context.cuda(), self.address, self.n_elems, self.dtype) }
    }
}

impl<'a> Lent<'a> {
    pub(super) fn new(
        workspace: &'a mut CudaSlice<u8>,
        context: &'a CallContext,
    ) -> std::result::Result<Lent<'a>, crate::Error> {
        let n_bytes = workspace.len() as u64;
        let stream = context.stream().cu_stream().cast();
        let (address, order) = workspace.device_ptr_mut(context.stream());
        // SAFETY: `context` holds the stream, and longer than the queue lives. The workspace is borrowed exclusively until then, and is
        // freed behind the calls.
        let queue = unsafe { Queue::with_workspace(context.cuda(), stream, address, n_bytes)? };
        Ok(Lent {
            queue,
            _order: order,
        })
    }

    pub(super) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }
}
