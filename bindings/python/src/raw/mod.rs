//! Passes on addresses: with [`crate::dlpack`] the room of `unsafe`.
//!
//! | file | what |
//! |---|---|
//! | `call` | a pass on a device, planned; and run on addresses |
//! | `append` | new rows of k and v written to a cache, k and q rotated by their positions |
//! | `rotate` | rows rotated by their positions |
//! | `shape` | what both passes know of a call before it has addresses |
//! | `beside` | what a run takes beside tensors and lengths |
//! | `score` | what a call gives the names in expressions |
//! | `door` | plain tensors of PyTorch, from their call to their kernels |
//! | `memory` | addresses as borrowed tensors, for as long as one call |

mod append;
mod beside;
mod call;
mod door;
mod memory;
mod rotate;
mod score;
mod shape;

pub(crate) use append::Append;
pub(crate) use call::{Backward, Forward};
pub(crate) use door::{Door, Kernels, Planned, forward_of_graph, refuse};
pub(crate) use rotate::Rotate;
pub(crate) use score::Taken;
