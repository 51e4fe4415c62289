//! Attention by its definition: the scores and the weights are in global memory. The baseline that FlashAttention
//! replaces, and the way to get the weights.
//!
//! ```text
//! forward     S = Q Kᵀ · scale, masked          P = softmax(S), L             O = P V
//! backward    S, P again                        Δ = rowsum(dO ∘ O) − dL       dV = Pᵀ dO
//!             dP = dO Vᵀ, over S                dS = P ∘ (dP − Δ), over P     dQ = dS K · scale    dK = dSᵀ Q · scale
//! ```
//!
//! dL is the gradient of L, where there is one. Each formula is one kernel for any head_dim that is a multiple of 8, and
//! any mask, block masks included. Six of them are one tiled [`product`] with other operands; three go through [`rows`].
//!
//! Grids cover the longest sequences that there may be. If sequences have different lengths, blocks beyond a sequence's end
//! do nothing but clear its weights: see [`sequence`].

pub mod forward;

pub mod backward;

pub mod product;

pub mod rows;

pub mod sequence;

pub mod weights;
