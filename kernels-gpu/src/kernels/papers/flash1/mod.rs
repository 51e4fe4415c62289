//! The first FlashAttention paper (Dao et al. 2022): Algorithms 1 and 4, on the tiles of flash2.

pub mod forward;

pub mod backward;
