//! The profiled variants, which record when which block of threads works on which tile.

use super::{Arch, Dtype, Kind, TileShape, VARIANTS, Variant};

/// Calls `$callback!` with the profiled variants, which are as those of [`for_each_variant`] of which they have the name, but that `tiles` says
/// `Profiled`, or `ProfiledWide` for [`TileShape::Wide`]. They record when which block of threads works on which tile, for `ferroflash profile`, and
/// no problem chooses them: see [`PROFILED`].
#[macro_export]
macro_rules! for_each_profiled_variant {
    ($callback:ident) => {
        $callback! {
            forward_sm80_bf16_d128_profiled:        Forward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Profiled }
            backward_sm80_bf16_d128_profiled:       Backward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Profiled }
            forward_sm90a_bf16_d128_profiled:       TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Profiled }
            forward_sm90a_bf16_d128_wide_profiled:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: ProfiledWide }
            backward_sm90a_bf16_d128_profiled:      TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Profiled }
            backward_sm90a_bf16_d128_wide_profiled: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: ProfiledWide }
        }
    };
}

/// Whether a kernel records, for each tile, which block of threads works on it when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stamps {
    /// As all variants of the list.
    Without,
    /// It writes a [`crate::params::Stamp`] for each tile.
    EachTile,
}

macro_rules! profiled {
    ($($rows:tt)*) => {
        table!(EachTile $($rows)*)
    };
}

/// The profiled variants, beside the list: what is planned for a problem is never one of them. `ferroflash profile` puts them in the place of variants of the
/// list, of which they are copies that write time stamps ([`crate::kernels::common::stamps`]) and ask for fewer constants.
pub const PROFILED: &[Variant] = for_each_profiled_variant!(profiled);

/// All variants that are compiled: those of the list, and the profiled ones.
pub fn compiled() -> impl Iterator<Item = &'static Variant> + Clone {
    VARIANTS.iter().chain(PROFILED)
}

impl Variant {
    /// The profiled variant that does the same, if there is one.
    pub fn profiled(&self) -> Option<&'static Variant> {
        let as_self = |variant: &&Variant| {
            let Variant {
                kind,
                arch,
                dtype,
                head_dim,
                head_dim_v,
                tiles,
                ..
            } = **variant;
            (kind, arch, dtype) == (self.kind, self.arch, self.dtype)
                && (head_dim, head_dim_v, tiles) == (self.head_dim, self.head_dim_v, self.tiles)
        };
        PROFILED.iter().find(as_self)
    }
}
