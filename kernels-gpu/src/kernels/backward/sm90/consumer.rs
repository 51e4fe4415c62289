//! A consumer.
use super::Tiles;
use super::layout::Layout;
use crate::attention::mask::Mask;
use crate::params::BackwardParams;
use crate::tile::element::Element;
#[inline(always)]
pub(super) unsafe fn consume<E: Element, T: Tiles, M: Mask>(
    _: &BackwardParams,
    _: u64,
    _: Layout,
    _: u32,
) {
}
