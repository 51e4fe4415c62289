//! What q, k and v in 8 bits cost, and what the remedies of `ferroflash::quantize` are worth: errors of o and lse against attention in f64 over the inputs as
//! they were. The whole table, from flash3's kernel on the emulator, takes a minute:
//! `cargo test -p conformance --test e4m3_error -- --ignored --nocapture`.

use conformance::oracle::{self, Output, Sizes};
use conformance::real::{FILES, read};
use conformance::subject::{CPU, EMULATED_HOPPER, EMULATED_WIDE_SOON};
use ferroflash::quantize::{self, Operand};
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Fp8, Fp8Sums, Mask, Outputs, Problem, Tensor, TensorMut,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Inputs, and what attention of them is in f64.
struct Inputs {
    name: String,
    sizes: Sizes,
    mask: Mask,
    softmax_scale: f32,
    /// q, k and v.
    tensors: [Vec<f32>; 3],
    exact: Output,
}

/// How inputs become numbers of 8 bits.
#[derive(Clone, Copy, Debug)]
struct Way {
    scales: Fp8,
    hadamard: Hadamard,
    smoothing: Smoothing,
    sums: Fp8Sums,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Hadamard {
    Without,
    With,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Smoothing {
    Without,
    With,
}

/// A scale per tensor, nothing else.
const PLAIN: Way = Way {
    scales: Fp8::PerTensor,
    hadamard: Hadamard::Without,
    smoothing: Smoothing::Without,
    sums: Fp8Sums::TwoLevels,
};

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for scales in [Fp8::PerTensor, Fp8::PerHead, Fp8::PerBlock] {
        for hadamard in [Hadamard::Without, Hadamard::With] {
            for smoothing in [Smoothing::Without, Smoothing::With] {
                ways.push(Way {
                    scales,
                    hadamard,
                    smoothing,
                    ..PLAIN
                });
            }
        }
    }
    ways
}

/// Root mean squares of the errors of o and of lse.
#[derive(Clone, Copy, Debug)]
struct Error {
    o: f64,
    lse: f64,
}

fn root_mean_square(given: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(given.len(), exact.len());
    let squares = given.iter().zip(exact);
    let squares = squares.map(|(&x, exact)| (f64::from(x) - exact).powi(2));
    (squares.sum::<f64>() / exact.len() as f64).sqrt()
}

impl Inputs {
    fn new(name: &str, sizes: Sizes, [q, k, v]: [Vec<f32>; 3]) -> Inputs {
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let softmax_scale = (1.0 / (sizes.head_dim as f64).sqrt()) as f32;
        let visible = oracle::visible(sizes, (None, None), 0);
        let exact = oracle::forward(&oracle::Inputs {
            sizes,
            q: &wide(&q),
            k: &wide(&k),
            v: &wide(&v),
            softmax_scale: f64::from(softmax_scale),
            visible: &visible,
            block: None,
            edit: None,
            sinks: None,
            dropout: None,
        });
        Inputs {
            name: name.to_owned(),
            sizes,
            mask: Mask::Full,
            softmax_scale,
            tensors: [q, k, v],
            exact,
        }
    }

    /// One of the real inputs, with the results that PyTorch worked out.
    fn real(name: &str) -> Inputs {
        let real = read(name).unwrap();
        let values = [&real.values.q, &real.values.k, &real.values.v];
        Inputs {
            name: format!("{name}, real"),
            sizes: real.sizes,
            mask: real.mask,
            softmax_scale: real.softmax_scale,
            tensors: values.map(|x| x.iter().map(|&x| x as f32).collect()),
            exact: real.output,
        }
    }

    fn error(&self, device: &Device, algorithm: Algorithm, way: Way) -> Error {
        let (o, lse) = self.run(device, algorithm, way);
        Error {
            o: root_mean_square(&o, &self.exact.o),
            lse: root_mean_square(&lse, &self.exact.lse),
        }
    }

