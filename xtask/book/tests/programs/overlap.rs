//! The timelines of flash3's chapter.

use ferroflash_book::programs::overlap::{Stages, drawn, overlap, share_of_tensor_cores};

use super::assert_says;

#[test]
fn timelines_are_the_chapters() {
    let cases = [
        (1, Stages::One, 1),
        (1, Stages::Two, 1),
        (2, Stages::One, 1),
        (2, Stages::Two, 1),
    ];
    let drawn = cases.map(|(n, stages, softmax)| drawn(&overlap(n, stages, 16, softmax), 14));
    assert_says("flash3.md", &drawn);
}

#[test]
fn shares_are_the_chapters() {
    let share = |consumers, stages, softmax| {
        let ran = overlap(consumers, stages, 64, softmax);
        format!("{:.0}", 100.0 * share_of_tensor_cores(&ran))
    };
    let row = |(name, consumers, stages)| {
        format!(
            "| {name} | {} | {} |",
            share(consumers, stages, 1),
            share(consumers, stages, 2)
        )
    };
    let rows = [
        ("one, one stage", 1, Stages::One),
        ("one, two stages", 1, Stages::Two),
        ("two, one stage", 2, Stages::One),
        ("two, two stages", 2, Stages::Two),
    ];
    assert_says("flash3.md", &rows.map(row));
}

/// A unit does one step at a time, and no step begins before what it needs.
#[test]
fn nothing_runs_twice_or_too_early() {
    for (consumers, stages, softmax) in [(1, Stages::One, 1), (2, Stages::Two, 2)] {
        let ran = overlap(consumers, stages, 9, softmax);
        assert_eq!(ran.len(), consumers * 9 * 3);
        for a in &ran {
            for b in &ran {
                let same_unit = (a.name == 'P') == (b.name == 'P');
                let apart = a.to <= b.from || b.to <= a.from;
                assert!(a == b || !same_unit || apart, "{a:?} {b:?}");
                let own = a.consumer == b.consumer && a.block == b.block;
                let needs = matches!((a.name, b.name), ('S', 'P') | ('P', 'O'));
                assert!(!(own && needs) || a.to <= b.from, "{a:?} {b:?}");
            }
        }
    }
}
