//! Proxies: the ways to global memory. What goes by one is seen by another only after a fence.
//!
//! A fence publishes all that its thread did and knows of. Who comes after the fence, by whatever orders threads, knows what
//! it has published: so it does not matter whether the writer fences or somebody who comes after the writer.

use std::rc::Rc;

use super::block::Block;
use super::knowledge::Knowledge;
use super::machine::Who;
use super::site::Site;

/// Proxies that a fence publishes for.
pub(super) const N_FENCED: usize = 2;

/// A way to global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// That of loads, stores and atomics.
    Generic,
    /// That of the copy engine.
    Async,
    /// That by which the copy engine reads tensor maps: see [`super::tensor_map`].
    TensorMap,
}

impl Proxy {
    /// Its place among those that a fence publishes for.
    pub fn fenced(self) -> Option<usize> {
        match self {
            Proxy::Generic => None,
            Proxy::Async => Some(0),
            Proxy::TensorMap => Some(1),
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
