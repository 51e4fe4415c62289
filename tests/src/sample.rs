//! Which cases of a set run: all of them, a sample, or those whose numbers are asked for.
//!
//! The emulator is slow, so it runs a sample unless the environment variable `CASES` says `all`. It is drawn over all [sets](crate::sets) of
//! the test program at once: at least one case of each set, one for each kernel, one for each choice that plans make of kinds of kernels, of
//! what these are compiled with, and of the order of their tiles ([`strata`]), and a few more. So every kernel runs, and every kind of kernel
//! under every kind of mask, whatever the seed; at every head_dim within thirty-six seeds. Of what only sets of other tiles, of block masks, of
//! pages, of expressions, of dropout and of sinks run, a run has a sixth, and every kind of expression; of the small sets whose cases are each there for a
//! mistake of its own, a third. A
//! case that takes twice the time is chosen a quarter as often; but a case that no loop goes round in is no example of a kernel
//! that has others ([`reach`]). Where a suite is there for the tiles of one pass, that pass's kernels count. The environment variable
//! `SEED` (0 if it is not set) decides which ones; it decides the random problems and the order of the emulator's threads, too. `cargo
//! xtask test` takes another seed each time.
//!
//! `CASES=3,17` runs these cases of each set alone, on any backend. A failure says what to set to repeat it.

mod draw;
mod member;

use std::sync::Once;

use ferroflash::Backend;

pub use draw::{Member, Members, Share, draw};
pub use member::{member, reach, strata};

use crate::suite::say;

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

    /// The numbers of the cases that run, ascending, of so many; `sample` has those of a sample.
    pub fn numbers(&self, n_cases: usize, sample: impl FnOnce(u64) -> Vec<usize>) -> Vec<usize> {
        match self {
            Choice::All => (0..n_cases).collect(),
            Choice::Only(numbers) => (0..n_cases)
                .filter(|number| numbers.contains(number))
                .collect(),
            Choice::Sample(seed) => sample(*seed),
        }
    }

    /// Whether a case runs once only: of a sample, every twelfth one runs a second time.
    pub fn runs_once(&self, number: usize) -> bool {
        matches!(self, Choice::Sample(seed) if !seed.wrapping_add(number as u64).is_multiple_of(12))
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let sample = |seed| vec![seed as usize];
        assert_eq!(only.numbers(20, sample), [3, 17]);
        assert_eq!(only.numbers(5, sample), [3]);
        assert_eq!(Choice::Sample(4).numbers(20, sample), [4]);
        assert_eq!(Choice::All.numbers(3, sample), [0, 1, 2]);
        assert_eq!((only.n_random(9), Choice::All.n_random(9)), (0, 9));
    }
}
