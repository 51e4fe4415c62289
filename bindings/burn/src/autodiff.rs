//! Attention under autodiff: the forward pass records a node, the node runs ferroflash's backward pass.
//!
//! Burn's autodiff gives every recorded operation one output. So o alone is one node over q, k and v. o and lse are two nodes: that of lse over q, k
//! and v, and that of o over lse. In the backward pass Burn visits the node of o first. It passes the gradient of o to the node of lse, which then
//! runs one backward pass for both.
//!
//! ```text
//!   q ─┐                     q ─┐
//!   k ─┼─ [Output] ─ o       k ─┼─ [Joint] ─ lse ─ [HandOver] ─ o
//!   v ─┘                     v ─┘
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Registered;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};

use crate::backend::{
    AttentionBackend, FlashBackend, Forward, Gradients, Outcome, OutputGradients, Saved,
};
use crate::error::Error;
use crate::options::Options;

impl<B: FlashBackend, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    fn flash_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        options: Options,
    ) -> Outcome<Self> {
        let inputs = [&q, &k, &v];
        let forward = match forward::<B, C>(inputs, &options) {
            Ok(forward) => forward,
            Err(error) => return Outcome::Refused { error },
        };
        let lse = Self::from_inner(forward.lse.clone());
        let node = Output
            .prepare::<C>(inputs.map(FloatTensor::<Self>::node))
            .compute_bound()
            .stateful();
        let o = match node {
            OpsKind::Tracked(mut node) => {
                let o = forward.o.clone();
                let [q, k, v] = inputs.map(|input| node.checkpoint(input));
                let kept = Kept {
                    inputs: [q, k, v],
                    forward,
                    options,
                };
                node.finish(kept, o)
            }
            OpsKind::UnTracked(node) => node.finish(forward.o),
        };
        Outcome::Computed { o, lse }
    }

    fn flash_attention_with_lse(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        options: Options,
    ) -> Outcome<Self> {
        let inputs = [&q, &k, &v];
        let forward = match forward::<B, C>(inputs, &options) {
            Ok(forward) => forward,
            Err(error) => return Outcome::Refused { error },
        };
        let (o, lse) = (forward.o.clone(), forward.lse.clone());
        let handed_over = Slot::default();
        let joint = Joint
            .prepare::<C>(inputs.map(FloatTensor::<Self>::node))
            .compute_bound()
            .stateful();
        let lse = match joint {
            OpsKind::Tracked(mut node) => {
                let [q, k, v] = inputs.map(|input| node.checkpoint(input));
                let kept = Kept {
                    inputs: [q, k, v],
                    forward,
                    options,
                };
                node.finish((kept, handed_over.clone()), lse)
            }
            OpsKind::UnTracked(node) => node.finish(lse),
        };
        let hand_over = HandOver
            .prepare::<C>([lse.node()])
            .compute_bound()
            .stateful();
        let o = match hand_over {
            OpsKind::Tracked(node) => node.finish((lse.primitive().clone(), handed_over), o),
            OpsKind::UnTracked(node) => node.finish(o),
        };
        Outcome::Computed { o, lse }
    }
}

/// The forward pass on the inner backend. If an input requires gradients, it first checks that the backward pass can run.
fn forward<B: FlashBackend, C: CheckpointStrategy>(
    [q, k, v]: [&FloatTensor<Autodiff<B, C>>; 3],
    options: &Options,
) -> Result<Forward<B>, Error> {
    let is_tracked = [q, k, v].iter().any(|input| input.is_tracked());
    let (q, k, v) = (q.primitive(), k.primitive(), v.primitive());
    if is_tracked {
        B::check_flash_backward(q, k, v, options)?;
    }
    B::flash_forward(q, k, v, options)
}

/// What a node keeps from the forward pass. Burn's checkpointing keeps q, k and v, or recomputes them.
#[derive(Clone, Debug)]
struct Kept<B: FlashBackend> {
    inputs: [NodeId; 3],
    forward: Forward<B>,
    options: Options,
}

