//! Programs against the nodes that they are made of.

// The number of an element is asked for beside its result.
#![allow(clippy::needless_range_loop)]

mod assemble;
mod caps;
mod edges;
mod evaluator;
mod examples;
mod functions;
mod harness;
mod reference;
mod rows;
mod splicer;
mod tree;

use harness::{Launch, fits, program};
use reference::Value;
use tree::Random;

use super::{Edit, ScoreRows};
use crate::{Expression, Type};

/// What a test of many trees has seen.
#[derive(Default)]
struct Seen {
    trees: usize,
    known: usize,
    hidden: usize,
    unknown: usize,
}

fn value(expression: &Option<Expression>, launch: &Launch, element: usize) -> Option<Value> {
    evaluator::agree(expression.as_ref()?, launch, element)
}

/// Compares the elements that are known.
fn compare(edit: &Edit, launch: &Launch, seen: &mut Seen, seed: u64) {
    let gradient = edit.derivative.is_some();
    let result = launch.run(edit, gradient);
    for element in 0..4 {
        let keep = match value(&edit.mask, launch, element) {
            Some(Value::Bool(None)) => {
                seen.unknown += 1;
                continue;
            }
            Some(Value::Bool(Some(keep))) => keep,
            _ => true,
        };
        let wanted = [
            (
                value(&edit.score, launch, element),
                launch.unit(edit),
                element,
                f64::NEG_INFINITY,
            ),
            (
                value(&edit.derivative, launch, element),
                1.0,
                4 + element,
                0.0,
            ),
        ];
        for (value, scale, place, hidden) in wanted {
            let found = f64::from(result[place]);
            if !keep {
                assert!(
                    place >= 4 && !gradient || found == hidden,
                    "seed {seed}: {found} is not hidden"
                );
                seen.hidden += 1;
                continue;
            }
            let Some(Value::F32(number)) = value else {
                continue;
            };
            if !number.known() {
                seen.unknown += 1;
                continue;
            }
            let scale = f64::from(scale);
            let error = (number.error + 1e-36) / scale * 1.01;
            let wanted = number.value / scale;
            let near = (found - wanted).abs() <= error || found == wanted;
            assert!(
                near || wanted.abs() > 1e36,
                "seed {seed}, element {element}: {found} instead of {wanted} ± {error}, {:?} {:?}\n{edit:#?}",
                launch.place(element).indices,
                launch.place(element).params,
            );
            seen.known += 1;
        }
    }
}

#[test]
fn random_programs_give_what_their_nodes_mean() {
    let mut seen = Seen::default();
    for seed in 0..6000 {
        let mut random = Random::new(seed);
        let launch = Launch::random(&mut random);
        let some = |ty, random: &mut Random| Some(tree::random(ty, random));
        let edit = Edit {
            score: some(Type::F32, &mut random),
            mask: if random.below(2) == 0 {
                some(Type::Bool, &mut random)
            } else {
                None
            },
            derivative: if random.below(2) == 0 {
                some(Type::F32, &mut random)
            } else {
                None
            },
        };
        let all = [&edit.score, &edit.mask, &edit.derivative];
        if all.into_iter().flatten().all(|tree| fits(&launch, tree)) {
            seen.trees += all.into_iter().flatten().count();
            compare(&edit, &launch, &mut seen, seed);
        }
    }
    assert!(seen.trees > 10_000, "{}", seen.trees);
    assert!(seen.known > 10_000, "{}", seen.known);
    assert!(seen.hidden > 2_000, "{}", seen.hidden);
    assert!(seen.unknown < seen.known, "{}", seen.unknown);
}

#[test]
fn masks_hide_what_their_nodes_hide() {
    let (mut hidden, mut visible) = (0, 0);
    for seed in 0..6000 {
        let mut random = Random::new(seed + 1_000_000);
        let launch = Launch::random(&mut random);
        let mask = tree::random(Type::Bool, &mut random);
        if !fits(&launch, &mask) {
            continue;
        }
        let edit = Edit {
            mask: Some(mask),
            ..Edit::default()
        };
        let result = launch.run(&edit, false);
        for element in 0..4 {
            match value(&edit.mask, &launch, element) {
                Some(Value::Bool(Some(true))) => {
                    assert_eq!(result[element], launch.x[element], "seed {seed}\n{edit:#?}");
                    visible += 1;
                }
                Some(Value::Bool(Some(false))) => {
                    assert_eq!(result[element], f32::NEG_INFINITY, "seed {seed}\n{edit:#?}");
                    hidden += 1;
                }
                _ => {}
            }
        }
    }
    assert!(hidden > 4_000 && visible > 4_000, "{hidden} {visible}");
}

#[test]
fn what_does_nothing_leaves_no_text() {
    let mut score = tree::Tree::default();
    score.score();
    let score = Some(score.build());
    for edit in [
        Edit::default(),
        Edit {
            score,
            ..Edit::default()
        },
    ] {
        let text = ".entry k(.param .b8 k_param_0[8])\n{\n\tferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;\n\
                    \tferroflash_score_block %r7;\n\tferroflash_score %r1, %r2, %r3, %r4, 8;\n\tret;\n}\n";
        let text = program(&edit, ScoreRows::Queries).splice(text).unwrap();
        assert!(!text.contains("ff"), "{text}");
        assert!(!text.contains("mov"), "{text}");
    }
}
