//! Profiled passes on a GPU: the bits of the calls, and a record of each tile of their plans that makes sense.

use super::*;
use ferroflash_lab::timeline::Measured;

#[test]
fn stamped_passes_give_the_bits_of_the_calls_and_record_every_tile() {
    for (device, algorithm) in subjects() {
        if algorithm == Algorithm::Standard {
            continue;
        }
        // The last of flash3's wide tiles, if there are as many SMs as an H100 has.
        let lengths = [2048, 2048, 2048, 2048, 8192];
        for (mask, seqlen) in MASKS.into_iter().chain([Mask::Full]).zip(lengths) {
            let sizes = Problem::builder(Dtype::Bf16).batch(2).seqlen(seqlen);
            let sizes = sizes.heads_q(32).heads_k(16).head_dim(128);
            let problem = sizes.mask(mask).build().unwrap();
            let mut passes = Passes::new(&device, problem, algorithm).unwrap();
            let expected = passes.bits_of_calls().unwrap();
            passes.forward = passes.forward.profiled().unwrap();
            passes.backward = passes.backward.profiled().unwrap();
            let name = format!("{algorithm} {mask} {seqlen}");
            assert!(passes.bits_of_calls().unwrap() == expected, "{name}");
            let plans = [passes.forward.plan(), passes.backward.plan()];
            for (plan, stamps) in plans.into_iter().zip(&passes.recorded) {
                let measured = Measured::new(plan, device.info(), stamps).unwrap();
                let without_tile = measured.without_tile();
                assert!((0.0..0.5).contains(&without_tile), "{name}: {without_tile}");
                eprintln!(
                    "{name}: {}: {:.1} % without a tile, {} SMs, {} ns, ticks of {} ns, {:.2} GHz",
                    measured.kernel,
                    100.0 * without_tile,
                    measured.n_sms(),
                    measured.end(),
                    measured.tick_ns,
                    measured.clock_ghz
                );
            }
        }
    }
}
