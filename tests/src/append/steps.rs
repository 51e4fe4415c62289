//! A cache that is filled step by step is the cache that is filled at once. And one in 8 bits has what a rotation and a rounding make of the rows.

use ferroflash::rotary::{Pairs, Positions, Rotary};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Device, Dtype, Error, Fp8, Fp8Kv, Layout,
    Quantize, QuantizeInputs, QuantizeOutputs, QuantizeProblem, Tensor, TensorMut,
};
use float8::F8E4M3;
use half::bf16;

use crate::sample;
use crate::subject::Subject;

/// Rows that come at once, and the same rows a few at a time with lengths that the device hands on, fill a cache with the same bits.
pub fn check_steps(subject: &Subject) {
    if subject.is_absent() {
        return;
    }
    let device = (subject.open)(sample::seed()).unwrap_or_else(|reason| panic!("{reason}"));
    steps(&device).unwrap_or_else(|error| panic!("{error}"));
}

/// Rows of f32, turned and rounded on their way to a cache in 8 bits, have the bits of a [`Quantize`] of turned rows: with the same scales.
pub fn check_rounding(subject: &Subject) {
    if subject.is_absent() {
        return;
    }
    let device = (subject.open)(sample::seed()).unwrap_or_else(|reason| panic!("{reason}"));
    rounding(&device).unwrap_or_else(|error| panic!("{error}"));
}

fn rounding(device: &Device) -> Result<(), Error> {
    let [batch, seqlen, heads, head_dim] = STEPS;
    let table = Rotary::new(head_dim).table(seqlen)?;
    let number = |at: usize| ((at * 37 % 101) as f32 - 50.0) / 16.3;
    let rows: Vec<f32> = (0..STEPS.iter().product()).map(number).collect();
    let mut turned = vec![f32::NAN; rows.len()];
    table.rotate(
        Pairs::Interleaved,
        Positions::From(0),
        &Tensor::bshd(&rows, STEPS)?,
        &mut TensorMut::bshd(&mut turned, STEPS)?,
    )?;
    let (k_descale, v_descale) = ([0.01f32, 0.3, 0.0077, 1.0], [0.5f32, 0.021, 2.0, 0.1]);
    let mut caches = [(); 2].map(|()| vec![F8E4M3::NAN; rows.len()]);
    let [k, v] = &mut caches;
    let problem = AppendProblem::builder(Dtype::F32)
        .batch(batch)
        .seqlen_new(seqlen)
        .heads_k(heads)
        .head_dim(head_dim)
        .seqlen_cache(seqlen)
        .fp8_kv(Fp8Kv::PerSequence)
        .rotary(Pairs::Interleaved, head_dim, seqlen)
        .build()?;
    let new = Tensor::bshd(&rows, STEPS)?;
    Append::new(device, problem)?.run(
        &AppendInputs::new(&new, &new, &[0; 2])
            .rotary(table.cos(), table.sin())
            .descale(&k_descale, &v_descale),
        &mut AppendOutputs::new(TensorMut::bshd(k, STEPS)?, TensorMut::bshd(v, STEPS)?),
    )?;
    for (cache, rows, descale) in [(k, &turned, k_descale), (v, &rows, v_descale)] {
        let problem = QuantizeProblem::new(Dtype::F32, STEPS, Fp8::PerHead).giving_descale();
        let mut rounded = vec![F8E4M3::NAN; rows.len()];
        Quantize::new(device, problem)?.run(
            &QuantizeInputs::new(&Tensor::bshd(rows, STEPS)?).descale(&descale),
            &mut QuantizeOutputs::of_given_descale(TensorMut::bshd(&mut rounded, STEPS)?),
        )?;
        assert!(*cache == rounded);
    }
    Ok(())
}

/// Two sequences of seven rows of two heads.
const STEPS: [usize; 4] = [2, 7, 2, 16];

fn steps(device: &Device) -> Result<(), Error> {
    let [batch, seqlen, heads, head_dim] = STEPS;
    let table = Rotary::new(12).table(seqlen)?;
    let number = |at: usize| bf16::from_f32(((at * 37 % 101) as f32 - 50.0) / 16.0);
    let rows: Vec<bf16> = (0..STEPS.iter().product()).map(number).collect();
    let fill = |cuts: &[usize]| -> Result<_, Error> {
        let mut caches = [(); 2].map(|()| vec![bf16::NAN; rows.len()]);
        let mut seqused = vec![0i32; batch];
        for cut in cuts.windows(2) {
            let layout = Layout {
                seqlen: cut[1] - cut[0],
                ..Layout::bshd(STEPS)?
            };
            let new = Tensor::strided(&rows[cut[0] * heads * head_dim..], layout)?;
            let problem = AppendProblem::builder(Dtype::Bf16)
                .batch(batch)
                .seqlen_new(layout.seqlen)
                .heads_k(heads)
                .head_dim(head_dim)
                .seqlen_cache(seqlen)
                .rotary(Pairs::Halves, 12, seqlen)
                .build()?;
            let [k, v] = &mut caches;
            let mut after = vec![0; batch];
            Append::new(device, problem)?.run(
                &AppendInputs::new(&new, &new, &seqused).rotary(table.cos(), table.sin()),
                &mut AppendOutputs::new(TensorMut::bshd(k, STEPS)?, TensorMut::bshd(v, STEPS)?)
                    .seqused_out(&mut after),
            )?;
            seqused = after;
        }
        assert_eq!(seqused, [seqlen as i32; 2]);
        Ok(caches)
    };
    let ([k, v], [k_steps, v_steps]) = (fill(&[0, 7])?, fill(&[0, 4, 5, 6, 7])?);
    assert!(k == k_steps && v == v_steps && v == rows);
    // Turned as the host turns them.
    let mut rotated = vec![bf16::NAN; rows.len()];
    table.rotate(
        Pairs::Halves,
        Positions::From(0),
        &Tensor::bshd(&rows, STEPS)?,
        &mut TensorMut::bshd(&mut rotated, STEPS)?,
    )?;
    assert!(k == rotated);
    Ok(())
}
