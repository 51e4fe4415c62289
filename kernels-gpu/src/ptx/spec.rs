//! Specialisation constants: see [`crate::spec`].

use crate::spec::Constant;

/// The value of a constant: on the GPU what the host has put in place of its symbol, on the emulator what the launch says. 0 where the builder compiles
/// rows that do not ask for it: what stands behind it is then not in their text.
macro_rules! constant {
    ($constant:ident, $name:literal, $text:literal) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            let _ = Constant::$constant;
            if cfg!(ferroflash_without = $name) {
                return false;
            }
            let x: u32;
            ptx!($text, x = out(reg32) x, options(pure, nomem, nostack));
            x != 0
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            crate::emu::lane::spec().has(Constant::$constant)
        }
    }};
}

/// `mov.u32 r, ferroflash_spec_right_bound`: [`Constant::RightBound`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn right_bound() -> bool {
    constant!(
        RightBound,
        "right_bound",
        "mov.u32 {x}, ferroflash_spec_right_bound;"
    )
}

/// `mov.u32 r, ferroflash_spec_left_bound`: [`Constant::LeftBound`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn left_bound() -> bool {
    constant!(
        LeftBound,
        "left_bound",
        "mov.u32 {x}, ferroflash_spec_left_bound;"
    )
}

/// `mov.u32 r, ferroflash_spec_lengths`: [`Constant::Lengths`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn lengths() -> bool {
    constant!(Lengths, "lengths", "mov.u32 {x}, ferroflash_spec_lengths;")
}

/// `mov.u32 r, ferroflash_spec_head_splits`: [`Constant::HeadSplits`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn head_splits() -> bool {
    constant!(
        HeadSplits,
        "head_splits",
        "mov.u32 {x}, ferroflash_spec_head_splits;"
    )
}

/// `mov.u32 r, ferroflash_spec_prefix`: [`Constant::Prefix`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn prefix() -> bool {
    constant!(Prefix, "prefix", "mov.u32 {x}, ferroflash_spec_prefix;")
}

/// `mov.u32 r, ferroflash_spec_block_mask`: [`Constant::BlockMask`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn block_mask() -> bool {
    constant!(
        BlockMask,
        "block_mask",
        "mov.u32 {x}, ferroflash_spec_block_mask;"
    )
}

/// `mov.u32 r, ferroflash_spec_split_kv`: [`Constant::SplitKv`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn split_kv() -> bool {
    constant!(
        SplitKv,
        "split_kv",
        "mov.u32 {x}, ferroflash_spec_split_kv;"
    )
}

/// `mov.u32 r, ferroflash_spec_pages`: [`Constant::Pages`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn pages() -> bool {
    constant!(Pages, "pages", "mov.u32 {x}, ferroflash_spec_pages;")
}

/// `mov.u32 r, ferroflash_spec_score`: [`Constant::Score`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn score() -> bool {
    constant!(Score, "score", "mov.u32 {x}, ferroflash_spec_score;")
}

/// `mov.u32 r, ferroflash_spec_score_gradient`: [`Constant::ScoreGradient`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn score_gradient() -> bool {
    constant!(
        ScoreGradient,
        "score_gradient",
        "mov.u32 {x}, ferroflash_spec_score_gradient;"
    )
}

/// `mov.u32 r, ferroflash_spec_edit_partial`: [`Constant::EditPartial`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn edit_partial() -> bool {
    constant!(
        EditPartial,
        "edit_partial",
        "mov.u32 {x}, ferroflash_spec_edit_partial;"
    )
}

/// `mov.u32 r, ferroflash_spec_sinks`: [`Constant::Sinks`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn sinks() -> bool {
    constant!(Sinks, "sinks", "mov.u32 {x}, ferroflash_spec_sinks;")
}

/// `mov.u32 r, ferroflash_spec_dropout`: [`Constant::Dropout`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn dropout() -> bool {
    constant!(Dropout, "dropout", "mov.u32 {x}, ferroflash_spec_dropout;")
}

/// `mov.u32 r, ferroflash_spec_pad_columns`: [`Constant::PadColumns`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn pad_columns() -> bool {
    constant!(
        PadColumns,
        "pad_columns",
        "mov.u32 {x}, ferroflash_spec_pad_columns;"
    )
}

/// `mov.u32 r, ferroflash_spec_full_precision`: [`Constant::FullPrecision`].
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn full_precision() -> bool {
    constant!(
        FullPrecision,
        "full_precision",
        "mov.u32 {x}, ferroflash_spec_full_precision;"
    )
}
