//! Arrays exchanged with other libraries by DLPack: theirs to read, ours to export.
//!
//! The structs of the specification, version 1.3 (<https://dmlc.github.io/dlpack/latest/c_api.html>), their capsules and
//! deleters are `dlpark`'s. Here an [`Import`] keeps the memory of an array alive while it is read, an [`Array`] keeps a result alive until its last
//! user is gone, and a [`Stream`] orders both on a GPU.
//!
//! | file | what |
//! |---|---|
//! | `import` | `__dlpack__` of another library's array → address, shape, strides, type |
//! | `array` | our memory with a shape and a type → `__dlpack__` |
//! | `stream` | a stream for one call that waits |
//! | `dtype` | names of element types |

mod array;
mod dtype;
mod import;
mod stream;

pub(crate) use array::Array;
pub(crate) use import::Import;
pub(crate) use stream::Stream;
