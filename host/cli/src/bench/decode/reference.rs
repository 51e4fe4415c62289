//! What a call of decode should give, as the processor works it out: over the first view of the pool, which the host knows, as it has filled it.

use ferroflash::backend::cuda::DeviceBuffer;
use ferroflash::{Attention, Device, Inputs, Outputs, Tensor, TensorMut};
use float8::F8E4M3;

use super::super::host::Written;
use super::super::subject::zeros;
use super::{Memory, Tensors, open};
use crate::failure::Failure;
use crate::input::Bytes;

/// The most bytes of keys and values that are copied for the processor.
const MOST_BYTES: u64 = 16 << 30;

/// What a pool is filled with: these numbers, again and again.
pub enum Filled<T> {
    Same(Vec<T>),
    E4m3(Vec<F8E4M3>),
}

/// Keys or values of a view.
enum View<T> {
    Same(Vec<T>),
    E4m3(Vec<F8E4M3>),
}

impl<T: Bytes> Filled<T> {
    /// The first view of the pool, of so many elements.
    fn view(&self, n_elems: usize) -> View<T> {
        fn first<T: Copy>(numbers: &[T], n_elems: usize) -> Vec<T> {
            numbers.iter().copied().cycle().take(n_elems).collect()
        }
        match self {
            Filled::Same(numbers) => View::Same(first(numbers, n_elems)),
            Filled::E4m3(numbers) => View::E4m3(first(numbers, n_elems)),
        }
    }
}

impl<T: Bytes> View<T> {
    fn tensor(&self, shape: [usize; 4]) -> Result<Tensor<'_>, Failure> {
        Ok(match self {
            View::Same(numbers) => Tensor::bshd(numbers, shape)?,
            View::E4m3(numbers) => Tensor::bshd(numbers, shape)?,
        })
    }
}

impl<T: Bytes> Tensors<T> {
    /// o of a call on the first view; `None` where appends write to it before, and where it is too large to be copied.
    pub fn reference(&self) -> Result<Option<Written<T>>, Failure> {
        let Memory {
            problem,
            pool,
            table,
            lens,
            scales,
            new_rows,
            q,
            ..
        } = &self.memory;
        let n_elems: usize = problem.shape_k().iter().product();
        let n_bytes = 2 * (n_elems as u64).saturating_mul(problem.dtype_k().size_bytes() as u64);
        if new_rows.is_some() || MOST_BYTES < n_bytes {
            return Ok(None);
        }
        let [k, v] = {
            let pool = open(pool);
            [&pool.filled[0], &pool.filled[1]].map(|filled| filled.view(n_elems))
        };
        let on_host = |buffer: &Option<DeviceBuffer<i32>>| {
            let copied = buffer.as_ref().map(|buffer| buffer.to_vec(&self.queue));
            copied.transpose()
        };
        let (table, lens) = (on_host(table)?, on_host(lens)?);
        let scales = scales.as_ref().map(|scales| scales.to_vec(&self.queue));
        let scales = scales.transpose()?;
        let q = q.to_vec(&self.queue)?;
        let of_q = Tensor::bshd(&q, problem.shape_q())?;
        let of_k = k.tensor(problem.shape_k())?;
        let mut inputs = match problem.values_in_keys() {
            true => Inputs::latent(&of_q, &of_k),
            false => Inputs::new(&of_q, &of_k, &v.tensor(problem.shape_v())?),
        };
        if let Some(table) = &table {
            inputs = inputs.page_table(table);
        }
        if let Some(lens) = &lens {
            inputs = inputs.seqused_k(lens);
        }
        if let Some(scales) = &scales {
            inputs = inputs.k_descale(scales).v_descale(scales);
        }
        let shape = problem.shape_o();
        let mut o = zeros::<T>(shape.iter().product())?;
        let attention = Attention::new(&Device::cpu(), *problem)?;
        let target = TensorMut::bshd(&mut o, shape)?;
        attention.forward(&inputs, &mut Outputs::without_lse(target))?;
        Ok(Some(vec![("o", o)]))
    }
}
