//! Keys and values in pages, of sequences that begin at any row of them.

use ferroflash::Pages;
use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::tensor::VectorDescription;
use ferroflash::validate::{Checked, check};
use ferroflash_kernels::params::Params;

use super::*;

/// With, or without, lengths of the padding in front of sequences.
fn checked(problem: ProblemBuilder, is_padded: bool) -> Checked {
    let problem = problem.build().unwrap();
    let location = Location::Cuda(0);
    let fitting = without_tensors(&problem, Pass::Forward, location).unwrap();
    let padding = VectorDescription::unplaced(problem.batch() as u64, ScalarType::I32, location);
    let arguments = match is_padded {
        true => fitting.arguments().with(Argument::LeftpadK, padding),
        false => *fitting.arguments(),
    };
    check(&problem, Pass::Forward, arguments).unwrap()
}

fn planned(problem: ProblemBuilder, is_padded: bool, asked: Option<Algorithm>) -> Plan {
    let checked = checked(problem, is_padded);
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked).unwrap()
}

/// Rows of the boxes of K and V, and those that the kernel counts with.
fn box_rows(plan: &Plan) -> [u32; 3] {
    let of_launch = plan.launches.iter().find_map(|launch| match launch.params {
        Params::TmaForward(params) => Some(params),
        _ => None,
    });
    let params = of_launch.unwrap();
    let [k, v] = [params.k, params.v].map(|map| map.box_rows as u32);
    [k, v, params.pages.box_rows]
}

#[test]
fn boxes_have_one_row_where_sequences_may_begin_at_any_of_several_pages() {
    let flash3 = Some(Algorithm::Flash3);
    let problem = |page_size| llama_like().pages(Pages::new(9000, page_size));
    for (page_size, rows) in [(16, 16), (64, 64), (48, 16), (1, 1)] {
        assert_eq!(
            box_rows(&planned(problem(page_size), false, flash3)),
            [rows; 3]
        );
        assert_eq!(box_rows(&planned(problem(page_size), true, flash3)), [1; 3]);
    }
    // A sequence of one page has boxes as long as a block of keys, wherever it begins.
    let of_one_page = box_rows(&planned(problem(4096), false, flash3));
    assert_eq!(box_rows(&planned(problem(4096), true, flash3)), of_one_page);
    assert!(of_one_page[0] >= 64);
}

#[test]
fn flash2_is_preferred_where_flash3_would_copy_single_rows() {
    let chosen = |problem, is_padded| planned(problem, is_padded, None).algorithm;
    let prefill = llama_like().pages(Pages::new(600, 16));
    assert_eq!(chosen(prefill, false), Algorithm::Flash3);
    assert_eq!(chosen(prefill, true), Algorithm::Flash2);
    assert_eq!(chosen(prefill.head_dim(96), true), Algorithm::Flash2);
    assert_eq!(chosen(prefill.head_dim(192), true), Algorithm::Flash2);
    assert_eq!(
        chosen(prefill.pages(Pages::new(2, 4096)), true),
        Algorithm::Flash3
    );
}
