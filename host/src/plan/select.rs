//! The choice of the algorithm and its kernels: first which ones can run, then which one should.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ferroflash_kernels::attention::mask::Work;
use ferroflash_kernels::params::Effect;
use ferroflash_kernels::variants::{Arch, Kind, TileShape, VARIANTS, Variant};

use super::eligible::{dtype_of_all, eligible};
use super::flash2::decode;
use super::{Algorithm, Backend, DeviceInfo, lengths, mask_map, schedule, short};
use super::{Candidate, Outcome, Reason};
use crate::arguments::Argument;
use crate::error::PlanError;
use crate::problem::{Fp8, Fp8Sums};
use crate::terms::constant;
use crate::validate::{Checked, Pass};

/// The kernels of an algorithm's pass, in the order of their launches.
///
/// The [module](mod@crate::plan) has an example.
pub fn kinds(algorithm: Algorithm, pass: Pass) -> &'static [Kind] {
    match (algorithm, pass) {
        (Algorithm::Flash3, Pass::Forward) => &[Kind::TmaForward],
        (Algorithm::Flash3, Pass::Backward) => &[Kind::TmaBackwardPreprocess, Kind::TmaBackward],
        (Algorithm::Flash2, Pass::Forward) => &[Kind::Forward],
        (Algorithm::Flash2, Pass::Backward) => &[
            Kind::BackwardPreprocess,
            Kind::Backward,
            Kind::BackwardPostprocess,
        ],
        (Algorithm::Flash1, Pass::Forward) => &[Kind::Flash1Forward],
        (Algorithm::Flash1, Pass::Backward) => &[
            Kind::BackwardPreprocess,
            Kind::Flash1Backward,
            Kind::BackwardPostprocess,
        ],
        (Algorithm::Standard, Pass::Forward | Pass::ForwardWithWeights) => &[
            Kind::StandardScores,
            Kind::StandardSoftmax,
            Kind::StandardOutput,
        ],
        (Algorithm::Standard, Pass::Backward) => &[
            Kind::StandardScores,
            Kind::StandardSoftmax,
            Kind::StandardDelta,
            Kind::StandardDv,
            Kind::StandardDWeights,
            Kind::StandardDScores,
            Kind::StandardDq,
            Kind::StandardDk,
        ],
        _ => &[],
    }
}

/// The kernels of flash2's forward pass over keys and values in 8 bits, with queries of 16 bits or of 8.
const FP8_KV: &[Kind] = &[Kind::ForwardE4m3];

/// The kernels of flash3's forward pass with values that are the first columns of the keys.
const VALUES_IN_KEYS: &[Kind] = &[Kind::TmaForwardMla];

/// The algorithm that runs, its kernels in launch order, and the outcome for every candidate.
pub(super) fn select(
    checked: &Checked,
    device: &DeviceInfo,
    backend: Backend,
    asked: Option<Algorithm>,
) -> Result<(Algorithm, PassKernels, Vec<Candidate>), PlanError> {
    let mut chosen = None;
    let mut candidates = Vec::new();
    let mut algorithms = Algorithm::BY_PREFERENCE;
    if decode::beats_flash3(checked, device) || looks_rows_up(checked) {
        algorithms.sort_by_key(|&algorithm| algorithm != Algorithm::Flash2);
    }
    for algorithm in algorithms {
        let outcome = match kernels(algorithm, checked, device, backend) {
            Err(reason) => Outcome::Refused(reason),
            Ok(_) if asked.is_some_and(|asked| asked != algorithm) => Outcome::NotAsked,
            Ok(_) if asked.is_none() && algorithm.is_for_comparison() => Outcome::ForComparison,
            Ok(_) if chosen.is_some() => Outcome::NotPreferred,
            Ok((kernels, refusal)) => {
                let outcome = match refusal {
                    Some(refusal) => Outcome::ChosenInShape {
                        tiles: kernels.tiles,
                        refusal,
                    },
                    None => Outcome::Chosen,
                };
                chosen = Some((algorithm, kernels));
                outcome
            }
        };
        candidates.push(Candidate { algorithm, outcome });
    }
    match chosen {
        Some((algorithm, kernels)) => Ok((algorithm, kernels, candidates)),
        None => Err(PlanError::NoCandidate {
            backend,
            asked,
            candidates,
        }),
    }
}

/// Whether flash3 would begin a copy for every row of K and V; flash2 looks rows up anyway. In 8 bits flash2 has tiles for few queries alone.
fn looks_rows_up(checked: &Checked) -> bool {
    checked.problem().fp8().is_none() && lengths::begin_at_any_row(checked)
}

