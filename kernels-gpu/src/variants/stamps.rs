//! The stamped rows, which record when which block of threads works on which tile.

use super::{Arch, Dtype, Kind, TileShape, VARIANTS, Variant};

/// Calls `$callback!` with the stamped rows, which are as those of [`for_each_variant`] of which they have the name, but that `tiles` says
/// `Stamped`, or `StampedWide` for [`TileShape::Wide`]. They record when which block of threads works on which tile, for `ferroflash profile`, and
/// no problem chooses them: see [`STAMPED`].
#[macro_export]
macro_rules! for_each_stamped_variant {
    ($callback:ident) => {
        $callback! {
            forward_sm80_bf16_d128_stamped:        Forward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Stamped }
            backward_sm80_bf16_d128_stamped:       Backward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Stamped }
            forward_sm90a_bf16_d128_stamped:       TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Stamped }
            forward_sm90a_bf16_d128_wide_stamped:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: StampedWide }
            backward_sm90a_bf16_d128_stamped:      TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Stamped }
            backward_sm90a_bf16_d128_wide_stamped: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: StampedWide }
        }
    };
}

/// Whether a kernel records, for each tile, which block of threads works on it when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stamps {
    /// As all rows of the list.
    Without,
    /// It writes a [`crate::params::Stamp`] for each tile.
    EachTile,
}

macro_rules! stamped {
    ($($rows:tt)*) => {
        table!(EachTile $($rows)*)
    };
}

/// The stamped rows, beside the list: what is planned for a problem is never one of them. `ferroflash profile` puts them in the place of rows of the
/// list, of which they are copies that write time stamps ([`crate::kernels::stamps`]) and ask for fewer constants.
pub const STAMPED: &[Variant] = for_each_stamped_variant!(stamped);

/// All rows that are compiled: those of the list, and the stamped ones.
pub fn compiled() -> impl Iterator<Item = &'static Variant> + Clone {
    VARIANTS.iter().chain(STAMPED)
}

impl Variant {
    /// The stamped row that does the same, if there is one.
    pub fn stamped(&self) -> Option<&'static Variant> {
        let as_self = |row: &&Variant| {
            let Variant {
                kind,
                arch,
                dtype,
                head_dim,
                head_dim_v,
                tiles,
                ..
            } = **row;
            (kind, arch, dtype) == (self.kind, self.arch, self.dtype)
                && (head_dim, head_dim_v, tiles) == (self.head_dim, self.head_dim_v, self.tiles)
        };
        STAMPED.iter().find(as_self)
    }
}
