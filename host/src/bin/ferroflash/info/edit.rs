//! What becomes of the expressions of a problem: their derivative, the PTX of kernels, and what the driver's compiler makes of it.

use std::mem::offset_of;

use ferroflash::backend::cuda::CudaDevice;
use ferroflash::plan::Plan;
use ferroflash::{MaskExpression, Problem, Score};
use ferroflash_kernels::expression::ptx::{Cap, Edit, Places, Program, ScoreRows, Unit};
use ferroflash_kernels::params::{ForwardParams, Scale, ScoreParams};

use crate::failure::Failure;
use crate::print::say;

/// A kernel that does nothing but edit the four scores of a thread.
const TEMPLATE: &str = "\
.entry forward(.param .align 8 .b8 forward_param_0[1024])
{
	// Once per tile.
	ferroflash_score_tile %batch, %head, %kv_head, %seqlen_q, %seqlen_k, %q0, %q1;
	// Once per block of keys.
	ferroflash_score_block %first_key;
	// Scores of the queries q0 (x0 and x1) and q1 (x2 and x3), and of the first key and the next one.
	ferroflash_score %x0, %x1, %x2, %x3, 0;
}";

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
    say!("PTX        of a forward kernel, whose rows are queries:");
    say!("{}", ptx(&edit)?);
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

/// What is spliced into a forward kernel.
fn ptx(edit: &Edit) -> Result<String, Failure> {
    let program = Program::new(edit, ScoreRows::Queries, places());
    let program = program.map_err(|error| Failure::Option(error.to_string()))?;
    let text = program.splice(TEMPLATE);
    text.map_err(|error| Failure::Option(error.to_string()))
}

/// Where values of the launch lie in the parameters of the kernels of flash2.
fn places() -> Places {
    let score = offset_of!(ForwardParams, score);
    Places {
        scale: (offset_of!(ForwardParams, scale) + offset_of!(Scale, scale)) as u32,
        inverse_unit: (score + offset_of!(ScoreParams, inverse_unit)) as u32,
        params: (score + offset_of!(ScoreParams, values)) as u32,
        tensors: (score + offset_of!(ScoreParams, tensors)) as u32,
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
    use ferroflash_kernels::expression::named::{NamedMask, NamedScore};

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
        let text = |score: Option<&Expression>, mask: Option<&Expression>| {
            let edit = Edit {
                score: score.cloned(),
                mask: mask.cloned(),
                derivative: None,
            };
            ptx(&edit).unwrap()
        };
        for score in NamedScore::ALL {
            let text = text(Some(&score.expression().unwrap()), None);
            // The score itself is where it is.
            let edited = score != NamedScore::Identity;
            assert_eq!(text.contains("%x3"), edited, "{text}");
            assert!(!text.contains("ferroflash_score"));
        }
        for mask in NamedMask::ALL {
            let text = text(None, Some(&mask.expression().unwrap()));
            assert!(text.contains("selp") && !text.contains("ferroflash_score"));
        }
    }
}
