//! What variants' results are held to.

use super::*;

fn results(values: &[f32]) -> Results {
    vec![("o", values.to_vec())]
}

#[test]
fn a_wrong_first_variant_is_found_and_the_right_ones_are_measured() {
    let (right, wrong) = ([1.0, -2.0, 0.5], [0.0, 0.0, 0.0]);
    let mut reference = Reference::new(Some(results(&right)));
    let judged = reference
        .judge(results(&wrong), Rounding::Bf16)
        .unwrap_err();
    let text = judged.to_string();
    assert!(
        text.starts_with("not measured: o differs from the processor's by 1.3e0 (rms)"),
        "{text}"
    );
    assert!(matches!(judged, Failure::Differs(_)));
    // Half a unit in the last place.
    let rounded = right.map(|x| x * (1.0 + 1.0 / 512.0));
    reference.judge(results(&rounded), Rounding::Bf16).unwrap();
    reference.judge(results(&right), Rounding::Bf16).unwrap();
    assert!(
        reference
            .judge(results(&[f32::NAN; 3]), Rounding::Bf16)
            .is_err()
    );
}

#[test]
fn without_the_processors_the_first_variant_is_the_reference() {
    let mut reference = Reference::new(None);
    reference
        .judge(results(&[1.0, 2.0]), Rounding::F16)
        .unwrap();
    reference
        .judge(results(&[1.0, 2.0]), Rounding::F16)
        .unwrap();
    let other = reference
        .judge(results(&[2.0, 1.0]), Rounding::F16)
        .unwrap_err();
    assert!(other.to_string().contains("the first variant's"), "{other}");
}

#[test]
fn the_command_fails_where_a_result_is_wrong() {
    let text = |code: ExitCode| format!("{code:?}");
    assert_eq!(text(exit_code(0, true)), text(ExitCode::SUCCESS));
    for wrong in [exit_code(2, true), exit_code(0, false)] {
        assert_eq!(text(wrong), text(ExitCode::from(DIFFERS)));
    }
}