    /// o and lse of the inputs in 8 bits.
    fn run(&self, device: &Device, algorithm: Algorithm, way: Way) -> (Vec<f32>, Vec<f32>) {
        let sizes = self.sizes;
        let problem = Problem::builder(Dtype::F32)
            .batch(sizes.batch)
            .seqlen_q(sizes.seqlen_q)
            .seqlen_k(sizes.seqlen_k)
            .heads_q(sizes.heads_q)
            .heads_k(sizes.heads_k)
            .head_dim(sizes.head_dim)
            .mask(self.mask)
            .softmax_scale(self.softmax_scale)
            .fp8(way.scales)
            .fp8_sums(way.sums)
            .build()
            .unwrap();
        let [q, k, v] = &self.tensors;
        let q = Tensor::bshd(q, problem.shape_q()).unwrap();
        let k = Tensor::bshd(k, problem.shape_k()).unwrap();
        let v = Tensor::bshd(v, problem.shape_v()).unwrap();
        let mut q = Operand::q(&q, sizes.heads_k).unwrap();
        let mut k = Operand::k(&k).unwrap();
        let v = Operand::v(&v).unwrap();
        if way.hadamard == Hadamard::With {
            [q, k] = [q, k].map(|x| x.hadamard(Some(1)).unwrap());
        }
        let mut mean = None;
        if way.smoothing == Smoothing::With {
            let (smooth, of_k) = k.smooth().unwrap();
            (k, mean) = (smooth, Some(of_k));
        }
        let e4m3 = [&q, &k, &v].map(|x| x.quantize(way.scales));
        let inputs = quantize::inputs(&e4m3[0], &e4m3[1], &e4m3[2]).unwrap();
        let mut o = vec![0f32; self.exact.o.len()];
        let mut lse = vec![0f32; self.exact.lse.len()];
        let of_o = TensorMut::bshd(&mut o, problem.shape_o()).unwrap();
        Attention::new(device, problem)
            .unwrap()
            .with_algorithm(algorithm)
            .forward(&inputs, &mut Outputs::new(of_o, &mut lse))
            .unwrap();
        if let Some(mean) = mean {
            mean.correct_lse(&mut lse, &q, self.softmax_scale).unwrap();
        }
        (o, lse)
    }
}

/// Two heads of so many queries and keys.
fn two_heads(seqlen: usize, head_dim: usize) -> Sizes {
    Sizes {
        batch: 1,
        seqlen_q: seqlen,
        seqlen_k: seqlen,
        heads_q: 2,
        heads_k: 2,
        head_dim,
        head_dim_v: head_dim,
    }
}

/// Normally distributed numbers, by Box and Muller.
fn normal(rng: &mut StdRng, n: usize) -> Vec<f32> {
    let number = || {
        let (a, b): (f64, f64) = (rng.random(), rng.random());
        ((-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
    };
    std::iter::repeat_with(number).take(n).collect()
}

fn normals(rng: &mut StdRng, sizes: Sizes) -> [Vec<f32>; 3] {
    [(); 3].map(|()| normal(rng, sizes.query_elems()))
}

fn plain(sizes: Sizes) -> Inputs {
    let mut rng = StdRng::seed_from_u64(1);
    let tensors = normals(&mut rng, sizes);
    Inputs::new("normal, N(0, 1)", sizes, tensors)
}

/// The distribution of FlashAttention-3's paper, section 4.3: one element in a thousand has a second term, ten times as large.
fn outliers(sizes: Sizes) -> Inputs {
    draw_of_outliers(sizes, 2)
}

fn draw_of_outliers(sizes: Sizes, seed: u64) -> Inputs {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tensors = normals(&mut rng, sizes);
    for x in tensors.iter_mut().flatten() {
        if rng.random_bool(0.001) {
            *x += 10.0 * normal(&mut rng, 1)[0];
        }
    }
    Inputs::new(
        "outliers, N(0, 1) + N(0, 100) · Bernoulli(0.001)",
        sizes,
        tensors,
    )
}

fn v_with_mean(sizes: Sizes) -> Inputs {
    let mut rng = StdRng::seed_from_u64(3);
    let mut tensors = normals(&mut rng, sizes);
    tensors[2].iter_mut().for_each(|x| *x += 1.0);
    Inputs::new("v of mean 1", sizes, tensors)
}

/// Each column of each head of k has a mean of its own, four times as large as what differs from key to key.
fn k_with_mean(sizes: Sizes) -> Inputs {
    let mut rng = StdRng::seed_from_u64(4);
    let mut tensors = normals(&mut rng, sizes);
    let mean = normal(&mut rng, sizes.heads_k * sizes.head_dim);
    let columns = mean.iter().cycle();
    for (x, mean) in tensors[1].iter_mut().zip(columns) {
        *x += 4.0 * mean;
    }
    Inputs::new("k of means N(0, 16) by column", sizes, tensors)
}

#[test]
#[ignore = "a table of measurements: a minute on the emulator"]
fn table() {
    let sizes = two_heads(1024, 128);
    let distributions = [plain, outliers, v_with_mean, k_with_mean];
    let all = distributions.map(|inputs| inputs(sizes)).into_iter();
    let all: Vec<Inputs> = all.chain(FILES.map(Inputs::real)).collect();
    let head: Vec<String> = ways().iter().map(word).collect();
    let mut tables = [("o", String::new()), ("lse", String::new())];
    for inputs in &all {
        for (_, table) in &mut tables {
            table.push_str(&format!("| {} |", inputs.name));
        }
        for way in ways() {
            let device = (EMULATED_HOPPER.open)(0).unwrap();
            let error = inputs.error(&device, Algorithm::Flash3, way);
            for ((_, table), error) in tables.iter_mut().zip([error.o, error.lse]) {
                table.push_str(&format!(" {error:.5} |"));
            }
        }
        for (_, table) in &mut tables {
            table.push('\n');
        }
    }
    for (of, table) in tables {
        println!("\nerror of {of}, root mean square\n");
        println!("| inputs | {} |", head.join(" | "));
        println!("|---|{}", "---|".repeat(head.len()));
        print!("{table}");
    }
}

/// `per head, Hadamard, k smoothed`.
fn word(way: &Way) -> String {
    let mut words = vec![match way.scales {
        Fp8::PerTensor => "per tensor",
        Fp8::PerHead => "per head",
        Fp8::PerBlock => "per block",
    }];
    words.extend((way.hadamard == Hadamard::With).then_some("Hadamard"));
    words.extend((way.smoothing == Smoothing::With).then_some("k smoothed"));
    words.join(", ")
}

fn on_the_cpu(inputs: &Inputs, way: Way) -> Error {
    let device = (CPU.open)(0).unwrap();
    inputs.error(&device, Algorithm::Tiled, way)
}

/// Where a few elements make most of the error, one draw says little.
#[test]
#[ignore = "a table of measurements"]
fn means_over_draws_of_outliers() {
    const DRAWS: u64 = 12;
    let draws = (0..DRAWS).map(|nth| draw_of_outliers(two_heads(1024, 128), 100 + nth));
    let draws: Vec<Inputs> = draws.collect();
    println!("| {DRAWS} draws | error of o | error of lse |\n|---|---|---|");
    for way in ways() {
        if way.smoothing == Smoothing::With {
            continue;
        }
        let errors = draws.iter().map(|inputs| on_the_cpu(inputs, way));
        let (o, lse) = errors.fold((0.0, 0.0), |(o, lse), error| (o + error.o, lse + error.lse));
        let mean = |sum: f64| sum / DRAWS as f64;
        println!("| {} | {:.5} | {:.5} |", word(&way), mean(o), mean(lse));
    }
}

/// Each remedy is worth something on the inputs that it is for.
#[test]
fn remedies_help_where_they_should() {
    let sizes = two_heads(128, 64);
    let better = |inputs: &Inputs, way: Way, by: f64| {
        let (plain, error) = (on_the_cpu(inputs, PLAIN), on_the_cpu(inputs, way));
        let name = &inputs.name;
        assert!(error.o * by < plain.o, "{name}: {plain:?} {error:?}");
        assert!(error.lse < plain.lse, "{name}: {plain:?} {error:?}");
    };
    let hadamard = Way {
        hadamard: Hadamard::With,
        ..PLAIN
    };
    let smoothing = Way {
        smoothing: Smoothing::With,
        ..PLAIN
    };
    better(&outliers(sizes), hadamard, 1.1);
    better(&k_with_mean(sizes), smoothing, 2.0);
    better(
        &k_with_mean(sizes),
        Way {
            hadamard: Hadamard::With,
            ..smoothing
        },
        2.0,
    );
}

/// A head whose values are 2⁻²⁰ of the other's has none left where both have one scale.
#[test]
fn a_scale_per_head_keeps_a_head_of_small_values() {
    let sizes = two_heads(128, 64);
    let mut rng = StdRng::seed_from_u64(5);
    let [q, k, mut v] = normals(&mut rng, sizes);
    for row in v.chunks_exact_mut(2 * 64) {
        row[64..].iter_mut().for_each(|x| *x *= 2f32.powi(-20));
    }
    let inputs = Inputs::new("a head of small values", sizes, [q, k, v]);
    let second_head = |o: &[f32]| -> Vec<f32> {
        let rows = o.chunks_exact(2 * 64);
        rows.flat_map(|row| &row[64..]).copied().collect()
    };
    let exact: Vec<f32> = inputs.exact.o.iter().map(|&x| x as f32).collect();
    let exact: Vec<f64> = second_head(&exact).into_iter().map(f64::from).collect();
    let error = |scales| {
        let device = (CPU.open)(0).unwrap();
        let (o, _) = inputs.run(&device, Algorithm::Tiled, Way { scales, ..PLAIN });
        root_mean_square(&second_head(&o), &exact)
    };
    let all = root_mean_square(&vec![0.0; exact.len()], &exact);
    assert_eq!(error(Fp8::PerTensor), all);
    assert!(error(Fp8::PerHead) < 0.1 * all);
}

/// The values of the second block are 2⁻²⁰ of those of the first, and in other columns: with one scale for both none is left.
#[test]
fn a_scale_per_block_keeps_a_block_of_small_values() {
    let sizes = two_heads(256, 64);
    let mut rng = StdRng::seed_from_u64(7);
    let [q, k, mut v] = normals(&mut rng, sizes);
    for (at, head) in v.chunks_exact_mut(64).enumerate() {
        let (first, second) = head.split_at_mut(32);
        match at / 2 < 128 {
            true => second.fill(0.0),
            false => {
                first.fill(0.0);
                second.iter_mut().for_each(|x| *x *= 2f32.powi(-20));
            }
        }
    }
    let inputs = Inputs::new("a block of small values", sizes, [q, k, v]);
    let exact: Vec<f64> = inputs
        .exact
        .o
        .chunks_exact(64)
        .flat_map(|o| &o[32..])
        .copied()
        .collect();
    let error = |scales| {
        let device = (CPU.open)(0).unwrap();
        let (o, _) = inputs.run(&device, Algorithm::Tiled, Way { scales, ..PLAIN });
        let of_columns: Vec<f32> = o.chunks_exact(64).flat_map(|o| &o[32..]).copied().collect();
        root_mean_square(&of_columns, &exact)
    };
    let all = root_mean_square(&vec![0.0; exact.len()], &exact);
    assert_eq!(error(Fp8::PerHead), all);
    assert!(error(Fp8::PerBlock) < 0.1 * all);
}

/// Over 2048 keys whose values have a mean, sums of 14 bits are 2 % too small, and those of two levels are not.
#[test]
fn sums_of_two_levels_are_not_too_small() {
    for head_dim in [192, 256] {
        hold_bias(head_dim);
    }
}

fn hold_bias(head_dim: usize) {
    let sizes = Sizes {
        seqlen_q: 64,
        heads_q: 1,
        heads_k: 1,
        ..two_heads(2048, head_dim)
    };
    let mut rng = StdRng::seed_from_u64(6);
    let numbers = [sizes.query_elems(), sizes.key_elems(), sizes.key_elems()];
    let [q, k, mut v] = numbers.map(|n| normal(&mut rng, n));
    v.iter_mut().for_each(|x| *x += 1.0);
    let inputs = Inputs::new("v of mean 1", sizes, [q, k, v]);
    let bias = |sums| {
        let device = (EMULATED_WIDE_SOON.open)(0).unwrap();
        let (o, _) = inputs.run(&device, Algorithm::Flash3, Way { sums, ..PLAIN });
        let sum: f64 = o.iter().map(|&x| f64::from(x)).sum();
        sum / inputs.exact.o.iter().sum::<f64>() - 1.0
    };
    let (one, two) = (bias(Fp8Sums::OneLevel), bias(Fp8Sums::TwoLevels));
    assert!((-0.04..-0.015).contains(&one), "{one}");
    assert!(two.abs() < 0.004, "{two}");
}
