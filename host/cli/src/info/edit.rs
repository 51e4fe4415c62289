//! What becomes of the expressions of a problem: their derivative, the PTX of kernels, and what the driver's compiler makes of it.

use std::fmt::Display;
use std::mem::offset_of;

use ferroflash::backend::cuda::CudaDevice;
use ferroflash::plan::Plan;
use ferroflash::{MaskExpression, Problem, Score};
use ferroflash_expression::ptx::{Cap, Edit, ParamOffsets, Program, RowTerms, ScoreRows, Unit};
use ferroflash_kernels::params::{Scale, ScoreParams};
use ferroflash_kernels::spec::text::SpecialiseError;
use ferroflash_kernels::variants::{Kind, ScoreSite, VARIANTS, Variant};

use crate::failure::Failure;
use crate::print::say;

/// Kernels that an expression edits in one way.
struct Kernels {
    /// Which they are.
    names: &'static str,
    /// What some of them compute: where their parameters lie, and what their rows are.
    kind: Kind,
    /// Where what the scores of a row have in common goes.
    terms: RowTerms,
    /// Whether they want the derivatives of scores.
    wants_gradient: bool,
}

const KERNELS: [Kernels; 3] = [
    Kernels {
        names: "forward kernels that take whole scores, as those of flash2, and of flash3 for few queries: rows are queries",
        kind: Kind::Forward,
        terms: RowTerms::InScores,
        wants_gradient: false,
    },
    Kernels {
        names: "the other forward kernels of flash3, whose maxima take what the scores of a row have in common: rows are queries",
        kind: Kind::TmaForward,
        terms: RowTerms::Apart,
        wants_gradient: false,
    },
    Kernels {
        names: "backward kernels, which want derivatives: rows are keys",
        kind: Kind::Backward,
        terms: RowTerms::InScores,
        wants_gradient: true,
    },
];

/// Prints the expressions, where there are any.
pub fn print(problem: &Problem) -> Result<(), Failure> {
    let (score, mask) = (problem.score(), problem.mask_expression());
    if score.is_none() && mask.is_none() {
        return Ok(());
    }
    say!("");
    let mut edit = Edit {
        score: score.map(Score::expression).cloned(),
        mask: mask.map(MaskExpression::expression).cloned(),
        derivative: None,
    };
    if let Some(score) = &edit.score {
        say!("score      {score}");
        match score.derivative_by_score() {
            Ok(derivative) => {
                say!("derivative {derivative}");
                edit.derivative = Some(derivative);
            }
            Err(error) => say!("derivative none: {error}"),
        }
    }
    if let Some(mask) = &edit.mask {
        say!("mask       {mask}");
    }
    say!("unit       {}", unit(&edit));
    print_inputs(&edit);
    for kernels in KERNELS {
        if edit.has_gradient() || !kernels.wants_gradient {
            say!("PTX        of {}", kernels.names);
            say!("{}", kernels.ptx(&edit)?);
        }
    }
    Ok(())
}

/// What kernels measure the new scores in.
fn unit(edit: &Edit) -> String {
    match edit.unit() {
        Unit::SoftmaxScale => "softmax_scale".to_owned(),
        Unit::Cap(Cap::Constant(cap)) => cap.abs().to_string(),
        Unit::Cap(Cap::Param(nth)) => match edit.params().get(usize::from(nth)) {
            Some(param) => format!("|{}|", param.name),
            None => String::new(),
        },
    }
}

/// What calls give them.
fn print_inputs(edit: &Edit) {
    for param in edit.params() {
        say!("parameter  {}: {}", param.name, param.ty);
    }
    for tensor in edit.tensors() {
        say!(
            "tensor     {}: {} of rank {}",
            tensor.name,
            tensor.element,
            tensor.rank
        );
    }
}

impl Kernels {
    /// What is spliced into one that does nothing but edit the four scores of a thread.
    fn ptx(&self, edit: &Edit) -> Result<String, Failure> {
        let site = VARIANTS.iter().filter(|variant| variant.kind == self.kind);
        let site = site.filter_map(Variant::score_site).next();
        let refused = |error: &dyn Display| Failure::Option(error.to_string());
        let site = site.ok_or_else(|| refused(&SpecialiseError::NoScores))?;
        let program = Program::with_row_terms(edit, site.rows, places(site), self.terms);
        let program = program.map_err(|error| refused(&error))?;
        let text = program.splice(&self.template(site.rows));
        text.map_err(|error| refused(&error))
    }

