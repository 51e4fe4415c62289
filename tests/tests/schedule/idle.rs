//! How much of an H200 the main kernel of flash3's backward pass leaves idle, by the simulator: so that a worse schedule shows.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use expect_test::expect;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::{Pass, without_tensors};
use ferroflash::{Dtype, Mask, Order, Problem};
use ferroflash_kernels::params::{FASTEST, ORDERED, SHIFTED, Schedule};
use ferroflash_lab::timeline::backward::{Ending, Launch, TIMES, Way, run};

/// What a plan launches.
pub fn launch(problem: &Problem) -> Launch {
    let checked = without_tensors(problem, Pass::Backward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo::h200();
    let plan = plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash3)).unwrap();
    Launch::of_plan(&plan, &device).unwrap()
}

/// The same in another order; `None` where that cannot be.
fn in_order(launch: &Launch, order: u32) -> Option<Launch> {
    let Schedule {
        tiles,
        heads,
        heads_per_group,
        ..
    } = launch.schedule;
    let steps = launch.shape.seqlen_q.div_ceil(launch.block_q) * launch.shape.group_size;
    let (heads_per_group, grid) = match order {
        SHIFTED if launch.bounds.right || launch.resident < tiles || steps < tiles => {
            return None;
        }
        SHIFTED => {
            let side_by_side = heads.min(launch.resident / tiles);
            (side_by_side, tiles * side_by_side)
        }
        _ => (heads_per_group, launch.resident.min(tiles * heads)),
    };
    let schedule = Schedule {
        order,
        heads_per_group,
        stride: 1,
        ..launch.schedule
    };
    Some(Launch {
        schedule,
        grid,
        ..*launch
    })
}

/// How long it takes where every step takes as long.
pub fn simulated(launch: &Launch) -> u64 {
    time(launch, &launch.ways(), |_| 0)
}

/// How long it takes.
fn time(launch: &Launch, ways: &[Way], delay: impl FnMut(u32) -> u64) -> u64 {
    match run(launch, ways, TIMES, delay) {
        Ending::Done(time) => time,
        stuck => panic!("{launch:?}: {stuck:?}"),
    }
}

/// The share of steps, in percent, whose block of q, dO and dQ is not in the L2 cache. That has the blocks which were wanted last,
/// as many as fit: of its 50 MB an H200 keeps 34 MB, as it is fast with half shifted, and not 70 MB.
pub fn missed(launch: &Launch) -> f64 {
    let block_bytes = launch.block_q * launch.shape.head_dim * (2 + 2 + 4);
    let room = ((36 << 20) / block_bytes) as usize;
    let (mut wanted, mut in_order) = (HashMap::new(), BTreeMap::new());
    let (mut now, mut misses) = (0_u64, 0_u64);
    let ways = launch.ways();
    time(launch, &ways, |block| {
        now += 1;
        match wanted.insert(block, now) {
            Some(before) => drop(in_order.remove(&before)),
            None => misses += 1,
        }
        in_order.insert(now, block);
        if in_order.len() > room
            && let Some((_, oldest)) = in_order.pop_first()
        {
            wanted.remove(&oldest);
        }
        0
    });
    let steps: usize = ways.iter().map(|way| way.steps.len()).sum();
    100.0 * misses as f64 / steps as f64
}

/// The share of the device's time in which no step is made, in percent.
pub fn idle(launch: &Launch) -> f64 {
    let ways = launch.ways();
    let time = time(launch, &ways, |_| 0);
    let steps: usize = ways.iter().map(|way| way.steps.len()).sum();
    let busy = (steps as u64 * TIMES.step) as f64;
    100.0 * (1.0 - busy / (time * u64::from(launch.resident)) as f64)
}

pub fn problem(
    mask: Mask,
    head_dim: usize,
    batch: usize,
    seqlen: usize,
    heads: (usize, usize),
) -> Problem {
    Problem::builder(Dtype::Bf16)
        .batch(batch)
        .seqlen(seqlen)
        .heads_q(heads.0)
        .heads_k(heads.1)
        .head_dim(head_dim)
        .mask(mask)
        .order(Order::Deterministic)
        .build()
        .unwrap()
}

