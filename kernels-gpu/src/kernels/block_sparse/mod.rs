//! Block masks: which blocks of scores kernels skip.
//!
//! | module | contents |
//! |---|---|
//! | `map` | a block mask's map, read: hidden, partial or full |
//! | `mask_map` | the map of a mask expression, made from bounds of its value on a block |
//! | `list` | the blocks that a map leaves of each tile, in the order in which the tile visits them |

pub mod list;

pub(crate) mod map;

pub mod mask_map;
