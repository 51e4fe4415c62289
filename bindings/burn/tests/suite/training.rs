//! The example `train`: its loss falls.

use crate::train;

#[test]
fn the_loss_falls() {
    let losses = train::train(60, |_, _| ()).unwrap();
    let at_random = (train::VOCABULARY as f32).ln();
    assert!((losses[0] - at_random).abs() < 1.0, "{}", losses[0]);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&losses[..5]), mean(&losses[55..]));
    assert!(last < 0.5 * first, "from {first} to {last}");
}
