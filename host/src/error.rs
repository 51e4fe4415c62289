//! What can go wrong, by phase: the problem and its tensors, the plan, the driver. Data, so that a program can act on it.

pub use ferroflash_kernels::params::Argument;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::SpecialiseError;

use crate::dtype::ScalarType;
use crate::plan::{Algorithm, Backend, Candidate};
use crate::tensor::{Layout, Place};

/// Any error of this crate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem or a tensor is not what attention takes; nothing was touched.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Nothing here can serve the problem as asked; nothing was touched.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The driver, or the lack of one.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The emulator found a fault in a kernel: a data race, an access out of bounds, a deadlock.
    #[error("kernel {kernel} on the emulator: {report}")]
    Emulator {
        /// Name of the variant.
        kernel: &'static str,
        /// What the emulator says.
        report: String,
    },
}

/// The problem or a tensor is not what attention takes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A size that has no default was not given to the builder.
    #[error("{field} was not set")]
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
    /// A size does not fit the address space.
    #[error("{what} does not fit the address space")]
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
    #[error("{layout} reaches over {needed} elements; the memory has {given}")]
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
        "packed q, k, v are [batch, seqlen, 3, heads, head_dim]; the third dimension is {given}"
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
    #[error("{argument} is missing")]
    Missing {
        /// Which argument.
        argument: Argument,
    },
    /// An argument was given that the call has no use for.
    #[error("{argument} was given; this call does not take it")]
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
    /// A block mask beside lengths of sequences.
    #[error("{argument} and a block mask do not go together: its sequences are all of one length")]
    BlockMaskWithLengths {
        /// Which lengths.
        argument: Argument,
    },
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
    #[error("{argument} has to be a {needed}")]
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
    /// Two elements of an output share memory, or its dimensions interleave.
    #[error("output {argument} is {layout}: its elements may share memory")]
    OutputAliases {
        /// Which output.
        argument: Argument,
        /// Its layout.
        layout: Layout,
    },
    /// A tensor lies elsewhere than q.
    #[error("{argument} lies in {given}; q lies in {needed}")]
    MixedPlaces {
        /// Which tensor.
        argument: Argument,
        /// Where it lies.
        given: Place,
        /// Where q lies.
        needed: Place,
    },
    /// The tensors lie where the chosen device cannot reach them.
    #[error("the tensors lie in {given}; the device works on {needed}")]
    OtherDevice {
        /// Where they lie.
        given: Place,
        /// Where the device wants them.
        needed: Place,
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
    #[error("the queue or its stream belongs to another device or context")]
    QueueElsewhere,
    /// A graph was to be launched on another queue than it was captured from.
    #[error("the graph was captured from another queue: its workspace belongs to that one")]
    GraphElsewhere,
    /// A workspace was to grow during a capture.
    #[error(
        "the queue's workspace has {given} bytes, the plan needs {needed}; it cannot grow during a capture: reserve before it"
    )]
    WorkspaceTooSmall {
        /// Bytes it has.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
}

/// Nothing here can serve the problem as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No candidate is eligible: each with its reason. What was asked for by name is never replaced.
    #[error("{}", no_candidate(*.backend, *.asked, .candidates))]
    NoCandidate {
        /// The backend that was to serve.
        backend: Backend,
        /// The algorithm asked for by name, if any.
        asked: Option<Algorithm>,
        /// Every candidate with the reason it cannot serve.
        candidates: Vec<Candidate>,
    },
    /// The backend has no streams to enqueue work on.
    #[error("{backend} has no streams: call forward and backward directly")]
    NotAsynchronous {
        /// The backend.
        backend: Backend,
    },
}

/// One line that says what was asked, then one line per candidate.
fn no_candidate(backend: Backend, asked: Option<Algorithm>, candidates: &[Candidate]) -> String {
    let mut text = match asked {
        Some(algorithm) => format!("{backend} cannot serve this problem with {algorithm}:"),
        None => format!("{backend} cannot serve this problem:"),
    };
    for candidate in candidates {
        text.push_str(&format!("\n  {candidate}"));
    }
    text
}

