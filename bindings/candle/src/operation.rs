//! The nodes of candle's graph: a forward pass that candle can differentiate, lse, and the backward pass.
//!
//! [`Attention`] returns o and keeps lse in its [`Call`]. [`Lse`] is a separate node that returns lse. Both differentiate by [`Backward`], from the
//! gradient of o or from that of lse: candle gives a node the gradient of its one result. [`Carrying`] is attention whose backward pass computes
//! more gradients than candle's operations can return: see [`crate::carried`]. [`Rounded`] computes with other tensors than candle differentiates by.

use std::sync::{Arc, OnceLock};

use candle_core::{CustomOp3, Result, Shape, Tensor};

use crate::call::{AllGradients, Call, Results};
use crate::carried::Passed;
use crate::error::elsewhere;
use crate::layout::{aligned, tensor};
use crate::memory::{Place, Stored};
use crate::passes;
use crate::request::Checked;

/// The gradients of q, k and v.
type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// q, k and v → o.
struct Attention(Arc<Call>);

/// q, k and a token → o.
struct Carrying {
    call: Arc<Call>,
    v: Tensor,
    passed: Arc<Passed>,
}

/// q, k and v → o, of what they have been rounded to.
struct Rounded {
    call: Call,
    rounded: [Tensor; 3],
}

/// q, k and v → lse, after [`Attention`] has run.
struct Lse {
    call: Arc<Call>,
    o: Tensor,
}

/// q, k and v → their gradients: that of q is the result, those of k, v and the carried tensors are kept for [`Backward::run`].
struct Backward<'a> {
    call: &'a Call,
    results: Results<'a>,
    others: OnceLock<Vec<Tensor>>,
}

/// Runs a forward pass: o, in the shape of q.
pub(crate) fn attention(checked: Checked) -> Result<Tensor> {
    let ([q, k, v], call) = (checked.inputs, Arc::new(checked.call));
    let carried = call.carried.iter().map(|carried| &carried.tensor);
    let chain: Vec<&Tensor> = carried.chain([&v]).collect();
    if chain.len() == 1 {
        return q.apply_op3(&k, &v, Attention(call));
    }
    let (passed, token) = Passed::chain(&chain, v.device())?;
    let v = v.clone();
    q.apply_op3(&k, &token, Carrying { call, v, passed })
}

/// Runs a forward pass on what q, k and v have been rounded to: o, in the shape of q. Gradients go to q, k and v.
pub(crate) fn rounded_attention(
    [q, k, v]: [Tensor; 3],
    rounded: [Tensor; 3],
    call: Call,
) -> Result<Tensor> {
    q.apply_op3(&k, &v, Rounded { call, rounded })
}

/// Runs a forward pass: o, in the shape of q, and lse, f32.
pub(crate) fn attention_with_lse(checked: Checked) -> Result<(Tensor, Tensor)> {
    let [q, k, v] = &checked.inputs;
    let call = Arc::new(checked.call);
    let o = q.apply_op3(k, v, Attention(Arc::clone(&call)))?;
    let lse = Lse {
        call,
        o: o.detach(),
    };
    let lse = q.apply_op3(k, v, lse)?;
    Ok((o, lse))
}

/// An operation of candle on three tensors, computed by one method for every place: the CPU, and CUDA.
macro_rules! on_three {
    ($method:ident) => {
        fn cpu_fwd(
            &self,
            a: &candle_core::CpuStorage,
            of_a: &candle_core::Layout,
            b: &candle_core::CpuStorage,
            of_b: &candle_core::Layout,
            c: &candle_core::CpuStorage,
            of_c: &candle_core::Layout,
        ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
            self.$method::<$crate::memory::Host>([(a, of_a), (b, of_b), (c, of_c)])
        }

        #[cfg(feature = "cuda")]
        fn cuda_fwd(
            &self,
            a: &candle_core::CudaStorage,
            of_a: &candle_core::Layout,
            b: &candle_core::CudaStorage,
            of_b: &candle_core::Layout,
            c: &candle_core::CudaStorage,
            of_c: &candle_core::Layout,
        ) -> candle_core::Result<(candle_core::CudaStorage, candle_core::Shape)> {
            self.$method::<$crate::memory::Cuda>([(a, of_a), (b, of_b), (c, of_c)])
        }
    };
}
pub(crate) use on_three;

