//! Into how many shares the planner divides the query heads of a KV head: its model of time beside the simulator's, and what the
//! simulator says of every other number.

use std::fmt::Write;

use expect_test::expect;
use ferroflash::Mask;
use ferroflash::plan::DeviceInfo;
use ferroflash::plan::schedule::{TmaBackward, tma_backward_in_shares};
use ferroflash_kernels::config;
use ferroflash_kernels::params::SHIFTED;
use ferroflash_kernels::variants::TileShape;

use super::idle::{idle, launch, missed, problem, simulated};
use super::simulator::Launch;

/// `(heads, batch, seqlen)`: bf16, head_dim 128. Grouped heads with and without enough tiles; few heads.
const CASES: [((usize, usize), usize, usize); 16] = [
    ((32, 1), 16, 512),
    ((32, 1), 8, 1024),
    ((32, 1), 4, 2048),
    ((32, 1), 2, 4096),
    ((32, 1), 1, 8192),
    ((32, 1), 1, 2048),
    ((32, 4), 1, 4096),
    ((32, 8), 8, 1024),
    ((32, 8), 2, 4096),
    ((32, 8), 1, 2048),
    ((64, 8), 1, 4096),
    ((16, 2), 1, 4096),
    ((8, 1), 1, 4096),
    ((6, 2), 1, 6000),
    ((12, 4), 1, 3000),
    ((8, 8), 1, 4096),
];

/// A problem in so many shares: the planner's figures, and what it would launch.
fn in_shares(
    mask: Mask,
    (heads, batch, seqlen): ((usize, usize), usize, usize),
    n_shares: u64,
) -> (TmaBackward, Launch) {
    let problem = problem(mask, 128, batch, seqlen, heads);
    let planned = launch(&problem);
    let wide = config::tma_backward(128, TileShape::Wide);
    let footprint = if planned.block_q == wide.block_q {
        wide
    } else {
        config::tma_backward(128, TileShape::Default)
    };
    let shared = tma_backward_in_shares(&problem, &DeviceInfo::h200(), &footprint, n_shares);
    let launch = planned.in_shares(heads, n_shares as u32, shared.schedule);
    (shared, launch)
}

/// The time by the simulator, where a step that misses the L2 cache takes 18 % longer, as by the planner's model.
fn time(launch: &Launch) -> f64 {
    simulated(launch) as f64 * (1.0 + 0.18 * missed(launch) / 100.0)
}

#[test]
fn table() {
    let mut text = String::from(
        "mask    heads  batch seqlen  tiles  shares    order  idle  with one  missed   model\n",
    );
    for mask in [Mask::Full, Mask::Causal] {
        for case in CASES {
            let (heads, batch, seqlen) = case;
            let planned = launch(&problem(mask, 128, batch, seqlen, heads));
            let (shared, _) = in_shares(mask, case, planned.n_shares.into());
            let (_, one) = in_shares(mask, case, 1);
            let order = match planned.schedule.order {
                SHIFTED => "shifted",
                _ => "list",
            };
            writeln!(
                text,
                "{:<7} {:>5} {batch:>6} {seqlen:>6} {:>6} {:>7} {order:>8} {:>5.1} {:>9.1} {:>7.0} {:>+6.1}%",
                format!("{mask:?}"),
                format!("{}/{}", heads.0, heads.1),
                planned.schedule.tiles * planned.schedule.heads / planned.n_shares,
                planned.n_shares,
                idle(&planned),
                idle(&one),
                missed(&planned),
                100.0 * (shared.time as f64 / time(&planned) - 1.0),
            )
            .unwrap();
        }
    }
    expect![[r#"
        mask    heads  batch seqlen  tiles  shares    order  idle  with one  missed   model
        Full     32/1     16    512     64       2     list   9.8      52.7      25   -5.7%
        Full     32/1      8   1024     64       2     list   8.0      52.5      12   -3.1%
        Full     32/1      4   2048     64       2     list   7.2      52.4       6   -1.7%
        Full     32/1      2   4096     64       2     list   6.7      52.4       3   -1.0%
        Full     32/1      1   8192     64       2     list   7.3      52.6       2   -0.7%
        Full     32/1      1   2048     16      16  shifted  17.1      88.1       6   -1.0%
        Full     32/4      1   4096    128       1     list   9.6       9.6       3   -1.1%
        Full     32/8      8   1024    512       1     list   9.8       9.8      17   -3.1%
        Full     32/8      2   4096    512       1     list   6.9       6.9       5   -0.9%
        Full     32/8      1   2048    128       2  shifted   9.3      15.8       6   -1.0%
        Full     64/8      1   4096    256       1     list   6.6       6.6       5   -1.0%
        Full     16/2      1   4096     64       4  shifted   6.9      54.8       3   -0.5%
        Full      8/1      1   4096     32       4  shifted  10.0      75.9       3   -0.5%
        Full      6/2      1   6000     94       1  shifted  29.5      29.5       2   -0.3%
        Full     12/4      1   3000     96       1  shifted  28.7      28.7       4   -0.7%
        Full      8/8      1   4096    256       1  shifted   7.2       7.2       3   -0.4%
        Causal   32/1     16    512     64       4     list  14.4      70.0      85   -5.6%
        Causal   32/1      8   1024     64       4     list   9.7      72.9      80   -4.9%
        Causal   32/1      4   2048     64       8     list   8.9      74.3      54   -4.1%
        Causal   32/1      2   4096     64      16     list   7.6      75.0       6   -1.1%
        Causal   32/1      1   8192     64      16     list   4.3      75.4       3   -0.9%
        Causal   32/1      1   2048     16      16     list  31.4      93.6      12  -11.2%
        Causal   32/4      1   4096    128       4     list   6.4      50.3       6   -1.1%
        Causal   32/8      8   1024    512       1     list  10.3      10.3      63   -6.5%
        Causal   32/8      2   4096    512       1     list   2.2       2.2      49   -1.7%
        Causal   32/8      1   2048    128       2     list  14.1      49.6      12   -4.8%
        Causal   64/8      1   4096    256       1     list   1.1       1.1      75   -1.3%
        Causal   16/2      1   4096     64       4     list   7.7      75.1       6   -1.2%
        Causal    8/1      1   4096     32       8     list  21.3      87.6       6   -5.0%
        Causal    6/2      1   6000     94       3     list  16.7      64.0       4   +5.9%
        Causal   12/4      1   3000     96       3     list  25.2      63.6       8   +3.8%
        Causal    8/8      1   4096    256       1     list   8.3       8.3       6   -1.1%
    "#]]
    .assert_eq(&text);
}

/// Some percent more are what the planner wants for its memory, and what it does not know.
#[test]
fn no_other_number_of_shares_is_much_better() {
    const MUCH: f64 = 1.1;
    for mask in [Mask::Full, Mask::Causal] {
        for case in CASES {
            let (heads, batch, seqlen) = case;
            let planned = launch(&problem(mask, 128, batch, seqlen, heads));
            let planned_time = time(&planned);
            let group_size = heads.0 / heads.1;
            for n_shares in (1..=group_size).filter(|n| group_size % n == 0) {
                let (_, other) = in_shares(mask, case, n_shares as u64);
                let other_time = time(&other);
                assert!(
                    planned_time <= MUCH * other_time,
                    "{mask:?} {case:?}: {planned_time:.0} in {} shares, {other_time:.0} in {n_shares}",
                    planned.n_shares
                );
            }
        }
    }
}
