//! One drawing over all sets of a test program.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Of the cases that a sample need not have, one in so many runs, where all cases of a set cost the same.
const ONE_IN: f64 = 64.0;

/// Of the strata that only [`Share::Sixth`] asks for, a sample has one in so many.
const STRATA_ONE_IN: u64 = 6;

/// Of those that no set asks for in every sample, whatever its share ([`Member::thinned`]).
const THINNED_ONE_IN: u64 = 36;

/// What a set asks of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A case of each of its strata.
    Strata,
    /// Of those strata that no other set asks for, a case of each sixth: six seeds, one after the other, have all.
    Sixth,
}

/// What decides whether a case is in a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The kernels that it is an example of.
    pub kernels: Vec<String>,
    /// What else it is an example of.
    pub strata: Vec<String>,
    /// What it is an example of, too, of which samples have a part each, whatever its set asks for.
    pub thinned: Vec<String>,
    /// What it is an example of, too, of which every sample has one, whatever its set asks for.
    pub rule: Option<String>,
    /// How good an example of its kernels it is: only the best ones count.
    pub reach: u32,
    /// In proportion to the time that it takes; at least 1.
    pub cost: u64,
}

impl Member {
    /// All that it is an example of.
    fn all(&self) -> impl Iterator<Item = &str> {
        let strata = self.asked().chain(&self.thinned).chain(&self.rule);
        strata.map(String::as_str)
    }

    /// What its set asks for.
    fn asked(&self) -> impl Iterator<Item = &String> {
        self.kernels.iter().chain(&self.strata)
    }

    /// The more a case costs, the less likely it is: one that costs twice as much, a quarter.
    fn weight(&self) -> f64 {
        (self.cost.max(1) as f64).powi(-2)
    }
}

/// A set of cases: what it asks for, and what it has.
#[derive(Clone, Debug)]
pub struct Members {
    /// What it asks for.
    pub share: Share,
    /// Its cases.
    pub members: Vec<Member>,
}

/// The place of a case: its set, its number in the set.
type CaseIndex = (usize, usize);

/// Of each set the numbers of the cases that run, ascending: one in `ONE_IN` of all; one of each set at least; one of each stratum, wherever
/// it is.
pub fn draw(sets: &[Members], seed: u64) -> Vec<Vec<usize>> {
    let mut drawing = Drawing {
        sets,
        needed: needed(sets, seed),
        rng: StdRng::seed_from_u64(seed),
        chosen: BTreeSet::new(),
    };
    drawing.some_of_all();
    drawing.one_of_each_set();
    drawing.one_of_each_stratum();
    let mut numbers = vec![Vec::new(); sets.len()];
    for (set, number) in drawing.chosen {
        numbers[set].push(number);
    }
    numbers
}

/// The examples of each stratum that a sample has to have; of a kernel the best ones.
fn needed(sets: &[Members], seed: u64) -> BTreeMap<&str, Vec<CaseIndex>> {
    let mut strata: BTreeMap<&str, Vec<CaseIndex>> = BTreeMap::new();
    let (mut asked, mut thinned) = (BTreeSet::new(), BTreeSet::new());
    let (mut rules, mut kernels) = (BTreeSet::new(), BTreeSet::new());
    for (of_set, set) in sets.iter().enumerate() {
        for (number, member) in set.members.iter().enumerate() {
            for stratum in member.all() {
                strata.entry(stratum).or_default().push((of_set, number));
            }
            rules.extend(member.rule.as_deref());
            kernels.extend(member.kernels.iter().map(String::as_str));
            thinned.extend(member.thinned.iter().map(String::as_str));
            if set.share == Share::Strata {
                asked.extend(member.asked().map(String::as_str));
            }
        }
    }
    let is_of_set = |stratum: &&str| {
        let others = [&asked, &thinned, &rules];
        others.iter().all(|others| !others.contains(stratum))
    };
    let of_sets: Vec<&str> = strata.keys().copied().filter(is_of_set).collect();
    asked.extend(of_seed(of_sets, seed, STRATA_ONE_IN));
    asked.extend(of_seed(thinned, seed, THINNED_ONE_IN));
    asked.extend(&rules);
    strata.retain(|stratum, _| asked.contains(stratum));
    // How far loops go round makes no better example of anything else.
    let of_kernels = strata
        .iter_mut()
        .filter(|(stratum, _)| kernels.contains(*stratum));
    for (_, places) in of_kernels {
        let reach = |&(set, number): &CaseIndex| sets[set].members[number].reach;
        let most = places.iter().map(reach).max();
        places.retain(|place| Some(reach(place)) == most);
    }
    strata
}

