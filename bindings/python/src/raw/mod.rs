//! Passes on addresses: with [`crate::dlpack`] the room of `unsafe`.
//!
//! | file | what |
//! |---|---|
//! | `call` | a pass or an operation on a device, planned; and run on addresses by name |
//! | `door` | plain tensors of PyTorch, from their call to their kernels |

mod call;
mod door;

pub(crate) use call::Call;
pub(crate) use door::{Door, Kernels, Planned, forward_of_graph, refuse};
