//! The arguments of a call other than q, k and v, each by name: lengths of sequences, page tables, scales, sinks; and the inputs of expressions and dropout.

use candle_core::{DType, Device, Storage, Tensor};
use ferroflash::arguments::Argument;

use crate::error::Error;
use crate::expressions::Edit;
use crate::rules::{has_contiguous_rows, has_type, same_device};

/// The arguments of a call other than q, k and v.
#[derive(Default)]
pub(crate) struct Given {
    /// Contiguous vectors.
    pub(crate) read: Vec<(Argument, Source)>,
    /// For expressions.
    pub(crate) edit: Edit,
    /// Seed and offset of dropout.
    pub(crate) rng: Option<[u64; 2]>,
}

/// The place of a vector's numbers.
#[derive(Clone)]
pub(crate) enum Source {
    /// On the host, checked to be numbers of 31 bits.
    Host(Vec<i32>),
    /// In a contiguous tensor, on the device of q. Lengths there are not checked.
    Tensor(Tensor),
}

impl Given {
    /// With this argument.
    #[must_use]
    pub(crate) fn with(mut self, argument: Argument, source: Source) -> Given {
        self.read.push((argument, source));
        self
    }

    /// The source of this argument, if it is given.
    pub(crate) fn source(&self, argument: Argument) -> Option<Source> {
        let mut read = self.read.iter();
        let (_, source) = read.find(|(given, _)| *given == argument)?;
        Some(source.clone())
    }

    /// With this argument, if there is one.
    #[must_use]
    pub(crate) fn with_optional(self, argument: Argument, source: Option<Source>) -> Given {
        match source {
            Some(source) => self.with(argument, source),
            None => self,
        }
    }
}

impl Source {
    /// The numbers on the host; `None` if they are in a tensor.
    pub(crate) fn host(&self) -> &[i32] {
        match self {
            Source::Host(numbers) => numbers,
            Source::Tensor(_) => &[],
        }
    }

    /// Lengths on the device of q; those on the host have to fit 31 bits.
    pub(crate) fn lengths(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
    ) -> candle_core::Result<Source> {
        Source::of(argument, tensor, q, |index, given| {
            i32::try_from(given).map_err(|_| Error::Length {
                argument,
                index,
                given,
            })
        })
    }

    /// Page numbers on the device of q. Entries beyond a sequence's end are ignored.
    pub(crate) fn pages(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
    ) -> candle_core::Result<Source> {
        Source::of(argument, tensor, q, |_, given| Ok(given.cast_signed()))
    }

    fn of(
        argument: &'static str,
        tensor: &Tensor,
        q: &Tensor,
        number: impl Fn(usize, u32) -> Result<i32, Error>,
    ) -> candle_core::Result<Source> {
        same_device(argument, tensor, q)?;
        has_type(argument, tensor, &[DType::U32, DType::I32])?;
        has_contiguous_rows(argument, tensor)?;
        let tensor = tensor.contiguous()?;
        match q.device() {
            Device::Cpu => Ok(Source::Host(numbers(&tensor, number)?)),
            _ => Ok(Source::Tensor(tensor)),
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
