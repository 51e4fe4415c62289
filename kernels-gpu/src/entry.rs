//! The list of kernels expanded: into PTX entries on the device, into a table of functions on the CPU.

use crate::kernels::common::stamps::Profiled;
use crate::kernels::{
    append, backward, block_sparse, dequantize, forward, merge, papers, quantize, standard, varlen,
};
use crate::ptx::parameters::parameter_address;
#[cfg(target_arch = "nvptx64")]
use crate::tile::element;
use crate::{for_each_profiled_variant, for_each_variant};

/// The element types by their names in variants: on the CPU both 16-bit ones are one type, so that a kernel is compiled once for both.
#[cfg(not(target_arch = "nvptx64"))]
mod element {
    pub use crate::tile::element::either::{Either as Bf16, Either as F16, choose};
    pub use crate::tile::element::{E4m3, F32};
}

/// The type of a variant's tiles: of its module, element type where it differs in them, head_dim, columns of values where these are others, and shape.
macro_rules! tiles {
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal; Profiled) => {
        Profiled<tiles!($($path)::+ of $dtype, $head_dim)>
    };
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal; Compact) => {
        $($path)::+::CompactTiles<element::$dtype, $head_dim>
    };
    ($($path:ident)::+ of $dtype:ident, $head_dim:literal) => {
        $($path)::+::DefaultTiles<element::$dtype, $head_dim>
    };
    ($($path:ident)::+, $head_dim:literal; Profiled) => {
        Profiled<tiles!($($path)::+, $head_dim)>
    };
    ($($path:ident)::+, $head_dim:literal; ProfiledWide) => {
        Profiled<tiles!($($path)::+, $head_dim; Wide)>
    };
    ($($path:ident)::+, $head_dim:literal) => {
        $($path)::+::tiles!($head_dim, $head_dim, Default)
    };
    ($($path:ident)::+, $head_dim:literal; $shape:ident) => {
        $($path)::+::tiles!($head_dim, $head_dim, $shape)
    };
    ($($path:ident)::+, $head_dim:literal / $head_dim_v:literal) => {
        $($path)::+::tiles!($head_dim, $head_dim_v, Default)
    };
}

/// The address of an entry's parameters at `$p`: that of their tensor maps or program, with which they begin.
macro_rules! address {
    ($name:ident, $p:expr) => {
        parameter_address!(stringify!($name), 0, $p)
    };
}

