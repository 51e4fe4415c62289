//! Why a candidate cannot serve, or was not chosen.

use std::fmt;

use ferroflash_kernels::params::Argument;
use ferroflash_kernels::variants::TileShape;

use super::{Algorithm, Backend, Pass};
use crate::dtype::Dtype;

/// One algorithm that was considered, and what became of it.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a candidate.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It runs.
    Chosen,
    /// It runs, with tiles of a shape that is not the default one, whose kernels cannot.
    ChosenInShape {
        /// The shape.
        tiles: TileShape,
        /// Why kernels of the default shape cannot run.
        refusal: Reason,
    },
    /// It could run, but a faster one can too.
    NotPreferred,
    /// It could run, but another was asked for by name.
    NotAsked,
    /// It could run, and does only where it is asked for by name: [`Algorithm::is_for_comparison`].
    ForComparison,
    /// It cannot run.
    Refused(Reason),
}

/// Why a candidate cannot run.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The name is known, its kernels for this pass do not exist yet.
    NotBuilt {
        /// The pass.
        pass: Pass,
    },
    /// It runs on other backends only.
    OtherBackend {
        /// The backend that was to run it.
        backend: Backend,
    },
    /// It never holds the weights, which were asked for.
    NoWeights,
    /// No kernel of it takes this element type.
    Dtype {
        /// The type of the problem.
        given: Dtype,
    },
    /// It takes this element type, but not together with something else.
    DtypeBeside {
        /// The type of the problem.
        given: Dtype,
        /// Together with what.
        beside: &'static str,
    },
    /// Its kernels take multiples of a number only.
    HeadDimMultiple {
        /// The head_dim of the problem.
        given: u32,
        /// The number.
        multiple: u32,
        /// The greatest of them.
        most: u32,
    },
    /// No kernel of it is compiled for this mask.
    Mask,
    /// The kernel's tiles are not for block masks: most do not divide their blocks.
    BlockMask {
        /// Rows of q of its tiles.
        block_q: u32,
        /// Rows of k of its tiles.
        block_k: u32,
    },
    /// Its kernels take sequences of one length.
    Lengths,
    /// The kernel does not divide the keys of a sequence.
    SplitKv,
    /// The kernel does not find keys and values in pages.
    Pages,
    /// The kernel does not edit scores by an expression.
    Score {
        /// Of a problem with which other kernels would serve: what these are for.
        beside: Option<&'static str>,
    },
    /// The kernel drops no weights.
    Dropout,
    /// No kernel of it reads an input that the call gives.
    NotRead {
        /// Which.
        argument: Argument,
    },
    /// Keys and values in 8 bits are read by other kernels.
    Fp8Kv,
    /// No kernel of it takes q, k and v in 8 bits.
    Fp8,
    /// A tile of keys would have scales of two blocks: [`Fp8::PerBlock`](crate::Fp8::PerBlock).
    ScaleBlocks {
        /// Keys of a tile.
        block_k: u32,
        /// Rows of a block.
        rows: u32,
    },
    /// No kernel of it takes values of so many columns with such keys.
    HeadDimV {
        /// The head_dim_v of the problem.
        given: u32,
        /// What the kernels take with its head_dim.
        needed: u32,
    },
    /// No kernel of it takes this head_dim_v.
    HeadDimVMultiple {
        /// The head_dim_v of the problem.
        given: u32,
        /// What head_dim_v has to be a multiple of.
        multiple: u32,
        /// The largest.
        most: u32,
    },
    /// The kernel does not find values in the keys.
    ValuesInKeys,
    /// Its tiles are of padded queries.
    PackedQueries,
    /// The device is older than the kernels.
    ComputeCapability {
        /// The device's.
        given: (u32, u32),
        /// The least that the kernels run on.
        needed: (u32, u32),
    },
    /// The device is newer than the kernels, and they are made for their own architecture only.
    OtherArchitecture {
        /// The device's compute capability.
        given: (u32, u32),
        /// The one that the kernels run on.
        needed: (u32, u32),
    },
    /// A block of it needs more shared memory than the device gives.
    SharedMemory {
        /// Bytes that the device gives.
        given: u32,
        /// Bytes needed.
        needed: u32,
    },
    /// A tensor does not start at a multiple of 16 bytes.
    BaseAlignment {
        /// Which tensor.
        argument: Argument,
        /// Its address.
        address: u64,
    },
    /// A stride is not a multiple of 16 bytes.
    StrideAlignment {
        /// Which tensor.
        argument: Argument,
        /// The stride, in elements.
        stride: u64,
    },
    /// A stride of 0 repeats one entry of a tensor; the copy engine takes tensors whose entries are apart.
    RepeatedEntries {
        /// Which tensor.
        argument: Argument,
        /// How often the entry is repeated.
        n: u64,
    },
    /// A stride is beyond what the copy engine counts with.
    StrideTooLong {
        /// Which tensor.
        argument: Argument,
        /// The stride.
        n_bytes: u64,
        /// It must be below this.
        limit: u64,
    },
    /// A size is beyond what the kernels count with.
    TooLarge {
        /// Which size.
        what: &'static str,
        /// Its value, where it can be given.
        given: u64,
        /// The most allowed.
        limit: u64,
    },
    /// The workspace is larger than the device's memory.
    Memory {
        /// Bytes that the device has.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
}

