//! What a plan decides, by name: which kernels run, how keys are divided and merged, where tiles come from, in which order they are taken.
//!
//! A sample has an example of each way that its cases have ([`kernel`]). And the ways of problems as large as a user's, planned for real
//! devices, are held against those of a backend's sets: what no case runs is named ([`unmet`]). Planning is pure, so this needs no GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::plan::{DeviceInfo, Plan, PlannedLaunch, plan};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::{
    Algorithm, Backend, BlockMask, Dtype, Fp8Kv, Mask, Order, Pages, Pass, Problem, SplitKv,
    validate,
};
use ferroflash_kernels::params::{
    FASTEST, ForwardParams, Params, SHIFTED, SplitKv as Divided, TileList, TmaForwardParams,
};
use ferroflash_kernels::variants::Variant;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::cases::Case;
use crate::cases::mla::COLUMNS;

/// The lengths that a call gives beside what its problem says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// How many rows of q sequences use.
    pub seqused_q: bool,
    /// How many rows of k and v they use.
    pub seqused_k: bool,
    /// At which of these they begin.
    pub leftpad_k: bool,
}

impl Given {
    /// What a case gives.
    pub fn of_case(case: &Case) -> Given {
        let Some(lengths) = case.lengths else {
            return Given::default();
        };
        Given {
            seqused_q: lengths.q.used.is_some(),
            seqused_k: lengths.k.used.is_some(),
            leftpad_k: lengths.k.leftpad.is_some(),
        }
    }

    fn arguments(self) -> impl Iterator<Item = Argument> {
        let all = [
            (self.seqused_q, Argument::SeqUsedQ),
            (self.seqused_k, Argument::SeqUsedK),
            (self.leftpad_k, Argument::LeftpadK),
        ];
        let given = all.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, argument)| argument)
    }
}

/// The plan of a pass on contiguous tensors; `None` where it is refused.
pub fn planned(
    device: &DeviceInfo,
    backend: Backend,
    location: Location,
    asked: Option<Algorithm>,
    pass: Pass,
    (problem, given): (&Problem, Given),
) -> Option<Plan> {
    let checked = validate::without_tensors(problem, pass, location).ok()?;
    let mut arguments = *checked.arguments();
    for argument in given.arguments() {
        let n = problem.batch() as u64;
        let vector = VectorDescription::unplaced(n, ScalarType::I32, location);
        arguments = arguments.with(argument, vector);
    }
    let checked = validate::check(problem, pass, arguments).ok()?;
    plan(&checked, device, backend, asked).ok()
}

/// A launch: the kind of its kernel, what that is compiled with, and what is decided at launch. Kernels of the two element types of 16 bits are of
/// one kind, and so are those of all head_dims.
pub fn kernel(launch: &PlannedLaunch) -> String {
    let Variant { kind, tiles, .. } = launch.variant;
    let is_f32 = launch.variant.dtype == Some(ferroflash_kernels::variants::Dtype::F32);
    let dtype = if is_f32 { " f32" } else { "" };
    let mut text = format!("{kind:?} {tiles:?}{dtype} {}", launch.spec);
    for decided in decided(launch) {
        let _ = write!(text, ", {decided}");
    }
    text
}

/// The ways that a plan takes, whatever its element type and head_dim.
pub fn ways(plan: &Plan) -> BTreeSet<String> {
    let of_launch = |launch: &PlannedLaunch| {
        let (kind, tiles) = (launch.variant.kind, launch.variant.tiles);
        let kernel = format!("{kind:?} {tiles:?}");
        let constants = launch.spec.constants();
        let constants = constants.map(|constant| format!("with {constant:?}"));
        let ways: Vec<String> = constants
            .chain(decided(launch))
            .map(|decided| format!("{kernel}: {decided}"))
            .collect();
        std::iter::once(kernel).chain(ways)
    };
    plan.launches.iter().flat_map(of_launch).collect()
}

/// What is decided of a launch beside its kernel.
fn decided(launch: &PlannedLaunch) -> Vec<String> {
    let mut decided = Vec::new();
    if let Some((split, list, in_pages)) = divided(&launch.params) {
        decided.push(division(&split, &list, in_pages));
    }
    if let Some(schedule) = launch.schedule() {
        decided.extend(match schedule.order {
            SHIFTED => Some("shifted order".to_owned()),
            FASTEST => Some("no order".to_owned()),
            _ => None,
        });
        decided.extend((schedule.stride > 1).then(|| "two shifted orders".to_owned()));
    }
    if matches!(&launch.params, Params::TmaForward(params) if params.pack_gqa_log2 > 0) {
        decided.push("packed heads".to_owned());
    }
    let pass = launch.params.backward();
    if let Some(pass) = pass.filter(|pass| pass.n_head_splits > 1) {
        let uneven = if pass.n_larger_head_splits > 0 {
            "uneven "
        } else {
            ""
        };
        decided.push(format!("{uneven}shares of heads"));
    }
    decided
}

/// How keys are divided, and by whom what their splits find is merged.
fn division(split: &Divided, list: &TileList, in_pages: bool) -> String {
    let pages = if in_pages { " in pages" } else { "" };
    let list = if list.tiles != 0 { ", from a list" } else { "" };
    if split.n == 0 {
        return format!("keys{pages} undivided{list}");
    }
    let by = if split.parts > 0 {
        " by the device"
    } else {
        ""
    };
    let merged = match split.tiles_merge {
        0 => "apart",
        _ => "by tiles",
    };
    format!("keys{pages} divided{by}{list}, merged {merged}")
}

