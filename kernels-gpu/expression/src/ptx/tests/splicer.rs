//! Texts that fit, and texts that do not.

use super::examples;
use super::harness::{PLACES, program};
use super::tree::Random;
use crate::ptx::{Edit, Program, ScoreRows, SpliceError, WriteError};

const TILE: &str = "ferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;";
const BLOCK: &str = "ferroflash_score_block %r7;";
const SCORE: &str = "ferroflash_score %f0, %f1, %f2, %f3, 8;";
const GRADIENT: &str = "ferroflash_score_gradient %f0, %f1, %f2, %f3, %d0, %d1, %d2, %d3, 8;";

fn entry(name: &str, body: &[&str]) -> String {
    let body = body.join("\n\t");
    format!(
        ".visible .entry {name}(\n\t.param .b8 {name}_param_0[512]\n)\n{{\n\t{body}\n\tret;\n}}\n"
    )
}

fn alibi() -> Program {
    program(&examples::alibi(), ScoreRows::Queries)
}

#[test]
fn every_entry_has_its_own_registers_and_parameter() {
    let plain = entry("plain", &["mov.u32 %r1, ferroflash_spec_pages;"]);
    let text = format!(
        "//\n// .entry ferroflash_score x\n{}{plain}{}",
        entry("a", &[TILE, BLOCK, SCORE, BLOCK, SCORE]),
        entry("b", &[TILE, BLOCK, SCORE]),
    );
    let spliced = alibi().splice(&text).unwrap();
    assert!(spliced.contains(&plain));
    assert!(spliced.contains("// .entry ferroflash_score x"));
    assert!(spliced.contains("[a_param_0+") && spliced.contains("[b_param_0+"));
    let kept = spliced.matches(".reg .b32 %ffk").count();
    assert!(kept > 0 && kept.is_multiple_of(2), "{kept}");
    assert_eq!(spliced.matches("ferroflash_score").count(), 1);
}

#[test]
fn a_column_may_lie_in_a_register_that_is_set_once() {
    let score = "ferroflash_score %f0, %f1, %f2, %f3, %r9;";
    let once = entry("k", &[TILE, BLOCK, "mov.b32 %r9, 8;", score]);
    let direct = entry("k", &[TILE, BLOCK, "mov.b32 %r9, 8;", SCORE]);
    assert_eq!(alibi().splice(&once), alibi().splice(&direct));
    let error = SpliceError::NoColumn {
        operand: "%r9".into(),
    };
    for body in [
        vec![
            TILE,
            BLOCK,
            "mov.b32 %r9, 8;",
            "@%p1 mov.b32 %r9, 16;",
            score,
        ],
        vec![
            TILE,
            BLOCK,
            "mov.b32 %r9, 8;",
            "ld.global.v2.b32 {%r9, %r10}, [%rd1];",
            score,
        ],
        vec![TILE, BLOCK, score],
        vec![
            TILE,
            BLOCK,
            "mov.b32 %r9, 8;",
            score,
            "add.s32 %r9, %r9, 8;",
        ],
        vec![TILE, BLOCK, "mov.b32 %r9, %r8;", score],
    ] {
        assert_eq!(alibi().splice(&entry("k", &body)), Err(error.clone()));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let wrong = |text: &str| {
        let error = alibi().splice(text).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    assert_eq!(
        wrong(&entry(
            "k",
            &[TILE, "ferroflash_score_block %r7, %r8;", SCORE]
        )),
        SpliceError::Operands {
            instruction: "ferroflash_score_block".into(),
            expected: 1,
            found: 2
        }
    );
    assert!(matches!(
        wrong(&entry("k", &[TILE, "ferroflash_score_block %r7", SCORE])),
        SpliceError::Operands { .. }
    ));
    assert_eq!(
        wrong(&entry("k", &["ferroflash_scores %r7;"])),
        SpliceError::Unknown {
            instruction: "ferroflash_scores".into()
        }
    );
    let missing = |instruction| SpliceError::Missing {
        entry: "k".into(),
        instruction,
    };
    assert_eq!(
        wrong(&entry("k", &[TILE, SCORE])),
        missing("ferroflash_score_block")
    );
    assert_eq!(
        wrong(&entry("k", &[BLOCK, SCORE])),
        missing("ferroflash_score_tile")
    );
    assert_eq!(
        wrong(&entry("k", &[TILE, BLOCK, GRADIENT])),
        SpliceError::NoDerivative { entry: "k".into() }
    );
    let other = entry("k", &[TILE, BLOCK, SCORE]).replace("k_param_0", "k_param_1");
    assert_eq!(
        wrong(&other),
        SpliceError::NoParameter { entry: "k".into() }
    );
    let function = entry("k", &[TILE, BLOCK, SCORE]).replace(".entry", ".func");
    assert_eq!(
        wrong(&function),
        SpliceError::NoEntry {
            instruction: "ferroflash_score_tile".into()
        }
    );
}

#[test]
fn scores_that_stay_have_the_derivative_1_and_hidden_ones_0() {
    let text = entry("k", &[TILE, BLOCK, GRADIENT]);
    let plain = program(&Edit::default(), ScoreRows::Keys)
        .splice(&text)
        .unwrap();
    assert!(plain.contains("mov.b32 %d3, 0x3F800000;"), "{plain}");
    assert!(!plain.contains("%f0,"), "{plain}");
    let causal = program(&examples::causal(), ScoreRows::Keys)
        .splice(&text)
        .unwrap();
    assert!(causal.contains("0x3F800000, 0x00000000, %ffp"), "{causal}");
    assert!(causal.contains("%f0, 0xFF800000, %ffp") || causal.contains("0xFF800000, %f0, %ffp"));
    // Masks know neither softmax_scale nor more than a bound per row.
    assert!(
        !causal.contains("f32") && !causal.contains("ld.param"),
        "{causal}"
    );
    assert_eq!(causal.matches("setp").count(), 4, "{causal}");
}

#[test]
fn expressions_of_the_wrong_type_are_errors() {
    let (score, mask) = (examples::alibi().score, examples::causal().mask);
    let new = |edit: &Edit| Program::new(edit, ScoreRows::Queries, PLACES).map(|_| ());
    let edit = Edit {
        score: mask.clone(),
        ..Edit::default()
    };
    assert!(new(&edit).is_err());
    let edit = Edit {
        mask: score,
        ..Edit::default()
    };
    assert_eq!(new(&edit), Err(WriteError::NoCondition));
    let edit = Edit {
        derivative: mask,
        ..Edit::default()
    };
    assert_eq!(new(&edit), Err(WriteError::NoNumber));
}

#[test]
fn no_text_makes_it_panic() {
    let text = entry("k", &[TILE, BLOCK, SCORE, "// é", GRADIENT]);
    let program = program(&Edit::default(), ScoreRows::Queries);
    let characters: Vec<char> = text.chars().collect();
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let mut cut = characters.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(cut.len());
            match random.below(3) {
                0 => drop(cut.remove(at)),
                1 => cut.insert(
                    at,
                    random.of(&['{', ';', '\n', ',', '.', 'é', ' ', '%', '/']),
                ),
                _ => cut.truncate(at.max(9)),
            }
        }
        let cut: String = cut.into_iter().collect();
        if let Ok(spliced) = program.splice(&cut) {
            let code = spliced.lines().filter(|line| !line.contains("//"));
            let left = code.filter(|line| line.trim().starts_with("ferroflash_score"));
            assert_eq!(left.count(), 0, "{cut}");
        }
    }
}
