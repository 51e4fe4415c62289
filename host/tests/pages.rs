//! Keys and values in pages: what makes no sense is refused, and says why.

use ferroflash::arguments::Argument;
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::dtype::ScalarType;
use ferroflash::error::{Error, PlanError, ProblemError};
use ferroflash::plan::{Outcome, Reason};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{check, sizes, without_tensors};
use ferroflash::{
    Algorithm, Append, AppendInputs, AppendOutputs, AppendProblem, Attention, BlockMask, Device,
    Dtype, Inputs, Outputs, Pages, Pass, Problem, ProblemBuilder, Tensor, TensorMut,
};

/// Two sequences of up to ten keys, in pages of four.
fn problem() -> ProblemBuilder {
    Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen_q(1)
        .seqlen_k(10)
        .heads(1)
        .head_dim(8)
        .pages(Pages::new(7, 4))
}

#[test]
fn the_pool_and_the_table_have_the_shapes_of_the_pages() {
    let problem = problem().build().unwrap();
    assert_eq!(problem.shape_k(), [7, 4, 1, 8]);
    let checked = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
    let table = checked.arguments().vector(Argument::PageTable).unwrap();
    assert_eq!((table.n_elems, table.dtype), (2 * 3, ScalarType::I32));
    assert!(checked.has_lengths());
    let wider = problem.to_builder().pages(Pages::new(7, 4).columns(9));
    let checked = without_tensors(&wider.build().unwrap(), Pass::Forward, Location::Host).unwrap();
    let table = checked.arguments().vector(Argument::PageTable).unwrap();
    assert_eq!(table.n_elems, 2 * 9);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |pages| sizes(&problem().pages(pages).build().unwrap());
    let no = |columns, page_size| {
        Err(ProblemError::Pages {
            columns,
            page_size,
            seqlen_k: 10,
        })
    };
    assert_eq!(refused(Pages::new(7, 0)), no(10, 0));
    assert_eq!(refused(Pages::new(7, 4).columns(2)), no(2, 4));
    assert_eq!(refused(Pages::new(7, 4).columns(3)), Ok(()));
    assert_eq!(refused(Pages::new(0, 4)), Ok(()));
    let what = "n_pages · page_size · heads_k";
    let overflow = Err(ProblemError::SizeOverflow { what });
    assert_eq!(refused(Pages::new(usize::MAX, 4)), overflow);
    let what = "batch · columns of page_table";
    let overflow = Err(ProblemError::SizeOverflow { what });
    assert_eq!(refused(Pages::new(7, 4).columns(usize::MAX)), overflow);
}

#[test]
fn what_does_not_go_together_with_pages_is_refused() {
    let with = |what| Err(ProblemError::PagesWith { what });
    let packed = problem().packed_k(9).build().unwrap();
    assert_eq!(sizes(&packed), with("packed keys"));
    let masked = problem().block_mask(BlockMask::new(128, 128));
    assert_eq!(sizes(&masked.build().unwrap()), with("a block mask"));
    let problem = problem().build().unwrap();
    let backward = without_tensors(&problem, Pass::Backward, Location::Host).map(|_| ());
    assert_eq!(backward, with("the backward pass"));
}

