//! Which cases of a set run: all of them, a sample, or those whose numbers are asked for.
//!
//! The emulator is slow, so it runs a sample of every set unless the environment variable `CASES` says `all`. A sample holds at
//! least one case for each choice of kernels and mask that the set has ([`stratum`]), and a few more: so every kernel is run
//! under every kind of mask, whatever the seed; of those in other tiles, under block masks, and beside dropout and sinks, a run has a quarter
//! ([`Choice::thinned`]). A case that takes twice the time ([`cost`]) is chosen half as often. Where a suite is there for the tiles
//! of one pass, that pass's kernels count. The environment variable `SEED` (0 if it is not set) decides which ones; it decides the
//! random problems and the order of the emulator's threads, too. `cargo xtask test` takes another seed each time.
//!
//! `CASES=3,17` runs these cases of each set alone, on any backend. A failure says what to set to repeat it.

use std::collections::BTreeMap;
use std::sync::Once;

use ferroflash::{Algorithm, Attention, Backend, Device, Pass};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cases::Case;
use crate::suite::say;

/// Of the cases that a sample need not have, one in so many runs, where all cost the same.
const ONE_IN: f64 = 32.0;

/// Of the strata, a sample that is thinned has one in so many.
const STRATA_ONE_IN: u64 = 4;

/// Of the random problems, a sample has one in so many.
const ONE_RANDOM_IN: u32 = 4;

/// Which cases to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of them.
    All,
    /// Those that follow from the seed.
    Sample(u64),
    /// Of these the cases of one stratum in four.
    Thinned(u64),
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

    /// The numbers of the cases that run, ascending.
    pub fn numbers(&self, members: &[Member]) -> Vec<usize> {
        match self {
            Choice::All => (0..members.len()).collect(),
            Choice::Only(numbers) => (0..members.len())
                .filter(|number| numbers.contains(number))
                .collect(),
            Choice::Sample(seed) => sample(members, *seed, 1),
            Choice::Thinned(seed) => sample(members, *seed, STRATA_ONE_IN),
        }
    }

    /// A sample made smaller, of a set whose kernels run in other sets too: three seeds, one after the other, run all of its strata.
    pub fn thinned(self) -> Choice {
        match self {
            Choice::Sample(seed) => Choice::Thinned(seed),
            other => other,
        }
    }

    /// Whether a case runs once only: of a sample, every third one runs a second time.
    pub fn runs_once(&self, number: usize) -> bool {
        matches!(self, Choice::Sample(seed) | Choice::Thinned(seed) if !seed.wrapping_add(number as u64).is_multiple_of(3))
    }

    /// How many random problems run, of this many.
    pub fn n_random(&self, all: u32) -> u32 {
        match self {
            Choice::All => all,
            Choice::Sample(_) | Choice::Thinned(_) => all.div_ceil(ONE_RANDOM_IN),
            // They have no numbers: who asks for cases by number wants no others.
            Choice::Only(_) => 0,
        }
    }
}

/// What decides whether a case is in a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Each sample has a case of each.
    pub stratum: String,
    /// In proportion to the time that it takes; at least 1.
    pub cost: u64,
}

/// One case of each stratum, or of one stratum in so many, and one in [`ONE_IN`] of its others; the less a case costs, the likelier.
fn sample(members: &[Member], seed: u64, strata_one_in: u64) -> Vec<usize> {
    let mut strata: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, member) in members.iter().enumerate() {
        strata.entry(&member.stratum).or_default().push(number);
    }
    let weight = |number: usize| 1.0 / members[number].cost.max(1) as f64;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut chosen = Vec::new();
    let first = seed % strata_one_in;
    for numbers in strata
        .into_values()
        .skip(first as usize)
        .step_by(strata_one_in as usize)
    {
        let total: f64 = numbers.iter().map(|&number| weight(number)).sum();
        let mut at = rng.random_range(0.0..total);
        let needed = numbers.iter().find(|&&number| {
            at -= weight(number);
            at < 0.0
        });
        // Rounding may leave a little of the total over.
        let needed = *needed.unwrap_or(&numbers[0]);
        let mean = total / numbers.len() as f64;
        let is_chosen = |&number: &usize| {
            let chance = weight(number) / mean / ONE_IN;
            number == needed || rng.random_bool(chance.min(1.0))
        };
        chosen.extend(numbers.iter().copied().filter(is_chosen));
    }
    chosen.sort_unstable();
    chosen
}

/// What a case costs on the emulator: a product of tiles takes time whether its rows exist or not.
pub fn cost(case: &Case) -> u64 {
    let sizes = case.sizes;
    let tiles = |rows: usize| rows.div_ceil(TILE_ROWS).max(1);
    let of_head = |q: usize, k: usize| tiles(q) * tiles(k);
    let of_heads = match &case.lengths {
        None => sizes.batch * of_head(sizes.seqlen_q, sizes.seqlen_k),
        Some(lengths) => {
            let spans = lengths.q.spans(lengths.n).into_iter();
            let spans = spans.zip(lengths.k.spans(lengths.n));
            spans.map(|(q, k)| of_head(q.len, k.len)).sum()
        }
    };
    (of_heads * sizes.heads_q * sizes.head_dim.div_ceil(32).max(1)) as u64
}

/// Rows of the smallest tiles.
const TILE_ROWS: usize = 64;

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

    fn members(sizes: &[usize]) -> Vec<Member> {
        let of = |(at, &n): (usize, &usize)| {
            let member = move |number| Member {
                stratum: at.to_string(),
                cost: number as u64,
            };
            (1..=n).map(member)
        };
        sizes.iter().enumerate().flat_map(of).collect()
    }

    #[test]
    fn a_sample_has_every_stratum_and_little_more() {
        let members = members(&[1, 2, 40, 1, 60]);
        let mut seen = vec![0; members.len()];
        for seed in 0..2000 {
            let numbers = Choice::Sample(seed).numbers(&members);
            assert_eq!(numbers, Choice::Sample(seed).numbers(&members));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            let mut kinds: Vec<_> = numbers
                .iter()
                .map(|&number| &members[number].stratum)
                .collect();
            kinds.dedup();
            assert_eq!(kinds, ["0", "1", "2", "3", "4"], "seed {seed}");
            assert!(numbers.len() < members.len() / 2, "{numbers:?}");
            numbers.iter().for_each(|&number| seen[number] += 1);
        }
        assert!(
            seen.iter().all(|&n| n > 0),
            "some case never runs: {seen:?}"
        );
        // The first stratum of 40 has cases of cost 1 to 40.
        let (cheap, dear): (usize, usize) = (seen[3..13].iter().sum(), seen[33..43].iter().sum());
        assert!(cheap > 4 * dear, "{seen:?}");
    }

    #[test]
    fn thinned_samples_of_successive_seeds_have_every_stratum() {
        let members = members(&[1, 1, 1, 1, 1, 1, 1]);
        let of = |seed| Choice::Sample(seed).thinned().numbers(&members);
        let mut all: Vec<usize> = (5..5 + STRATA_ONE_IN).flat_map(of).collect();
        all.sort_unstable();
        assert_eq!(all, (0..members.len()).collect::<Vec<_>>());
        assert_eq!(of(1), [1, 5]);
        assert_eq!(Choice::All.thinned(), Choice::All);
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
        assert_eq!(only.numbers(&members(&[10, 10])), [3, 17]);
        assert_eq!(only.numbers(&members(&[5])), [3]);
        assert_eq!((only.n_random(9), Choice::All.n_random(9)), (0, 9));
    }
}
