//! Names and counts of rows.

use super::*;
use crate::bench::arguments::BenchArguments;
use crate::bench::cases;

/// The first row of a command line on the CPU, not measured.
fn row(options: &str) -> Row {
    let line = format!("--seqs 8 --hdims 8 --causal 0 {options}");
    let arguments = BenchArguments::parse(&line).unwrap();
    let cases = cases::cases(&arguments, &Device::cpu()).unwrap();
    let failure = Failure::Option("not run".into());
    Row::failed(&cases[0], &cases[0].variants[0], &Device::cpu(), &failure)
}

#[test]
fn rows_name_another_number_of_columns_of_v() {
    let sizes = "--width 16 --tokens 8 --passes";
    let same = row(&format!("{sizes} fwd --hdims-v 8"));
    assert_eq!(same.peer(), "ferroflash-auto");
    assert!(!same.json().contains("Dv"));
    let of = |pass| row(&format!("{sizes} {pass} --hdims-v 24"));
    let forward = of("fwd");
    assert_eq!(forward.peer(), "ferroflash-auto-v24");
    let json: Value = serde_json::from_str(&forward.json()).unwrap();
    assert_eq!((&json["D"], &json["Dv"]), (&json!(8), &json!(24)));
    // Two heads of 8 times 8 scores.
    let pairs = 2.0 * 64.0;
    assert_eq!(forward.flops(), 2.0 * pairs * (8.0 + 24.0));
    assert_eq!(of("bwd").flops(), 2.0 * pairs * (3.0 * 8.0 + 2.0 * 24.0));
}

#[test]
fn rows_name_their_expressions() {
    let row = |options: &str| row(&format!("--passes fwd {options}"));
    let plain = row("");
    assert_eq!(plain.peer(), "ferroflash-auto");
    assert!(plain.case.problem.score().is_none() && !plain.json().contains("score"));
    let named = row("--score alibi --mask-expression document");
    assert_eq!(named.peer(), "ferroflash-auto-alibi-mask-document");
    assert!(named.case.problem.score().is_some() && named.case.problem.mask_expression().is_some());
    let json: Value = serde_json::from_str(&named.json()).unwrap();
    assert_eq!(json["score"], "alibi");
    assert_eq!(json["mask_expression"], "document");
    assert_eq!(json["causal"], 0);
    assert!(named.to_string().contains("alibi-mask-document"));
}

#[test]
fn rows_name_the_way_of_8_bits() {
    let peer = |way: &str| row(&format!("--passes fwd --fp8 {way}")).peer();
    assert_eq!(peer("two-levels"), "ferroflash-auto-fp8");
    assert_eq!(peer("one-level"), "ferroflash-auto-fp8-one-level");
    assert_eq!(peer("blocks"), "ferroflash-auto-fp8-blocks");
}

#[test]
fn rows_name_the_precision() {
    let of_f32 = |options: &str| row(&format!("--passes fwd --dtype f32 {options}"));
    let json = |options: &str| serde_json::from_str::<Value>(&of_f32(options).json()).unwrap();
    assert_eq!(json("--precision full")["precision"], "full");
    assert_eq!(json("")["precision"], Value::Null);
    assert!(BenchArguments::parse("--seqs 8 --precision half").is_err());
}
