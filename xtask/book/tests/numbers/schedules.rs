//! Steps and shares of the schedules' pictures.

use ferroflash::Mask;
use ferroflash::estimate::{Gpu, estimate};
use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash_book::schedule::{CAUSAL_BACKWARD, FULL_BACKWARD, N_SMS_BACKWARD};
use ferroflash_book::schedule::{
    Deterministic, Order, deterministic, flash1, flash1_tiles, forward, problem,
};

use super::assert_says;

/// Tiles of the picture are those that the estimate counts with.
#[test]
fn tiles_of_flash1_are_the_estimates() {
    let problem = problem(2, 1024, Mask::Full).expect("a good problem");
    let (tiles_q, tiles_k) = flash1_tiles(&problem);
    let gpu = Gpu::named("H200").expect("it is in the table");
    let estimates = estimate(&problem, &gpu, Pass::Forward).expect("it is counted");
    let of_flash1 = estimates.iter().find(|e| e.algorithm == Algorithm::Flash1);
    let flops = 2 * (tiles_q * 128 * tiles_k * 128) * 4 * 128;
    assert_eq!(of_flash1.map(|estimate| estimate.flops()), Some(flops));
    assert_says(
        "schedules.md",
        &["here 128 keys and 128 queries".to_owned()],
    );
    // Half of the places have nothing to do.
    assert_eq!(flash1(&problem).busy_percent(), 50);
}

#[test]
fn longest_tiles_first_end_together() {
    let problem = problem(4, 2048, Mask::Causal).expect("a good problem");
    let of = |order| forward(&problem, Algorithm::Flash3, order).expect("it is planned");
    let (ascending, planned) = (of(Order::Ascending), of(Order::Planned));
    assert_eq!(ascending.busy(), planned.busy());
    assert_eq!(planned.busy_percent(), 100);
    assert_eq!((ascending.end(), planned.end()), (143, 136));
    assert_says(
        "schedules.md",
        &["143".to_owned(), "steps, where 136 would do".to_owned()],
    );
}

#[test]
fn nobody_waits_in_the_planned_order() {
    let of = |(heads, seqlen, mask), order| {
        let problem = problem(heads, seqlen, mask).expect("a good problem");
        deterministic(&problem, N_SMS_BACKWARD, order).expect("it is planned")
    };
    let planned = of(FULL_BACKWARD, Deterministic::Planned);
    let from_first = of(FULL_BACKWARD, Deterministic::FromFirst);
    assert_eq!((from_first.end(), planned.end()), (11, 8));
    assert_eq!(from_first.busy(), planned.busy());
    assert_eq!(planned.busy_percent(), 100);
    assert_eq!(
        of(CAUSAL_BACKWARD, Deterministic::Planned).busy_percent(),
        100
    );
    assert_says("determinism.md", &["11 steps in place of 8".to_owned()]);
}
