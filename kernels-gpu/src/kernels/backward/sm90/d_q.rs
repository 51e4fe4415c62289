//! After the backward pass proper.
use super::Tiles;
use crate::params::BackwardParams;
use crate::tile::element::Element;
/// # Safety
#[inline(always)]
pub unsafe fn d_q<E: Element, T: Tiles>(_: &BackwardParams) {}
