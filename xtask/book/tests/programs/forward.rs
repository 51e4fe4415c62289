//! standard, flash1, flash2 and flash3.

use ferroflash::{Algorithm, Device, Error, attend};
use ferroflash_book::programs::answers::{flash1_bytes, flash2_causal, renewals};
use ferroflash_book::programs::flash1::flash1;
use ferroflash_book::programs::flash2::flash2;
use ferroflash_book::programs::flash3::flash3;
use ferroflash_book::programs::standard::standard;
use ferroflash_book::programs::{Attended, Head};

use super::{Random, assert_near, assert_says, elements, of_f32};

/// All programs on a head, in tiles of these sizes.
pub(super) fn all<const D: usize>(
    head: &Head<D>,
    tiles: [usize; 2],
) -> [(Algorithm, Attended<D>); 4] {
    [
        (Algorithm::Standard, standard(head)),
        (Algorithm::Flash1, flash1(head, tiles)),
        (Algorithm::Flash2, flash2(head, tiles)),
        (Algorithm::Flash3, flash3(head, tiles, |_, _, _| ())),
    ]
}

fn assert_same<const D: usize>(name: &str, a: &Attended<D>, b: &Attended<D>, tolerance: f64) {
    assert_near(name, a.0.as_flattened(), b.0.as_flattened(), tolerance);
    assert_near(name, &a.1, &b.1, tolerance);
}

/// Tiles that divide the lengths, and tiles that do not.
#[test]
fn programs_are_attention_by_its_definition() {
    let random = Random::<8>::new(37, 50);
    let expected = standard(&random.head());
    for tiles in [[16, 16], [8, 10], [64, 64], [1, 1]] {
        for (name, given) in all(&random.head(), tiles) {
            assert_same(&format!("{name}, {tiles:?}"), &given, &expected, 1e-12);
        }
    }
}

#[test]
fn the_library_gives_the_same_on_the_cpu() -> Result<(), Error> {
    let random = Random::<16>::new(70, 90);
    let [q, k, v] = [&random.q, &random.k, &random.v].map(|x| elements(x, |x| x));
    let (of_q, of_k) = ([1, 70, 1, 16], [1, 90, 1, 16]);
    let call = || attend((&q, of_q), (&k, of_k), (&v, of_k));
    let library = call().forward(&Device::cpu())?;
    let library = of_f32(&library.o, &library.lse);
    for (name, given) in all(&random.head(), [32, 32]) {
        assert_same(&name.to_string(), &given, &library, 1e-5);
    }
    let library = call().causal().forward(&Device::cpu())?;
    let library = of_f32(&library.o, &library.lse);
    for tiles in [[32, 32], [16, 8], [7, 64]] {
        let given = flash2_causal(&random.head(), tiles);
        assert_same("causal", &given, &library, 1e-5);
    }
    Ok(())
}

/// S of a block begins before O of the block before, and one consumer's products come between another's products and its softmax.
#[test]
fn the_order_of_flash3_is_the_chapters() {
    let random = Random::<4>::new(8, 12);
    let mut order = Vec::new();
    flash3(&random.head(), [4, 4], |consumer, name, block| {
        order.push(format!("{name}{block}{}", ["a", "b"][consumer]));
    });
    let place = |step: &str| order.iter().position(|ran| ran == step);
    assert!(place("S1a") < place("O0a") && place("O0a") < place("P1a"));
    // A line for each step of both consumers.
    let mut rest = order.as_slice();
    let mut lines = Vec::new();
    for n in [4, 6, 6, 2] {
        let (line, after) = rest.split_at(n);
        lines.push(line.join(" "));
        rest = after;
    }
    assert!(rest.is_empty());
    assert_says("flash3.md", &[lines.join("\n")]);
}

#[test]
fn answers_that_count() {
    let bytes = |n, d, tiles| flash1_bytes(n, d, tiles);
    let mb = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    assert_says(
        "flash1.md",
        &[
            mb(bytes(8192, 128, [128, 128])),
            mb(bytes(8192, 128, [128, 256])),
            format!(
                "{:.0} MB for a head",
                bytes(8192, 128, [128, 128]) as f64 / 1e6
            ),
            format!("{:.0} MB of scores", 16.0 * 8192f64.powi(2) / 1e6),
        ],
    );
    // S and P of 16384 tokens.
    let squared = 16384usize.pow(2);
    let said = [squared * 4, squared * 2].map(|bytes| format!("{}.", mb(bytes)));
    assert_says("standard.md", &said);
    // Scores of a row that grow slowly.
    let s: Vec<f64> = (0..16).map(|j| f64::from(j) / 2.0).collect();
    let (eager, lazy) = (renewals(&s, 2, 0.0), renewals(&s, 2, 8.0 * 2f64.ln()));
    let says = format!("{eager} times. With a slack of 8 · ln 2 = 5.5 it happens {lazy} times");
    assert_says("flash2.md", &[says]);
}
