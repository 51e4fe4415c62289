//! Block masks: which blocks of scores kernels skip.
//!
//! | module | what |
//! |---|---|
//! | `map` | a block mask's map, read: hidden, partial or full |
//! | `mask_map` | the map of a mask expression, made by bounds on what it is worth on a block |
//! | `list` | the blocks that a map leaves of each tile, in the order in which the tile visits them |

pub mod list;

pub(crate) mod map;

pub mod mask_map;
