//! Appends and rotations that a cache keeps.

use std::sync::Arc;

use super::foreign::Library;
use super::*;
use ferroflash::error::Argument;
use ferroflash::rotary::{Direction, Pairs, Turns};
use ferroflash::{Append, AppendProblem, PlanCache, Rotate, RotateProblem};

/// What differs, in the problem, the direction or the layouts, is another call; what does not is planned and loaded once.
#[test]
fn appends_and_rotations_are_kept() {
    let _turn = turn();
    let library = Library::new(fake::OTHER_CONTEXT);
    let device = library.device();
    let cache = PlanCache::new(8);
    let turns = Turns {
        pairs: Pairs::Halves,
        rotary_dim: 64,
        n_positions: 128,
    };
    let append = |seqlen_new| {
        let problem = AppendProblem::builder(Dtype::Bf16)
            .seqlen_new(seqlen_new)
            .heads_k(2)
            .head_dim(64)
            .seqlen_cache(128)
            .build();
        let append = Append::new(&device, problem.unwrap()).unwrap();
        cache.append(&append, &Layouts::contiguous()).unwrap()
    };
    let rotate = |direction, layouts: Layouts| {
        let problem = RotateProblem::new(Dtype::Bf16, [1, 3, 2, 64], turns);
        let rotate = Rotate::new(&device, problem).unwrap();
        cache.rotate(&rotate, direction, &layouts).unwrap()
    };
    let (plain, in_place) = (
        Layouts::contiguous(),
        Layouts::contiguous().without(Argument::X),
    );
    let (appended, rotated) = (append(1), rotate(Direction::Forth, plain));
    assert_eq!(cache.len(), 2);
    let calls = calls_of(|| {
        assert!(Arc::ptr_eq(&append(1), &appended));
        assert!(Arc::ptr_eq(&rotate(Direction::Forth, plain), &rotated));
    });
    assert_eq!(calls, []);
    assert!(!Arc::ptr_eq(&append(2), &appended));
    assert!(!Arc::ptr_eq(&rotate(Direction::Back, plain), &rotated));
    assert!(!Arc::ptr_eq(&rotate(Direction::Forth, in_place), &rotated));
    assert_eq!(cache.len(), 5);
    cache.clear();
    assert!(cache.is_empty());
}
