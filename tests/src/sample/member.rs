//! What a sample knows of a case: by its plans, what it is an example of, how good a one, and what it costs.

use ferroflash::{Algorithm, Device, Dtype, Pass, Problem};

use super::draw::Member;
use crate::cases::Case;
use crate::ways::{self, Given};

/// Rows of the smallest tiles.
const TILE_ROWS: usize = 64;

/// What a case is an example of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strata {
    /// Kernels.
    pub kernels: Vec<String>,
    /// Each kind of kernel with its tiles, its constants (so the kind of mask) and what is decided when it is launched.
    pub kinds: Vec<String>,
    /// The same for each head_dim.
    pub of_head_dims: Vec<String>,
    /// Threads of all blocks that are launched.
    pub n_threads: u64,
}

/// Of these passes. A pass that is refused, or has nothing to compute, has none.
pub fn strata(
    device: &Device,
    algorithm: Algorithm,
    passes: &[Pass],
    (problem, given): (Problem, Given),
) -> Strata {
    let (info, backend, place) = (device.info(), device.backend(), device.location());
    let call = (&problem, given);
    let of_pass = |&pass: &Pass| ways::planned(info, backend, place, Some(algorithm), pass, call);
    let plans: Vec<_> = passes.iter().filter_map(of_pass).collect();
    let mut strata = Strata::default();
    for launch in plans.iter().flat_map(|plan| &plan.launches) {
        let variant = launch.variant;
        let kind = ways::kernel(launch);
        let columns = (problem.head_dim(), problem.head_dim_v());
        strata.of_head_dims.push(format!("{columns:?} {kind}"));
        strata.kinds.push(kind);
        strata.kernels.push(variant.name.to_owned());
        strata.n_threads += u64::from(launch.grid) * u64::from(variant.tile_config.threads);
    }
    strata
}

/// Tiles of a sequence's queries, and of its keys.
type Tiles = (usize, usize);

fn tiles(rows: usize) -> usize {
    rows.div_ceil(TILE_ROWS).max(1)
}

/// Those of each sequence, each of which is one of so many heads.
fn sequences(case: &Case) -> Vec<Tiles> {
    let sizes = case.sizes;
    match &case.lengths {
        None => vec![(tiles(sizes.seqlen_q), tiles(sizes.seqlen_k)); sizes.batch],
        Some(lengths) => {
            let spans = lengths.q.spans(lengths.n).into_iter();
            let spans = spans.zip(lengths.k.spans(lengths.n));
            spans.map(|(q, k)| (tiles(q.len), tiles(k.len))).collect()
        }
    }
}

/// Threads that take as long to come and go as a product of small tiles.
const THREADS_OF_A_PRODUCT: u64 = 1000;

/// What a case costs on the emulator, in hundredths of a second or so: a product of tiles takes time whether its rows exist or not, and few queries of
/// several heads share a tile; of f32 it takes four times as long, and twice where weights go through memory.
fn cost(algorithm: Algorithm, case: &Case, n_threads: u64) -> u64 {
    let of_each = match (algorithm, case.dtype) {
        (_, Dtype::F32) => 4,
        (Algorithm::Standard, _) => 2,
        _ => 1,
    };
    products(case) * of_each + n_threads / THREADS_OF_A_PRODUCT
}

/// Products of small tiles, of 32 columns each.
fn products(case: &Case) -> u64 {
    let sizes = case.sizes;
    let products: usize = sequences(case).iter().map(|(q, k)| q * k).sum();
    let columns = sizes.head_dim.div_ceil(32).max(1);
    let heads = match sizes.heads_k {
        0 => 0,
        heads_k if 2 * sizes.seqlen_q <= TILE_ROWS => {
            heads_k * tiles(sizes.heads_q / heads_k * sizes.seqlen_q)
        }
        _ => sizes.heads_q,
    };
    (products * heads * columns) as u64
}

/// How far the loops of kernels go round: more than one block of queries counts, and more than two of keys, which leave one that is neither the
/// first nor the last.
pub fn reach(case: &Case) -> u32 {
    let reach = |(q, k): &Tiles| u32::from(*q > 1) + u32::from(*k > 2);
    sequences(case).iter().map(reach).max().unwrap_or(0)
}

/// What a sample knows of a case on a device, whose problem may differ from the case's own.
pub fn member(
    device: &Device,
    algorithm: Algorithm,
    passes: &[Pass],
    case: &Case,
    problem: Option<Problem>,
) -> Member {
    let given = Given::of_case(case);
    let of_problem = |problem| strata(device, algorithm, passes, (problem, given));
    let strata = problem.map(of_problem).unwrap_or_default();
    Member {
        cost: cost(algorithm, case, strata.n_threads),
        kernels: strata.kernels,
        strata: strata.kinds,
        thinned: strata.of_head_dims,
        rule: None,
        reach: reach(case),
    }
}
