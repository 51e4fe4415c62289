//! A tensor of candle's graph, held while a pass reads its memory.

use candle_core::{Layout, Storage, StorageRef, Tensor};
use ferroflash::{ReadTensor, Vector};

use crate::options::Beside;

/// A tensor whose memory nobody takes away or writes for as long as this.
pub(crate) struct Guarded<'a> {
    /// As which argument it is read.
    pub(crate) argument: &'static str,
    /// The tensor.
    pub(crate) tensor: &'a Tensor,
    /// Shape, strides, first element.
    pub(crate) layout: &'a Layout,
    storage: StorageRef<'a>,
}

impl<'a> Guarded<'a> {
    pub(crate) fn of(argument: &'static str, tensor: &'a Tensor) -> Guarded<'a> {
        let (storage, layout) = tensor.storage_and_layout();
        Guarded {
            argument,
            tensor,
            layout,
            storage,
        }
    }

    /// Its memory, on whichever device.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The tensor, whose elements from the first one on these are, as an expression reads it.
    pub(crate) fn read_tensor<'b>(&self, elements: Vector<'b>) -> ReadTensor<'b> {
        let strides = self.layout.stride().iter();
        // No tensor in memory has strides that do not fit.
        let strides = strides.map(|&stride| i64::try_from(stride).unwrap_or(i64::MAX));
        let strides = strides.collect::<Vec<_>>();
        ReadTensor::new(elements, self.layout.dims()).strides(strides)
    }
}

/// Sinks, and tensors that expressions read, held: of each memory once, as two names may be given one tensor.
pub(crate) struct GuardedBeside<'a> {
    guards: Vec<Guarded<'a>>,
    /// Of each name, which of the guards.
    named: Vec<(&'static str, usize)>,
    /// Which of the guards.
    sinks: Option<usize>,
}

impl<'a> GuardedBeside<'a> {
    pub(crate) fn of(beside: &'a Beside) -> GuardedBeside<'a> {
        let mut guards = Vec::<Guarded>::new();
        let mut index = |name, tensor: &'a Tensor| {
            let known = guards
                .iter()
                .position(|guard| guard.tensor.id() == tensor.id());
            known.unwrap_or_else(|| {
                guards.push(Guarded::of(name, tensor));
                guards.len() - 1
            })
        };
        let tensors = beside.edit.tensors();
        let named = tensors.map(|(name, tensor)| (name, index(name, tensor)));
        let named = named.collect();
        let sinks = beside.sinks.as_ref();
        let sinks = sinks.map(|sinks| index("sinks", sinks));
        GuardedBeside {
            guards,
            named,
            sinks,
        }
    }

    /// Each tensor that an expression reads, with its name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Guarded<'a>)> {
        self.named
            .iter()
            .map(|&(name, index)| (name, &self.guards[index]))
    }

    /// The sinks.
    pub(crate) fn sinks(&self) -> Option<&Guarded<'a>> {
        self.sinks.map(|index| &self.guards[index])
    }
}
