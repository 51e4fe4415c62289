//! Proxies: the ways to memory. What goes by one is seen by another only after a fence.
//!
//! A fence publishes all that its thread did and knows of. Who comes after the fence, by whatever orders threads, knows what
//! it has published: so it does not matter whether the writer fences or somebody who comes after the writer.

use std::rc::Rc;

use super::block::Block;
use super::knowledge::Knowledge;
use super::machine::Who;
use super::site::Site;

/// Proxies that a fence publishes for.
pub(super) const N_FENCED: usize = 3;

/// A way to memory: to global memory, where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// That of loads, stores and atomics.
    Generic,
    /// That of the copy engine.
    Async,
    /// That by which the copy engine reads tensor maps: see [`super::tensor_map`].
    TensorMap,
    /// That of the copy engine and `wgmma`, to the shared memory of a cluster. What a block's threads write to its own is fenced by
    /// the writer ([`super::block::Fences`]).
    AsyncShared,
}

impl Proxy {
    /// Its place among those that a fence publishes for.
    pub fn fenced(self) -> Option<usize> {
        match self {
            Proxy::Generic => None,
            Proxy::Async => Some(0),
            Proxy::TensorMap => Some(1),
            Proxy::AsyncShared => Some(2),
        }
    }
}

/// A thread fences for a proxy: what that publishes.
pub(super) fn fence(block: &mut Block, who: Who, site: Site, proxy: Proxy) -> Rc<Knowledge> {
    let known = Rc::new(block.actor(who, site).0.release().unpublished());
    block.acquire(who, &Rc::new(Knowledge::of_fence(proxy, &known)));
    block.warps[who.warp].advance_sub();
    known
}

/// To whose shared memory what is fenced went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The thread's own block's.
    Block,
    /// That of any block of the cluster.
    Cluster,
}

/// A thread of a cluster fences shared memory for the asynchronous proxy.
pub(super) fn fence_shared(block: &mut Block, who: Who, site: Site, reach: Reach) {
    let known = block.actor(who, site).0.release().unpublished();
    let known = match reach {
        // Its own block's threads wrote to other blocks' memory, too.
        Reach::Block => known.without_threads(who.block),
        Reach::Cluster => known,
    };
    let published = Knowledge::of_fence(Proxy::AsyncShared, &Rc::new(known));
    block.acquire(who, &Rc::new(published));
}
