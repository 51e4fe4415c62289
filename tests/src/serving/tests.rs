//! The simulation notices what an engine gets wrong, and takes steps of every kind.

use ferroflash::{Algorithm, Backend};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::allocator::Allocator;
use super::bug::Bug;
use super::simulate;
use super::steps::{Step, draw};
use crate::cases::serving::{ServingCase, all};
use crate::subject::CPU;

/// Engines of a few hundred steps.
fn engines(seed: u64) -> Vec<ServingCase> {
    let short = |case| ServingCase {
        n_steps: 300,
        ..case
    };
    all(Backend::Cpu, seed).into_iter().map(short).collect()
}

/// What the library says of an append of two sequences to the same page, and of an entry that names no page.
const SHARED: &str = "elements may share memory";
const NO_PAGE: &str = "page_table says page";

/// Every engine with pages of more than a row notices; `failures` are what it may say.
fn is_noticed(bug: Bug, failures: &[&str]) {
    for case in engines(1).into_iter().filter(|case| case.page_size > 1) {
        let outcome = simulate(&CPU, Algorithm::Tiled, &case, bug);
        let failure = outcome.expect_err(&format!("{bug:?} {case:?}"));
        let is_expected = failures.iter().any(|expected| failure.contains(expected));
        assert!(is_expected, "{bug:?}: {failure}");
    }
}

#[test]
fn a_page_that_is_freed_too_early_is_noticed() {
    is_noticed(Bug::Uncounted, &["are counted", "is free 1 times"]);
}

#[test]
fn a_page_that_is_lost_is_noticed() {
    is_noticed(Bug::Leak, &["is lost"]);
}

#[test]
fn writing_to_a_shared_page_is_noticed() {
    is_noticed(Bug::NoCopy, &["has other bits", SHARED]);
}

#[test]
fn a_page_that_is_not_copied_whole_is_noticed() {
    is_noticed(Bug::ShortCopy, &["instead of", "has other bits"]);
}

#[test]
fn a_stale_entry_is_noticed() {
    let failures = ["has other bits", "and not NaN", "NaN instead of", SHARED];
    is_noticed(Bug::StaleEntry, &failures);
}

#[test]
fn another_sequences_table_is_noticed() {
    is_noticed(Bug::WrongSlot, &["other bits", "instead of", NO_PAGE]);
}

#[test]
fn a_length_that_is_too_short_is_noticed() {
    is_noticed(Bug::OldLength, &["instead of"]);
}

#[test]
fn a_row_behind_the_end_is_noticed() {
    is_noticed(Bug::LongLength, &["NaN instead of"]);
}

#[test]
fn a_row_of_nobody_that_is_written_to_is_noticed() {
    is_noticed(Bug::StrayWrite, &["is nobody's, and not NaN"]);
}

/// Steps of every kind, pages that others have among those that are written to, and a pool that runs empty.
#[test]
fn every_kind_of_step_is_taken() {
    for case in engines(2) {
        let mut rng = StdRng::seed_from_u64(case.seed);
        let mut pages = Allocator::new(&case, Bug::None);
        let (mut n, mut n_copies, mut least) = ([0; 6], 0, usize::MAX);
        for _ in 0..case.n_steps {
            let step = draw(&mut rng, &case, &pages);
            let kind = match &step {
                Step::Admit { slot } => {
                    pages.admit(*slot);
                    0
                }
                Step::Fork { from, slot, len } => {
                    pages.fork(*from, *slot, *len);
                    1
                }
                Step::Grow(call) => {
                    for part in &call.parts {
                        let copy = pages.grow(part.slot, part.n_rows).unwrap();
                        n_copies += usize::from(copy.is_some());
                    }
                    2
                }
                Step::Read(_) => 3,
                Step::Cut { slot, len } => {
                    pages.cut(*slot, *len);
                    4
                }
                Step::Finish { slot } => {
                    pages.finish(*slot);
                    5
                }
            };
            n[kind] += 1;
            least = least.min(pages.n_free());
            pages.check().unwrap();
        }
        assert!(n.iter().all(|&n| n > 5), "{n:?} {case:?}");
        assert!(case.page_size == 1 || n_copies > 5, "{n_copies} {case:?}");
        assert!(least < case.n_pages / 3, "{least} {case:?}");
    }
}