#[test]
fn sequences_may_begin_at_any_row_of_any_page() {
    for page_size in [1, 4, 10, 30] {
        let pages = Pages::new(12, page_size);
        let problem = problem().pages(pages).build().unwrap();
        let fitting = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
        let padding = VectorDescription::unplaced(2, ScalarType::I32, Location::Host);
        let padded = fitting.arguments().with(Argument::LeftpadK, padding);
        assert_eq!(check(&problem, Pass::Forward, padded).map(|_| ()), Ok(()));
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused() {
    let problem = problem().build().unwrap();
    let argument = Argument::PageTable;
    let fitting = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
    let given = |arguments| check(&problem, Pass::Forward, arguments).map(|_| ());
    let missing = fitting.arguments().without(argument);
    assert_eq!(given(missing), Err(ProblemError::Missing { argument }));
    let table = |n| VectorDescription::unplaced(n, ScalarType::I32, Location::Host);
    let short = fitting.arguments().with(argument, table(5));
    let expected = ProblemError::ElementCount {
        argument,
        given: 5,
        needed: 6,
    };
    assert_eq!(given(short), Err(expected));
    let plain = Problem::builder(Dtype::F32).seqlen(4).heads(1).head_dim(8);
    let plain = plain.build().unwrap();
    let fitting = without_tensors(&plain, Pass::Forward, Location::Host).unwrap();
    let outcome = check(
        &plain,
        Pass::Forward,
        fitting.arguments().with(argument, table(6)),
    );
    assert_eq!(
        outcome.map(|_| ()),
        Err(ProblemError::NotTaken { argument })
    );
}

/// An entry that the pool does not have, with the sequence and the page of it that has the entry.
fn wrong(sequence: usize, slot: usize, given: i32) -> Error {
    ProblemError::Page {
        sequence,
        slot,
        given,
        n_pages: 7,
    }
    .into()
}

#[test]
fn an_entry_that_names_no_page_is_refused_where_the_host_sees_it() {
    let problem = problem().build().unwrap();
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let (q, pool) = (vec![0f32; 16], vec![0f32; 7 * 4 * 8]);
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let keys = Tensor::bshd(&pool, of_k).unwrap();
    let behind = |padding: [i32; 2], table: [i32; 6], lens: [i32; 2]| {
        let queries = Tensor::bshd(&q, of_q).unwrap();
        let inputs = Inputs::new(&queries, &keys, &keys)
            .page_table(&table)
            .seqused_k(&lens)
            .leftpad_k(&padding);
        let checked = attention.check_lengths(&inputs);
        let (mut o, mut lse) = (vec![0f32; 16], vec![0f32; 2]);
        let o = TensorMut::bshd(&mut o, of_q).unwrap();
        let ran = attention.forward(&inputs, &mut Outputs::new(o, &mut lse));
        assert_eq!(ran.map(|_| ()), checked);
        checked
    };
    let run = |table, lens| behind([0, 0], table, lens);
    assert_eq!(run([0, 1, 2, 3, 4, 6], [10, 10]), Ok(()));
    assert_eq!(run([0, 1, 7, 3, 4, 6], [10, 10]), Err(wrong(0, 2, 7)));
    assert_eq!(run([0, 1, 2, 3, -1, 6], [10, 5]), Err(wrong(1, 1, -1)));
    // What lies behind the sequence's last page is not looked at.
    assert_eq!(run([0, 1, 7, 3, -1, 9], [8, 4]), Ok(()));
    assert_eq!(run([7, 7, 7, 7, 7, 7], [0, 0]), Ok(()));
    // Nor what lies in front of the page that it begins in.
    let padded = behind([4, 9], [7, 1, 2, -1, 9, 6], [10, 10]);
    assert_eq!(padded, Ok(()));
    let padded = behind([3, 9], [7, 1, 2, -1, 9, 6], [10, 10]);
    assert_eq!(padded, Err(wrong(0, 0, 7)));
    let padded = behind([4, 7], [7, 1, 2, -1, 9, 6], [10, 10]);
    assert_eq!(padded, Err(wrong(1, 1, 9)));
    // A sequence that is nothing but padding.
    let padded = behind([6, 3], [7, 7, 7, 7, 7, 7], [6, 3]);
    assert_eq!(padded, Ok(()));
}

#[test]
fn appends_look_at_the_pages_that_they_write() {
    let problem = AppendProblem::builder(Dtype::F32)
        .batch(2)
        .seqlen_new(2)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(10)
        .pages(Pages::new(7, 4))
        .build()
        .unwrap();
    let append = Append::new(&Device::cpu(), problem).unwrap();
    let new = vec![1f32; problem.shape_new().iter().product()];
    let run = |table: [i32; 6], before: [i32; 2]| {
        let rows = Tensor::bshd(&new, problem.shape_new()).unwrap();
        let mut pools = [(); 2].map(|()| vec![0f32; 7 * 4 * 8]);
        let [k, v] = &mut pools;
        let [k, v] = [k, v].map(|pool| TensorMut::bshd(pool, problem.shape_cache()).unwrap());
        let inputs = AppendInputs::new(&rows, &rows, &before).page_table(&table);
        append
            .run(&inputs, &mut AppendOutputs::new(k, v))
            .map(|_| pools)
    };
    let [k, _] = run([-1, 5, 3, 2, -1, -1], [7, 0]).unwrap();
    // Row 7 is the last one of page 5, row 8 the first one of page 3.
    let written = |row: usize| k[row * 8] == 1.0;
    let rows: Vec<usize> = (0..28).filter(|&row| written(row)).collect();
    assert_eq!(rows, [2 * 4, 2 * 4 + 1, 3 * 4, 5 * 4 + 3]);
    assert_eq!(
        run([-1, 5, 3, 7, -1, -1], [7, 0]).unwrap_err(),
        wrong(1, 0, 7)
    );
    // A page that two sequences share.
    let shared = run([5, 5, 5, 5, 5, 5], [0, 0]).unwrap_err();
    assert!(
        matches!(shared, Error::Problem(ProblemError::OutputAliases { .. })),
        "{shared}"
    );
}

#[test]
fn algorithms_without_pages_say_so() {
    let halves = Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen_q(1)
        .seqlen_k(10)
        .heads(1)
        .head_dim(64)
        .pages(Pages::new(7, 4));
    let device = Device::emulated(EmulatorOptions::hopper(0));
    let attention = Attention::new(&device, halves.build().unwrap()).unwrap();
    let plan = attention.explain(Pass::Forward).unwrap().plan.unwrap();
    assert_eq!(plan.algorithm, Algorithm::Flash2);
    let standard = Attention::with_algorithm(attention, Algorithm::Standard);
    let Err(PlanError::NoCandidate { candidates, .. }) =
        standard.explain(Pass::Forward).unwrap().plan
    else {
        panic!("standard has no pages");
    };
    let outcome = |algorithm| {
        let mut all = candidates.iter();
        let found = all.find(|candidate| candidate.algorithm == algorithm);
        found.map(|candidate| candidate.outcome.clone())
    };
    let refused = Outcome::Refused(Reason::Pages);
    assert_eq!(outcome(Algorithm::Standard), Some(refused));
    assert_eq!(outcome(Algorithm::Flash3), Some(Outcome::NotAsked));
}
