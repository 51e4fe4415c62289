//! Wrong use of clusters: of the shared memory of other blocks, and of the cluster's barrier.

use std::fmt;

use super::fault::Access;

/// What went wrong with a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cluster {
    /// A rank, in an operand or an address, that no block of the cluster has.
    NoSuchRank {
        /// The instruction.
        access: Access,
        /// The rank.
        rank: u32,
        /// How many blocks there are.
        blocks: u32,
    },
    /// A multicast to no block.
    NoBlock {
        /// The instruction.
        access: Access,
    },
    /// Bytes that go to one block and count on a barrier of another.
    MbarrierElsewhere {
        /// The instruction.
        access: Access,
        /// The block of the bytes.
        block: u32,
    },
    /// An access to the shared memory of a block that may not have started: nothing that it did is ordered before.
    NotStarted {
        /// The access.
        access: Access,
        /// The block.
        block: u32,
    },
    /// An access to the shared memory of a block that may have ended: nothing orders it before that.
    Ended {
        /// The access.
        access: Access,
        /// The block.
        block: u32,
    },
    /// A block that may have ended before a copy from its shared memory had landed.
    EndedSending {
        /// The copy.
        copy: Access,
    },
    /// A warp that comes to the cluster's barrier again without having waited there.
    ArrivedTwice {
        /// The arrival.
        access: Access,
    },
    /// A warp that waits at the cluster's barrier without having come.
    NotArrived {
        /// The wait.
        access: Access,
    },
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cluster::NoSuchRank {
                access,
                rank,
                blocks,
            } => write!(
                f,
                "{access} names rank {rank} in a cluster of {blocks} blocks"
            ),
            Cluster::NoBlock { access } => write!(f, "{access} copies to no block"),
            Cluster::MbarrierElsewhere { access, block } => write!(
                f,
                "{access} writes to block {block} and counts on a barrier of another block"
            ),
            Cluster::NotStarted { access, block } => write!(
                f,
                "{access} reaches for the shared memory of block {block}, of which it does not know that it has started"
            ),
            Cluster::Ended { access, block } => write!(
                f,
                "block {block} ends while {access} may still access its shared memory: nothing orders it before the end"
            ),
            Cluster::EndedSending { copy } => write!(
                f,
                "a block ends, and none of its threads knows that {copy} has landed"
            ),
            Cluster::ArrivedTwice { access } => write!(
                f,
                "{access} comes to the cluster's barrier again without having waited there"
            ),
            Cluster::NotArrived { access } => write!(
                f,
                "{access} waits at the cluster's barrier without having come"
            ),
        }
    }
}