/// The device cannot be had, or its driver refused a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is a driver, but not this device.
    #[error("there is no CUDA device {ordinal}; the driver shows {n_devices}")]
    NoDevice {
        /// The device asked for.
        ordinal: u32,
        /// How many there are.
        n_devices: u32,
    },
    /// This program was built without kernels.
    #[error("this program was built without kernels: {detail}")]
    NoKernels {
        /// Why, and what to do.
        detail: String,
    },
    /// The driver is older than the kernels need.
    #[error("the CUDA driver supports CUDA {}.{}; the kernels need {}.{}", found.0, found.1, needed.0, needed.1)]
    DriverTooOld {
        /// CUDA version of the driver, `(major, minor)`.
        found: (u32, u32),
        /// Version needed.
        needed: (u32, u32),
    },
    /// The device has too little memory.
    #[error("the device has {free_bytes} bytes free; {needed_bytes} are needed")]
    OutOfMemory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// A kernel of the list is not among those that were built into this program.
    #[error("kernel {kernel} was not built into this program")]
    NotEmbedded {
        /// Name of the variant.
        kernel: &'static str,
    },
    /// A kernel that was built into this program cannot be unpacked.
    #[error("kernel {kernel} in this program is damaged")]
    CorruptKernel {
        /// Name of the variant.
        kernel: &'static str,
    },
    /// The text of a kernel in this program does not ask for the constants that its row says.
    #[error("kernel {kernel}: {source}")]
    Specialise {
        /// Name of the variant.
        kernel: &'static str,
        /// What does not fit.
        source: SpecialiseError,
    },
    /// The driver's compiler made a kernel that would wait without end; it is not launched.
    #[error(
        "kernel {kernel} ({spec}) takes {registers} registers, {blocks_per_sm} blocks fit a multiprocessor; needed are exactly \
         {needed_registers} registers and {needed_blocks_per_sm} blocks"
    )]
    WouldHang {
        /// Name of the variant.
        kernel: &'static str,
        /// The constants that it was compiled with.
        spec: Spec,
        /// Registers of a thread.
        registers: u32,
        /// Registers of a thread that its warpgroups share out.
        needed_registers: u32,
        /// Blocks that fit on one multiprocessor.
        blocks_per_sm: u32,
        /// Blocks that have to fit.
        needed_blocks_per_sm: u32,
    },
    /// The driver could not compile or load a kernel.
    #[error("kernel {kernel}: {source}")]
    Load {
        /// Name of the variant.
        kernel: &'static str,
        /// What it said, with its compiler's log.
        source: Box<ferroflash_driver::extra::module::LoadError>,
    },
    /// A copy between host and device of another length than the buffer.
    #[error("the buffer has {needed} elements; the host memory has {given}")]
    CopyLength {
        /// Elements of the buffer.
        needed: usize,
        /// Elements given.
        given: usize,
    },
    /// An earlier call on the queue was enqueued in part, and the queue could not be waited for then.
    #[error(
        "an earlier call on this queue was enqueued in part: the queue has to be synchronised first"
    )]
    QueuePoisoned,
    /// The queue is being captured into a graph.
    #[error("the queue is being captured into a graph: it takes prepared calls and nothing else")]
    QueueCaptured,
    /// What captured a queue put another queue in its place.
    #[error("the queue was replaced while it was captured: there is no graph")]
    QueueReplaced,
    /// A stream of the device is being captured into a graph, by this thread or another, and the call is not allowed then; or a
    /// capture was spoiled by such a call.
    #[error(
        "a stream of the device is being captured into a graph, which the call spoils or is refused for: {source}"
    )]
    Capture {
        /// In the driver's own words; its codes are 900 to 908.
        source: ferroflash_driver::DriverError,
    },
    /// There is no driver, or a call of it failed: in the driver's own words.
    #[error(transparent)]
    Call(ferroflash_driver::DriverError),
}

impl From<ferroflash_driver::DriverError> for DriverError {
    fn from(source: ferroflash_driver::DriverError) -> DriverError {
        match source.code() {
            Some(900..=908) => DriverError::Capture { source },
            _ => DriverError::Call(source),
        }
    }
}
