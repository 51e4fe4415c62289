//! A cache that is filled step by step is the cache that is filled at once.

use ferroflash::rotary::{Pairs, Positions, Rotary};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Device, Dtype, Error, Layout, Tensor,
    TensorMut,
};
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
