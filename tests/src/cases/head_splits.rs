//! Problems of few tiles whose query heads share keys, on a device of [`N_SMS`] SMs: flash3's backward pass then divides the query
//! heads of a KV head into shares.

use ferroflash::Mask;

use super::{Case, lengths, window};

/// SMs of the device that the sets are for.
pub const N_SMS: u32 = 8;

/// `(head_dim, seqlen_q, seqlen_k, (batch, heads_q, heads_k), shares)`: each of the kernels' tiles; shares of one query head, of
/// several, and of which some have one more; one KV head, and several.
type Sizes = (usize, usize, usize, (usize, usize, usize), u32);

/// Tiles in shifted order, in several groups, and in lists.
const FULL: [Sizes; 8] = [
    (64, 600, 120, (1, 8, 1), 8),
    (64, 400, 120, (2, 4, 1), 4),
    (128, 300, 100, (1, 6, 1), 6),
    (96, 330, 120, (1, 6, 2), 3),
    (128, 1030, 70, (1, 2, 1), 2),
    (64, 150, 300, (1, 7, 1), 2),
    (128, 150, 120, (1, 14, 2), 4),
    (192, 150, 200, (1, 7, 1), 2),
];

/// Groups of heads in alternately ascending and descending order; more keys than queries, and fewer.
const CAUSAL: [Sizes; 8] = [
    (128, 300, 300, (1, 4, 1), 2),
    (192, 250, 64, (1, 4, 1), 4),
    (256, 200, 60, (1, 4, 2), 2),
    (64, 250, 120, (2, 7, 1), 4),
    (128, 250, 60, (2, 7, 1), 3),
    (128, 150, 200, (1, 5, 1), 3),
    (128, 150, 200, (1, 10, 2), 2),
    (192, 150, 120, (1, 11, 1), 4),
];

/// Keys that no query sees are nobody's. And prefixes.
const WINDOWS: [(Mask, Sizes); 5] = [
    (window(Some(100), Some(0)), (128, 300, 300, (1, 4, 1), 2)),
    (window(Some(150), None), (64, 500, 300, (1, 4, 1), 2)),
    (window(Some(100), Some(0)), (128, 150, 300, (1, 5, 1), 2)),
    (
        Mask::PrefixLm { prefix: 100 },
        (128, 300, 300, (1, 4, 1), 2),
    ),
    (Mask::PrefixLm { prefix: 64 }, (64, 250, 120, (2, 7, 1), 4)),
];

/// With values of 128 columns, which have tiles of their own.
const SHORT_VALUES: [Sizes; 2] = [(192, 250, 120, (1, 4, 1), 4), (192, 150, 200, (1, 7, 1), 4)];

/// Those without a mask.
pub fn full() -> Vec<Case> {
    let mut cases = with(FULL.map(|sizes| (Mask::Full, sizes)).as_slice());
    cases.extend(with_short_values(Mask::Full));
    cases
}

/// Those under a causal mask.
pub fn causal() -> Vec<Case> {
    let mut cases = with(CAUSAL.map(|sizes| (Mask::Causal, sizes)).as_slice());
    cases.extend(with_short_values(Mask::Causal));
    cases
}

fn with_short_values(mask: Mask) -> impl Iterator<Item = Case> {
    let cases = with(SHORT_VALUES.map(|sizes| (mask, sizes)).as_slice());
    cases.into_iter().map(|case| case.columns(192, 128))
}

/// Those with a window, or a prefix.
pub fn windows() -> Vec<Case> {
    with(&WINDOWS)
}

/// Some of all these as sequences of lengths of their own: nothing is known of them that tells how many shares pay, so there are none.
pub fn lengths() -> Vec<Case> {
    let all = [full(), causal(), windows()].concat();
    lengths::of_their_own(all.into_iter().step_by(4).collect())
}

/// As [`super::nth`].
fn with(sizes: &[(Mask, Sizes)]) -> Vec<Case> {
    let case = |(at, &(mask, sizes)): (usize, &(Mask, Sizes))| {
        let (head_dim, seqlen_q, seqlen_k, (batch, heads_q, heads_k), _) = sizes;
        super::nth(at, mask, head_dim, (seqlen_q, seqlen_k)).heads(batch, heads_q, heads_k)
    };
    super::with_lse_gradients(sizes.iter().enumerate().map(case).collect())
}

#[cfg(test)]
mod tests {
    use ferroflash::plan::{Algorithm, Backend, DeviceInfo, plan};
    use ferroflash::tensor::Location;
    use ferroflash::validate::{Pass, without_tensors};
    use ferroflash_kernels::params::Params;

    use super::*;

    #[test]
    fn cases_are_divided_into_the_shares_that_they_are_there_for() {
        let mut expected: Vec<u32> = [FULL.as_slice(), &SHORT_VALUES, &CAUSAL, &SHORT_VALUES]
            .concat()
            .iter()
            .map(|sizes| sizes.4)
            .collect();
        expected.extend(WINDOWS.map(|(_, sizes)| sizes.4));
        let device = DeviceInfo {
            n_sms: N_SMS,
            ..DeviceInfo::emulated_hopper()
        };
        let planned = [full(), causal(), windows()]
            .concat()
            .into_iter()
            .map(|case| {
                let problem = case.problem().unwrap();
                let checked = without_tensors(&problem, Pass::Backward, Location::Host).unwrap();
                let asked = Some(Algorithm::Flash3);
                let plan = plan(&checked, &device, Backend::Emulated, asked).unwrap();
                match plan.launches.last().map(|launch| launch.params) {
                    Some(Params::TmaBackward(params)) => params.pass.n_head_splits,
                    _ => panic!("{plan}"),
                }
            });
        assert_eq!(planned.collect::<Vec<_>>(), expected);
    }
}
