//! Exchange of registers among the lanes of a warp, and reductions over them.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::warp;

/// `shfl.sync.bfly.b32`: the `x` of lane `own ^ mask`.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together. `mask < 32`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn shuffle_bfly_f32(x: f32, mask: u32) -> f32 {
    bodies! {
        y: f32 = ptx!(
            "shfl.sync.bfly.b32 {y}, {x}, {m}, 31, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, m = in(reg32) mask,
            options(nomem, nostack)
        );
        cpu: {
            let x = warp::exchange("shfl.bfly", x.to_bits(), |own| own ^ mask);
            f32::from_bits(x)
        }
    }
}

/// `shfl.sync.bfly.b32`: the `x` of lane `own ^ mask`.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together. `mask < 32`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn shuffle_bfly_u32(x: u32, mask: u32) -> u32 {
    bodies! {
        y: u32 = ptx!(
            "shfl.sync.bfly.b32 {y}, {x}, {m}, 31, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, m = in(reg32) mask,
            options(nomem, nostack)
        );
        cpu: warp::exchange("shfl.bfly", x, |own| own ^ mask)
    }
}

/// `shfl.sync.idx.b32`: the `x` of lane `lane`.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together. `lane < 32`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn shuffle_idx_u32(x: u32, lane: u32) -> u32 {
    bodies! {
        y: u32 = ptx!(
            "shfl.sync.idx.b32 {y}, {x}, {l}, 31, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, l = in(reg32) lane,
            options(nomem, nostack)
        );
        cpu: warp::exchange("shfl.idx", x, |_| lane)
    }
}

/// `shfl.sync.idx.b32`: the `x` of lane `lane`.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together. `lane < 32`.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn shuffle_idx_f32(x: f32, lane: u32) -> f32 {
    bodies! {
        y: f32 = ptx!(
            "shfl.sync.idx.b32 {y}, {x}, {l}, 31, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, l = in(reg32) lane,
            options(nomem, nostack)
        );
        cpu: {
            let x = warp::exchange("shfl.idx", x.to_bits(), |_| lane);
            f32::from_bits(x)
        }
    }
}

/// `vote.sync.any.pred`: whether `x` holds in any lane of the warp.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn vote_any(x: bool) -> bool {
    bodies! {
        y: u32 = ptx!(
            "{{ .reg .pred p, q;",
            "setp.ne.u32 p, {x}, 0;",
            "vote.sync.any.pred q, p, 0xffffffff;",
            "selp.u32 {y}, 1, 0, q; }}",
            y = out(reg32) y, x = in(reg32) x as u32, options(nomem, nostack)
        ) => y != 0;
        cpu: warp::vote("vote.any", x, |votes| votes.iter().any(|vote| *vote))
    }
}

/// `vote.sync.all.pred`: whether `x` holds in all lanes of the warp.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn vote_all(x: bool) -> bool {
    bodies! {
        y: u32 = ptx!(
            "{{ .reg .pred p, q;",
            "setp.ne.u32 p, {x}, 0;",
            "vote.sync.all.pred q, p, 0xffffffff;",
            "selp.u32 {y}, 1, 0, q; }}",
            y = out(reg32) y, x = in(reg32) x as u32, options(nomem, nostack)
        ) => y != 0;
        cpu: warp::vote("vote.all", x, |votes| votes.iter().all(|vote| *vote))
    }
}

/// `vote.sync.ballot.b32`: in which lanes of the warp `x` holds, a bit for each.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn vote_ballot(x: bool) -> u32 {
    bodies! {
        y: u32 = ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {x}, 0;",
            "vote.sync.ballot.b32 {y}, p, 0xffffffff; }}",
            y = out(reg32) y, x = in(reg32) x as u32, options(nomem, nostack)
        );
        cpu: warp::reduce("vote.ballot", x as u32, |votes| {
            (0..)
                .zip(votes)
                .fold(0, |all, (lane, vote)| all | vote << lane)
        })
    }
}

/// `redux.sync.add.u32`: the sum of the `x` of all lanes of the warp, modulo 2³².
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn redux_add_u32(x: u32) -> u32 {
    bodies! {
        y: u32 = ptx!(
            "redux.sync.add.u32 {y}, {x}, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, options(nomem, nostack)
        );
        cpu: warp::reduce("redux.add", x, |all| {
            all.iter().fold(0, |sum, x| sum.wrapping_add(*x))
        })
    }
}

/// `redux.sync.max.u32`: the greatest `x` of all lanes of the warp.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn redux_max_u32(x: u32) -> u32 {
    bodies! {
        y: u32 = ptx!(
            "redux.sync.max.u32 {y}, {x}, 0xffffffff;",
            y = out(reg32) y, x = in(reg32) x, options(nomem, nostack)
        );
        cpu: warp::reduce("redux.max", x, |all| {
            all.iter().fold(0, |most, x| most.max(*x))
        })
    }
}
