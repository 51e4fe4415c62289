//! Wrong use of what runs beside the threads: barriers that count copies, the copy engine, the tensor cores.

use std::fmt;

use super::fault::{Access, MemoryLocation};

/// What went wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asynchronous {
    /// An instruction that wants an mbarrier at a place where none was made.
    NoMbarrier {
        /// The instruction.
        access: Access,
        /// Where it looks for one.
        place: MemoryLocation,
    },
    /// A load, store or second `init` of the bytes of an mbarrier.
    MbarrierTouched {
        /// The access.
        access: Access,
        /// Where the barrier was made.
        init: Access,
        /// Where it lies.
        place: MemoryLocation,
    },
    /// More arrivals in one phase than the mbarrier was made for.
    TooManyArrivals {
        /// The arrival.
        access: Access,
        /// The mbarrier.
        place: MemoryLocation,
        /// For how many it was made.
        count: u32,
    },
    /// The copy engine or the tensor cores would see what a thread did only after a fence that is not there, or that
    /// nothing orders before them.
    Unfenced {
        /// The asynchronous access.
        access: Access,
        /// What the thread did.
        earlier: Access,
        /// The fence.
        fence: &'static str,
        /// Where they meet.
        place: MemoryLocation,
    },
    /// A tensor map in global memory, which the copy engine may see as it was before it was last written.
    TensorMapUnfenced {
        /// The copy.
        access: Access,
        /// What wrote the map, if it was in this launch.
        writer: Option<Access>,
        /// The fence that is not there, or stands in the wrong place.
        fence: &'static str,
        /// The map.
        place: MemoryLocation,
    },
    /// Accumulators that were read for arithmetic, written or moved apart between a product and the wait for it.
    AccumulatorTouched {
        /// The instruction that found them so.
        access: Access,
        /// The product.
        product: Access,
    },
    /// A product on registers that the threads had last, without a `wgmma.fence` since.
    MissingFence {
        /// The product.
        access: Access,
    },
    /// A warp that ended without a wait that names these accumulators.
    ProductUnfinished {
        /// The last product on them.
        product: Access,
    },
    /// Warps of a warpgroup that do different things where they must do the same.
    WarpgroupDiverged {
        /// What one warp did.
        earlier: Access,
        /// What another did in its stead.
        later: Access,
    },
    /// An instruction for a warpgroup that not all of its four warps have come to when the block ended.
    WarpgroupIncomplete {
        /// The instruction.
        access: Access,
        /// How many of the four warps came.
        warps: u32,
    },
}

impl fmt::Display for Asynchronous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asynchronous::NoMbarrier { access, place } => {
                write!(
                    f,
                    "{access} wants an mbarrier at {place}, where none was made"
                )
            }
            Asynchronous::MbarrierTouched {
                access,
                init,
                place,
            } => write!(
                f,
                "{access} touches {place}, part of an mbarrier made by {init}"
            ),
            Asynchronous::TooManyArrivals {
                access,
                place,
                count,
            } => write!(
                f,
                "{access} is one arrival too many in this phase of the mbarrier at {place}, made for {count}"
            ),
            Asynchronous::Unfenced {
                access,
                earlier,
                fence,
                place,
            } => write!(
                f,
                "{access} touches {place} after {earlier} without `{fence}` between them, ordered before the former"
            ),
            Asynchronous::TensorMapUnfenced {
                access,
                writer,
                fence,
                place,
            } => {
                write!(f, "tensor map used without {fence}: {access} names {place}")?;
                match writer {
                    Some(writer) => write!(f, ", last written by {writer}"),
                    None => Ok(()),
                }
            }
            Asynchronous::AccumulatorTouched { access, product } => write!(
                f,
                "{access}: accumulators of {product} were touched while the product was in flight"
            ),
            Asynchronous::MissingFence { access } => write!(
                f,
                "{access} takes registers that the threads had last, without `wgmma.fence` since"
            ),
            Asynchronous::ProductUnfinished { product } => write!(
                f,
                "a warp ended, and no wait for {product} named its accumulators when it was done"
            ),
            Asynchronous::WarpgroupDiverged { earlier, later } => write!(
                f,
                "diverged warpgroup: {later} where another warp, or an operand there, was {earlier}"
            ),
            Asynchronous::WarpgroupIncomplete { access, warps } => write!(
                f,
                "{access} wants all four warps of a warpgroup, but {warps} came to it"
            ),
        }
    }
}
