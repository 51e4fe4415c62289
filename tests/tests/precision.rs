//! What precisions of f32 tensors cost: errors of o and lse by the emulated kernels. `--nocapture` prints the table.

use conformance::cases::{Case, tf32};
use conformance::oracle::Output;
use conformance::reference::Reference;
use conformance::tolerance::Arithmetic;
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{
    Attention, Backend, Device, Dtype, Inputs, Mask, Outputs, Precision, Tensor, TensorMut,
};

/// The root mean square of the error of o, relative to that of o; the largest error of lse.
fn errors(case: &Case) -> Result<[f64; 2], String> {
    let values = case.values();
    let problem = case.problem().map_err(|error| error.to_string())?;
    let output = forward(case)?;
    let arithmetic = case.arithmetic(Backend::Emulated);
    let reference = Reference::new(case, &values, problem.scale()).of_products(arithmetic);
    reference
        .judge_output(case, &output)
        .map_err(|failure| format!("{case:?}\n{failure}"))?;
    let square = |x: f64| x * x;
    let o = output.o.iter().zip(&reference.output.o);
    let error: f64 = o.map(|(ours, theirs)| square(ours - theirs)).sum();
    let size: f64 = reference.output.o.iter().copied().map(square).sum();
    let lse = output.lse.iter().zip(&reference.output.lse);
    let lse = lse.filter(|(_, theirs)| theirs.is_finite());
    let of_lse = lse.map(|(ours, theirs)| (ours - theirs).abs());
    Ok([(error / size).sqrt(), of_lse.fold(0.0, f64::max)])
}

fn forward(case: &Case) -> Result<Output, String> {
    let values = case.values();
    let problem = case.problem().map_err(|error| error.to_string())?;
    let narrow = |values: &[f64]| -> Vec<f32> { values.iter().map(|&x| x as f32).collect() };
    let [q, k, v] = [&values.q, &values.k, &values.v].map(|values| narrow(values));
    let mut o = vec![f32::NAN; values.d_o.len()];
    let mut lse = vec![f32::NAN; problem.shape_lse().iter().product()];
    let mut run = || -> Result<(), ferroflash::Error> {
        let inputs = Inputs::new(
            &Tensor::bshd(&q, problem.shape_q())?,
            &Tensor::bshd(&k, problem.shape_k())?,
            &Tensor::bshd(&v, problem.shape_v())?,
        );
        let device = Device::emulated(EmulatorOptions::seeded(case.seed));
        let attention = Attention::new(&device, problem)?;
        let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
        attention.forward(&inputs, &mut outputs)?;
        Ok(())
    };
    run().map_err(|error| format!("{case:?}: {error}"))?;
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
    Ok(Output {
        o: wide(o),
        lse: wide(lse),
    })
}

/// 3xTF32 is as exact as f32: a thousand times closer than tf32.
#[test]
fn full_precision_is_that_of_f32() {
    println!("| head_dim | mask | precision | o | lse |\n|---|---|---|---|---|");
    for (head_dim, mask) in [(32, Mask::Full), (64, Mask::Causal), (128, Mask::Full)] {
        let [tensor, full] = [Precision::Tensor, Precision::Full].map(|precision| {
            let case = Case {
                precision,
                ..Case::new(Dtype::F32, mask, head_dim, 150, 300)
            };
            let errors = errors(&case).unwrap();
            println!(
                "| {head_dim} | {mask} | {precision} | {:.1e} | {:.1e} |",
                errors[0], errors[1]
            );
            errors
        });
        assert!(full[0] < tensor[0] / 300.0, "{full:?} {tensor:?}");
        assert!(1e-5 < tensor[0] && tensor[0] < 1e-3, "{tensor:?}");
    }
}

/// A kernel that forgot the small parts of its operands would be found: its results are those of the other precision.
#[test]
fn products_without_small_parts_are_not_those_of_full_precision() {
    for head_dim in [32, 64, 128] {
        let case = Case::new(Dtype::F32, Mask::Full, head_dim, 70, 140);
        let (values, output) = (case.values(), forward(&case).unwrap());
        let scale = case.problem().unwrap().scale();
        let reference = Reference::new(&case, &values, scale).of_products(Arithmetic::F32);
        let failure = reference.judge_output(&case, &output).unwrap_err();
        assert!(
            failure.contains("O (F32") && failure.contains("Lse (F32"),
            "{failure}"
        );
    }
}

/// o and lse of a set, in both precisions.
#[test]
fn both_precisions_are_within_their_tolerances() {
    let failures: Vec<String> = tf32::all()
        .iter()
        .filter(|case| case.problem().is_ok_and(|problem| problem.seqlen_q() > 0))
        .filter_map(|case| errors(case).err())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
