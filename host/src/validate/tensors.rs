//! The tensors of a pass without their memory: what is checked.

use crate::tensor::{
    Description, Gradients, LseDescription, LseMut, OutputGradients, Place, Saved, Tensor,
    TensorMut,
};

/// The tensors of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardTensors {
    /// Queries.
    pub q: Description,
    /// Keys.
    pub k: Description,
    /// Values.
    pub v: Description,
    /// Output.
    pub o: Description,
    /// Row statistics.
    pub lse: LseDescription,
}

impl ForwardTensors {
    /// Of a forward pass.
    pub fn of(q: &Tensor, k: &Tensor, v: &Tensor, o: &TensorMut, lse: &LseMut) -> ForwardTensors {
        ForwardTensors {
            q: q.describe(),
            k: k.describe(),
            v: v.describe(),
            o: o.describe(),
            lse: lse.describe(),
        }
    }

    /// Of a backward pass.
    pub fn saved(saved: &Saved) -> ForwardTensors {
        ForwardTensors {
            q: saved.q.describe(),
            k: saved.k.describe(),
            v: saved.v.describe(),
            o: saved.o.describe(),
            lse: saved.lse.describe(),
        }
    }

    /// The same tensors as they will lie in another memory: aligned, with their strides.
    pub fn moved_to(self, place: Place) -> ForwardTensors {
        ForwardTensors {
            q: self.q.moved_to(place),
            k: self.k.moved_to(place),
            v: self.v.moved_to(place),
            o: self.o.moved_to(place),
            lse: self.lse.moved_to(place),
        }
    }
}

/// The tensors that a backward pass has beside those of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientTensors {
    /// Gradient of the output.
    pub d_o: Description,
    /// Gradient of the row statistics, where there is one.
    pub d_lse: Option<LseDescription>,
    /// Gradient of the queries.
    pub d_q: Description,
    /// Gradient of the keys.
    pub d_k: Description,
    /// Gradient of the values.
    pub d_v: Description,
}

impl GradientTensors {
    /// Of a backward pass.
    pub fn of(of_output: &OutputGradients, gradients: &Gradients) -> GradientTensors {
        GradientTensors {
            d_o: of_output.d_o.describe(),
            d_lse: of_output.d_lse.map(|d_lse| d_lse.describe()),
            d_q: gradients.d_q.describe(),
            d_k: gradients.d_k.describe(),
            d_v: gradients.d_v.describe(),
        }
    }

    /// The same tensors as they will lie in another memory: aligned, with their strides.
    pub fn moved_to(self, place: Place) -> GradientTensors {
        GradientTensors {
            d_o: self.d_o.moved_to(place),
            d_lse: self.d_lse.map(|d_lse| d_lse.moved_to(place)),
            d_q: self.d_q.moved_to(place),
            d_k: self.d_k.moved_to(place),
            d_v: self.d_v.moved_to(place),
        }
    }
}
