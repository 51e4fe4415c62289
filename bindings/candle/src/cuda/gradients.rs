//! Gradients of sinks and of tensors that a score reads, where a call carries some.

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaDevice, CudaStorage, DType, Result};
use ferroflash::arguments::Argument;
use ferroflash::prepared::Layouts;
use ferroflash::{Gradients, VectorMut};
use half::{bf16, f16};

use super::context::CallContext;
use super::raw::{self, Writing};
use super::wrapped;
use crate::call::Call;
use crate::carried::{Carried, Of};

/// Memory of the gradients that a call carries.
pub(super) struct CarriedGradients<'a>(Vec<(&'a Carried, Elements)>);

enum Elements {
    F32(CudaSlice<f32>),
    F16(CudaSlice<f16>),
    Bf16(CudaSlice<bf16>),
}

/// The same while it is written.
pub(super) struct WritingGradients<'a>(Vec<(Of, Writing<'a>)>);

/// The layouts of a prepared call that gives these gradients, and no others.
pub(super) fn asked(call: &Call, layouts: Layouts) -> Layouts {
    let is_of_sinks = |carried: &Carried| carried.of == Of::Sinks;
    let layouts = match call.problem.has_sinks() && !call.carried.iter().any(is_of_sinks) {
        true => layouts.without(Argument::DSinks),
        false => layouts,
    };
    let carried = call.carried.iter();
    carried.fold(layouts, |layouts, carried| match carried.of {
        Of::Sinks => layouts,
        Of::Tensor(_, place) => layouts.giving(Argument::SCORE_TENSOR_GRADIENTS[place]),
    })
}

impl<'a> CarriedGradients<'a> {
    pub(super) fn of(call: &'a Call, candle: &CudaDevice) -> Result<CarriedGradients<'a>> {
        let elements = |carried: &Carried| -> Result<Elements> {
            let shape = &carried.shape;
            Ok(match carried.tensor.dtype() {
                DType::F16 => Elements::F16(raw::elements(candle, shape)?),
                DType::BF16 => Elements::Bf16(raw::elements(candle, shape)?),
                _ => Elements::F32(raw::elements(candle, shape)?),
            })
        };
        let all = call.carried.iter();
        let all = all.map(|carried| Ok((carried, elements(carried)?)));
        Ok(CarriedGradients(all.collect::<Result<_>>()?))
    }

    pub(super) fn writing<'b>(&'b mut self, context: &'b CallContext) -> WritingGradients<'b> {
        let all = self.0.iter_mut().map(|(carried, elements)| {
            let writing = match elements {
                Elements::F32(elements) => Writing::of(elements, context),
                Elements::F16(elements) => Writing::of(elements, context),
                Elements::Bf16(elements) => Writing::of(elements, context),
            };
            // Of no elements there is one all the same.
            let n_elems = carried.shape.iter().product();
            (carried.of, writing.shortened(n_elems))
        });
        WritingGradients(all.collect())
    }

    pub(super) fn wrapped(self, candle: &CudaDevice) -> Vec<CudaStorage> {
        let all = self.0.into_iter().map(|(_, elements)| match elements {
            Elements::F32(elements) => wrapped(elements, candle),
            Elements::F16(elements) => wrapped(elements, candle),
            Elements::Bf16(elements) => wrapped(elements, candle),
        });
        all.collect()
    }
}

impl WritingGradients<'_> {
    /// The gradients with these.
    pub(super) fn give<'b>(&'b mut self, gradients: Gradients<'b>) -> Gradients<'b> {
        let all = self.0.iter_mut();
        all.fold(gradients, |gradients, (of, writing)| {
            let elements = VectorMut::device(writing.slice());
            match of {
                Of::Sinks => gradients.d_sinks(elements),
                Of::Tensor(name, _) => gradients.d_score_tensor(name, elements),
            }
        })
    }
}