#[test]
fn table() {
    let mut text = String::from(
        "mask    head_dim seqlen  batch  heads  tiles  idle: planned           list  shifted  fastest  missed\n",
    );
    let mut row = |mask, head_dim, batch, seqlen, heads: (usize, usize)| {
        let launch = launch(&problem(mask, head_dim, batch, seqlen, heads));
        let of = |order| {
            in_order(&launch, order).map_or("-".into(), |launch| format!("{:.1}", idle(&launch)))
        };
        let order = match launch.schedule.order {
            SHIFTED if launch.schedule.stride == 2 => "half shifted",
            SHIFTED => "shifted",
            _ => "list",
        };
        writeln!(
            text,
            "{:<7} {head_dim:>8} {seqlen:>6} {batch:>6} {:>6} {:>6}  {order:>15} {:>6.1} {:>6} {:>8} {:>8} {:>7.0}",
            format!("{mask:?}"),
            format!("{}/{}", heads.0, heads.1),
            launch.schedule.tiles,
            idle(&launch),
            of(ORDERED),
            of(SHIFTED),
            of(FASTEST),
            missed(&launch),
        )
        .unwrap();
    };
    for mask in [Mask::Full, Mask::Causal] {
        for seqlen in [512, 1024, 2048, 4096, 8192, 16384] {
            row(mask, 128, 16384 / seqlen, seqlen, (16, 16));
        }
        for tiles in [35, 70, 100, 140, 200] {
            row(mask, 128, 1, 128 * tiles, (16, 16));
        }
        row(mask, 128, 2, 4096, (32, 8));
        for seqlen in [512, 2048, 8192, 16384] {
            row(mask, 64, 16384 / seqlen, seqlen, (32, 32));
        }
    }
    expect![[r#"
        mask    head_dim seqlen  batch  heads  tiles  idle: planned           list  shifted  fastest  missed
        Full         128    512     32  16/16      4          shifted   28.8   30.2     28.8     28.8      25
        Full         128   1024     16  16/16      8          shifted   17.9   19.1     17.9     17.9      12
        Full         128   2048      8  16/16     16          shifted   11.1   12.5     11.1     11.1       6
        Full         128   4096      4  16/16     32          shifted    7.2    8.7      7.2      7.2       3
        Full         128   8192      2  16/16     64     half shifted    5.7    6.7      6.0      5.7       2
        Full         128  16384      1  16/16    128     half shifted    4.4    5.4      4.7      4.4       1
        Full         128   4480      1  16/16     35             list   19.3   19.3     32.1     18.5       5
        Full         128   8960      1  16/16     70             list    8.8    8.8     48.5      8.1       7
        Full         128  12800      1  16/16    100             list    8.6    8.6     25.9      8.4       4
        Full         128  17920      1  16/16    140             list    4.9    4.9        -      1.5       1
        Full         128  25600      1  16/16    200             list    4.1    4.1        -      3.9       2
        Full         128   4096      2   32/8     32             list    6.9    6.9      4.1      4.1       5
        Full          64    512     32  32/32      4     half shifted   43.8   43.8     46.1     43.8      25
        Full          64   2048      8  32/32     16     half shifted   17.9   17.9     23.9     17.9       6
        Full          64   8192      2  32/32     64     half shifted    7.2    7.2     15.2      7.2       2
        Full          64  16384      1  32/32    128     half shifted    5.2    5.2     13.6      5.2       1
        Causal       128    512     32  16/16      4             list   38.2   38.2        -     38.1      40
        Causal       128   1024     16  16/16      8             list   25.5   25.5        -     25.4      22
        Causal       128   2048      8  16/16     16             list   15.6   15.6        -     15.6      12
        Causal       128   4096      4  16/16     32             list    8.3    8.3        -      8.3       6
        Causal       128   8192      2  16/16     64             list    4.4    4.4        -      4.4       3
        Causal       128  16384      1  16/16    128             list    2.6    2.6        -      2.5       2
        Causal       128   4480      1  16/16     35             list   10.4   10.4        -     10.4       6
        Causal       128   8960      1  16/16     70             list    5.0    5.0        -      5.0       3
        Causal       128  12800      1  16/16    100             list    6.4    6.4        -      4.9       2
        Causal       128  17920      1  16/16    140             list    2.3    2.3        -      2.3       1
        Causal       128  25600      1  16/16    200             list    4.0    4.0        -      2.5       1
        Causal       128   4096      2   32/8     32             list    6.4    6.4        -      6.4       6
        Causal        64    512     32  32/32      4             list   54.2   54.2        -     54.1      40
        Causal        64   2048      8  32/32     16             list   26.3   26.3        -     25.9      12
        Causal        64   8192      2  32/32     64             list   13.7   13.7        -      8.4       3
        Causal        64  16384      1  32/32    128             list   12.3   12.3        -      4.4       2
    "#]]
    .assert_eq(&text);
}

/// The least idle share of any list, and of shifted; of causal lists, and of shifted, only those that do not wait for memory more
/// than this launch.
fn best(launch: &Launch) -> f64 {
    let most = missed(launch) + 5.0;
    let causal = launch.bounds.right;
    let heads = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
    let heads = heads.into_iter().filter(|&n| n <= launch.schedule.heads);
    let lists = heads.filter_map(|heads_per_group| {
        let list = in_order(launch, ORDERED)?;
        let schedule = Schedule {
            heads_per_group,
            ..list.schedule
        };
        let list = Launch { schedule, ..list };
        (!causal || missed(&list) <= most).then_some(list)
    });
    let shifted = in_order(launch, SHIFTED).filter(|shifted| missed(shifted) <= most);
    let all = lists.chain(shifted);
    all.map(|launch| idle(&launch)).fold(100.0, f64::min)
}

/// Otherwise most steps of a causal list wait for memory.
#[test]
fn causal_lists_have_as_many_heads_side_by_side_as_the_l2_cache_keeps() {
    for (batch, n_heads) in [(1, 4), (1, 16), (2, 16)] {
        for tiles in [23, 35, 45, 60, 70, 73, 100, 128, 140] {
            let heads = (n_heads, n_heads);
            let launch = launch(&problem(Mask::Causal, 128, batch, 128 * tiles, heads));
            let missed = missed(&launch);
            assert!(missed <= 10.0, "{launch:?}: {missed:.0} % missed");
        }
    }
}

/// Where the cache does not keep a single head, tiles of all heads follow one another closely.
#[test]
fn long_causal_heads_do_not_wait_for_memory() {
    let launch = launch(&problem(Mask::Causal, 128, 1, 49152, (3, 3)));
    let (missed, idle) = (missed(&launch), idle(&launch));
    assert!(
        missed <= 5.0 && idle <= 4.0,
        "{missed:.0} % missed, {idle:.1} % idle"
    );
}

/// The shifted order goes through the queries of all heads that share keys: every step of it would miss the cache.
#[test]
fn without_a_mask_grouped_heads_do_not_wait_for_memory() {
    for heads in [(32, 8), (64, 8), (32, 1)] {
        for (batch, seqlen) in [(2, 2048), (2, 4096), (1, 8192)] {
            let launch = launch(&problem(Mask::Full, 128, batch, seqlen, heads));
            let missed = missed(&launch);
            assert!(missed <= 15.0, "{launch:?}: {missed:.0} % missed");
        }
    }
}

/// The planner decides by a few numbers; the simulator tries everything.
#[test]
fn no_other_order_is_much_better_than_the_planned_one() {
    for (mask, much) in [(Mask::Full, 4.0), (Mask::Causal, 2.0)] {
        for (batch, heads) in [(1, (4, 4)), (1, (16, 16)), (1, (32, 8))] {
            for tiles in [1, 5, 14, 23, 35, 45, 60, 70, 100, 128, 140] {
                let launch = launch(&problem(mask, 128, batch, 128 * tiles, heads));
                let (planned, best) = (idle(&launch), best(&launch));
                assert!(
                    planned <= best + much,
                    "{launch:?}: {planned:.1} % idle, and {best:.1} % in another order"
                );
            }
        }
    }
}