/// One in so many: as many seeds, one after the other, have all.
fn of_seed<'a>(
    strata: impl IntoIterator<Item = &'a str>,
    seed: u64,
    one_in: u64,
) -> impl Iterator<Item = &'a str> {
    let first = (seed % one_in) as usize;
    strata.into_iter().skip(first).step_by(one_in as usize)
}

struct Drawing<'a> {
    sets: &'a [Members],
    /// The strata of which there is no case yet.
    needed: BTreeMap<&'a str, Vec<CaseIndex>>,
    rng: StdRng,
    chosen: BTreeSet<CaseIndex>,
}

impl<'a> Drawing<'a> {
    fn member(&self, (set, number): CaseIndex) -> &'a Member {
        &self.sets[set].members[number]
    }

    fn choose(&mut self, place: CaseIndex) {
        self.chosen.insert(place);
        for stratum in self.member(place).all() {
            if self.is_first(place, stratum) {
                self.needed.remove(stratum);
            }
        }
    }

    /// Whether a case is a good example of a stratum of which there is none yet.
    fn is_first(&self, place: CaseIndex, stratum: &str) -> bool {
        let examples = self.needed.get(stratum);
        examples.is_some_and(|examples| examples.contains(&place))
    }

    fn some_of_all(&mut self) {
        let sets = self.sets;
        for (of_set, set) in sets.iter().enumerate() {
            let total: f64 = set.members.iter().map(Member::weight).sum();
            let mean = total / set.members.len() as f64;
            for (number, member) in set.members.iter().enumerate() {
                let chance = member.weight() / mean / ONE_IN;
                if self.rng.random_bool(chance.min(1.0)) {
                    self.choose((of_set, number));
                }
            }
        }
    }

    fn one_of_each_set(&mut self) {
        for (of_set, set) in self.sets.iter().enumerate() {
            let (first, end) = ((of_set, 0), (of_set, set.members.len()));
            if first != end && self.chosen.range(first..end).next().is_none() {
                let places = (0..set.members.len()).map(|number| (of_set, number));
                self.choose_one(&places.collect::<Vec<_>>());
            }
        }
    }

    /// The rarest strata first: their cases are often of common ones, too.
    fn one_of_each_stratum(&mut self) {
        let mut order: Vec<_> = self.needed.clone().into_iter().collect();
        order.sort_by_key(|(stratum, places)| (places.len(), *stratum));
        for (stratum, places) in order {
            if self.needed.contains_key(stratum) {
                self.choose_one(&places);
            }
        }
    }

    /// One of these, the likelier the less it costs and the more strata it is the first of.
    fn choose_one(&mut self, places: &[CaseIndex]) {
        let weights: Vec<f64> = places
            .iter()
            .map(|&place| {
                let member = self.member(place);
                let strata = member.all();
                let n_first = strata.filter(|of| self.is_first(place, of)).count();
                member.weight() * n_first.max(1) as f64
            })
            .collect();
        let mut at = self.rng.random_range(0.0..weights.iter().sum());
        let chosen = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        // Rounding may leave a little of the total over.
        self.choose(places[chosen.unwrap_or(0)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of these strata and costs, of which every second one reaches farther.
    fn set(share: Share, cases: &[(&str, u64)]) -> Members {
        let members = cases.iter().enumerate().map(|(at, (strata, cost))| Member {
            kernels: strata.split_whitespace().map(str::to_owned).collect(),
            reach: at as u32 % 2,
            cost: *cost,
            ..Member::default()
        });
        Members {
            share,
            members: members.collect(),
        }
    }

    const THIN: [&str; 5] = ["thin1", "thin2", "thin3", "thin4", "thin5"];

    /// A large set, one that has strata in common with it, one of strata that no other asks for, one without any, and an empty one.
    fn sets() -> Vec<Members> {
        let many: [(&str, u64); 60] =
            std::array::from_fn(|at| (["a A", "b A", "c"][at % 3], 1 + at as u64 / 4));
        let thin = THIN.map(|stratum| (stratum, 1));
        vec![
            set(Share::Strata, &many),
            set(Share::Strata, &[("a B", 4), ("b B", 2), ("rare", 90)]),
            set(Share::Sixth, &[&[("a", 1)], &thin[..]].concat()),
            set(Share::Strata, &[("", 1), ("", 1)]),
            set(Share::Strata, &[]),
        ]
    }

    fn strata_of<'a>(sets: &'a [Members], numbers: &[Vec<usize>]) -> BTreeSet<&'a str> {
        let of_sets = sets.iter().zip(numbers);
        let members = of_sets.flat_map(|(set, numbers)| numbers.iter().map(|&at| &set.members[at]));
        members
            .flat_map(|member| member.kernels.iter().map(String::as_str))
            .collect()
    }

    #[test]
    fn every_stratum_is_met_and_every_set_whatever_the_seed() {
        let sets = sets();
        for seed in 0..2000 {
            let numbers = draw(&sets, seed);
            assert_eq!(numbers, draw(&sets, seed));
            let met = strata_of(&sets, &numbers);
            for stratum in ["a", "b", "c", "A", "B", "rare"] {
                assert!(met.contains(stratum), "seed {seed}: {stratum}: {numbers:?}");
            }
            for (set, numbers) in sets.iter().zip(&numbers) {
                assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
                assert_eq!(numbers.is_empty(), set.members.is_empty(), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_kernel_is_met_by_the_best_of_its_cases() {
        let sets = sets();
        for seed in 0..500 {
            let numbers = draw(&sets, seed);
            let chosen = numbers[0].iter().map(|&at| &sets[0].members[at]);
            // No other set has "c".
            let mut of_c = chosen.filter(|member| member.kernels == ["c"]);
            assert!(
                of_c.any(|member| member.reach == 1),
                "seed {seed}: {numbers:?}"
            );
        }
    }

    #[test]
    fn a_sample_is_small_and_has_every_case_for_some_seed() {
        let sets = sets();
        let mut seen: Vec<Vec<usize>> = sets.iter().map(|set| vec![0; set.members.len()]).collect();
        let n_seeds = 4000;
        for seed in 0..n_seeds {
            for (seen, numbers) in seen.iter_mut().zip(draw(&sets, seed)) {
                numbers.into_iter().for_each(|number| seen[number] += 1);
            }
        }
        let never = seen.iter().flatten().filter(|&&n| n == 0).count();
        assert_eq!(never, 0, "some case never runs: {seen:?}");
        let of_many: usize = seen[0].iter().sum();
        assert!(of_many < 7 * n_seeds as usize, "{seen:?}");
        let (cheap, dear): (usize, usize) =
            (seen[0][..10].iter().sum(), seen[0][50..].iter().sum());
        assert!(cheap > 3 * dear, "{seen:?}");
    }

    #[test]
    fn successive_seeds_have_all_strata_that_are_thinned() {
        let sets = sets();
        for first in [0, 5, 17] {
            let numbers: Vec<_> = (first..first + STRATA_ONE_IN)
                .map(|seed| draw(&sets, seed))
                .collect();
            let met = numbers.iter().flat_map(|numbers| strata_of(&sets, numbers));
            let met: BTreeSet<&str> = met.collect();
            for stratum in THIN {
                assert!(met.contains(stratum), "{met:?}");
            }
        }
    }

    #[test]
    fn what_no_set_asks_for_is_in_one_of_so_many_samples() {
        let mut sets = sets();
        for (at, member) in sets[0].members.iter_mut().enumerate() {
            member.thinned = vec![format!("part {at:02}")];
        }
        let n_seeds = THINNED_ONE_IN;
        let drawn: Vec<_> = (0..n_seeds)
            .map(|seed| draw(&sets, seed)[0].clone())
            .collect();
        let met: BTreeSet<usize> = drawn.iter().flatten().copied().collect();
        assert_eq!(met.len(), sets[0].members.len(), "{drawn:?}");
        let most = drawn.iter().map(Vec::len).max();
        assert!(most < Some(sets[0].members.len() / 3), "{drawn:?}");
    }

    #[test]
    fn every_sample_has_every_rule() {
        let mut sets = sets();
        for (at, member) in sets[2].members.iter_mut().enumerate() {
            member.rule = Some(format!("rule {}", at % 3));
        }
        for seed in 0..300 {
            let numbers = &draw(&sets, seed)[2];
            let rules: BTreeSet<usize> = numbers.iter().map(|number| number % 3).collect();
            assert_eq!(rules.len(), 3, "seed {seed}: {numbers:?}");
        }
    }

    #[test]
    fn what_two_sets_have_is_needed_once() {
        let one = set(
            Share::Strata,
            &["a", "b", "c", "d", "e", "f"].map(|stratum| (stratum, 1)),
        );
        let sets = vec![one; 8];
        let n_seeds = 300;
        let of = |seed| draw(&sets, seed).iter().map(Vec::len).sum::<usize>();
        let mean = (0..n_seeds).map(of).sum::<usize>() as f64 / n_seeds as f64;
        // One of each of eight sets, and the strata that these are not.
        assert!((8.0..13.0).contains(&mean), "{mean}");
    }
}
