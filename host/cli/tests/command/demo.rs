//! `ferroflash demo`.

use super::*;

#[test]
fn a_demonstration_needs_no_file() {
    let (stdout, stderr) = expect(0, &["demo", "--backend", "cpu"]);
    assert_eq!(stdout.matches("agrees").count(), 5, "{stdout}");
    for text in [
        "tiled on cpu",
        "checked against attention in float64",
        "TFLOP/s",
        "ferroflash bench",
    ] {
        assert!(stdout.contains(text), "{text}: {stdout}");
    }
    // Neither colours nor progress where nobody sees them.
    assert!(!stdout.contains('\u{1b}'), "{stdout:?}");
    assert_eq!(stderr, "");
}
