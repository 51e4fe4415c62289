//! The nodes of candle's graph: a forward pass that candle can differentiate, lse beside it, and the backward pass.
//!
//! [`Attention`] gives o and keeps lse in its [`Call`]. [`Lse`] hands lse out as a node of its own. Both differentiate by
//! [`Backward`], from the gradient of o or from that of lse: candle gives a node the gradient of its one result. [`Carrying`] is attention whose
//! backward pass gives more gradients than candle has room for: see [`crate::carried`].

use std::sync::{Arc, OnceLock};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor};

use crate::call::{AllGradients, Call, Results};
use crate::carried::Passed;
use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::guarded::Guarded;
use crate::layout::{aligned, tensor};
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

/// q, k and v → lse, when [`Attention`] has run.
struct Lse {
    call: Arc<Call>,
    o: Tensor,
}

/// q, k and v → their gradients: that of q is the result, those of k, v and what is carried are kept for [`Backward::run`].
struct Backward<'a> {
    call: &'a Call,
    results: Results<'a>,
    others: OnceLock<Vec<Tensor>>,
}

/// Runs a forward pass: o, shaped as q.
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

/// Runs a forward pass: o, shaped as q, and lse, f32.
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

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "ferroflash"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        Ok((self.0.cpu_forward(inputs)?, q_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        Ok((self.0.cuda_forward(inputs)?, q_layout.shape().clone()))
    }

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

impl CustomOp3 for Carrying {
    fn name(&self) -> &'static str {
        "ferroflash"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        _token: &CpuStorage,
        _token_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let v = Guarded::of("v", &self.v);
        let inputs = [(q, q_layout), (k, k_layout), v.on_host()?];
        Ok((self.call.cpu_forward(inputs)?, q_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        _token: &CudaStorage,
        _token_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let v = Guarded::of("v", &self.v);
        let inputs = [(q, q_layout), (k, k_layout), v.on_device(q)?];
        Ok((self.call.cuda_forward(inputs)?, q_layout.shape().clone()))
    }

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

impl CustomOp3 for Lse {
    fn name(&self) -> &'static str {
        "ferroflash-lse"
    }

    fn cpu_fwd(
        &self,
        _q: &CpuStorage,
        _q_layout: &Layout,
        _k: &CpuStorage,
        _k_layout: &Layout,
        _v: &CpuStorage,
        _v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.call.cpu_lse()
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        _q_layout: &Layout,
        _k: &CudaStorage,
        _k_layout: &Layout,
        _v: &CudaStorage,
        _v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.call.cuda_lse(q)
    }

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
    /// The gradients of q, k, v and what is carried from those of o and lse.
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

    /// Keeps the gradients of k and v, shaped as they, and of what is carried. Gives that of q.
    fn keep_others<S>(
        &self,
        gradients: AllGradients<S>,
        layouts: [&Layout; 2],
        storage: fn(S) -> Storage,
    ) -> S {
        let AllGradients {
            of_inputs: [d_q, d_k, d_v],
            of_carried,
        } = gradients;
        let others = [d_k, d_v].into_iter().zip(layouts);
        let others = others.map(|(gradient, layout)| tensor(storage(gradient), layout.shape()));
        let carried = of_carried.into_iter().zip(&self.call.carried);
        let carried = carried.map(|(gradient, carried)| tensor(storage(gradient), &*carried.shape));
        // Runs once, by `Backward::run`.
        let _ = self.others.set(others.chain(carried).collect());
        d_q
    }
}

impl CustomOp3 for Backward<'_> {
    fn name(&self) -> &'static str {
        "ferroflash-backward"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let gradients = cpu::backward(self.call, inputs, &self.results)?;
        let d_q = self.keep_others(gradients, [k_layout, v_layout], Storage::Cpu);
        Ok((d_q, q_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let gradients = cuda::backward(self.call, inputs, &self.results)?;
        let d_q = self.keep_others(gradients, [k_layout, v_layout], Storage::Cuda);
        Ok((d_q, q_layout.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::request::Request;

    /// candle adds gradients up before it hands them on, so none of its own comes like this.
    #[test]
    fn a_gradient_may_have_any_strides() -> Result<()> {
        let random = |heads| Tensor::rand(-1f32, 1f32, (2, 9, heads, 8), &Device::Cpu);
        let (q, k, v) = (random(4)?, random(2)?, random(2)?);
        let request = Request::new([&q, &k, &v], 0.5, None, Some(0));
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
