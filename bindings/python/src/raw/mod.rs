//! Passes on addresses: with [`crate::dlpack`] the room of `unsafe`.
//!
//! | file | what |
//! |---|---|
//! | `call` | a pass on a device, planned; and run on addresses |
//! | `shape` | what both passes know of a call before it has addresses |
//! | `memory` | addresses as borrowed tensors, for as long as one call |

mod call;
mod memory;
mod shape;

pub(crate) use call::{Backward, Forward};
