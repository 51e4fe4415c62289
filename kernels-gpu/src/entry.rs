//! The list of kernels expanded: into PTX entries on the device, into a table of functions on the CPU.

use crate::kernels::common::stamps::Profiled;
use crate::kernels::{append, backward, block_sparse, forward, merge, papers, standard, varlen};
use crate::ptx::parameters::parameter_address;
#[cfg(target_arch = "nvptx64")]
use crate::tile::element;
use crate::{for_each_profiled_variant, for_each_variant};

/// The types of elements by the names that variants have for them: on the CPU both 16-bit ones are one type, so that a kernel is compiled once for both.
#[cfg(not(target_arch = "nvptx64"))]
mod element {
    pub use crate::tile::element::F32;
    pub use crate::tile::element::either::{Either as Bf16, Either as F16, choose};
}

/// The type of a variant's tiles: of its module, element type where it differs in them, head_dim and shape.
macro_rules! tiles {
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal) => {
        $($path)::+::DefaultTiles<element::$dtype, $head_dim>
    };
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal, Compact) => {
        $($path)::+::CompactTiles<element::$dtype, $head_dim>
    };
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal, Profiled) => {
        Profiled<tiles!($($path)::+ of $dtype, $head_dim)>
    };
    ($($path:ident)::+, $head_dim:literal, Profiled) => {
        Profiled<tiles!($($path)::+, $head_dim)>
    };
    ($($path:ident)::+, $head_dim:literal, ProfiledWide) => {
        Profiled<tiles!($($path)::+, $head_dim, Wide)>
    };
    ($($path:ident)::+, $head_dim:literal) => {
        $($path)::+::DefaultTiles<$head_dim>
    };
    ($($path:ident)::+, $head_dim:literal, Compact) => {
        $($path)::+::CompactTiles<$head_dim>
    };
    ($($path:ident)::+, $head_dim:literal, Wide) => {
        $($path)::+::WideTiles<$head_dim>
    };
    ($($path:ident)::+, $head_dim:literal, Grouped) => {
        $($path)::+::GroupedTiles<$head_dim>
    };
}