/// The same for two tensors.
macro_rules! on_two {
    ($method:ident) => {
        fn cpu_fwd(
            &self,
            a: &candle_core::CpuStorage,
            of_a: &candle_core::Layout,
            b: &candle_core::CpuStorage,
            of_b: &candle_core::Layout,
        ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
            self.$method::<$crate::memory::Host>([(a, of_a), (b, of_b)])
        }

        #[cfg(feature = "cuda")]
        fn cuda_fwd(
            &self,
            a: &candle_core::CudaStorage,
            of_a: &candle_core::Layout,
            b: &candle_core::CudaStorage,
            of_b: &candle_core::Layout,
        ) -> candle_core::Result<(candle_core::CudaStorage, candle_core::Shape)> {
            self.$method::<$crate::memory::Cuda>([(a, of_a), (b, of_b)])
        }
    };
}
pub(crate) use on_two;

impl Attention {
    fn forward<P: Place>(&self, inputs: [Stored<P>; 3]) -> Result<(P::Storage, Shape)> {
        let o = self.0.forward::<P>(inputs)?;
        Ok((o, inputs[0].1.shape().clone()))
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "ferroflash"
    }

    on_three!(forward);

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<Gradients> {
        let (gradients, _) = Backward::run(&self.0, [q, k, v], o, d_o, None)?;
        Ok(gradients)
    }
}

impl Carrying {
    fn forward<P: Place>(&self, [q, k, _token]: [Stored<P>; 3]) -> Result<(P::Storage, Shape)> {
        let (v, of_v) = self.v.storage_and_layout();
        match P::find(&v) {
            Some(v) => {
                let o = self.call.forward::<P>([q, k, (v, of_v)])?;
                Ok((o, q.1.shape().clone()))
            }
            None => Err(elsewhere("v", &self.v, P::of(q.0)?.location()).into()),
        }
    }
}

impl CustomOp3 for Carrying {
    fn name(&self) -> &'static str {
        "ferroflash"
    }

    on_three!(forward);

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        token: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<Gradients> {
        let inputs = [q, k, &self.v];
        let ((d_q, d_k, d_v), carried) = Backward::run(&self.call, inputs, o, d_o, None)?;
        let carried = carried.into_iter().map(Some);
        self.passed.put(carried.chain([d_v]).collect());
        Ok((d_q, d_k, Some(token.zeros_like()?)))
    }
}

impl Rounded {
    fn forward<P: Place>(&self, [q, ..]: [Stored<P>; 3]) -> Result<(P::Storage, Shape)> {
        let held = self.rounded.each_ref().map(Tensor::storage_and_layout);
        let place = P::of(q.0)?.location();
        let stored = |at: usize, name| match P::find(&held[at].0) {
            Some(storage) => Ok((storage, held[at].1)),
            None => Err(elsewhere(name, &self.rounded[at], place)),
        };
        let inputs = [stored(0, "q")?, stored(1, "k")?, stored(2, "v")?];
        Ok((self.call.forward::<P>(inputs)?, q.1.shape().clone()))
    }
}

impl CustomOp3 for Rounded {
    fn name(&self) -> &'static str {
        "ferroflash-fp8"
    }

    on_three!(forward);

    fn bwd(
        &self,
        _q: &Tensor,
        _k: &Tensor,
        _v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<Gradients> {
        let (gradients, _) = Backward::run(&self.call, self.rounded.each_ref(), o, d_o, None)?;
        Ok(gradients)
    }
}

impl Lse {
    fn forward<P: Place>(&self, [q, _, _]: [Stored<P>; 3]) -> Result<(P::Storage, Shape)> {
        self.call.lse_of::<P>(q.0)
    }
}

impl CustomOp3 for Lse {
    fn name(&self) -> &'static str {
        "ferroflash-lse"
    }

    on_three!(forward);

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _lse: &Tensor,
        d_lse: &Tensor,
    ) -> Result<Gradients> {
        let d_o = self.o.zeros_like()?;
        let inputs = [q, k, v];
        let (gradients, _) = Backward::run(&self.call, inputs, &self.o, &d_o, Some(d_lse))?;
        Ok(gradients)
    }
}