    /// The text of that kernel, with instructions in whose place the expression comes.
    fn template(&self, rows: ScoreRows) -> String {
        let (row, rows, column) = match rows {
            ScoreRows::Queries => ("q", "queries", "key"),
            ScoreRows::Keys => ("k", "keys", "query"),
        };
        let (block, maxima) = match self.terms {
            RowTerms::InScores => ("block", ""),
            RowTerms::Apart => ("block_apart", ROW_MAXIMA),
        };
        let (scores, derivatives) = match self.wants_gradient {
            false => ("score", ["", ""]),
            true => (
                "score_gradient",
                [" Their derivatives are d0 to d3.", " %d0, %d1, %d2, %d3,"],
            ),
        };
        let [said, given] = derivatives;
        format!(
            "\
.entry kernel(.param .align 8 .b8 kernel_param_0[1024])
{{
	// Once per tile.
	ferroflash_score_tile %batch, %head, %kv_head, %seqlen_q, %seqlen_k, %{row}0, %{row}1;
	// Once per block of columns.
	ferroflash_score_{block} %first_{column};
	// Scores of the {rows} {row}0 (x0 and x1) and {row}1 (x2 and x3), and of the first {column} and the next one.{said}
	ferroflash_{scores} %x0, %x1, %x2, %x3,{given} 0;{maxima}
}}"
        )
    }
}

/// What a kernel does with the maxima of a thread's two rows whose scores lack what they have in common.
const ROW_MAXIMA: &str = "
	// Maxima of these scores become those of whole scores, which blocks share.
ferroflash_score_with_rows %m0, %m1;
	// And the other way round, for the exponentials of a block.
ferroflash_score_without_rows %m0, %m1;";

/// Where values of the launch lie in the parameters of a kernel.
fn places(site: ScoreSite) -> ParamOffsets {
    ParamOffsets {
        scale: (site.scale + offset_of!(Scale, scale)) as u32,
        inverse_unit: (site.score + offset_of!(ScoreParams, inverse_unit)) as u32,
        params: (site.score + offset_of!(ScoreParams, values)) as u32,
        tensors: (site.score + offset_of!(ScoreParams, tensors)) as u32,
    }
}

/// Loads the kernels of a plan that edit scores, and prints what the driver's compiler makes of them, how long it took, and where they
/// came from.
pub fn print_compiled(plan: &Plan, device: &CudaDevice) -> Result<(), Failure> {
    for launch in plan.launches.iter().filter(|launch| launch.edit.is_some()) {
        let kernel = device.edited_kernel(launch.variant, launch.spec, launch.edit)?;
        let statistics = kernel.statistics();
        say!(
            "compiled   {}: {} registers, {} bytes of local memory, {} blocks per multiprocessor; ready in {:.1} ms, {}",
            launch.kernel(),
            statistics.registers,
            statistics.local_bytes,
            statistics.blocks_per_sm,
            statistics.load_time.as_secs_f64() * 1e3,
            statistics.origin.in_words()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ferroflash::expression::Expression;
    use ferroflash_expression::named::{NamedMask, NamedScore};

    use super::*;

    #[test]
    fn a_soft_cap_is_its_unit() {
        let unit = |score: NamedScore| {
            let score = score.expression().ok();
            unit(&Edit {
                score,
                ..Edit::default()
            })
        };
        assert_eq!(unit(NamedScore::SoftCap), "|cap|");
        assert_eq!(unit(NamedScore::SoftCapAlibi), "|cap|");
        assert_eq!(unit(NamedScore::Alibi), "softmax_scale");
    }

    #[test]
    fn every_name_has_a_text_of_ptx() {
        let texts = |score: Option<&Expression>, mask: Option<&Expression>| {
            let derivative = score.map(|score| score.derivative_by_score().unwrap());
            let edit = Edit {
                score: score.cloned(),
                mask: mask.cloned(),
                derivative,
            };
            let texts = KERNELS.map(|kernels| kernels.ptx(&edit).unwrap());
            for text in &texts {
                assert!(!text.contains("ferroflash_score"), "{text}");
            }
            texts
        };
        for score in NamedScore::ALL {
            let [whole, apart, gradient] = texts(Some(&score.expression().unwrap()), None);
            // The score itself is where it is.
            let edited = score != NamedScore::Identity;
            for text in [&whole, &apart, &gradient] {
                assert_eq!(text.contains("%x3"), edited, "{text}");
            }
            assert!(gradient.contains("%d3") && !whole.contains("%d3"));
        }
        for mask in NamedMask::ALL {
            for text in texts(None, Some(&mask.expression().unwrap())) {
                assert!(text.contains("selp"), "{text}");
            }
        }
    }

    /// ALiBi adds the same to all scores of a row, up to the distance from the first key.
    #[test]
    fn what_rows_have_in_common_goes_to_their_maxima() {
        let score = NamedScore::Alibi.expression().unwrap();
        let edit = Edit {
            score: Some(score),
            ..Edit::default()
        };
        let [whole, apart] = [0, 1].map(|which| KERNELS[which].ptx(&edit).unwrap());
        for instruction in ["add.f32 %m1, %m1, ", "sub.f32 %m1, %m1, "] {
            assert!(apart.contains(instruction), "{apart}");
            assert!(!whole.contains(instruction), "{whole}");
        }
        assert!(whole.contains(", %x3, ") && apart.contains(", %x3;"));
    }
}