/// The kernels of one algorithm, with the reason why the default tile shape's do not run if others do; or why the algorithm cannot run.
fn kernels(
    algorithm: Algorithm,
    checked: &Checked,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<(PassKernels, Option<Reason>), Reason> {
    let runs_on_cpu = algorithm == Algorithm::Tiled;
    if runs_on_cpu != (backend == Backend::Cpu) {
        return Err(Reason::OtherBackend { backend });
    }
    let pass = checked.pass();
    if pass == Pass::ForwardWithWeights && !matches!(algorithm, Algorithm::Standard) {
        return Err(Reason::NoWeights);
    }
    let problem = checked.problem();
    let in_8_bits = (problem.fp8_kv().is_some(), problem.fp8().is_some());
    let kinds = match (algorithm, in_8_bits) {
        _ if runs_on_cpu => &[],
        (Algorithm::Flash2, (true, _) | (_, true)) => FP8_KV,
        (_, (true, _)) => return Err(Reason::Fp8Kv),
        (Algorithm::Flash3, _) if problem.values_in_keys() => VALUES_IN_KEYS,
        (Algorithm::Flash3, _) | (_, (_, false)) => kinds(algorithm, pass),
        (_, (_, true)) => return Err(Reason::Fp8),
    };
    if kinds.is_empty() && !runs_on_cpu {
        return Err(Reason::NotBuilt { pass });
    }
    dtype_of_all(kinds, checked)?;
    preferred(kinds, checked, device)
}

/// The kernels of one pass, in launch order.
///
/// They pass each other pieces of the workspace, whose layout depends on the tile shape and the compiled head_dim, so all have the same. Only
/// [`PassKernels::of_shape`] combines kernels.
#[derive(Clone, Debug)]
pub(super) struct PassKernels {
    tiles: TileShape,
    variants: Vec<&'static Variant>,
}

impl PassKernels {
    /// Of the numbers of columns for which each kind has an eligible kernel of this shape, the kernels that [`preference`] ranks first; if there are
    /// none, the most informative reason.
    fn of_shape(
        tiles: TileShape,
        kinds: &[Kind],
        checked: &Checked,
        device: &DeviceInfo,
    ) -> Result<PassKernels, Reason> {
        if kinds.is_empty() {
            // No kernels: the CPU's own code runs.
            let variants = Vec::new();
            return Ok(PassKernels { tiles, variants });
        }
        let is_among = |row: &&Variant| kinds.contains(&row.kind) && row.tiles == tiles;
        let rows = || VARIANTS.iter().filter(is_among);
        let mut best: Option<PassKernels> = None;
        let mut refusal: Option<Reason> = None;
        for columns in rows().map(columns).collect::<BTreeSet<_>>() {
            let rows = rows().filter(|row| self::columns(row) == columns);
            match PassKernels::of_rows(tiles, kinds, rows, checked, device) {
                Ok(kernels)
                    if best
                        .as_ref()
                        .is_none_or(|best| best.preference() < kernels.preference()) =>
                {
                    best = Some(kernels)
                }
                Ok(_) => {}
                Err(reason) => refusal = Some(more_telling(refusal.take(), reason)),
            }
        }
        best.ok_or_else(|| refusal.unwrap_or(not_built(checked)))
    }

    /// For each kind the eligible kernel that [`preference`] ranks first; if a kind has none, the most informative reason.
    fn of_rows(
        tiles: TileShape,
        kinds: &[Kind],
        rows: impl Iterator<Item = &'static Variant> + Clone,
        checked: &Checked,
        device: &DeviceInfo,
    ) -> Result<PassKernels, Reason> {
        let row = |&kind: &Kind| {
            let rows = rows.clone().filter(|row| row.kind == kind);
            let mut best: Option<&'static Variant> = None;
            let mut refusal: Option<Reason> = None;
            for variant in rows {
                match eligible(variant, checked, device) {
                    Ok(()) if best.is_none_or(|best| preference(best) < preference(variant)) => {
                        best = Some(variant)
                    }
                    Ok(()) => {}
                    Err(reason) => refusal = Some(more_telling(refusal.take(), reason)),
                }
            }
            best.ok_or_else(|| refusal.unwrap_or(not_built(checked)))
        };
        let variants = kinds.iter().map(row).collect::<Result<Vec<_>, _>>()?;
        optional_inputs(&variants, checked)?;
        Ok(PassKernels { tiles, variants })
    }

    /// The kernels, in launch order.
    pub(super) fn variants(&self) -> &[&'static Variant] {
        &self.variants
    }

    /// The kernel of a kind.
    pub(super) fn of_kind(&self, kind: Kind) -> Option<&'static Variant> {
        let mut rows = self.variants.iter();
        rows.find(|variant| variant.kind == kind).copied()
    }

    /// The [`preference`] of the first.
    fn preference(&self) -> Option<Preference> {
        self.variants.first().map(|variant| preference(variant))
    }

    /// The newest architecture among them.
    fn newest(&self) -> Option<Arch> {
        self.variants.iter().map(|variant| variant.arch).max()
    }
}