impl Backward<'_> {
    /// The gradients of q, k, v and the carried tensors from those of o and lse.
    fn run(
        call: &Call,
        [q, k, v]: [&Tensor; 3],
        o: &Tensor,
        d_o: &Tensor,
        d_lse: Option<&Tensor>,
    ) -> Result<(Gradients, Vec<Tensor>)> {
        call.refuse_gradients()?;
        // Gradients come as other operations leave them: transposed, or with one entry repeated.
        let d_o = aligned(&d_o.contiguous()?)?;
        let d_lse = d_lse.map(Tensor::contiguous).transpose()?;
        let backward = Backward {
            call,
            results: Results {
                o,
                lse: call.lse()?,
                d_o: &d_o,
                d_lse: d_lse.as_ref(),
            },
            others: OnceLock::new(),
        };
        let d_q = q.apply_op3_no_bwd(k, v, &backward)?;
        let mut others = backward.others.into_inner().unwrap_or_default().into_iter();
        let gradients = (Some(d_q), others.next(), others.next());
        let carried = others.zip(&call.carried);
        let carried = carried.map(|(gradient, carried)| carried.whole(gradient));
        Ok((gradients, carried.collect::<Result<_>>()?))
    }

    /// Returns the gradient of q. Those of k and v, in their shapes, and of the carried tensors are kept.
    fn gradients<P: Place>(&self, inputs: [Stored<P>; 3]) -> Result<(P::Storage, Shape)> {
        let [of_q, of_k, of_v] = inputs.map(|(_, layout)| layout.shape());
        let AllGradients {
            of_inputs: [d_q, d_k, d_v],
            of_carried,
        } = passes::backward::<P>(self.call, inputs, &self.results)?;
        let others = [(d_k, of_k), (d_v, of_v)].into_iter();
        let others = others.map(|(gradient, shape)| tensor(P::wrap(gradient), shape));
        let carried = of_carried.into_iter().zip(&self.call.carried);
        let carried = carried.map(|(gradient, carried)| tensor(P::wrap(gradient), &*carried.shape));
        // Runs once, by `Backward::run`.
        let _ = self.others.set(others.chain(carried).collect());
        Ok((d_q, of_q.clone()))
    }
}

impl CustomOp3 for Backward<'_> {
    fn name(&self) -> &'static str {
        "ferroflash-backward"
    }

    on_three!(gradients);
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::request::Request;

    /// candle sums gradients before it passes them on, so this cannot come from candle.
    #[test]
    fn a_gradient_may_have_any_strides() -> Result<()> {
        let random = |heads| Tensor::rand(-1f32, 1f32, (2, 9, heads, 8), &Device::Cpu);
        let (q, k, v) = (random(4)?, random(2)?, random(2)?);
        let request = Request::new([&q, &k, &v], 0.5).window(None, Some(0));
        let attention = Attention(Arc::new(request.dense()?.call));
        let o = q.apply_op3_no_bwd(&k, &v, &attention)?;

        let repeated = random(4)?.narrow(1, 0, 1)?.broadcast_as(o.shape())?;
        let scalar = Tensor::new(0.5f32, &Device::Cpu)?.broadcast_as(o.shape())?;
        let transposed = Tensor::rand(-1f32, 1f32, (8, 4, 9, 2), &Device::Cpu)?;
        let transposed = transposed.permute((3, 2, 1, 0))?;
        for d_o in [repeated, scalar, transposed] {
            assert!(!d_o.is_contiguous());
            let (d_q, d_k, d_v) = attention.bwd(&q, &k, &v, &o, &d_o)?;
            let copied = d_o.force_contiguous()?;
            let (e_q, e_k, e_v) = attention.bwd(&q, &k, &v, &o, &copied)?;
            for (found, expected) in [(d_q, e_q), (d_k, e_k), (d_v, e_v)] {
                let flat = |x: Option<Tensor>| x.map(|x| x.flatten_all()?.to_vec1::<f32>());
                assert_eq!(flat(found).transpose()?, flat(expected).transpose()?);
            }
        }
        Ok(())
    }
}
