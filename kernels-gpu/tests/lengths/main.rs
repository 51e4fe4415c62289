//! Sequences of lengths of their own on the emulator: the list of tiles against a plain model of it, and packed attention against
//! a dense call for each sequence, bit by bit.
#![cfg(feature = "emulator")]

mod backward;
mod forward;
mod list;
mod memory;
mod problem;
mod sides;
mod standard;

use ferroflash_kernels::attention::lengths::ListedTile;
use ferroflash_kernels::attention::split_kv;
use ferroflash_kernels::config;
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{
    BACKWARD_MAPS, BackwardParams, FORWARD_MAPS, ForwardParams, Lengths, Params, Scale, Schedule,
    Shape, TensorMap, TensorView, TileList, TileListParams, TmaBackwardParams, TmaForwardParams,
    Window,
};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::{self, Kind, TileShape, Variant};

use backward::check_backward;
use forward::{Forward, check};
use memory::{Aligned, Workspace, launch, launch_list, words};
use problem::Problem;
use sides::{Random, SCALE, Side, element, lengths, listing, sized};

const CAUSAL: Spec = Spec::PLAIN.with(Constant::RightBound);
const WINDOW: Spec = CAUSAL.with(Constant::LeftBound);
const OPEN: u32 = ferroflash_kernels::params::MAX_ROWS;

#[test]
fn packed_sequences_of_flash2_are_as_each_alone() {
    check(
        "forward_sm80_bf16_d32",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
    );
    check("forward_sm80_f16_d64", (OPEN, 0), CAUSAL, 2, (true, false));
    check("forward_sm80_bf16_d128", (30, 9), WINDOW, 3, (false, true));
    check(
        "forward_sm80_bf16_d64",
        (OPEN, 0),
        CAUSAL,
        4,
        (false, false),
    );
}

#[test]
fn packed_sequences_of_flash3_are_as_each_alone() {
    check(
        "forward_sm90a_bf16_d64",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
    );
    check(
        "forward_sm90a_f16_d128",
        (OPEN, 0),
        CAUSAL,
        2,
        (true, false),
    );
    check(
        "forward_sm90a_bf16_d64_wide",
        (OPEN, 0),
        CAUSAL,
        3,
        (false, true),
    );
    check("forward_sm90a_bf16_d256", (30, 9), WINDOW, 4, (true, true));
}

#[test]
fn packed_sequences_in_compact_tiles_are_as_each_alone() {
    check(
        "forward_sm90a_bf16_d64_compact",
        (OPEN, 0),
        CAUSAL,
        1,
        (true, true),
    );
    check(
        "forward_sm90a_f16_d128_compact",
        (OPEN, OPEN),
        Spec::PLAIN,
        2,
        (true, true),
    );
    check(
        "forward_sm90a_bf16_d96_compact",
        (30, 9),
        WINDOW,
        3,
        (false, false),
    );
}

#[test]
fn gradients_of_packed_sequences_are_as_of_each_alone() {
    check_backward(
        "sm90a",
        "bf16_d64",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
        2,
    );
    check_backward("sm90a", "f16_d128", (OPEN, 0), CAUSAL, 2, (true, false), 1);
    check_backward("sm90a", "bf16_d96", (150, 9), WINDOW, 3, (false, true), 2);
}

#[test]
fn gradients_of_packed_sequences_in_other_tiles_are_as_of_each_alone() {
    check_backward(
        "sm90a",
        "bf16_d128_wide",
        (OPEN, 0),
        CAUSAL,
        1,
        (true, true),
        1,
    );
    check_backward(
        "sm90a",
        "bf16_d256_wide",
        (OPEN, 0),
        CAUSAL,
        1,
        (true, true),
        2,
    );
    check_backward(
        "sm90a",
        "bf16_d192",
        (OPEN, OPEN),
        Spec::PLAIN,
        2,
        (false, false),
        2,
    );
    check_backward("sm90a", "f16_d256", (OPEN, 0), CAUSAL, 3, (true, true), 1);
}

// Groups of one head alternate between up and down, where later queries see more keys; a single group goes down.

#[test]
fn gradients_of_packed_sequences_of_flash2_are_as_of_each_alone() {
    let plain = Spec::PLAIN;
    check_backward("sm80", "bf16_d32", (OPEN, OPEN), plain, 1, (true, true), 2);
    check_backward("sm80", "f16_d64", (OPEN, 0), CAUSAL, 2, (true, false), 1);
    check_backward("sm80", "bf16_d64", (30, 9), WINDOW, 3, (false, true), 2);
    check_backward("sm80", "bf16_d128", (150, 9), WINDOW, 4, (true, true), 1);
}

#[test]
fn gradients_of_packed_sequences_of_flash2_at_128_columns_are_as_of_each_alone() {
    check_backward("sm80", "f16_d128", (OPEN, 0), CAUSAL, 5, (false, false), 1);
    let compact = ["bf16_d128_compact", "f16_d128_compact"];
    check_backward("sm80", compact[0], (OPEN, 0), CAUSAL, 6, (true, true), 1);
    check_backward("sm80", compact[1], (150, 9), WINDOW, 7, (false, true), 1);
}
