//! Scores and masks of the user's own beside keys and values in pages, which sequences share or not, divided and not.

use ferroflash::Problem;
use ferroflash::error::ProblemError;

use super::base::one_in;
use super::pages::{self, PagedCase};
use super::scores::{Rule, ScoreCase};
use crate::edits::Edits;

/// A case in pages whose scores are edited.
#[derive(Clone, Copy, Debug)]
pub struct PagedScoreCase {
    /// The case.
    pub paged: PagedCase,
    /// What becomes of its scores.
    pub rule: Rule,
}

/// All cases whose keys are divided, and some of every other set of pages; rules go round in long steps, since those of a kind stand together.
pub fn all() -> Vec<PagedScoreCase> {
    const STEP: usize = 7;
    let others = [pages::all(), pages::shared(), pages::mixed()].concat();
    let cases = [pages::splits(), one_in(2, others)].concat();
    // A band alone leaves no expression.
    let rules = Rule::all().into_iter().filter(|rule| !rule.is_band());
    let rules: Vec<Rule> = rules.collect();
    let cases = cases.into_iter().enumerate();
    cases
        .map(|(at, paged)| PagedScoreCase {
            paged,
            rule: rules[STEP * at % rules.len()],
        })
        .collect()
}

impl PagedScoreCase {
    /// Its problem in pages, with the expressions.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let edits = self.rule.edits(self.paged.case.sizes, self.paged.case.seed);
        edits.edit(&self.paged.problem()?)
    }

    /// The expressions with what they read: indices begin with the sequence, wherever its pages lie.
    pub fn edits(&self) -> Edits {
        let (case, rule) = (self.paged.case, self.rule);
        ScoreCase { case, rule }.edits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_its_turn() {
        let cases = all();
        let mut rules: Vec<Rule> = Vec::new();
        for case in &cases {
            if !rules.contains(&case.rule) {
                rules.push(case.rule);
            }
        }
        let n_rules = Rule::all().iter().filter(|rule| !rule.is_band()).count();
        assert_eq!(rules.len(), n_rules.min(cases.len()));
    }

    #[test]
    fn scores_and_masks_are_beside_pages_divided_and_not() {
        let cases = all();
        for divided in [false, true] {
            let of_these = || {
                cases
                    .iter()
                    .filter(|case| case.paged.case.split_kv.is_some() == divided)
            };
            let n_scores = of_these().filter(|case| case.edits().score.is_some());
            let n_masks = of_these().filter(|case| case.edits().mask.is_some());
            assert!(0 < n_scores.count() && 0 < n_masks.count(), "{divided}");
        }
    }
}
