//! The sets of cases of a test program. Each is made known by the [`set!`](crate::set) that makes its test, so that the emulator's sample is drawn
//! over all of them at once, whichever tests a run asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use ferroflash::{Algorithm, Backend, Device, Order, Pass, Problem};

use crate::cases::Case;
use crate::cases::fp8::Fp8Case;
use crate::cases::latent::LatentCase;
use crate::cases::paged_scores::PagedScoreCase;
use crate::cases::pages::PagedCase;
use crate::cases::scores::ScoreCase;
use crate::sample::{self, Choice, Member, Members, Share};
use crate::subject::Subject;
use crate::ways::{self, Given};
use crate::{fp8, latent, pages, scores, suite};

/// A set of cases that a subject is put through.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// The path of its test, from the name of the test program on.
    pub test: &'static str,
    /// The subject.
    pub subject: &'static Subject,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What it asks of a sample.
    pub share: Share,
    /// What makes the cases.
    pub cases: Cases,
}

/// What makes the cases of a set.
#[derive(Clone, Copy, Debug)]
pub enum Cases {
    /// Both passes.
    Plain(fn() -> Vec<Case>),
    /// Keys and values in pages.
    Pages(fn() -> Vec<PagedCase>),
    /// Scores and masks of the user's own.
    Scores(fn() -> Vec<ScoreCase>),
    /// These in pages.
    PagedScores(fn() -> Vec<PagedScoreCase>),
    /// Values in the keys.
    Latent(fn() -> Vec<LatentCase>),
    /// Keys and values in 8 bits.
    Fp8(fn() -> Vec<Fp8Case>),
}

inventory::collect!(Set);

/// Makes the test of a set of cases, and makes the set known: `set!(name, subject, algorithm, share, kind cases)`.
#[macro_export]
macro_rules! set {
    // Of sets that another suite checks, by its name.
    (@beside pages, $subject:path, $algorithm:expr, $cases:expr) => {
        $crate::set!(pages, $subject, $algorithm, Sixth, Pages $cases);
    };
    (@beside scores, $subject:path, $algorithm:expr, $cases:expr) => {
        $crate::set!(scores, $subject, $algorithm, Sixth, Scores $cases);
    };
    (@beside latent, $subject:path, $algorithm:expr, $cases:expr) => {
        $crate::set!(latent, $subject, $algorithm, Sixth, Latent $cases);
    };
    (@beside fp8, $subject:path, $algorithm:expr, $cases:expr) => {
        $crate::set!(fp8, $subject, $algorithm, Sixth, Fp8 $cases);
    };
    ($test:ident, $subject:path, $algorithm:expr, $share:ident, $kind:ident $cases:expr) => {
        #[test]
        fn $test() {
            const SET: $crate::sets::Set = $crate::sets::Set {
                test: concat!(module_path!(), "::", stringify!($test)),
                subject: &$subject,
                algorithm: $algorithm,
                share: $crate::sample::Share::$share,
                cases: $crate::sets::Cases::$kind($cases),
            };
            $crate::inventory::submit! { SET }
            SET.check();
        }
    };
}