/// What a variant runs, given its kind, its name, the parameters and its fields: columns of values, where it names them, behind a stroke, the tile shape behind
/// a semicolon.
macro_rules! run {
    (Forward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal; Compact) => {
        forward::decode::forward::<
            element::$dtype,
            forward::decode::Same<element::$dtype>,
            forward::decode::CompactTiles<$head_dim>,
        >($p)
    };
    (Forward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        forward::sm80::forward::<element::$dtype, tiles!(forward::sm80 of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (ForwardE4m3, $name:ident, $p:expr, $dtype:ident, $head_dim:literal; Compact) => {
        forward::decode::forward::<
            element::$dtype,
            forward::decode::E4m3<element::$dtype>,
            forward::decode::CompactTiles<$head_dim>,
        >($p)
    };
    (Flash1Forward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        papers::flash1::forward::forward::<element::$dtype, tiles!(papers::flash1::forward of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (Flash1Backward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        papers::flash1::backward::backward::<element::$dtype, tiles!(backward::sm80 of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (TmaForward, $name:ident, $p:expr, E4m3, $head_dim:literal; $tiles:ident) => {
        forward::sm90::forward::<element::E4m3, forward::sm90::tiles!(1, $head_dim, $head_dim, $tiles)>($p, address!($name, $p))
    };
    (TmaForward, $name:ident, $p:expr, E4m3, $head_dim:literal) => {
        forward::sm90::forward::<element::E4m3, forward::sm90::tiles!(1, $head_dim, $head_dim, Default)>($p, address!($name, $p))
    };
    (TmaForward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(/ $head_dim_v:literal)? $(; $tiles:ident)?) => {
        forward::sm90::forward::<element::$dtype, tiles!(forward::sm90, $head_dim $(/ $head_dim_v)? $(; $tiles)?)>($p, address!($name, $p))
    };
    (TmaForwardMla, $name:ident, $p:expr, $dtype:ident, $head_dim:literal; Compact) => {
        forward::sm90::forward::<element::$dtype, forward::mla::MlaTiles<$head_dim>>(
            $p,
            address!($name, $p),
        )
    };
    (BackwardPreprocess, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::preprocess::preprocess::<element::$dtype, tiles!(backward::sm80 of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (Backward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::sm80::backward::<element::$dtype, tiles!(backward::sm80 of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (BackwardPostprocess, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(; $tiles:ident)?) => {
        backward::sm80::postprocess::postprocess::<element::$dtype, tiles!(backward::sm80 of $dtype, $head_dim $(; $tiles)?)>($p)
    };
    (TmaBackwardPreprocess, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(/ $head_dim_v:literal)? $(; $tiles:ident)?) => {
        backward::preprocess::preprocess::<element::$dtype, tiles!(backward::sm90, $head_dim $(/ $head_dim_v)? $(; $tiles)?)>($p)
    };
    (TmaBackward, $name:ident, $p:expr, $dtype:ident, $head_dim:literal $(/ $head_dim_v:literal)? $(; $tiles:ident)?) => {
        backward::sm90::backward::<element::$dtype, tiles!(backward::sm90, $head_dim $(/ $head_dim_v)? $(; $tiles)?)>($p, address!($name, $p))
    };
    (Combine, $name:ident, $p:expr, $dtype:ident) => {
        merge::combine::combine::<element::$dtype>($p)
    };
    (Merge, $name:ident, $p:expr, $dtype:ident) => {
        merge::merge::<element::$dtype>($p)
    };
    (Amax, $name:ident, $p:expr, $dtype:ident) => {
        quantize::amax::<element::$dtype>($p)
    };
    (Quantize, $name:ident, $p:expr, $dtype:ident) => {
        quantize::quantize::<element::$dtype>($p)
    };
    (Dequantize, $name:ident, $p:expr, $dtype:ident) => {
        dequantize::dequantize::<element::$dtype>($p)
    };
    (Append, $name:ident, $p:expr, $dtype:ident) => {
        append::append::<element::$dtype, false>($p)
    };
    (AppendE4m3, $name:ident, $p:expr, $dtype:ident) => {
        append::append::<element::$dtype, true>($p)
    };
    (TensorGradient, $name:ident, $p:expr, $dtype:ident) => {
        backward::tensor_gradient::tensor_gradient::<element::$dtype>($p)
    };
    (StandardScores, $name:ident, $p:expr, $dtype:ident) => {
        standard::forward::scores::<element::$dtype>($p)
    };
    (StandardSoftmax, $name:ident, $p:expr, $dtype:ident) => {
        standard::rows::softmax::<element::$dtype>($p)
    };
    (StandardOutput, $name:ident, $p:expr, $dtype:ident) => {
        standard::forward::output::<element::$dtype>($p)
    };
    (StandardDelta, $name:ident, $p:expr, $dtype:ident) => {
        standard::rows::delta::<element::$dtype>($p)
    };
    (StandardDv, $name:ident, $p:expr, $dtype:ident) => {
        standard::backward::d_v::<element::$dtype>($p)
    };
    (StandardDWeights, $name:ident, $p:expr, $dtype:ident) => {
        standard::backward::d_weights::<element::$dtype>($p)
    };
    (StandardDScores, $name:ident, $p:expr, $dtype:ident) => {
        standard::rows::d_scores::<element::$dtype>($p)
    };
    (StandardDq, $name:ident, $p:expr, $dtype:ident) => {
        standard::backward::d_q::<element::$dtype>($p)
    };
    (StandardDk, $name:ident, $p:expr, $dtype:ident) => {
        standard::backward::d_k::<element::$dtype>($p)
    };
    (Clear, $name:ident, $p:expr) => {
        backward::clear::clear($p)
    };
    (SinkGradient, $name:ident, $p:expr) => {
        backward::sink_gradient::sink_gradient($p)
    };
    (BlockList, $name:ident, $p:expr) => {
        block_sparse::list::block_list($p)
    };
    (MaskMap, $name:ident, $p:expr) => {
        block_sparse::mask_map::mask_map($p, address!($name, $p))
    };
    (TileList, $name:ident, $p:expr) => {
        varlen::tile_list::tile_list::<false>($p, 0)
    };
    (TmaTileList, $name:ident, $p:expr) => {
        varlen::tile_list::tile_list::<true>($p, address!($name, $p))
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
    (AppendE4m3, $callback:ident $(, $rest:tt)*) => { $callback!(Append AppendParams $(, $rest)*) };
    (Amax, $callback:ident $(, $rest:tt)*) => { $callback!(Quantize QuantizeParams $(, $rest)*) };
    (Quantize, $callback:ident $(, $rest:tt)*) => { $callback!(Quantize QuantizeParams $(, $rest)*) };
    (Dequantize, $callback:ident $(, $rest:tt)*) => { $callback!(Dequantize DequantizeParams $(, $rest)*) };
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
        /// The launch has the variant's tile config, and the parameters are as their struct documents.
        // The builder compiles the list in parts, each with the other parts' entries left out.
        #[cfg(any(not(ferroflash_part), $name))]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(p: params!($kind, params_type)) {
            // SAFETY: the caller's contract.
            unsafe { run!($kind, $name, &p $(, $dtype)? $(, $head_dim)? $(/ $head_dim_v)? $(; $tiles)?) }
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
                    unsafe { run!($kind, $name, p $(, $dtype)? $(, $head_dim)? $(/ $head_dim_v)? $(; $tiles)?) }
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

/// The kernel with this name, in the list or profiled; every thread that [`crate::emu`] runs calls it.
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
