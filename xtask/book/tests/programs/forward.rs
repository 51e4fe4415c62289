//! standard, flash1, flash2 and flash3.

use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{Algorithm, Attention, Device, Error, Inputs, Mask, Outputs, Problem};
use ferroflash::{Dtype, Tensor, TensorMut, attend, bf16};
use ferroflash_book::programs::answers::{flash1_bytes, flash2_causal, renewals};
use ferroflash_book::programs::flash1::flash1;
use ferroflash_book::programs::flash2::flash2;
use ferroflash_book::programs::flash3::flash3;
use ferroflash_book::programs::standard::standard;
use ferroflash_book::programs::{Attended, Head};

use super::{Random, assert_near, assert_says, elements};

/// All programs on a head, in tiles of these sizes.
fn all<const D: usize>(head: &Head<D>, tiles: [usize; 2]) -> [(Algorithm, Attended<D>); 4] {
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

fn of_f32<const D: usize>(o: &[f32], lse: &[f32]) -> Attended<D> {
    let o: Vec<f64> = o.iter().copied().map(f64::from).collect();
    let (rows, _) = o.as_chunks::<D>();
    (rows.to_vec(), lse.iter().copied().map(f64::from).collect())
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

/// What a kernel gives on the emulator, in bf16.
fn emulated<const D: usize>(
    random: &Random<D>,
    algorithm: Algorithm,
) -> Result<Attended<D>, Error> {
    let problem = Problem::builder(Dtype::Bf16).heads(1).head_dim(D);
    let problem = problem.seqlen_q(random.q.len()).seqlen_k(random.k.len());
    let problem = problem.mask(Mask::Full).build()?;
    let [q, k, v] = [&random.q, &random.k, &random.v].map(|x| elements(x, bf16::from_f32));
    let inputs = Inputs::new(
        &Tensor::bshd(&q, problem.shape_q())?,
        &Tensor::bshd(&k, problem.shape_k())?,
        &Tensor::bshd(&v, problem.shape_v())?,
    );
    let (mut o, mut lse) = (vec![bf16::ZERO; q.len()], vec![0f32; random.q.len()]);
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    let device = Device::emulated(EmulatorOptions::hopper(1));
    let attention = Attention::new(&device, problem)?.with_algorithm(algorithm);
    attention.forward(&inputs, &mut outputs)?;
    let o: Vec<f32> = o.iter().map(|x| x.to_f32()).collect();
    Ok(of_f32(&o, &lse))
}

/// P and O are rounded to bf16 there: 8 bits of mantissa.
#[test]
fn the_kernels_give_the_same_on_the_emulator() -> Result<(), Error> {
    let random = Random::<64>::new(80, 144);
    for (algorithm, given) in all(&random.head(), [64, 64]) {
        let kernel = emulated(&random, algorithm)?;
        let name = algorithm.to_string();
        assert_near(&name, given.0.as_flattened(), kernel.0.as_flattened(), 4e-3);
        assert_near(&name, &given.1, &kernel.1, 1e-4);
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
