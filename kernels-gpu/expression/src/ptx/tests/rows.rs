//! What the scores of a row have in common, apart from them.

use super::examples::{alibi, soft_cap};
use super::harness::{Launch, PLACES};
use super::tree::{Random, Tree};
use crate::ptx::{Edit, Program, RowTerms, ScoreRows, SpliceError};
use crate::{Compare, Index};

fn apart(edit: &Edit) -> Program {
    Program::with_row_terms(edit, ScoreRows::Queries, PLACES, RowTerms::Apart).unwrap()
}

fn kernel(block: &str) -> String {
    format!(
        ".entry k(.param .align 8 .b8 k_param_0[64])\n{{\n\
         \tferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;\n\t{block} %r7;\n\
         \t// scores\n\tferroflash_score %f0, %f1, %f2, %f3, 8;\n\
         \t// with\n\tferroflash_score_with_rows %m0, %m1;\n\
         \t// without\n\tferroflash_score_without_rows %m0, %m1;\n\t// end\n\tret;\n}}\n"
    )
}

/// The instructions between two comments.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    let (_, text) = text.split_once(from).unwrap();
    let (text, _) = text.split_once(to).unwrap();
    let lines = text.lines().map(str::trim);
    let is_code = |line: &&str| !matches!(*line, "" | "{" | "}") && !line.starts_with(".reg");
    lines.filter(is_code).collect()
}

#[test]
fn a_slope_costs_one_multiply_add_for_each_score() {
    let text = apart(&alibi()).splice(&kernel("ferroflash_score_block_apart"));
    let text = text.unwrap();
    let scores = between(&text, "// scores", "// with");
    let n_fma = scores.iter().filter(|line| line.starts_with("fma.rn.f32 "));
    assert_eq!(n_fma.count(), 4, "{text}");
    assert!(
        scores
            .iter()
            .all(|line| line.starts_with("fma.") || line.starts_with("mov.")),
        "{text}"
    );
    for (from, to, instruction) in [
        ("// with\n", "// without", "add.f32 %m"),
        ("// without", "// end", "sub.f32 %m"),
    ] {
        let rows = between(&text, from, to);
        assert_eq!(rows.len(), 2, "{text}");
        assert!(
            rows.iter().all(|line| line.starts_with(instruction)),
            "{text}"
        );
    }
}

#[test]
fn a_score_of_its_own_alone_leaves_nothing_to_the_rows() {
    let text = apart(&soft_cap()).splice(&kernel("ferroflash_score_block_apart"));
    let text = text.unwrap();
    assert!(!text.contains("%m"), "{text}");
}

#[test]
fn kernel_and_program_agree_on_where_they_go() {
    let entry = || "k".to_owned();
    let error = Err(SpliceError::RowTerms { entry: entry() });
    let whole = Program::new(&alibi(), ScoreRows::Queries, PLACES).unwrap();
    assert_eq!(
        whole.splice(&kernel("ferroflash_score_block_apart")),
        error.clone()
    );
    assert_eq!(
        apart(&alibi()).splice(&kernel("ferroflash_score_block")),
        error
    );
}

/// A slope that is no number: a row that sees nothing is as it is without a slope.
#[test]
fn what_is_no_number_does_not_reach_a_row_that_is_hidden() {
    let mut nothing = Tree::default();
    let key = nothing.index(Index::Key);
    let before_all = nothing.i32(-1);
    nothing.compare(Compare::Lt, key, before_all);
    let hidden = Edit {
        mask: Some(nothing.build()),
        ..alibi()
    };
    for slope in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e38] {
        let mut launch = Launch::random(&mut Random::new(5));
        (launch.rows, launch.terms) = (ScoreRows::Queries, RowTerms::Apart);
        launch.tensors[0].bits.fill(slope.to_bits());
        for x in &launch.run(&hidden, false)[..4] {
            assert_eq!(*x, f32::NEG_INFINITY, "slope {slope}");
        }
        let seen = launch.run(&alibi(), false);
        assert!(
            slope.is_finite() || seen[..4].iter().all(|x| !x.is_finite()),
            "slope {slope}: {seen:?}"
        );
    }
}
