//! What a layer of a model does before attention: keys and values of the new tokens are appended to its cache, and queries are rotated.

use std::sync::Arc;

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer};
use ferroflash::prepared::{Layouts, PreparedAppend};
use ferroflash::rotary::{Pairs, Rotary};
use ferroflash::tensor::{DeviceSlice, DeviceSliceMut};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Device, Error, Layout, Problem, Queue,
    Tensor, TensorMut,
};
use rand::rngs::SmallRng;

use super::super::subject::normal;
use crate::failure::Failure;
use crate::input::Bytes;

/// A prepared append of as many rows as there are queries, the last ones of the cache; all layers append the same.
pub struct NewRows<T: Bytes> {
    prepared: PreparedAppend,
    problem: AppendProblem,
    k: DeviceBuffer<T>,
    v: DeviceBuffer<T>,
    q: DeviceBuffer<T>,
    cos: DeviceBuffer<f32>,
    sin: DeviceBuffer<f32>,
    /// How many rows the cache of each sequence has without them.
    before: DeviceBuffer<i32>,
    /// How many it has with them, as the append says: attention reads it.
    after: DeviceBuffer<i32>,
}

impl<T: Bytes> NewRows<T> {
    pub fn new(
        device: &Device,
        cuda: &Arc<CudaDevice>,
        queue: &Queue,
        attention: &Problem,
        random: &mut SmallRng,
    ) -> Result<NewRows<T>, Failure> {
        let (n_new, seqlen) = (attention.seqlen_q(), attention.seqlen_k());
        let rotary_dim = attention.head_dim() / 2 * 2;
        let builder = AppendProblem::builder(attention.dtype())
            .batch(attention.batch())
            .seqlen_new(n_new)
            .heads_q(attention.heads_q())
            .heads_k(attention.heads_k())
            .head_dim(attention.head_dim())
            .seqlen_cache(seqlen)
            .rotary(Pairs::Halves, rotary_dim, seqlen);
        let problem = match attention.pages() {
            Some(pages) => builder.pages(pages).build()?,
            None => builder.build()?,
        };
        let layouts = Layouts::contiguous().giving(Argument::SeqUsedOut);
        let table = Rotary::new(rotary_dim)
            .table(seqlen)
            .map_err(ferroflash::Error::from)?;
        let before = vec![seqlen.saturating_sub(n_new) as i32; attention.batch()];
        let mut rows = |shape: [usize; 4]| -> Result<_, Failure> {
            let rows = normal::<T>(shape.iter().product(), random)?;
            Ok(DeviceBuffer::from_slice(cuda, &rows, queue)?)
        };
        Ok(NewRows {
            prepared: Append::new(device, problem)?.prepare(&layouts)?,
            k: rows(problem.shape_new())?,
            v: rows(problem.shape_new())?,
            q: rows(problem.shape_q())?,
            cos: DeviceBuffer::from_slice(cuda, table.cos(), queue)?,
            sin: DeviceBuffer::from_slice(cuda, table.sin(), queue)?,
            before: DeviceBuffer::from_slice(cuda, &before, queue)?,
            after: DeviceBuffer::from_slice(cuda, &before, queue)?,
            problem,
        })
    }

    /// How many rows each sequence has with the new ones.
    pub fn lens(&self) -> DeviceSlice<'_> {
        self.after.slice()
    }

    /// Enqueues the append to a layer's cache; queries are turned into `q`.
    pub fn enqueue(
        &mut self,
        queue: &mut Queue,
        [k, v]: [DeviceSliceMut<'_>; 2],
        q: DeviceSliceMut<'_>,
        table: Option<DeviceSlice<'_>>,
    ) -> Result<(), Error> {
        let of_new = Layout::bshd(self.problem.shape_new())?;
        let of_q = Layout::bshd(self.problem.shape_q())?;
        let of_cache = Layout::bshd(self.problem.shape_cache())?;
        let inputs = AppendInputs::new(
            &Tensor::device(self.k.slice(), of_new)?,
            &Tensor::device(self.v.slice(), of_new)?,
            self.before.slice(),
        )
        .rotary(self.cos.slice(), self.sin.slice())
        .q(&Tensor::device(self.q.slice(), of_q)?);
        let inputs = match table {
            Some(table) => inputs.page_table(table),
            None => inputs,
        };
        let mut outputs = AppendOutputs::new(
            TensorMut::device(k, of_cache)?,
            TensorMut::device(v, of_cache)?,
        )
        .q_out(TensorMut::device(q, of_q)?)
        .seqused_out(self.after.slice_mut());
        self.prepared.append(queue, &inputs, &mut outputs)
    }
}
