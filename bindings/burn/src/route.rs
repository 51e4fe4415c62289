//! Refuses what Burn's dispatch would panic at: backends that this build does not support, tensors on different devices.

use burn::backend::{DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, TensorMetadata};
use ferroflash::error::Argument;

use crate::error::Error;

/// The backends that this build supports.
const SERVED: &[&str] = &[
    #[cfg(feature = "flex")]
    "Flex",
    #[cfg(feature = "ndarray")]
    "NdArray",
    #[cfg(feature = "cuda")]
    "Cuda",
];

/// Refuses q, k and v that cannot go into one operation of [`AttentionBackend`](crate::AttentionBackend).
pub(crate) fn check([q, k, v]: [&DispatchTensor; 3]) -> Result<(), Error> {
    let all = [(Argument::Q, q), (Argument::K, k), (Argument::V, v)];
    let mut context = DispatchAutodiffContext::Disabled;
    for (argument, tensor) in all {
        let kind = without_autodiff(&tensor.kind);
        if !is_served(kind) {
            return Err(Error::Backend {
                argument,
                given: format!("{:?}", kind.device()),
                allowed: SERVED,
            });
        }
        let (given, needed) = (kind.device(), without_autodiff(&q.kind).device());
        if given != needed {
            return Err(Error::MixedDevices {
                argument,
                given: format!("{given:?}"),
                needed: format!("{needed:?}"),
            });
        }
        context = merged(argument, context, tensor.autodiff)?;
    }
    Ok(())
}

/// The tensor under autodiff, or the tensor itself.
fn without_autodiff(kind: &DispatchTensorKind) -> &DispatchTensorKind {
    match kind {
        #[cfg(feature = "autodiff")]
        DispatchTensorKind::Autodiff(inner) => without_autodiff(inner),
        other => other,
    }
}

/// Whether the macro of [`AttentionBackend`](crate::AttentionBackend) has an arm for this kind of tensor.
fn is_served(kind: &DispatchTensorKind) -> bool {
    // Which variants there are depends on Burn's features, which other crates of a program may switch on.
    #[allow(unreachable_patterns)]
    match kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(_) => true,
        #[cfg(feature = "cuda")]
        DispatchTensorKind::Cube(tensor) => crate::memory::is_cuda(&tensor.device()),
        _ => false,
    }
}

/// The autodiff context of tensors taken together. Those without one are constants.
fn merged(
    argument: Argument,
    before: DispatchAutodiffContext,
    given: DispatchAutodiffContext,
) -> Result<DispatchAutodiffContext, Error> {
    use DispatchAutodiffContext::{Disabled, Enabled};
    match (before, given) {
        (Disabled, context) | (context, Disabled) => Ok(context),
        (Enabled(needed), Enabled(given)) if needed == given => Ok(before),
        (Enabled(needed), Enabled(given)) => Err(Error::MixedCheckpointing {
            argument,
            given: format!("{given:?}"),
            needed: format!("{needed:?}"),
        }),
    }
}