/// Whether the kernels support the call's inputs other than tensors.
fn optional_inputs(variants: &[&Variant], checked: &Checked) -> Result<(), Reason> {
    let unknown = |&argument: &Argument| {
        let effect = argument.optional_input().map(|input| input.effect);
        let concerns = match effect {
            Some(Effect::Scores) => true,
            Some(Effect::Sums) => checked.pass() != Pass::Backward,
            // `eligible` asks for lengths.
            Some(Effect::Rows) | None => false,
        };
        let known = |constant| variants.iter().any(|row| row.capabilities().has(constant));
        concerns && !constant(argument).is_some_and(known)
    };
    match checked.arguments().which().iter().find(unknown) {
        Some(argument) => Err(Reason::NotRead { argument }),
        None => Ok(()),
    }
}

/// The tile shapes, the preferred one first. In flash3's forward pass compact tiles pay if sequences are short ([`short`]), wide tiles if they are
/// long (tests/benches/record) and there are several tiles for every SM. In its backward pass wide tiles pay at the head_dims they are made for, if
/// sequences are long. In 8 bits wide tiles pay up to head_dim 128; sums of one level have tiles of their own, where they are faster than those. Wide tiles of
/// head_dim 64 have 192 keys, more than a block with a scale of its own, and those of 96 are no faster there.
fn shapes(kinds: &[Kind], checked: &Checked, device: &DeviceInfo) -> Vec<TileShape> {
    let thresholds = &device.thresholds;
    let of_sms = |each: u64| each.saturating_mul(device.n_sms.into());
    let problem = &lengths::of_average_length(checked);
    // Where lengths differ, most of the work is in the longest sequences.
    let longest = checked.problem().seqlen_q() as u64;
    let seqlen_q = longest.min(4 * problem.seqlen_q() as u64);
    if kinds == FP8_KV {
        return vec![TileShape::Compact];
    }
    if let Some(scales) = checked.problem().fp8() {
        let long = match problem.work() {
            Work::Even => thresholds.wide_queries_e4m3,
            Work::Growing | Work::Shrinking => thresholds.wide_queries_e4m3_masked,
        };
        let has_wide = scales != Fp8::PerBlock || problem.head_dim() > 64;
        // Without a mask wide tiles of two levels are the faster ones at head_dim 128.
        let from = if problem.work() == Work::Even {
            128
        } else {
            96
        };
        let one_level = problem.fp8_sums() == Fp8Sums::OneLevel && problem.head_dim() > from;
        return match (seqlen_q >= long && has_wide, one_level) {
            (false, _) => vec![TileShape::Default],
            (true, false) => vec![TileShape::Wide, TileShape::Default],
            (true, true) => vec![TileShape::OneLevel, TileShape::Default],
        };
    }
    let compact_first = [TileShape::Compact, TileShape::Default, TileShape::Wide];
    if kinds == [Kind::TmaForward] && short::prefers_compact(problem, device.n_sms) {
        let grouped = short::prefers_grouped(problem, device).then_some(TileShape::Grouped);
        return grouped.into_iter().chain(compact_first).collect();
    }
    if kinds == [Kind::Forward] && decode::prefers_decode(checked.problem(), device) {
        return compact_first.to_vec();
    }
    let wide = if kinds.contains(&Kind::TmaBackward) {
        let per_sm = match checked.has_lengths() {
            true => thresholds.wide_gradients_listed_per_sm,
            false => thresholds.wide_gradients_per_sm,
        };
        let columns = problem.head_dim().max(problem.head_dim_v());
        if columns > 192 && seqlen_q >= thresholds.paired_gradients {
            return vec![
                TileShape::Paired,
                TileShape::Wide,
                TileShape::Default,
                TileShape::Compact,
            ];
        }
        match columns {
            193.. => seqlen_q >= thresholds.wide_gradients_by_columns,
            // Under a mask larger tiles have more to hide.
            97..=128 if problem.head_dim() > 96 && problem.work() == Work::Even => {
                seqlen_q >= of_sms(per_sm).max(thresholds.wide_gradients)
            }
            _ => false,
        }
    } else {
        let long = match problem.work() {
            Work::Even if problem.head_dim() <= 64 => thresholds.wide_queries_narrow,
            Work::Growing | Work::Shrinking if problem.head_dim() > 64 => {
                thresholds.wide_queries_masked
            }
            _ => thresholds.wide_queries,
        };
        let rows = (problem.batch() as u64)
            .saturating_mul(problem.heads_q() as u64)
            .saturating_mul(seqlen_q);
        let bounded = problem.bounds().left;
        // Wide tiles are not for lists of blocks, which a mask expression makes where it pays.
        let mapped = mask_map::mapping(checked, device).is_some_and(|mapping| mapping.is_ok());
        !bounded && !mapped && seqlen_q >= long && rows >= of_sms(thresholds.wide_rows_per_sm)
    };
    if wide {
        vec![TileShape::Wide, TileShape::Default, TileShape::Compact]
    } else {
        vec![TileShape::Default, TileShape::Wide, TileShape::Compact]
    }
}