impl Reason {
    /// How far the check got: of several kernels' reasons, the one that failed last says most.
    pub(crate) fn progress(&self) -> u32 {
        match self {
            Reason::NotBuilt { .. } | Reason::OtherBackend { .. } | Reason::NoWeights => 0,
            Reason::Dtype { .. } | Reason::Fp8Kv | Reason::Fp8 => 1,
            Reason::HeadDimMultiple { .. } => 2,
            Reason::Mask
            | Reason::BlockMask { .. }
            | Reason::Lengths
            | Reason::SplitKv
            | Reason::DtypeBeside { .. }
            | Reason::Pages
            | Reason::Score { .. }
            | Reason::Dropout
            | Reason::NotRead { .. }
            | Reason::ScaleBlocks { .. }
            | Reason::HeadDimV { .. }
            | Reason::HeadDimVMultiple { .. }
            | Reason::ValuesInKeys
            | Reason::PackedQueries => 3,
            Reason::ComputeCapability { .. } | Reason::OtherArchitecture { .. } => 4,
            Reason::SharedMemory { .. } => 5,
            _ => 6,
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<9} {}", self.algorithm.name(), self.outcome)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Chosen => f.write_str("chosen"),
            Outcome::ChosenInShape { tiles, refusal } => {
                let (tiles, default) = (tiles.name(), TileShape::Default.name());
                write!(
                    f,
                    "chosen, with {tiles} tiles; with {default} tiles: {refusal}"
                )
            }
            Outcome::NotPreferred => f.write_str("could run; a faster one can too"),
            Outcome::NotAsked => f.write_str("could run; another was asked for by name"),
            Outcome::ForComparison => f.write_str("could run; it does only when asked for by name"),
            Outcome::Refused(reason) => write!(f, "cannot run: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotBuilt { pass } => {
                write!(f, "its {} kernels are not built yet", pass.name())
            }
            Reason::OtherBackend { backend } => write!(f, "it does not run on {backend}"),
            Reason::NoWeights => f.write_str("it never holds the weights, which were asked for"),
            Reason::Dtype { given } => write!(f, "no kernel of it takes {given}"),
            Reason::DtypeBeside { given, beside } => {
                write!(f, "no kernel of it takes {given} together with {beside}")
            }
            Reason::HeadDimMultiple {
                given,
                multiple,
                most,
            } => multiples(f, "head_dim", [*given, *multiple, *most]),
            Reason::Mask => f.write_str("no kernel of it is compiled for this mask"),
            Reason::BlockMask { block_q, block_k } => write!(
                f,
                "its tiles of {block_q} queries and {block_k} keys are not for block masks"
            ),
            Reason::Lengths => f.write_str("its kernels take sequences of one length"),
            Reason::SplitKv => {
                f.write_str("it does not divide the keys of a sequence, as split_kv asks")
            }
            Reason::Pages => f.write_str("it does not find keys and values in pages"),
            Reason::Score { beside } => no_expression(f, *beside),
            Reason::Dropout => f.write_str("it drops no weights"),
            Reason::NotRead { argument } => write!(f, "no kernel of it reads {argument}"),
            Reason::Fp8Kv => f.write_str("no kernel of it reads keys and values in e4m3"),
            Reason::Fp8 => f.write_str("no kernel of it reads q, k and v in e4m3"),
            Reason::ScaleBlocks { block_k, rows } => write!(
                f,
                "its tiles of {block_k} keys do not lie within blocks of {rows} keys that share a scale"
            ),
            Reason::HeadDimV { given, needed } => write!(
                f,
                "head_dim_v is {given}; its kernels take {needed} with this head_dim"
            ),
            Reason::HeadDimVMultiple {
                given,
                multiple,
                most,
            } => multiples(f, "head_dim_v", [*given, *multiple, *most]),
            Reason::ValuesInKeys => f.write_str("it does not find values in the keys"),
            Reason::PackedQueries => f.write_str("its tiles for few queries take no packed ones"),
            Reason::ComputeCapability { given, needed } => write!(
                f,
                "the device has compute capability {}.{}; its kernels need {}.{}",
                given.0, given.1, needed.0, needed.1
            ),
            Reason::OtherArchitecture { given, needed } => write!(
                f,
                "the device has compute capability {}.{}; its kernels run on {}.{} and on no newer one",
                given.0, given.1, needed.0, needed.1
            ),
            Reason::SharedMemory { given, needed } => {
                write!(
                    f,
                    "a block needs {needed} bytes of shared memory; the device gives {given}"
                )
            }
            Reason::BaseAlignment { argument, address } => {
                write!(
                    f,
                    "{argument} lies at {address:#x}, not a multiple of 16 bytes"
                )
            }
            Reason::StrideAlignment { argument, stride } => {
                write!(
                    f,
                    "{argument} has a stride of {stride} elements, not a multiple of 16 bytes"
                )
            }
            Reason::RepeatedEntries { argument, n } => {
                write!(
                    f,
                    "{argument} repeats one entry {n} times (a stride of 0), which its copies cannot"
                )
            }
            Reason::StrideTooLong {
                argument,
                n_bytes,
                limit,
            } => {
                write!(
                    f,
                    "{argument} has a stride of {n_bytes} bytes; its copies step over less than {limit}"
                )
            }
            Reason::TooLarge { what, given, limit } => {
                write!(f, "{what} is {given}; the kernels count to {limit}")
            }
            Reason::Memory { given, needed } => {
                write!(
                    f,
                    "it needs {needed} bytes of memory; the device has {given}"
                )
            }
        }
    }
}

/// It edits no scores, or none together with something else.
fn no_expression(f: &mut fmt::Formatter<'_>, beside: Option<&str>) -> fmt::Result {
    f.write_str("it does not edit scores or masks by an expression")?;
    match beside {
        Some(beside) => write!(f, " together with {beside}"),
        None => Ok(()),
    }
}

fn multiples(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    [given, multiple, most]: [u32; 3],
) -> fmt::Result {
    write!(
        f,
        "{what} is {given}; its kernels take multiples of {multiple} up to {most}"
    )
}
