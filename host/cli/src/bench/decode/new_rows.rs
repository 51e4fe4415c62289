//! What a layer of a model does before attention: keys and values of the new tokens are appended to its cache, and queries are rotated.

use ferroflash::arguments::Argument;
use ferroflash::prepared::{Layouts, PreparedAppend};
use ferroflash::rotary::{Pairs, Rotary};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Device, Error, Problem, Queue, TensorMut,
    Vector,
};
use rand::rngs::SmallRng;

use crate::failure::Failure;
use crate::input::Bytes;
use crate::tensors::{Memory, normal};

/// A prepared append of as many rows as there are queries, the last ones of the cache; all layers append the same.
pub struct NewRows<T: Bytes> {
    prepared: PreparedAppend,
    pub problem: AppendProblem,
    k: Memory<T>,
    v: Memory<T>,
    q: Memory<T>,
    cos: Memory<f32>,
    sin: Memory<f32>,
    /// How many rows the cache of each sequence has without them.
    before: Memory<i32>,
    /// How many it has with them, as the append says: attention reads it.
    after: Memory<i32>,
}

impl<T: Bytes> NewRows<T> {
    pub fn new(
        device: &Device,
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
        let table = Rotary::new(rotary_dim).table(seqlen).map_err(Error::from)?;
        let place = Some(queue);
        let before = vec![seqlen.saturating_sub(n_new) as i32; attention.batch()];
        let mut rows =
            |shape: [usize; 4]| Memory::new(normal(shape.iter().product(), random)?, place);
        Ok(NewRows {
            prepared: Append::new(device, problem)?.prepare(&layouts)?,
            k: rows(problem.shape_new())?,
            v: rows(problem.shape_new())?,
            q: rows(problem.shape_q())?,
            cos: Memory::new(table.cos().to_vec(), place)?,
            sin: Memory::new(table.sin().to_vec(), place)?,
            before: Memory::new(before.clone(), place)?,
            after: Memory::new(before, place)?,
            problem,
        })
    }

    /// How many rows each sequence has with the new ones.
    pub fn lens(&self) -> Vector<'_> {
        self.after.vector()
    }

    /// Enqueues the append to a layer's cache; queries are turned into `q`.
    pub fn enqueue(
        &mut self,
        queue: &mut Queue,
        [k, v]: [TensorMut<'_>; 2],
        q: TensorMut<'_>,
        table: Option<Vector<'_>>,
    ) -> Result<(), Error> {
        let mut inputs = AppendInputs::new(
            &self.k.tensor(self.problem.shape_new())?,
            &self.v.tensor(self.problem.shape_new())?,
            self.before.vector(),
        )
        .rotary(self.cos.vector(), self.sin.vector())
        .q(self.q.tensor(self.problem.shape_q())?);
        inputs.page_table = table;
        let mut outputs = AppendOutputs::new(k, v)
            .q_out(q)
            .seqused_out(self.after.vector_mut());
        self.prepared.append(queue, &inputs, &mut outputs)
    }
}