impl<B: FlashBackend> Kept<B> {
    /// Gradients of q, k and v, in this order.
    ///
    /// # Panics
    ///
    /// If the device fails: Burn's backward pass cannot return an error.
    fn backward(
        self,
        of_output: &OutputGradients<B>,
        checkpointer: &mut Checkpointer,
    ) -> [FloatTensor<B>; 3] {
        let [q, k, v] = self.inputs.map(|id| checkpointer.retrieve_node_output(id));
        let saved = Saved {
            q,
            k,
            v,
            forward: self.forward,
        };
        match B::flash_backward(&saved, of_output, &self.options) {
            Ok(Gradients { d_q, d_k, d_v }) => [d_q, d_k, d_v],
            Err(error) => panic!("backward pass of flash_attention: {error}"),
        }
    }
}

/// The node of o if lse is a constant.
#[derive(Debug)]
struct Output;

impl<B: FlashBackend> Backward<B, 3> for Output {
    type State = Kept<B>;

    fn backward(
        self,
        ops: Ops<Kept<B>, 3>,
        registered: &mut Registered,
        checkpointer: &mut Checkpointer,
    ) {
        let of_output = OutputGradients {
            d_o: registered.consume::<B>(&ops.node),
            d_lse: None,
        };
        let gradients = ops.state.backward(&of_output, checkpointer);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                registered.register::<B>(node.id, gradient);
            }
        }
    }
}

/// The place in which the node of o leaves its gradient for the node of lse.
#[derive(Debug)]
struct Slot<B: FlashBackend>(Arc<Mutex<Option<FloatTensor<B>>>>);

impl<B: FlashBackend> Clone for Slot<B> {
    fn clone(&self) -> Slot<B> {
        Slot(Arc::clone(&self.0))
    }
}

impl<B: FlashBackend> Default for Slot<B> {
    fn default() -> Slot<B> {
        Slot(Arc::default())
    }
}

impl<B: FlashBackend> Slot<B> {
    fn put(&self, gradient: FloatTensor<B>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<FloatTensor<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The node of lse if o is computed over it: the backward pass of both.
#[derive(Debug)]
struct Joint;

impl<B: FlashBackend> Backward<B, 3> for Joint {
    type State = (Kept<B>, Slot<B>);

    fn backward(
        self,
        ops: Ops<(Kept<B>, Slot<B>), 3>,
        registered: &mut Registered,
        checkpointer: &mut Checkpointer,
    ) {
        let (kept, handed_over) = ops.state;
        let d_lse = registered.consume::<B>(&ops.node);
        // The node of o is not visited where the loss does not depend on o.
        let d_o = handed_over
            .take()
            .unwrap_or_else(|| zeros_like::<B>(&kept.forward.o));
        let of_output = OutputGradients {
            d_o,
            d_lse: Some(d_lse),
        };
        let gradients = kept.backward(&of_output, checkpointer);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                registered.register::<B>(node.id, gradient);
            }
        }
    }
}

/// The node of o over that of lse.
#[derive(Debug)]
struct HandOver;

impl<B: FlashBackend> Backward<B, 1> for HandOver {
    type State = (FloatTensor<B>, Slot<B>);

    fn backward(
        self,
        ops: Ops<(FloatTensor<B>, Slot<B>), 1>,
        registered: &mut Registered,
        _checkpointer: &mut Checkpointer,
    ) {
        let (lse, handed_over) = ops.state;
        handed_over.put(registered.consume::<B>(&ops.node));
        let [joint] = ops.parents;
        if let Some(joint) = joint {
            // The node of lse expects a gradient of lse, whether or not the loss depends on it.
            registered.register::<B>(joint.id, zeros_like::<B>(&lse));
        }
    }
}

/// Zeros of the shape and type of a tensor, on its device.
fn zeros_like<B: FlashBackend>(tensor: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(tensor.shape(), &tensor.device(), tensor.dtype().into())
}
