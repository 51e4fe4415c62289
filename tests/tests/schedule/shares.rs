//! tmp
use super::idle::*;
use super::simulator::{Ending, run};
use ferroflash::Mask;
use ferroflash::plan::DeviceInfo;
use ferroflash::plan::schedule::tma_backward_in_shares;
use ferroflash_kernels::config;
use ferroflash_kernels::variants::TileShape;

#[test]
fn explore() {
    let device = DeviceInfo::h200();
    for mask in [Mask::Full, Mask::Causal] {
        for (heads, batch, seqlen) in [
            ((32, 1), 16, 512),
            ((32, 1), 8, 1024),
            ((32, 1), 4, 2048),
            ((32, 1), 2, 4096),
            ((32, 1), 1, 8192),
            ((32, 1), 1, 16384),
            ((32, 1), 1, 2048),
            ((32, 8), 8, 1024),
            ((32, 8), 2, 4096),
            ((32, 8), 1, 8192),
            ((32, 8), 1, 16384),
            ((32, 8), 1, 2048),
            ((64, 8), 1, 4096),
            ((16, 2), 1, 4096),
            ((8, 1), 1, 16384),
            ((8, 1), 1, 4096),
            ((71, 1), 1, 2048),
            ((12, 4), 1, 3000),
            ((12, 4), 1, 30000),
        ] {
            let problem = problem(mask, 128, batch, seqlen, heads);
            let base = launch(&problem);
            let group = heads.0 / heads.1;
            let wide = base.block_q == 80;
            let footprint = config::tma_backward(
                128,
                if wide {
                    TileShape::Wide
                } else {
                    TileShape::Default
                },
            );
            let mut text = String::new();
            for n in (1..=group).filter(|n| group % n == 0) {
                let t = tma_backward_in_shares(&problem, &device, &footprint, n as u64);
                let launch = in_shares(&base, &problem, &t);
                let ways = launch.ways();
                let Ending::Done(time) = run(&launch, &ways, TIMES, |_| 0) else {
                    panic!()
                };
                let missed = missed(&launch);
                let with = time as f64 * (1.0 + 0.18 * missed / 100.0);
                text += &format!(
                    "   {n:>2}{} {} hpg {:>2}: model {:>8} sim {:>8} missed {:>3.0} with {:>8.0} {:>+5.1}%\n",
                    if n as u32 == base.n_shares { "*" } else { " " },
                    launch.schedule.order,
                    launch.schedule.heads_per_group,
                    t.time,
                    time,
                    missed,
                    with,
                    100.0 * (t.time as f64 / with - 1.0)
                );
            }
            println!("{mask:?} {heads:?} b{batch} s{seqlen}\n{text}");
        }
    }
}
