//! The forward pass: O = softmax(Q Kᵀ · scale, masked) V, and L = log-sum-exp of the rows.
//!
//! FlashAttention-2 (Dao 2023), Algorithm 1, for one tile of queries:
//!
//! ```text
//! load Q;  O ← 0,  m ← −∞,  l ← 0
//! for each KV block j that the mask leaves, from the last one down:
//!     S ← Q K_jᵀ                           tensor cores
//!     mask S, where the block is an edge
//!     P ← exp(S − m),  l ← l + rowsum P    m, l, O rescaled where a maximum grew
//!     O ← O + P V_j                        tensor cores
//! O ← diag(l)⁻¹ O,  L ← m + log l
//! ```
//!
//! The last blocks come first because the edges of the mask lie there: they are done with while the pipeline fills.

pub mod sm80;
