//! Passes on addresses: with [`crate::dlpack`] the only place of `unsafe`.
//!
//! | file | contents |
//! |---|---|
//! | `call` | a planned pass or operation on a device, run on addresses by name |
//! | `door` | plain tensors of PyTorch, from their call to their kernels |

mod call;
mod door;

pub(crate) use call::Call;
pub(crate) use door::{Door, Kernels, Planned, forward_of_graph, refuse};
