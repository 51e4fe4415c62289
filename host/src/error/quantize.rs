//! What cannot be quantised.

use ferroflash_kernels::params::Argument;

use crate::dtype::ScalarType;
use crate::terms::Location;

/// A tensor, a scale or a history is not what [`crate::quantize`] takes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// NaN or an infinity, given or computed: of it no scale follows.
    #[error(
        "{argument} is {given} at batch entry {}, row {}, head {}, column {}; allowed: finite numbers", .at[0], .at[1], .at[2], .at[3]
    )]
    NotFinite {
        /// Of which tensor.
        argument: Argument,
        /// The number.
        given: f32,
        /// Its batch entry, row, head and column.
        at: [usize; 4],
    },
    /// The elements are no floating-point numbers of 16 or 32 bits.
    #[error("{argument} is {given}; allowed: bf16, f16 and f32")]
    Dtype {
        /// Of which tensor.
        argument: Argument,
        /// Its type.
        given: ScalarType,
    },
    /// The tensor is in a GPU's memory.
    #[error("{argument} is in {given}; allowed: host memory")]
    Location {
        /// Which tensor.
        argument: Argument,
        /// Where it is.
        given: Location,
    },
    /// Query heads that do not share the heads of keys evenly.
    #[error("{argument} has {given} heads; allowed: multiples of heads_k, {heads_k}")]
    Heads {
        /// Of which tensor.
        argument: Argument,
        /// Its heads.
        given: usize,
        /// Heads of keys.
        heads_k: usize,
    },
    /// A copy in f32 does not fit.
    #[error("there is no memory for {n_elems} elements of {argument} in f32")]
    Memory {
        /// Of which tensor.
        argument: Argument,
        /// Elements; saturated.
        n_elems: usize,
    },
    /// A transform that would change o.
    #[error("`{what}` takes {allowed}; given: {argument}")]
    NotTaken {
        /// The transform.
        what: &'static str,
        /// What it takes.
        allowed: &'static str,
        /// Which tensor it was to transform.
        argument: Argument,
    },
    /// Neither a scale for the tensor, nor one for each batch entry and head of keys, nor one for each of their blocks.
    #[error(
        "descale of {argument} has {given} elements; allowed: 1, or {per_head}, one for each batch entry and head of keys, or {per_block}, one for each of their blocks"
    )]
    DescaleCount {
        /// Of which tensor.
        argument: Argument,
        /// The scales given.
        given: usize,
        /// batch · heads_k.
        per_head: usize,
        /// batch · heads_k · blocks.
        per_block: usize,
    },
    /// A scale that nothing can be divided by.
    #[error("descale of {argument} is {given}; allowed: finite numbers above 0")]
    Descale {
        /// Of which tensor.
        argument: Argument,
        /// The scale.
        given: f32,
    },
    /// Queries that do not belong to the keys whose mean was subtracted.
    #[error(
        "q has batch, heads_k and head_dim {given:?}; needed: {needed:?}, those of the mean of k"
    )]
    MeanShape {
        /// Of the queries.
        given: [usize; 3],
        /// Of the mean.
        needed: [usize; 3],
    },
    /// lse of another size.
    #[error("lse has {given} elements; needed: {needed}, batch · heads_q · seqlen_q")]
    LseCount {
        /// Elements given.
        given: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A history that remembers no step.
    #[error("the amax history has no step; allowed: 1 and more")]
    NoHistory,
    /// Not an amax for each scale.
    #[error("there are {given} values of amax; needed: {needed}, one for each scale")]
    AmaxCount {
        /// Values given.
        given: usize,
        /// The scales.
        needed: usize,
    },
}
