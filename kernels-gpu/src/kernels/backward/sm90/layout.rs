//! Where things lie.
use super::Tiles;
#[derive(Clone, Copy)]
pub(super) struct Layout;
impl Layout {
    pub(super) fn new<T: Tiles>() -> Self {
        Layout
    }
    pub(super) unsafe fn make_barriers(self) {}
}
