//! Which sequence of a cache.

/// A sequence of a [`KvCache`](crate::KvCache).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub(crate) u64);
