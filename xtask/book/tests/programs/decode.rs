//! Keys in parts: the program, the chapter's example, and the library's merge.

use ferroflash::merge::Merge;
use ferroflash::{Device, Dtype, Error, MergeInputs, MergeProblem, Outputs, Tensor, TensorMut};
use ferroflash_book::programs::Head;
use ferroflash_book::programs::answers::merge_with_empty;
use ferroflash_book::programs::decode::{merge, split_kv};
use ferroflash_book::programs::flash2::flash2;
use ferroflash_book::programs::standard::standard;

use super::{Random, assert_near, assert_says};

#[test]
fn splits_give_what_the_whole_gives() {
    let random = Random::<8>::new(1, 100);
    let (o, lse) = standard(&random.head());
    for n_splits in [1, 2, 3, 7, 100] {
        let (split_o, split_lse) = split_kv(&random.head(), n_splits);
        assert_near("o", &split_o, &o[0], 1e-12);
        assert_near("lse", &[split_lse], &lse, 1e-12);
    }
}

/// The first row of the chapter on the online softmax, its keys in two parts.
#[test]
fn the_example_is_the_chapters() -> Result<(), Error> {
    let k = [[1.0, 0.0], [3.0, 0.0], [2.0, 0.0], [5.0, 0.0]];
    let v = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [1.0, 3.0]];
    let part = |keys: std::ops::Range<usize>| {
        let (k, v) = (&k[keys.clone()], &v[keys]);
        let q = &[[1.0, 0.0]];
        let (o, lse) = flash2(
            &Head {
                q,
                k,
                v,
                scale: 1.0,
            },
            [1, 2],
        );
        (o[0], lse[0])
    };
    let parts = [part(0..2), part(2..4)];
    let (o, lse) = merge(&parts);
    let row = |name: &str, (o, l): ([f64; 2], f64), weight: f64| {
        format!(
            "| {name} | {:.4}, {:.4} | {l:.4} | {weight:.4} |",
            o[0], o[1]
        )
    };
    let weight = |at: usize| (parts[at].1 - lse).exp();
    let lines = [
        row("0 and 1", parts[0], weight(0)),
        row("2 and 3", parts[1], weight(1)),
        row("all", (o, lse), weight(0) + weight(1)),
    ];
    assert_says("decode.md", &lines);

    let shape = [1, 1, 1, 2];
    let f32s = |x: [f64; 2]| x.map(|x| x as f32);
    let [(o_1, l_1), (o_2, l_2)] = parts.map(|(o, lse)| (f32s(o), [lse as f32]));
    let (mut merged, mut merged_lse) = ([0f32; 2], [0f32]);
    Merge::new(&Device::cpu(), MergeProblem::new(Dtype::F32, shape))?.run(
        &MergeInputs::new(
            &Tensor::bshd(&o_1, shape)?,
            &l_1,
            &Tensor::bshd(&o_2, shape)?,
            &l_2,
        ),
        &mut Outputs::new(TensorMut::bshd(&mut merged, shape)?, &mut merged_lse),
    )?;
    assert_near("o", &merged.map(f64::from), &o, 1e-6);
    assert_near("lse", &merged_lse.map(f64::from), &[lse], 1e-6);
    Ok(())
}

#[test]
fn a_part_without_keys_weighs_nothing() {
    let seen = ([1.0, 2.0], 3.0);
    let empty = ([f64::NAN; 2], f64::NEG_INFINITY);
    assert_eq!(merge_with_empty(&[empty, seen]), seen);
    assert_eq!(
        merge_with_empty(&[empty, empty]),
        ([0.0; 2], f64::NEG_INFINITY)
    );
    // The program of the chapter has no answer there.
    assert!(merge(&[empty, empty]).0[0].is_nan());
}

/// Bytes and operations of a step of decoding, as the chapter counts them.
#[test]
fn counts_are_the_chapters() {
    let (n, d, heads_k, heads_q) = (32_768u64, 128, 8, 32);
    let bytes = 2 * n * d * 2 * heads_k;
    let flops = 4 * n * d * heads_q;
    let said = [
        format!("{:.0} MB", bytes as f64 / 1e6),
        format!("{:.0} · 10⁶ operations", flops as f64 / 1e6),
        format!("{} for each byte", flops / bytes),
        format!("{:.0} µs", bytes as f64 / 4.8e12 * 1e6),
    ];
    assert_says("decode.md", &said);
}
