//! Steps and shares of the schedules' pictures.

use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash_book::schedule::{CAUSAL, CAUSAL_BACKWARD, FORWARD, FULL_BACKWARD, Order, Scene};
use ferroflash_lab::estimate::{Gpu, estimate};
use ferroflash_lab::timeline::Timeline;

use super::assert_says;

/// Tiles of the picture are those that the estimate counts with.
#[test]
fn tiles_of_flash1_are_the_estimates() {
    let timeline = FORWARD.forward(Algorithm::Flash1, Order::Planned);
    let timeline = timeline.expect("it is planned");
    let problem = FORWARD.problem().expect("a good problem");
    let gpu = Gpu::named("H200").expect("it is in the table");
    let estimates = estimate(&problem, &gpu, Pass::Forward).expect("it is counted");
    let of_flash1 = estimates.iter().find(|e| e.algorithm == Algorithm::Flash1);
    let flops = timeline.n_steps * 128 * 128 * 4 * 128;
    assert_eq!(of_flash1.map(|estimate| estimate.flops()), Some(flops));
    let said = ["here 128 keys and 128 queries", "half of the 4 SMs"];
    assert_says("schedules.md", &said.map(str::to_owned));
    assert_eq!(timeline.idle().without_tile, 0.5);
}

/// The picture of flash2 is of whole waves, as that of flash3.
#[test]
fn tiles_of_queries_keep_all_places() {
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let timeline = FORWARD.forward(algorithm, Order::Planned);
        let idle = timeline.expect("it is planned").idle();
        assert_eq!((idle.without_tile, idle.waits), (0.0, 0.0), "{algorithm}");
    }
}

#[test]
fn longest_tiles_first_end_together() {
    let of = |order| CAUSAL.forward(Algorithm::Flash3, order);
    let of = |order| of(order).expect("it is planned");
    let (ascending, planned) = (of(Order::Ascending), of(Order::Planned));
    assert_eq!(ascending.n_steps, planned.n_steps);
    assert_eq!(planned.idle().without_tile, 0.0);
    assert!(ascending.idle().without_tile > 0.0);
    let said = [
        format!("\n{} steps", ascending.end_in_steps()),
        format!("after {} steps", planned.end_in_steps()),
    ];
    assert_says("schedules.md", &said);
}

#[test]
fn nobody_waits_in_the_planned_order() {
    let of = |scene: Scene, order| scene.backward(order).expect("it is planned");
    let planned = of(FULL_BACKWARD, Order::Planned);
    let ascending = of(FULL_BACKWARD, Order::Ascending);
    assert_eq!(ascending.n_steps, planned.n_steps);
    assert!(ascending.idle().waits > 0.0);
    let waits = |timeline: &Timeline| timeline.idle().waits;
    assert_eq!(waits(&planned), 0.0);
    assert_eq!(waits(&of(CAUSAL_BACKWARD, Order::Planned)), 0.0);
    let said = format!(
        "{} steps in place of {}",
        ascending.end_in_steps(),
        planned.end_in_steps()
    );
    assert_says("determinism.md", &[said]);
}
