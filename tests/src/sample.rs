//! Which cases of a set run: all of them, a sample, or those whose numbers are asked for.
//!
//! The emulator is slow, so it runs a sample of every set unless the environment variable `CASES` says `all`. A sample holds at
//! least one case for each choice of kernels and mask that the set has ([`stratum`]), and a few more: so every kernel is run
//! under every kind of mask, whatever the seed. Where a suite is there for the tiles of one pass, that pass's kernels count. The
//! environment variable `SEED` (0 if it is not set) decides which ones; it decides the random problems and the order of the
//! emulator's threads, too. `cargo xtask test` takes another seed each time.
//!
//! `CASES=3,17` runs these cases of each set alone, on any backend. A failure says what to set to repeat it.

use std::collections::BTreeMap;
use std::sync::Once;

use ferroflash::{Algorithm, Attention, Backend, Device, Pass};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cases::Case;
use crate::suite::say;

/// Of the cases that a sample need not have, one in so many runs.
const ONE_IN: u32 = 16;

/// Of the random problems, a sample has one in so many.
const ONE_RANDOM_IN: u32 = 4;

/// Which cases to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of them.
    All,
    /// Those that follow from the seed.
    Sample(u64),
    /// Those with these numbers.
    Only(Vec<usize>),
}

/// The seed of this run.
pub fn seed() -> u64 {
    let given = std::env::var("SEED").ok();
    given.map_or(0, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("SEED is {text:?}, which is no number"))
    })
}

impl Choice {
    /// What the environment asks of this backend.
    pub fn of(backend: Backend) -> Choice {
        let asked = std::env::var("CASES").ok();
        let choice = Choice::parse(asked.as_deref(), backend, seed());
        if let Choice::Sample(seed) = choice {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                say(&format!(
                    "conformance: the emulator runs a sample of the cases, SEED={seed}; CASES=all runs all"
                ));
            });
        }
        choice
    }

    fn parse(asked: Option<&str>, backend: Backend, seed: u64) -> Choice {
        match asked {
            None | Some("") if backend == Backend::Emulated => Choice::Sample(seed),
            None | Some("" | "all") => Choice::All,
            Some(numbers) => Choice::Only(
                numbers
                    .split(',')
                    .map(|number| {
                        number.trim().parse().unwrap_or_else(|_| {
                            panic!("CASES is {numbers:?}: neither `all` nor numbers")
                        })
                    })
                    .collect(),
            ),
        }
    }

    /// The numbers of the cases that run, ascending; `strata` has each case's stratum.
    pub fn numbers(&self, strata: &[String]) -> Vec<usize> {
        match self {
            Choice::All => (0..strata.len()).collect(),
            Choice::Only(numbers) => (0..strata.len())
                .filter(|number| numbers.contains(number))
                .collect(),
            Choice::Sample(seed) => sample(strata, *seed),
        }
    }

    /// Whether a case runs once only; a sample does without every third one's second run.
    pub fn runs_once(&self, number: usize) -> bool {
        matches!(self, Choice::Sample(seed) if seed.wrapping_add(number as u64).is_multiple_of(3))
    }

    /// How many random problems run, of this many.
    pub fn n_random(&self, all: u32) -> u32 {
        match self {
            Choice::All => all,
            Choice::Sample(_) => all.div_ceil(ONE_RANDOM_IN),
            // They have no numbers: who asks for cases by number wants no others.
            Choice::Only(_) => 0,
        }
    }
}

/// One case of each stratum, and one in [`ONE_IN`] of the others.
fn sample(strata: &[String], seed: u64) -> Vec<usize> {
    let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, stratum) in strata.iter().enumerate() {
        members.entry(stratum).or_default().push(number);
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut numbers = Vec::new();
    for members in members.values() {
        let needed = members[rng.random_range(0..members.len())];
        let chosen = |&number: &usize| number == needed || rng.random_ratio(1, ONE_IN);
        numbers.extend(members.iter().copied().filter(chosen));
    }
    numbers.sort_unstable();
    numbers
}

/// What a sample has to have of a set: the kernels of these passes with their constants (so the kind of mask), or that there are
/// none.
pub fn stratum(device: &Device, algorithm: Algorithm, passes: &[Pass], case: &Case) -> String {
    let Ok(problem) = case.problem() else {
        return String::new();
    };
    let Ok(attention) = Attention::new(device, problem) else {
        return String::new();
    };
    let attention = attention.with_algorithm(algorithm);
    let mut kernels = Vec::new();
    for &pass in passes {
        let plan = attention.explain(pass).ok().and_then(|why| why.plan.ok());
        let launches = plan.iter().flat_map(|plan| &plan.launches);
        kernels.extend(launches.map(|launch| format!("{} {}", launch.variant.name, launch.spec)));
    }
    kernels.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strata(sizes: &[usize]) -> Vec<String> {
        let of = |(at, &n): (usize, &usize)| vec![at.to_string(); n];
        sizes.iter().enumerate().flat_map(of).collect()
    }

    #[test]
    fn a_sample_has_every_stratum_and_little_more() {
        let strata = strata(&[1, 2, 40, 1, 60]);
        let mut seen = vec![false; strata.len()];
        for seed in 0..400 {
            let numbers = Choice::Sample(seed).numbers(&strata);
            assert_eq!(numbers, Choice::Sample(seed).numbers(&strata));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            let mut kinds: Vec<_> = numbers.iter().map(|&number| &strata[number]).collect();
            kinds.dedup();
            assert_eq!(kinds, ["0", "1", "2", "3", "4"], "seed {seed}");
            assert!(numbers.len() < strata.len() / 2, "{numbers:?}");
            numbers.iter().for_each(|&number| seen[number] = true);
        }
        assert!(seen.iter().all(|&seen| seen), "some case never runs");
    }

    #[test]
    fn the_environment_chooses() {
        let of = |asked, backend| Choice::parse(asked, backend, 7);
        assert_eq!(of(None, Backend::Emulated), Choice::Sample(7));
        assert_eq!(of(Some("all"), Backend::Emulated), Choice::All);
        for backend in [Backend::Cpu, Backend::Cuda] {
            assert_eq!(of(None, backend), Choice::All);
        }
        let only = of(Some("3, 17"), Backend::Cpu);
        assert_eq!(only, Choice::Only(vec![3, 17]));
        assert_eq!(only.numbers(&strata(&[10, 10])), [3, 17]);
        assert_eq!(only.numbers(&strata(&[5])), [3]);
        assert_eq!((only.n_random(9), Choice::All.n_random(9)), (0, 9));
    }
}