fn divided(params: &Params) -> Option<(Divided, TileList, bool)> {
    match params {
        Params::Forward(ForwardParams {
            split, list, pages, ..
        })
        | Params::TmaForward(TmaForwardParams {
            split, list, pages, ..
        }) => Some((*split, *list, pages.page_size > 0)),
        Params::Combine(params) => Some((params.split, params.list, false)),
        _ => None,
    }
}

/// How many random problems are planned.
const N_PROBLEMS: usize = 30_000;

/// The ways of problems as large as a user's that are not among these, planned for GPUs that there are; with one of the problems.
pub fn unmet(met: &BTreeSet<String>) -> BTreeMap<String, String> {
    let devices = [
        DeviceInfo::h200(),
        DeviceInfo::a100(),
        DeviceInfo::rtx3060(),
        DeviceInfo::rtx4090(),
    ];
    let asked = [
        None,
        Some(Algorithm::Flash2),
        Some(Algorithm::Flash3),
        Some(Algorithm::Standard),
    ];
    let mut rng = StdRng::seed_from_u64(1);
    let mut unmet = BTreeMap::new();
    for at in 0..N_PROBLEMS {
        let Some(problem) = problem(&mut rng) else {
            continue;
        };
        let device = &devices[at % devices.len()];
        let asked = asked[at / devices.len() % asked.len()];
        for pass in [Pass::Forward, Pass::Backward] {
            let call = (&problem.0, problem.1);
            let plan = planned(device, Backend::Cuda, Location::Cuda(0), asked, pass, call);
            for way in plan.iter().flat_map(ways) {
                if !met.contains(&way) {
                    let example = || format!("{} {pass:?}: {problem:?}", device.name);
                    unmet.entry(way).or_insert_with(example);
                }
            }
        }
    }
    unmet
}

/// A problem of any size that an H200 holds, with what users combine.
fn problem(rng: &mut StdRng) -> Option<(Problem, Given)> {
    let up_to = |rng: &mut StdRng, most: f64| {
        let exponent = rng.random_range(0.0..=most.log2());
        exponent.exp2().round() as usize
    };
    let one_in = |rng: &mut StdRng, n: u32| rng.random_ratio(1, n);
    let latent = one_in(rng, 12);
    let (batch, heads_k) = (up_to(rng, 1100.0), *[1, 2, 4, 8, 16].choose(rng)?);
    let heads_q = heads_k * *[1, 1, 2, 4, 5, 8, 16].choose(rng)?;
    let seqlen_q = match one_in(rng, 3) {
        true => 1,
        false => up_to(rng, 65536.0),
    };
    let seqlen_k = match one_in(rng, 3) {
        true => seqlen_q,
        false => up_to(rng, 131072.0),
    };
    let dtype = *[Dtype::Bf16, Dtype::Bf16, Dtype::F16, Dtype::F32].choose(rng)?;
    let head_dim = *[64, 128, 128, 32, 96, 80, 192, 256, 512].choose(rng)?;
    let window = Mask::Window {
        left: Some(up_to(rng, 4096.0)),
        right: Some(0),
    };
    let prefix = Mask::PrefixLm {
        prefix: up_to(rng, 4096.0),
    };
    let mask = *[Mask::Full, Mask::Causal, Mask::Causal, window, prefix].choose(rng)?;
    let mut builder = Problem::builder(dtype)
        .batch(batch)
        .seqlen_q(seqlen_q)
        .seqlen_k(seqlen_k)
        .head_dim(head_dim)
        .mask(mask);
    builder = match latent {
        true => builder
            .heads_q(128)
            .heads_k(1)
            .head_dim(COLUMNS.0)
            .head_dim_v(COLUMNS.1)
            .values_in_keys(),
        false => builder.heads_q(heads_q).heads_k(heads_k),
    };
    let mut given = Given::default();
    match rng.random_range(0..6) {
        0 => builder = builder.packed_q(1 + batch * seqlen_q * 2 / 3),
        1 => given.seqused_q = true,
        _ => {}
    }
    match rng.random_range(0..8) {
        0 | 1 => builder = builder.packed_k(1 + batch * seqlen_k * 2 / 3),
        2 | 3 => given.seqused_k = true,
        4 => (given.seqused_k, given.leftpad_k) = (true, one_in(rng, 2)),
        5 | 6 => {
            let page_size: usize = *[16, 64, 256].choose(rng)?;
            let columns = seqlen_k.div_ceil(page_size);
            builder = builder.pages(Pages::new(batch * columns, page_size).columns(columns));
            given.seqused_k = true;
            if one_in(rng, 4) {
                builder = builder.fp8_kv(Fp8Kv::PerSequence);
            }
        }
        _ => {}
    }
    if one_in(rng, 8) {
        builder = builder.split_kv(*[SplitKv::Never, SplitKv::Keys(1024)].choose(rng)?);
    }
    if one_in(rng, 8) {
        builder = builder.order(Order::Fastest);
    }
    if one_in(rng, 8) {
        builder = builder.sinks();
    }
    if one_in(rng, 8) {
        builder = builder.dropout(0.1);
    }
    if one_in(rng, 12) {
        builder = builder.block_mask(BlockMask::new(128, 128));
    }
    Some((builder.build().ok()?, given))
}
