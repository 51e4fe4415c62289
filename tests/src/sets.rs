//! The sets of cases of a test program. Each is made known by the [`set!`](crate::set) that makes its test, so that the emulator's sample is drawn
//! over all of them at once, whichever tests a run asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use ferroflash::error::ProblemError;
use ferroflash::{Algorithm, Backend, Order, Pass, Problem};

use crate::cases::Case;
use crate::cases::e4m3::E4m3Case;
use crate::cases::fp8::Fp8Case;
use crate::cases::mla::MlaCase;
use crate::cases::paged_scores::PagedScoreCase;
use crate::cases::pages::PagedCase;
use crate::cases::scores::ScoreCase;
use crate::sample::{self, Choice, Member, Members, Share};
use crate::subject::Subject;
use crate::ways::{self, Given};
use crate::{e4m3, fp8, mla, pages, scores, suite};

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
    Latent(fn() -> Vec<MlaCase>),
    /// Keys and values in 8 bits.
    Fp8(fn() -> Vec<Fp8Case>),
    /// Queries, keys and values in 8 bits.
    E4m3(fn() -> Vec<E4m3Case>),
}

inventory::collect!(Set);

/// How many times as long a case takes whose scores are edited: several expressions are evaluated for each of them, by the kernel and by the oracle.
const COST_OF_EXPRESSIONS: u64 = 3;

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
                mla::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
            }
            Cases::E4m3(cases) => {
                let cases = cases();
                e4m3::check_set(subject, algorithm, test, &cases, &self.numbers(cases.len()));
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
        let (info, backend, place) = (device.info(), device.backend(), device.location());
        let asked = Some(self.algorithm);
        let mut met = BTreeSet::new();
        for Entry { case, problems, .. } in self.entries() {
            let given = Given::of_case(&case);
            let mut meet = |pass, problem: &Problem| {
                let plan = ways::planned(info, backend, place, asked, pass, (problem, given));
                met.extend(plan.iter().flat_map(ways::ways));
            };
            // All that runs, whatever tiles the subject is there for.
            for problem in problems.into_iter().flatten() {
                meet(Pass::Forward, &problem);
                if !self.has_backward() {
                    continue;
                }
                meet(Pass::Backward, &problem);
                if let Ok(fastest) = problem.to_builder().order(Order::Fastest).build() {
                    meet(Pass::Backward, &fastest);
                }
            }
        }
        met
    }

    /// Its cases, as plans are made of them.
    fn entries(&self) -> Vec<Entry> {
        fn of<C>(cases: Vec<C>, entry: impl Fn(&C) -> Entry) -> Vec<Entry> {
            cases.iter().map(entry).collect()
        }
        match self.cases {
            Cases::Plain(cases) => of(cases(), |c| Entry::new(c, [c.problem()])),
            Cases::Pages(cases) => of(cases(), |c| Entry::new(&c.case, [c.problem()])),
            Cases::PagedScores(cases) => of(cases(), |c| Entry {
                rule: Some(format!("rule {:?}", c.rule)),
                ..Entry::new(&c.paged.case, [c.problem()])
            }),
            Cases::E4m3(cases) => of(cases(), |c| Entry {
                rule: c.rule.map(|rule| format!("rule {rule:?}")),
                ..Entry::new(&c.case, [c.problem()])
            }),
            Cases::Fp8(cases) => of(cases(), |c| Entry::new(&c.paged.case, [c.problem()])),
            // Each runs with its keys side by side, too.
            Cases::Latent(cases) => of(cases(), |c| {
                Entry::new(&c.paged.case, [c.problem_in_pages(), c.problem()])
            }),
            Cases::Scores(cases) => of(cases(), |c| Entry {
                rule: Some(format!("rule {:?}", c.rule)),
                ..Entry::new(&c.case, [c.problem()])
            }),
        }
    }

    /// Whether the backward pass is run of its cases, too.
    fn has_backward(&self) -> bool {
        matches!(self.cases, Cases::Plain(_) | Cases::Scores(_))
    }

    /// What a sample knows of its cases: where no kernel runs, that this set has such a case.
    fn members(&self) -> Vec<Member> {
        let Ok(device) = (self.subject.open)(0) else {
            return Vec::new();
        };
        let passes = match self.has_backward() {
            true => self.subject.passes(),
            false => &[Pass::Forward],
        };
        let member = |entry: Entry| {
            let problem = entry.problems.first().copied().flatten();
            let mut member = sample::member(&device, self.algorithm, passes, &entry.case, problem);
            if member.strata.is_empty() {
                member.strata.push(format!("{}: no kernel", self.test));
            }
            if entry.rule.is_some() {
                member.cost *= COST_OF_EXPRESSIONS;
            }
            member.rule = entry.rule;
            member
        };
        self.entries().into_iter().map(member).collect()
    }
}

/// A case of a set.
struct Entry {
    case: Case,
    /// The problems that are run of it, the first one first; `None` for one that is refused.
    problems: Vec<Option<Problem>>,
    /// The rule of its scores.
    rule: Option<String>,
}

impl Entry {
    fn new<const N: usize>(case: &Case, problems: [Result<Problem, ProblemError>; N]) -> Entry {
        Entry {
            case: *case,
            problems: problems.into_iter().map(Result::ok).collect(),
            rule: None,
        }
    }
}

/// Holds the ways that plans of problems as large as a user's take against those of this backend's sets; panics with the names of those that no
/// set has. A backend that is not there is not held to them.
pub fn check_ways(backend: Backend) {
    let sets = || inventory::iter::<Set>().filter(|set| set.subject.backend == backend);
    if sets().any(|set| set.subject.is_absent()) {
        return;
    }
    let met: BTreeSet<String> = sets().flat_map(Set::ways).collect();
    let unmet: String = ways::unmet(&met)
        .iter()
        .map(|(way, example)| format!("{way}\n    {example}\n"))
        .collect();
    assert!(
        unmet.is_empty(),
        "no case of {backend} takes these ways of a plan:\n{unmet}"
    );
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
