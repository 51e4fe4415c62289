//! What is wrong with a problem, its tensors, or a call's arguments.

use std::ops::Range;

use ferroflash_kernels::params::Argument;

use super::ScoreError;
use crate::dtype::{Dtype, ScalarType};
use crate::terms::{Layout, Location, Precision};

/// The problem or a tensor is not what attention takes.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A size that has no default was not given to the builder.
    #[error("{field} was not set; the builder has no default for it")]
    Unset {
        /// Which.
        field: &'static str,
    },
    /// head_dim is 0 or more than any backend takes.
    #[error("head_dim is {given}; allowed: {min} to {max}")]
    HeadDimOutOfRange {
        /// The head_dim given.
        given: usize,
        /// Least.
        min: usize,
        /// Most.
        max: usize,
    },
    /// head_dim_v is 0 or more than any backend takes or, where values are columns of the keys, more than head_dim.
    #[error("head_dim_v is {given}; allowed: {min} to {max}")]
    HeadDimVOutOfRange {
        /// The head_dim_v given.
        given: usize,
        /// Least.
        min: usize,
        /// Most.
        max: usize,
    },
    /// heads_q is not a multiple of heads_k, or only one of them is 0.
    #[error(
        "heads_q is {heads_q}, heads_k is {heads_k}; heads_q must be a positive multiple of heads_k, or both 0"
    )]
    HeadsNotMultiple {
        /// Query heads.
        heads_q: usize,
        /// Key and value heads.
        heads_k: usize,
    },
    /// softmax_scale is NaN, infinite, zero or negative.
    #[error("softmax_scale is {given}; it must be greater than 0 and, times log₂ e, finite")]
    SoftmaxScale {
        /// The scale given.
        given: f32,
    },
    /// The probability of dropout is NaN, negative, or 1 or more.
    #[error("dropout is {given}; it must be at least 0 and less than 1")]
    Dropout {
        /// The probability given.
        given: f32,
    },
    /// Dropout, and what it does not go together with.
    #[error("dropout and {what} do not go together; leave out one of them")]
    DropoutWith {
        /// What.
        what: &'static str,
    },
    /// Another precision than that of tensor cores, which multiply the type exactly.
    #[error(
        "precision is {given}; allowed for {dtype}, whose products are exact: {}",
        Precision::Tensor
    )]
    Precision {
        /// The precision given.
        given: Precision,
        /// The type of the problem.
        dtype: Dtype,
    },
    /// A size does not fit the address space.
    #[error("{what} does not fit the address space; take smaller sizes")]
    SizeOverflow {
        /// Which size.
        what: &'static str,
    },
    /// A contiguous tensor over a slice of another length.
    #[error("a contiguous tensor {shape:?} has {needed} elements; the slice has {given}")]
    LengthMismatch {
        /// Shape asked for, `[batch, seqlen, heads, head_dim]`.
        shape: [usize; 4],
        /// Elements of that shape.
        needed: usize,
        /// Elements of the slice.
        given: usize,
    },
    /// A strided tensor that reaches beyond its memory.
    #[error("{layout} covers {needed} elements; the memory has {given}")]
    OutOfBounds {
        /// The layout asked for.
        layout: Layout,
        /// Elements it reaches over.
        needed: u64,
        /// Elements of the memory.
        given: u64,
    },
    /// Packed memory with other than three parts.
    #[error(
        "the third dimension of packed q, k, v is {given}; allowed: 3, as in [batch, seqlen, 3, heads, head_dim]"
    )]
    PackedParts {
        /// The third dimension given.
        given: usize,
    },
    /// A tensor has another shape than the problem.
    #[error("{argument} has shape {given:?}; the problem needs {needed:?}")]
    ShapeMismatch {
        /// Which tensor.
        argument: Argument,
        /// Its shape, `[batch, seqlen, heads, head_dim]`.
        given: [usize; 4],
        /// The shape the problem asks for.
        needed: [usize; 4],
    },
    /// A tensor has another element type than the problem, row statistics another than f32, or lengths another than i32.
    #[error("{argument} is {given}; needed: {needed}")]
    DtypeMismatch {
        /// Which argument.
        argument: Argument,
        /// Its type.
        given: ScalarType,
        /// The type needed.
        needed: ScalarType,
    },
    /// An argument that the call needs was not given.
    #[error("{argument} is missing; the problem needs it")]
    Missing {
        /// Which argument.
        argument: Argument,
    },
    /// An argument was given that the call has no use for.
    #[error(
        "{argument} was given; this call does not take it: leave it out, or say in the problem that it is there"
    )]
    NotTaken {
        /// Which argument.
        argument: Argument,
    },
    /// The blocks of a block mask have another size than kernels take.
    #[error("{side} of the block mask is {given}; it must be a positive multiple of {multiple}")]
    BlockSize {
        /// "block_q" or "block_k".
        side: &'static str,
        /// The size given.
        given: usize,
        /// What it must be a multiple of.
        multiple: usize,
    },
    /// Pages of no rows, or a table without a place for every page of the longest sequence.
    #[error(
        "page_table has {columns} columns for pages of {page_size} rows; needed: columns for the {seqlen_k} rows of the longest sequence"
    )]
    Pages {
        /// Columns of the table.
        columns: usize,
        /// Rows of a page.
        page_size: usize,
        /// The most rows of a sequence.
        seqlen_k: usize,
    },
    /// Pages beside what does not go together with them.
    #[error("keys and values in pages and {what} do not go together; leave out one of them")]
    PagesWith {
        /// What.
        what: &'static str,
    },
    /// Keys and values in 8 bits beside what does not go together with them.
    #[error("keys and values in e4m3 and {what} do not go together; leave out one of them")]
    Fp8KvWith {
        /// What.
        what: &'static str,
    },
    /// Queries, keys and values in 8 bits beside what does not go together with them.
    #[error("q, k and v in e4m3 and {what} do not go together; leave out one of them")]
    Fp8With {
        /// What.
        what: &'static str,
    },
    /// Sums of one level beside scales of blocks: a block of values has its scale where its sum is added to o, and one sum over all keys has no such place.
    #[error(
        "sums of one level have no place for the scale of a block of v; allowed with scales of blocks: sums of two levels"
    )]
    Fp8Sums,
    /// A scale of q, k or v in 8 bits by which nothing can be multiplied. Scales in device memory are not looked at.
    #[error("{argument} is {given} at {at}; allowed: finite numbers above 0")]
    Descale {
        /// Which scales.
        argument: Argument,
        /// Which of them.
        at: usize,
        /// What it is.
        given: f32,
    },
    /// Values that are columns of the keys beside what does not go together with them.
    #[error("values in the keys and {what} do not go together; leave out one of them")]
    ValuesInKeysWith {
        /// What.
        what: &'static str,
    },
    /// An entry of a table that the host can see names a page that the pool does not have.
    #[error(
        "page_table says page {given} for page {slot} of sequence {sequence}; the pool has {n_pages}"
    )]
    Page {
        /// Which sequence.
        sequence: usize,
        /// Which of its pages.
        slot: usize,
        /// The entry.
        given: i32,
        /// Pages of the pool.
        n_pages: usize,
    },
    /// A block mask beside lengths of sequences.
    #[error(
        "{argument} and a block mask do not go together: under a block mask all sequences have one length. Leave out one of them"
    )]
    BlockMaskWithLengths {
        /// Which lengths.
        argument: Argument,
    },
    /// The expressions of the scores do not go together, or the call does not give what they take.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// Splits of no keys.
    #[error("split_kv is 0; it must be at least 1")]
    SplitKv,
    /// A block mask, and keys divided into splits.
    #[error(
        "split_kv and a block mask do not go together: splits are of contiguous keys. Leave out one of them"
    )]
    BlockMaskWithSplitKv,
    /// A length contradicts another one, or the sizes of the problem.
    #[error("{argument}, sequence {sequence}: {given}; allowed: {min} to {max}")]
    Length {
        /// Which argument. Of `cu_seqlens`, the number that the sequence ends at or, of sequence 0, begins at.
        argument: Argument,
        /// Which sequence.
        sequence: usize,
        /// The number given.
        given: i32,
        /// Least.
        min: usize,
        /// Most.
        max: usize,
    },
    /// A vector was given where a tensor is needed, or the other way round.
    #[error("{argument} has the wrong form; needed: a {needed}")]
    OtherForm {
        /// Which argument.
        argument: Argument,
        /// What is needed: "tensor" or "vector".
        needed: &'static str,
    },
    /// A vector has another number of elements than the problem needs.
    #[error("{argument} has {given} elements; the problem needs {needed}")]
    ElementCount {
        /// Which argument.
        argument: Argument,
        /// Its number of elements.
        given: u64,
        /// The number needed.
        needed: u64,
    },
    /// The weights are not laid out as [`crate::Problem::weights_layout`] says.
    #[error("weights are {given}; needed: {needed}")]
    WeightsLayout {
        /// Their layout.
        given: Layout,
        /// The layout needed.
        needed: Layout,
    },
    /// Weights were asked for of a batch entry or a head that there is not.
    #[error("{what} is {given}; allowed: below {n}")]
    WeightsOf {
        /// "batch" or "head".
        what: &'static str,
        /// The number given.
        given: usize,
        /// How many there are.
        n: usize,
    },
    /// Weights were asked for of rows that the sequence does not have.
    #[error("rows are {}..{}; allowed: within 0..{seqlen_q}, the queries of sequence {sequence}", given.start, given.end)]
    WeightsOfRows {
        /// The rows given.
        given: Range<usize>,
        /// Which sequence.
        sequence: usize,
        /// How many queries it has.
        seqlen_q: usize,
    },
    /// Two elements of an output share memory, or its dimensions interleave.
    #[error(
        "output {argument} is {layout}, whose elements may share memory; allowed: strides that keep them apart"
    )]
    OutputAliases {
        /// Which output.
        argument: Argument,
        /// Its layout.
        layout: Layout,
    },
    /// An output overlaps the memory of an input that is still read when it is written.
    #[error(
        "{argument} overlaps the memory of {with}, which is still read; give it memory of its own"
    )]
    SharesMemory {
        /// Which output.
        argument: Argument,
        /// Which input.
        with: Argument,
    },
    /// Every sequence has more new rows than a sequence of the cache has rows.
    #[error("seqlen_new is {given}; allowed: at most seqlen_cache, {seqlen_cache}")]
    NewRowsBeyondCache {
        /// New rows of each sequence.
        given: usize,
        /// Rows of a sequence in the cache.
        seqlen_cache: usize,
    },
    /// An argument lies elsewhere than the first one: q of attention, o_1 of a merge, k_new of an append, y of a rotation.
    #[error("{argument} lies in {given}; needed: {needed}, where the first argument lies")]
    MixedPlaces {
        /// Which tensor.
        argument: Argument,
        /// Where it lies.
        given: Location,
        /// Where the first argument lies.
        needed: Location,
    },
    /// The tensors lie where the chosen device cannot reach them.
    #[error(
        "the tensors lie in {given}; the device works on {needed}: copy them, or take the other device"
    )]
    OtherDevice {
        /// Where they lie.
        given: Location,
        /// Where the device wants them.
        needed: Location,
    },
    /// A prepared call was given a tensor of another shape or other strides than it was prepared for.
    #[error(
        "{argument} differs from what the call was prepared for: given {given}, prepared {prepared}"
    )]
    NotAsPrepared {
        /// Which tensor.
        argument: Argument,
        /// Its layout.
        given: Layout,
        /// The layout prepared for.
        prepared: Layout,
    },
    /// Row statistics start at no multiple of their elements' size, or a prepared call was given a tensor that starts at
    /// no multiple of what its kernels read at a time.
    #[error("{argument} lies at {address:#x}, not a multiple of {alignment} bytes")]
    Misaligned {
        /// Which tensor.
        argument: Argument,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// A prepared call was given a queue of another device, or a queue was to borrow a stream of another context.
    #[error(
        "the queue or its stream belongs to another device or context; needed: one of the device of the call"
    )]
    QueueElsewhere,
    /// A graph was to be launched on another queue than it was captured from.
    #[error(
        "the graph was captured from another queue, whose workspace it uses; launch it on that queue"
    )]
    GraphElsewhere,
    /// A workspace was to grow during a capture.
    #[error(
        "the queue's workspace has {given} bytes, the plan needs {needed}; it cannot grow where the caller has lent it, nor during a capture: reserve \
         before it"
    )]
    WorkspaceTooSmall {
        /// Bytes it has.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A workspace that the caller lends does not begin where pieces of it may begin.
    #[error("the workspace lies at {address:#x}; it has to lie at a multiple of {alignment} bytes")]
    WorkspaceMisaligned {
        /// Where it lies.
        address: u64,
        /// Of what its address has to be a multiple.
        alignment: u64,
    },
}
