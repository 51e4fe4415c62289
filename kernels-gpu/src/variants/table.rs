//! The list as data: what it, and the profiled variants beside it, make of their text.

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! tile_shape {
    () => {
        TileShape::Default
    };
    (Profiled) => {
        TileShape::Default
    };
    (ProfiledWide) => {
        TileShape::Wide
    };
    ($tiles:ident) => {
        TileShape::$tiles
    };
}

macro_rules! table {
    ($stamps:ident $($name:ident: $kind:ident {
        arch: $arch:ident $(, dtype: $dtype:ident)?
        $(, head_dim: $head_dim:literal)? $(, head_dim_v: $head_dim_v:literal)? $(, tiles: $tiles:ident)?
    })*) => {
        &[$(
            Variant {
                name: stringify!($name),
                kind: Kind::$kind,
                arch: Arch::$arch,
                dtype: optional!($(Dtype::$dtype)?),
                head_dim: optional!($($head_dim)?),
                head_dim_v: optional!($($head_dim_v)?),
                tiles: tile_shape!($($tiles)?),
                stamps: Stamps::$stamps,
                tile_config: crate::config::tile_config(
                    Kind::$kind,
                    optional!($(Dtype::$dtype)?),
                    optional!($($head_dim)?),
                    optional!($($head_dim_v)?),
                    tile_shape!($($tiles)?),
                ),
            },
        )*]
    };
}

macro_rules! listed {
    ($($rows:tt)*) => {
        table!(Without $($rows)*)
    };
}
