//! Lengths of sequences and tables of pages, where the kernels read them.

use candle_core::{DType, Device, Storage, Tensor};
use ferroflash::{Inputs, Vector};

use crate::error::Error;
use crate::rules::{has_contiguous_rows, has_type, same_device};

/// What a pass may be told of its sequences, each as a `T`.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<T> {
    /// Where each sequence's packed queries begin: `[batch + 1]`.
    pub(crate) cu_seqlens_q: Option<T>,
    /// The same of packed keys and values.
    pub(crate) cu_seqlens_k: Option<T>,
    /// How many rows of keys and values each sequence uses: `[batch]`.
    pub(crate) seqused_k: Option<T>,
    /// The pages of each sequence: `[batch, columns]`.
    pub(crate) page_table: Option<T>,
}

/// Numbers of 31 bits.
pub(crate) enum Ints {
    /// On the host.
    Host(Vec<i32>),
    /// On the device of q; contiguous, u32 or i32. What they are is not checked.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "read by the CUDA backend")
    )]
    Device(Tensor),
}

impl<T> Vectors<T> {
    /// Sequences are all of one length.
    pub(crate) const NONE: Vectors<T> = Vectors {
        cu_seqlens_q: None,
        cu_seqlens_k: None,
        seqused_k: None,
        page_table: None,
    };

    /// Each that there is, as something else where it is something else.
    pub(crate) fn each<'a, U>(
        &'a self,
        mut as_other: impl FnMut(&'a T) -> Option<U>,
    ) -> Vectors<U> {
        let mut one = |vector: &'a Option<T>| vector.as_ref().and_then(&mut as_other);
        Vectors {
            cu_seqlens_q: one(&self.cu_seqlens_q),
            cu_seqlens_k: one(&self.cu_seqlens_k),
            seqused_k: one(&self.seqused_k),
            page_table: one(&self.page_table),
        }
    }

    /// Each that there is, as something else; an error is that of the first that is none.
    #[cfg(feature = "cuda")]
    pub(crate) fn map<'a, U, E>(
        &'a self,
        mut as_other: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<Vectors<U>, E> {
        let mut one = |vector: &'a Option<T>| vector.as_ref().map(&mut as_other).transpose();
        Ok(Vectors {
            cu_seqlens_q: one(&self.cu_seqlens_q)?,
            cu_seqlens_k: one(&self.cu_seqlens_k)?,
            seqused_k: one(&self.seqused_k)?,
            page_table: one(&self.page_table)?,
        })
    }
}

impl<'a> Vectors<Vector<'a>> {
    /// The inputs of a pass, with these.
    pub(crate) fn give(self, mut inputs: Inputs<'a>) -> Inputs<'a> {
        inputs.cu_seqlens_q = self.cu_seqlens_q;
        inputs.cu_seqlens_k = self.cu_seqlens_k;
        inputs.seqused_k = self.seqused_k;
        inputs.page_table = self.page_table;
        inputs
    }
}

impl Ints {
    /// The numbers on the host; none where they lie on a device.
    pub(crate) fn host(&self) -> &[i32] {
        match self {
            Ints::Host(numbers) => numbers,
            Ints::Device(_) => &[],
        }
    }

    /// Lengths that are given beside q; those on the host have to fit 31 bits.
    pub(crate) fn lengths(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
    ) -> candle_core::Result<Ints> {
        Ints::of(argument, tensor, q, |index, given| {
            i32::try_from(given).map_err(|_| Error::Length {
                argument,
                index,
                given,
            })
        })
    }

    /// Numbers of pages that are given beside q. Behind a sequence's end they are no pages, whatever they are.
    pub(crate) fn pages(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
    ) -> candle_core::Result<Ints> {
        Ints::of(argument, tensor, q, |_, given| Ok(given.cast_signed()))
    }

    fn of(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
        number: impl Fn(usize, u32) -> Result<i32, Error>,
    ) -> candle_core::Result<Ints> {
        same_device(argument, tensor, q)?;
        has_type(argument, tensor, &[DType::U32, DType::I32])?;
        has_contiguous_rows(argument, tensor)?;
        let tensor = tensor.contiguous()?;
        match q.device() {
            Device::Cpu => Ok(Ints::Host(numbers(&tensor, number)?)),
            _ => Ok(Ints::Device(tensor)),
        }
    }
}

/// The numbers of a contiguous tensor on the host, as ferroflash takes them.
fn numbers(
    tensor: &Tensor,
    number: impl Fn(usize, u32) -> Result<i32, Error>,
) -> candle_core::Result<Vec<i32>> {
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + tensor.elem_count();
    let Storage::Cpu(storage) = &*storage else {
        return Ok(Vec::new());
    };
    if tensor.dtype() == DType::I32 {
        let numbers = storage.as_slice::<i32>()?;
        return Ok(numbers.get(range).unwrap_or_default().to_vec());
    }
    let numbers = storage.as_slice::<u32>()?.get(range).unwrap_or_default();
    let numbers = numbers.iter().enumerate();
    Ok(numbers
        .map(|(index, &given)| number(index, given))
        .collect::<Result<_, _>>()?)
}
