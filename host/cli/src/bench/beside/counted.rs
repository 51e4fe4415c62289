//! Bytes through the GPU's memory as `ncu` counts them: a row's problem, run once more by `ferroflash profile`.

use std::ffi::OsString;

use ferroflash::{Algorithm, Device, Pass, Problem};
use ferroflash_lab::compare::Line;
use ferroflash_lab::words::pass_word;

use crate::bench::scheduled;
use crate::failure::Failure;
use crate::mask::MaskWords;
use crate::profile::Ncu;

/// Bytes read and written by all kernels of a line's pass.
pub fn bytes(ncu: &Ncu, device: &Device, line: &Line) -> Result<f64, Failure> {
    let (problem, pass) = (&line.problem, line.pass);
    let plan = scheduled(device, *problem, line.algorithm)?
        .explain(pass)?
        .plan;
    let plan = plan.map_err(ferroflash::Error::from)?;
    let names: Vec<&str> = plan.kernels().map(|kernel| kernel.name).collect();
    let counted = ncu.count_in(words(problem, pass, plan.algorithm), &names)?;
    let bytes = counted.iter().map(|of| of.read_bytes + of.written_bytes);
    Ok(bytes.sum())
}

/// The words by which this program runs a pass once.
fn words(problem: &Problem, pass: Pass, algorithm: Algorithm) -> Vec<OsString> {
    let mut words = vec!["profile".into(), "--once".into()];
    let sizes = [
        ("batch", problem.batch()),
        ("seqlen", problem.seqlen_q()),
        ("seqlen-k", problem.seqlen_k()),
        ("heads", problem.heads_q()),
        ("heads-k", problem.heads_k()),
        ("head-dim", problem.head_dim()),
        ("head-dim-v", problem.head_dim_v()),
    ];
    let sizes = sizes.map(|(name, size)| (name.to_owned(), size.to_string()));
    let mask = MaskWords::metadata(problem.mask());
    let mask = mask.map(|(name, word)| (name.replace('_', "-"), word));
    let others = [
        ("dtype", problem.dtype().to_string()),
        ("precision", problem.precision().to_string()),
        ("passes", pass_word(pass).to_owned()),
        ("algorithm", algorithm.name().to_owned()),
        ("order", format!("{:?}", problem.order()).to_lowercase()),
    ];
    let others = others.map(|(name, word)| (name.to_owned(), word));
    let all = sizes.into_iter().chain(mask).chain(others);
    words.extend(all.map(|(name, word)| format!("--{name}={word}").into()));
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ferroflash::{Dtype, Mask, Order, Precision};

    use super::*;
    use crate::profile::{ProfileArguments, problem};

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        profile: ProfileArguments,
    }

    /// `profile` runs the problem of the row.
    #[test]
    fn words_pose_the_same_problem() {
        let masks = [
            Mask::Full,
            Mask::Causal,
            Mask::PrefixLm { prefix: 9 },
            Mask::Window {
                left: Some(7),
                right: None,
            },
            Mask::Window {
                left: Some(7),
                right: Some(3),
            },
        ];
        for (mask, dtype) in masks
            .into_iter()
            .zip([Dtype::Bf16, Dtype::F32].into_iter().cycle())
        {
            let builder = Problem::builder(dtype).batch(2).heads_q(4).heads_k(2);
            let builder = builder
                .seqlen_q(30)
                .seqlen_k(40)
                .head_dim(64)
                .head_dim_v(32);
            let builder = builder.mask(mask).order(Order::Fastest);
            let builder = builder.precision(match dtype {
                Dtype::F32 => Precision::Full,
                _ => Precision::Tensor,
            });
            let row = builder.build().unwrap();
            let words = words(&row, Pass::Backward, Algorithm::Flash2);
            let parsed = Words::try_parse_from(words).unwrap().profile;
            assert!(parsed.once);
            assert_eq!(problem(&parsed).unwrap(), row);
            assert_eq!(parsed.algorithm, Some(Algorithm::Flash2));
            assert_eq!(parsed.passes.len(), 1);
        }
    }
}
