//! A keeper of turns.
use super::Tiles;
use super::layout::Layout;
use crate::attention::mask::Mask;
use crate::params::BackwardParams;
#[inline(always)]
pub(super) unsafe fn keep<T: Tiles, M: Mask>(_: &BackwardParams, _: Layout, _: u32) {}