/// The kernels that should run, of those that can: the newest architecture's first, then the shape that [`shapes`] names
/// first. If there are none, the most informative reason; if they are not of the default shape although its kernels exist, the reason why those cannot run.
fn preferred(
    kinds: &[Kind],
    checked: &Checked,
    device: &DeviceInfo,
) -> Result<(PassKernels, Option<Reason>), Reason> {
    let mut best: Option<PassKernels> = None;
    let mut refusal: Option<Reason> = None;
    let mut of_default = None;
    for tiles in shapes(kinds, checked, device) {
        match PassKernels::of_shape(tiles, kinds, checked, device) {
            Ok(kernels)
                if best
                    .as_ref()
                    .is_none_or(|best| best.newest() < kernels.newest()) =>
            {
                best = Some(kernels)
            }
            Ok(_) => {}
            Err(reason) => {
                if tiles == TileShape::Default && reason != not_built(checked) {
                    of_default = Some(reason.clone());
                }
                refusal = Some(more_telling(refusal.take(), reason));
            }
        }
    }
    match best {
        Some(kernels) => Ok((kernels, of_default)),
        None => Err(refusal.unwrap_or(not_built(checked))),
    }
}

fn not_built(checked: &Checked) -> Reason {
    Reason::NotBuilt {
        pass: checked.pass(),
    }
}

/// The columns that a kernel is compiled for, of keys and values together, with which its work grows; with equal sums, the kernel whose values have
/// another number of columns than its keys is closer to a problem that both can run.
fn columns(variant: &Variant) -> Option<[u32; 2]> {
    let head_dim = variant.head_dim?;
    let head_dim_v = variant.head_dim_v.unwrap_or(head_dim);
    let alike = u32::from(variant.head_dim_v.is_none());
    Some([head_dim + head_dim_v, alike])
}

/// Of two eligible kernels of one shape the one with the greater preference runs.
type Preference = (Arch, Reverse<Option<[u32; 2]>>);

/// The newest architecture first, then the fewest columns of keys and values together that fit the problem's.
fn preference(variant: &Variant) -> Preference {
    (variant.arch, Reverse(columns(variant)))
}

/// Of two kernels' reasons, that of the later check. Of two bounds of head_dim the greater, and of two kernels that are too large the smaller, is
/// the more informative.
fn more_telling(held: Option<Reason>, new: Reason) -> Reason {
    match (held, new) {
        (
            Some(Reason::HeadDimMultiple { most, .. }),
            Reason::HeadDimMultiple {
                given,
                multiple,
                most: other,
            },
        ) => Reason::HeadDimMultiple {
            given,
            multiple,
            most: most.max(other),
        },
        (
            Some(Reason::HeadDimVMultiple { most, .. }),
            Reason::HeadDimVMultiple {
                given,
                multiple,
                most: other,
            },
        ) => Reason::HeadDimVMultiple {
            given,
            multiple,
            most: most.max(other),
        },
        (
            Some(Reason::SharedMemory { given, needed }),
            Reason::SharedMemory { needed: other, .. },
        ) => Reason::SharedMemory {
            given,
            needed: needed.min(other),
        },
        (Some(held), new) if held.progress() >= new.progress() => held,
        (_, new) => new,
    }
}

/// The only kernel of a kind; it runs every problem that the others do.
pub(super) fn only_variant(kind: Kind) -> Option<&'static Variant> {
    VARIANTS.iter().find(|row| row.kind == kind)
}

/// The kernel of a kind that has one for each element type.
pub(super) fn of_dtype(kind: Kind, checked: &Checked) -> Result<&'static Variant, Reason> {
    let given = checked.problem().dtype();
    let mut rows = VARIANTS.iter().filter(|row| row.kind == kind);
    rows.find(|row| row.dtype == Some(given.of_kernels()))
        .ok_or(Reason::Dtype { given })
}

/// Whether a grid of this many blocks can be launched.
pub(super) fn grid(what: &'static str, factors: &[u64]) -> Result<u32, Reason> {
    let given = factors
        .iter()
        .fold(1u64, |product, &factor| product.saturating_mul(factor));
    if given <= schedule::MAX_GRID {
        Ok(given as u32)
    } else {
        Err(Reason::TooLarge {
            what,
            given,
            limit: schedule::MAX_GRID,
        })
    }
}