/// What a variant runs, given its kind and fields; the tile shape, where it names one, behind a semicolon.
macro_rules! run {
    (Forward, $p:expr, $dtype:ident, $head_dim:literal) => {
        forward::sm80::forward::<
            element::$dtype,
            forward::sm80::DefaultTiles<element::$dtype, $head_dim>,
        >($p)
    };
    (Forward, $p:expr, $dtype:ident, $head_dim:literal; Profiled) => {
        forward::sm80::forward::<
            element::$dtype,
            Profiled<forward::sm80::DefaultTiles<element::$dtype, $head_dim>>,
        >($p)
    };
    (Forward, $p:expr, $dtype:ident, $head_dim:literal; Compact) => {
        forward::decode::forward::<
            element::$dtype,
            forward::decode::Same<element::$dtype>,
            forward::decode::CompactTiles<$head_dim>,
        >($p)
    };
    (ForwardE4m3, $p:expr, $dtype:ident, $head_dim:literal; Compact) => {
        forward::decode::forward::<
            element::$dtype,
            forward::decode::E4m3<element::$dtype>,
            forward::decode::CompactTiles<$head_dim>,
        >($p)
    };
    (Flash1Forward, $p:expr, $dtype:ident, $head_dim:literal) => {
        papers::flash1::forward::forward::<
            element::$dtype,
            papers::flash1::forward::DefaultTiles<element::$dtype, $head_dim>,
        >($p)
    };
    (Flash1Backward, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        papers::flash1::backward::backward::<
            element::$dtype,
            tiles!(backward::sm80 of $dtype, $head_dim $(, $tiles)?),
        >($p)
    };
    (Combine, $p:expr, $dtype:ident) => {
        merge::combine::combine::<element::$dtype>($p)
    };
    (Merge, $p:expr, $dtype:ident) => {
        merge::merge::<element::$dtype>($p)
    };
    (Append, $p:expr, $dtype:ident) => {
        append::append::<element::$dtype>($p)
    };
    (Clear, $p:expr) => {
        backward::clear::clear($p)
    };
    (BlockList, $p:expr) => {
        block_sparse::list::block_list($p)
    };
    (MaskMap, $given:expr) => {{
        let (p, program) = $given;
        block_sparse::mask_map::mask_map(p, program)
    }};
    (SinkGradient, $p:expr) => {
        backward::sink_gradient::sink_gradient($p)
    };
    (TensorGradient, $p:expr, $dtype:ident) => {
        backward::tensor_gradient::tensor_gradient::<element::$dtype>($p)
    };
    (TileList, $p:expr) => {
        varlen::tile_list::tile_list::<false>($p, 0)
    };
    (TmaTileList, $given:expr) => {{
        let (p, maps) = $given;
        varlen::tile_list::tile_list::<true>(p, maps)
    }};
    (BackwardPreprocess, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::preprocess::preprocess::<
            element::$dtype,
            tiles!(backward::sm80 of $dtype, $head_dim $(, $tiles)?),
        >($p)
    };
    (Backward, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::sm80::backward::<
            element::$dtype,
            tiles!(backward::sm80 of $dtype, $head_dim $(, $tiles)?),
        >($p)
    };
    (BackwardPostprocess, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::sm80::postprocess::postprocess::<
            element::$dtype,
            tiles!(backward::sm80 of $dtype, $head_dim $(, $tiles)?),
        >($p)
    };
    (StandardScores, $p:expr, $dtype:ident) => {
        standard::forward::scores::<element::$dtype>($p)
    };
    (StandardSoftmax, $p:expr, $dtype:ident) => {
        standard::rows::softmax::<element::$dtype>($p)
    };
    (StandardOutput, $p:expr, $dtype:ident) => {
        standard::forward::output::<element::$dtype>($p)
    };
    (StandardDelta, $p:expr, $dtype:ident) => {
        standard::rows::delta::<element::$dtype>($p)
    };
    (StandardDv, $p:expr, $dtype:ident) => {
        standard::backward::d_v::<element::$dtype>($p)
    };
    (StandardDWeights, $p:expr, $dtype:ident) => {
        standard::backward::d_weights::<element::$dtype>($p)
    };
    (StandardDScores, $p:expr, $dtype:ident) => {
        standard::rows::d_scores::<element::$dtype>($p)
    };
    (StandardDq, $p:expr, $dtype:ident) => {
        standard::backward::d_q::<element::$dtype>($p)
    };
    (StandardDk, $p:expr, $dtype:ident) => {
        standard::backward::d_k::<element::$dtype>($p)
    };
    (TmaBackwardPreprocess, $p:expr, $dtype:ident, $head_dim:literal / $head_dim_v:literal) => {
        backward::preprocess::preprocess::<
            element::$dtype,
            backward::sm90::ValueTiles<$head_dim, $head_dim_v>,
        >($p)
    };
    (TmaBackwardPreprocess, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::preprocess::preprocess::<element::$dtype, tiles!(backward::sm90, $head_dim $(, $tiles)?)>($p)
    };
    (TmaBackward, $given:expr, $dtype:ident, $head_dim:literal / $head_dim_v:literal) => {{
        let (p, maps) = $given;
        backward::sm90::backward::<
            element::$dtype,
            backward::sm90::ValueTiles<$head_dim, $head_dim_v>,
        >(p, maps)
    }};
    (TmaBackward, $given:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {{
        let (p, maps) = $given;
        backward::sm90::backward::<
            element::$dtype,
            tiles!(backward::sm90, $head_dim $(, $tiles)?),
        >(p, maps)
    }};
    (TmaForwardMla, $given:expr, $dtype:ident, $head_dim:literal; Compact) => {{
        let (p, maps) = $given;
        forward::sm90::forward::<element::$dtype, forward::mla::MlaTiles<$head_dim>>(p, maps)
    }};
    (TmaForward, $given:expr, $dtype:ident, $head_dim:literal / $head_dim_v:literal) => {{
        let (p, maps) = $given;
        forward::sm90::forward::<
            element::$dtype,
            forward::sm90::ValueTiles<$head_dim, $head_dim_v>,
        >(p, maps)
    }};
    (TmaForward, $given:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {{
        let (p, maps) = $given;
        forward::sm90::forward::<element::$dtype, tiles!(forward::sm90, $head_dim $(, $tiles)?)>(
            p, maps,
        )
    }};
}

/// What a variant's kind is given of the parameters at `$p`: where they hold tensor maps or a program, their address too.
macro_rules! given {
    (TmaForward, $name:ident, $p:expr) => {
        ($p, parameter_address!(stringify!($name), 0, $p))
    };
    (TmaForwardMla, $name:ident, $p:expr) => {
        ($p, parameter_address!(stringify!($name), 0, $p))
    };
    (TmaBackward, $name:ident, $p:expr) => {
        ($p, parameter_address!(stringify!($name), 0, $p))
    };
    (MaskMap, $name:ident, $p:expr) => {
        ($p, parameter_address!(stringify!($name), 0, $p))
    };
    (TmaTileList, $name:ident, $p:expr) => {
        ($p, parameter_address!(stringify!($name), 0, $p))
    };
    ($kind:ident, $name:ident, $p:expr) => {
        $p
    };
}

/// The member of [`crate::params::Params`] that a variant's kind takes.
macro_rules! params {
    (Forward, $callback:ident $(, $rest:tt)*) => { $callback!(Forward ForwardParams $(, $rest)*) };
    (ForwardE4m3, $callback:ident $(, $rest:tt)*) => { $callback!(Forward ForwardParams $(, $rest)*) };
    (Flash1Forward, $callback:ident $(, $rest:tt)*) => { $callback!(Flash1Forward Flash1ForwardParams $(, $rest)*) };
    (Flash1Backward, $callback:ident $(, $rest:tt)*) => { $callback!(Backward BackwardParams $(, $rest)*) };
    (TmaForward, $callback:ident $(, $rest:tt)*) => { $callback!(TmaForward TmaForwardParams $(, $rest)*) };
    (TmaForwardMla, $callback:ident $(, $rest:tt)*) => { $callback!(TmaForward TmaForwardParams $(, $rest)*) };
    (TmaBackwardPreprocess, $callback:ident $(, $rest:tt)*) => { $callback!(Backward BackwardParams $(, $rest)*) };
    (TmaBackward, $callback:ident $(, $rest:tt)*) => { $callback!(TmaBackward TmaBackwardParams $(, $rest)*) };
    (BackwardPreprocess, $callback:ident $(, $rest:tt)*) => { $callback!(Backward BackwardParams $(, $rest)*) };
    (TileList, $callback:ident $(, $rest:tt)*) => { $callback!(TileList TileListParams $(, $rest)*) };
    (BlockList, $callback:ident $(, $rest:tt)*) => { $callback!(BlockList BlockListParams $(, $rest)*) };
    (MaskMap, $callback:ident $(, $rest:tt)*) => { $callback!(MaskMap MaskMapParams $(, $rest)*) };
    (TmaTileList, $callback:ident $(, $rest:tt)*) => { $callback!(TileList TileListParams $(, $rest)*) };
    (Combine, $callback:ident $(, $rest:tt)*) => { $callback!(Combine CombineParams $(, $rest)*) };
    (Merge, $callback:ident $(, $rest:tt)*) => { $callback!(Merge MergeParams $(, $rest)*) };
    (Append, $callback:ident $(, $rest:tt)*) => { $callback!(Append AppendParams $(, $rest)*) };
    (Clear, $callback:ident $(, $rest:tt)*) => { $callback!(Clear ClearParams $(, $rest)*) };
    (SinkGradient, $callback:ident $(, $rest:tt)*) => { $callback!(SinkGradient SinkGradientParams $(, $rest)*) };
    (TensorGradient, $callback:ident $(, $rest:tt)*) => { $callback!(TensorGradient TensorGradientParams $(, $rest)*) };
    (Backward, $callback:ident $(, $rest:tt)*) => { $callback!(Backward BackwardParams $(, $rest)*) };
    (BackwardPostprocess, $callback:ident $(, $rest:tt)*) => { $callback!(Backward BackwardParams $(, $rest)*) };
    ($standard:ident, $callback:ident $(, $rest:tt)*) => { $callback!(Standard StandardParams $(, $rest)*) };
}

#[cfg(target_arch = "nvptx64")]
macro_rules! params_type {
    ($member:ident $type:ident) => {
        crate::params::$type
    };
}

#[cfg(target_arch = "nvptx64")]
macro_rules! entries {
    ($find:ident $($name:ident: $kind:ident {
        arch: $arch:ident $(, dtype: $dtype:ident)?
        $(, head_dim: $head_dim:literal)? $(, head_dim_v: $head_dim_v:literal)? $(, tiles: $tiles:ident)?
    })*) => {$(
        /// # Safety
        /// The launch is as the variant's tile config says, the parameters as their struct says.
        // The builder compiles the list in parts, each with the other parts' entries left out.
        #[cfg(any(not(ferroflash_part), $name))]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(p: params!($kind, params_type)) {
            // SAFETY: the caller's contract.
            unsafe { run!($kind, given!($kind, $name, &p) $(, $dtype)? $(, $head_dim)? $(/ $head_dim_v)? $(; $tiles)?) }
        }
    )*};
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! params_match {
    ($member:ident $type:ident, $params:tt, $p:tt, $run:tt) => {
        match $params {
            crate::params::Params::$member($p) => $run,
            _ => panic!("the kernel takes {}", stringify!($type)),
        }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! entries {
    ($find:ident $($name:ident: $kind:ident {
        arch: $arch:ident $(, dtype: $dtype:ident)?
        $(, head_dim: $head_dim:literal)? $(, head_dim_v: $head_dim_v:literal)? $(, tiles: $tiles:ident)?
    })*) => {
        // A module for each: rustc generates the code of several modules side by side.
        $(mod $name {
            use super::*;

            pub(super) fn run(params: &crate::params::Params) {
                $(element::choose(crate::variants::Dtype::$dtype);)?
                params!($kind, params_match, params, p, {
                    // SAFETY: the emulator checks every access that a kernel makes.
                    unsafe { run!($kind, given!($kind, $name, p) $(, $dtype)? $(, $head_dim)? $(/ $head_dim_v)? $(; $tiles)?) }
                })
            }
        })*

        fn $find(name: &str) -> Option<fn(&crate::params::Params)> {
            match name {
                $(stringify!($name) => Some($name::run),)*
                _ => None,
            }
        }
    };
}

/// The kernel with this name, of the list or profiled, to be called by every thread that [`crate::emu`] runs.
///
/// The function panics when the parameters are those of another pass.
#[cfg(not(target_arch = "nvptx64"))]
pub fn emulated(name: &str) -> Option<fn(&crate::params::Params)> {
    listed(name).or_else(|| profiled(name))
}

macro_rules! listed_entries {
    ($($rows:tt)*) => {
        entries!(listed $($rows)*);
    };
}

macro_rules! profiled_entries {
    ($($rows:tt)*) => {
        entries!(profiled $($rows)*);
    };
}

for_each_variant!(listed_entries);
for_each_profiled_variant!(profiled_entries);