impl Set {
    /// Puts the subject through the cases that the environment asks for; panics with every failure.
    pub fn check(&self) {
        let Set {
            test,
            subject,
            algorithm,
            ..
        } = *self;
        if subject.cannot_run(algorithm) {
            return;
        }
        match self.cases {
            Cases::Plain(cases) => {
                let cases = cases();
                suite::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
            Cases::Pages(cases) => {
                let cases = cases();
                pages::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
            Cases::PagedScores(cases) => {
                let cases = cases();
                let numbers = self.numbers(cases.len());
                pages::check_scores(subject, algorithm, test, &cases, &numbers);
            }
            Cases::Scores(cases) => {
                let cases = cases();
                scores::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
            Cases::Latent(cases) => {
                let cases = cases();
                latent::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
            Cases::Fp8(cases) => {
                let cases = cases();
                fp8::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
        }
    }

    /// The numbers of the cases that run, of so many.
    fn numbers(&self, n_cases: usize) -> Vec<usize> {
        let drawn = |seed| match drawn(seed).get(self.test) {
            Some(numbers) => numbers.clone(),
            None => panic!("{} is not among the sets that are drawn", self.test),
        };
        Choice::of(self.subject.backend).numbers(n_cases, drawn)
    }

    /// The ways that plans of its cases take: see [`ways`](mod@ways).
    fn ways(&self) -> BTreeSet<String> {
        let Ok(device) = (self.subject.open)(0) else {
            return BTreeSet::new();
        };
        let (info, backend, place) = (device.info(), device.backend(), device.place());
        let asked = Some(self.algorithm);
        let mut met = BTreeSet::new();
        for (case, problem) in self.problems() {
            let fastest = problem.to_builder().order(Order::Fastest).build();
            // All that runs, whatever tiles the subject is there for.
            let calls = match self.cases {
                Cases::Plain(_) | Cases::Scores(_) => vec![
                    (Pass::Forward, Ok(problem)),
                    (Pass::Backward, Ok(problem)),
                    (Pass::Backward, fastest),
                ],
                _ => vec![(Pass::Forward, Ok(problem))],
            };
            for (pass, problem) in calls {
                let Ok(problem) = problem else { continue };
                let call = (&problem, Given::of_case(&case));
                let plan = ways::planned(info, backend, place, asked, pass, call);
                met.extend(plan.iter().flat_map(ways::ways));
            }
        }
        met
    }

    /// The problems of its cases, of those that are any.
    fn problems(&self) -> Vec<(Case, Problem)> {
        let all: Vec<(Case, Option<Problem>)> = match self.cases {
            Cases::Plain(cases) => cases().iter().map(|c| (*c, c.problem().ok())).collect(),
            Cases::Pages(cases) => {
                let of = |c: &PagedCase| (c.case, c.problem().ok());
                cases().iter().map(of).collect()
            }
            // Each runs with its keys side by side, too.
            Cases::Latent(cases) => {
                let of = |c: &LatentCase| {
                    [c.problem_in_pages(), c.problem()].map(|p| (c.paged.case, p.ok()))
                };
                cases().iter().flat_map(of).collect()
            }
            Cases::Fp8(cases) => {
                let of = |c: &Fp8Case| (c.paged.case, c.problem().ok());
                cases().iter().map(of).collect()
            }
            Cases::Scores(cases) => {
                let of = |c: &ScoreCase| (c.case, c.problem().ok());
                cases().iter().map(of).collect()
            }
            Cases::PagedScores(cases) => {
                let of = |c: &PagedScoreCase| (c.paged.case, c.problem().ok());
                cases().iter().map(of).collect()
            }
        };
        let problems = all.into_iter();
        problems
            .filter_map(|(case, problem)| Some((case, problem?)))
            .collect()
    }

    /// What a sample knows of its cases.
    fn members(&self) -> Vec<Member> {
        let Ok(device) = (self.subject.open)(0) else {
            return Vec::new();
        };
        match self.cases {
            Cases::Plain(cases) => cases()
                .iter()
                .map(|case| self.member(&device, case, case.problem().ok()))
                .collect(),
            Cases::Pages(cases) => cases()
                .iter()
                .map(|paged| self.member(&device, &paged.case, paged.problem().ok()))
                .collect(),
            Cases::Latent(cases) => cases()
                .iter()
                .map(|latent| {
                    let problem = latent.problem_in_pages().ok();
                    self.member(&device, &latent.paged.case, problem)
                })
                .collect(),
            Cases::Fp8(cases) => cases()
                .iter()
                .map(|fp8| self.member(&device, &fp8.paged.case, fp8.problem().ok()))
                .collect(),
            Cases::Scores(cases) => cases()
                .iter()
                .map(|scores| {
                    let member = self.member(&device, &scores.case, scores.problem().ok());
                    Member {
                        rule: Some(format!("rule {:?}", scores.rule)),
                        ..member
                    }
                })
                .collect(),
            Cases::PagedScores(cases) => cases()
                .iter()
                .map(|scores| {
                    let problem = scores.problem().ok();
                    self.member(&device, &scores.paged.case, problem)
                })
                .collect(),
        }
    }

    /// What a sample knows of a case: where no kernel runs, that this set has such a case.
    fn member(&self, device: &Device, case: &Case, problem: Option<Problem>) -> Member {
        let passes = match self.cases {
            // Of these the forward pass alone is run.
            Cases::Pages(_) | Cases::PagedScores(_) | Cases::Latent(_) | Cases::Fp8(_) => {
                &[Pass::Forward]
            }
            Cases::Plain(_) | Cases::Scores(_) => self.subject.passes(),
        };
        let mut member = sample::member(device, self.algorithm, passes, case, problem);
        if member.strata.is_empty() {
            member.strata.push(format!("{}: no kernel", self.test));
        }
        member
    }
}

/// The ways that plans of problems as large as a user's take and that no set of this backend has; panics with their names. The sets of a backend
/// that is not there have none.
pub fn check_ways(backend: Backend, unheld: &[&str]) {
    let sets = || inventory::iter::<Set>().filter(|set| set.subject.backend == backend);
    if sets().any(|set| set.subject.is_absent()) {
        return;
    }
    let met: BTreeSet<String> = sets().flat_map(Set::ways).collect();
    let unmet = ways::unmet(&met);
    let unexpected: Vec<_> = unmet
        .iter()
        .filter(|(way, _)| !unheld.contains(&way.as_str()))
        .collect();
    assert!(
        unexpected.is_empty(),
        "no case of {backend} takes these ways of a plan:\n{}",
        unexpected
            .iter()
            .map(|(way, example)| format!("{way}\n    {example}\n"))
            .collect::<String>()
    );
    let met_now: Vec<_> = unheld
        .iter()
        .filter(|way| !unmet.contains_key(**way))
        .collect();
    assert!(met_now.is_empty(), "these ways are taken now: {met_now:?}");
}

/// Of each set that is sampled, by its test, the numbers of the cases that run.
fn drawn(seed: u64) -> &'static BTreeMap<&'static str, Vec<usize>> {
    static DRAWN: OnceLock<BTreeMap<&'static str, Vec<usize>>> = OnceLock::new();
    DRAWN.get_or_init(|| {
        let mut sets: Vec<&Set> = inventory::iter::<Set>()
            .filter(|set| set.subject.backend == Backend::Emulated)
            .collect();
        // The linker decides on the order in which they come.
        sets.sort_by_key(|set| set.test);
        let members: Vec<Members> = sets
            .iter()
            .map(|set| Members {
                share: set.share,
                members: set.members(),
            })
            .collect();
        let numbers = sample::draw(&members, seed);
        let tests = sets.iter().map(|set| set.test);
        tests.zip(numbers).collect()
    })
}
