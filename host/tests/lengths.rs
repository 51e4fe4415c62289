//! Sequences of different lengths: what contradicts is refused with its place, what fits gives what each sequence gives alone.

use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, Plan, plan};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{check, without_tensors};
use ferroflash::{
    Attention, Device, Dtype, Error, Inputs, Mask, Outputs, Pass, Problem, ProblemBuilder, Tensor,
    TensorMut,
};
use ferroflash_kernels::params::{Params, in_workspace};

/// Three sequences of at most 5 queries and 9 keys.
fn sizes() -> ProblemBuilder {
    Problem::builder(Dtype::F32)
        .batch(3)
        .seqlen_q(5)
        .seqlen_k(9)
        .heads_q(2)
        .heads_k(1)
        .head_dim(4)
        .mask(Mask::Causal)
}

fn packed() -> Problem {
    sizes().packed_q(10).packed_k(20).build().unwrap()
}

/// What the CPU says of these lengths; results are not looked at.
fn forward(problem: Problem, lengths: [Option<&[i32]>; 4]) -> Result<(), Error> {
    padded_forward(problem, lengths, None)
}

/// The same with keys that begin at these rows.
fn padded_forward(
    problem: Problem,
    lengths: [Option<&[i32]>; 4],
    leftpad_k: Option<&[i32]>,
) -> Result<(), Error> {
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let n_elems = |shape: [usize; 4]| shape.iter().product::<usize>();
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let (q, k) = (vec![1f32; n_elems(like_q)], vec![1f32; n_elems(like_k)]);
    let (mut o, mut lse) = (q.clone(), vec![0f32; problem.shape_lse().iter().product()]);
    let k = Tensor::bshd(&k, like_k)?;
    let mut inputs = Inputs::new(&Tensor::bshd(&q, like_q)?, &k, &k);
    let [cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k] = lengths;
    inputs.cu_seqlens_q = cu_seqlens_q.map(Into::into);
    inputs.cu_seqlens_k = cu_seqlens_k.map(Into::into);
    inputs.seqused_q = seqused_q.map(Into::into);
    inputs.seqused_k = seqused_k.map(Into::into);
    inputs.leftpad_k = leftpad_k.map(Into::into);
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, like_q)?, &mut lse);
    let outcome = attention.forward(&inputs, &mut outputs).map(|_| ());
    // The check by name says the same, but for arguments that are not there at all.
    match &outcome {
        Err(Error::Problem(ProblemError::Length { .. })) | Ok(()) => {
            assert_eq!(attention.check_lengths(&inputs), outcome);
        }
        _ => {}
    }
    outcome
}

const CU_Q: &[i32] = &[1, 4, 4, 9];
const CU_K: &[i32] = &[0, 9, 11, 20];

#[test]
fn packed_rows_begin_where_cu_seqlens_says() {
    assert_eq!(
        forward(packed(), [Some(CU_Q), Some(CU_K), None, None]),
        Ok(())
    );
    let refused = |cu_seqlens: &[i32], sequence, given, (min, max)| {
        let argument = Argument::CuSeqlensQ;
        let expected = ProblemError::Length {
            argument,
            sequence,
            given,
            min,
            max,
        };
        let refused = forward(packed(), [Some(cu_seqlens), Some(CU_K), None, None]);
        assert_eq!(refused, Err(expected.into()), "{cu_seqlens:?}");
    };
    refused(&[-1, 4, 4, 9], 0, -1, (0, 10));
    refused(&[11, 11, 11, 11], 0, 11, (0, 10));
    // Longer than the longest; shorter than nothing; beyond the end.
    refused(&[0, 6, 6, 9], 0, 6, (0, 5));
    refused(&[0, 4, 3, 9], 1, 3, (4, 9));
    refused(&[0, 4, 8, 11], 2, 11, (8, 10));
    refused(&[0, i32::MAX, 8, 9], 0, i32::MAX, (0, 5));
    let too_long = [Some(CU_Q), Some([0, 0, 0, 10].as_slice()), None, None];
    let expected = ProblemError::Length {
        argument: Argument::CuSeqlensK,
        sequence: 2,
        given: 10,
        min: 0,
        max: 9,
    };
    let refused = forward(packed(), too_long).unwrap_err();
    assert_eq!(refused, Error::Problem(expected));
    assert_eq!(
        refused.to_string(),
        "cu_seqlens_k, sequence 2: 10; allowed: 0 to 9"
    );
}

#[test]
fn no_sequence_uses_more_rows_than_it_has() {
    let padded = sizes().build().unwrap();
    assert_eq!(
        forward(padded, [None, None, Some(&[5, 0, 3]), Some(&[9, 0, 1])]),
        Ok(())
    );
    let refused = |problem, lengths, argument, (sequence, given, max)| {
        let expected = ProblemError::Length {
            argument,
            sequence,
            given,
            min: 0,
            max,
        };
        assert_eq!(forward(problem, lengths), Err(expected.into()));
    };
    let (q, k) = (Argument::SeqUsedQ, Argument::SeqUsedK);
    refused(padded, [None, None, Some(&[5, 6, 3]), None], q, (1, 6, 5));
    refused(padded, [None, None, None, Some(&[9, 0, -1])], k, (2, -1, 9));
    // Of packed rows, those of the sequence count.
    let lengths = |of_q| [Some(CU_Q), Some(CU_K), Some(of_q), None];
    assert_eq!(forward(packed(), lengths(&[3, 0, 5])), Ok(()));
    refused(packed(), lengths(&[3, 1, 5]), q, (1, 1, 0));
}

#[test]
fn keys_begin_among_those_that_are_used() {
    let padded = sizes().build().unwrap();
    let used = [None, None, None, Some([9, 2, 0].as_slice())];
    assert_eq!(padded_forward(padded, used, Some(&[8, 2, 0])), Ok(()));
    for (leftpad_k, sequence, given, max) in [
        ([10, 0, 0], 0, 10, 9),
        ([0, 3, 0], 1, 3, 2),
        ([0, 0, -1], 2, -1, 0),
    ] {
        let expected = ProblemError::Length {
            argument: Argument::LeftpadK,
            sequence,
            given,
            min: 0,
            max,
        };
        let refused = padded_forward(padded, used, Some(&leftpad_k));
        assert_eq!(refused, Err(expected.into()));
    }
}

#[test]
fn cu_seqlens_is_there_where_rows_are_packed_and_nowhere_else() {
    let missing = forward(packed(), [None, Some(CU_K), None, None]);
    let argument = Argument::CuSeqlensQ;
    assert_eq!(missing, Err(ProblemError::Missing { argument }.into()));
    let padded = sizes().build().unwrap();
    let not_taken = forward(padded, [Some(CU_Q), None, None, None]);
    assert_eq!(not_taken, Err(ProblemError::NotTaken { argument }.into()));
    let of_two = forward(packed(), [Some(&CU_Q[..3]), Some(CU_K), None, None]);
    let expected = ProblemError::ElementCount {
        argument,
        given: 3,
        needed: 4,
    };
    assert_eq!(of_two, Err(expected.into()));
}

#[test]
fn lengths_are_i32_and_aligned() {
    let problem = packed();
    let arguments = *without_tensors(&problem, Pass::Backward, Location::Cuda(0))
        .unwrap()
        .arguments();
    let lengths = VectorDescription::unplaced(3, ScalarType::I32, Location::Cuda(0));
    for argument in [Argument::SeqUsedQ, Argument::SeqUsedK, Argument::LeftpadK] {
        let given = |given| check(&problem, Pass::Backward, arguments.with(argument, given));
        given(lengths).unwrap();
        let floats = VectorDescription {
            dtype: ScalarType::F32,
            ..lengths
        };
        let expected = ProblemError::DtypeMismatch {
            argument,
            given: ScalarType::F32,
            needed: ScalarType::I32,
        };
        assert_eq!(given(floats), Err(expected));
        let address = 0x1002;
        let expected = ProblemError::Misaligned {
            argument,
            address,
            alignment: 4,
        };
        assert_eq!(
            given(VectorDescription { address, ..lengths }),
            Err(expected)
        );
    }
}

#[test]
fn packed_rows_that_nobody_counts_are_refused() {
    let of = |builder: ProblemBuilder| {
        let problem = builder.build().unwrap();
        ferroflash::validate::sizes(&problem)
    };
    let overflow = |what| Err(ProblemError::SizeOverflow { what });
    assert_eq!(
        of(sizes().packed_q(usize::MAX)),
        overflow("heads_q · total_q")
    );
    assert_eq!(
        of(sizes().packed_k(usize::MAX)),
        overflow("heads_k · total_k")
    );
}

/// The plan of a call that is given used lengths of k, or not.
fn planned(problem: &Problem, pass: Pass, algorithm: Algorithm, used: bool) -> Plan {
    let mut arguments = *without_tensors(problem, pass, Location::Cuda(0))
        .unwrap()
        .arguments();
    if used {
        let used = VectorDescription::unplaced(3, ScalarType::I32, Location::Cuda(0));
        arguments = arguments.with(Argument::SeqUsedK, used);
    }
    let checked = check(problem, pass, arguments).unwrap();
    let plan = plan(
        &checked,
        &DeviceInfo::h200(),
        Backend::Cuda,
        Some(algorithm),
    );
    plan.unwrap()
}

#[test]
fn the_tiles_of_lengths_are_listed_first() {
    let sizes = Problem::builder(Dtype::Bf16)
        .batch(3)
        .seqlen(40)
        .heads(2)
        .head_dim(64);
    let padded = sizes.build().unwrap();
    let packed_k = sizes.packed_k(60).build().unwrap();
    for pass in [Pass::Forward, Pass::Backward] {
        for (algorithm, list) in [
            (Algorithm::Flash3, "tile_list_sm90a"),
            (Algorithm::Flash2, "tile_list_sm80"),
            (Algorithm::Standard, "tile_list_sm80"),
        ] {
            let first = |problem, used| {
                let plan = planned(problem, pass, algorithm, used);
                plan.kernels().next().unwrap().name
            };
            assert!(!first(&padded, false).starts_with("tile_list"));
            assert_eq!(first(&padded, true), list);
            assert_eq!(first(&packed_k, false), list);
        }
    }
    // Few queries find their tiles by themselves.
    let few = sizes.seqlen_q(9).build().unwrap();
    let plan = planned(&few, Pass::Forward, Algorithm::Flash2, true);
    let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
    assert_eq!(kernels, ["forward_sm80_bf16_d64_compact"]);
}

/// The kernel writes their number before the first of them.
#[test]
fn the_list_of_query_blocks_has_a_place_where_there_are_no_queries() {
    let problem = Problem::builder(Dtype::Bf16)
        .batch(3)
        .seqlen_q(0)
        .seqlen_k(9)
        .heads(2)
        .head_dim(64)
        .build()
        .unwrap();
    for algorithm in [Algorithm::Flash3, Algorithm::Flash2] {
        let plan = planned(&problem, Pass::Backward, algorithm, true);
        let mut pieces = plan.workspace.pieces().iter();
        let piece = pieces.find(|piece| piece.name == "q_blocks").unwrap();
        let Params::TileList(params) = plan.launches[0].params else {
            panic!("{plan}")
        };
        assert_eq!(params.list.q_blocks, in_workspace(piece.offset_bytes));
        assert!(piece.offset_bytes > 0 && piece.n_bytes >= size_of::<u32>() as u64);
    }
}

/// o and lse of queries and keys that are waves.
fn attend(
    problem: Problem,
    lengths: Option<(&[i32], &[i32])>,
    first: (usize, usize),
) -> [Vec<u32>; 2] {
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let waves = |shape: [usize; 4], first: usize| -> Vec<f32> {
        let [batch, rows, heads, columns] = shape;
        let from = first * heads * columns;
        (from..from + batch * rows * heads * columns)
            .map(|at| (at as f32 * 0.37).sin())
            .collect()
    };
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let (q, k) = (waves(like_q, first.0), waves(like_k, first.1));
    let (mut o, mut lse) = (
        vec![f32::NAN; q.len()],
        vec![f32::NAN; problem.shape_lse().iter().product()],
    );
    let k = Tensor::bshd(&k, like_k).unwrap();
    let mut inputs = Inputs::new(&Tensor::bshd(&q, like_q).unwrap(), &k, &k);
    if let Some((cu_seqlens_q, cu_seqlens_k)) = lengths {
        inputs = inputs.cu_seqlens_q(cu_seqlens_q).cu_seqlens_k(cu_seqlens_k);
    }
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, like_q).unwrap(), &mut lse);
    attention.forward(&inputs, &mut outputs).unwrap();
    [o, lse].map(|values| values.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn a_packed_sequence_gives_what_it_gives_alone() {
    let [o, lse] = attend(packed(), Some((CU_Q, CU_K)), (0, 0));
    for sequence in 0..3 {
        let rows =
            |cu_seqlens: &[i32]| cu_seqlens[sequence] as usize..cu_seqlens[sequence + 1] as usize;
        let (of_q, of_k) = (rows(CU_Q), rows(CU_K));
        let alone = sizes()
            .batch(1)
            .seqlen_q(of_q.len())
            .seqlen_k(of_k.len())
            .build()
            .unwrap();
        let [o_alone, lse_alone] = attend(alone, None, (of_q.start, of_k.start));
        assert_eq!(o[of_q.start * 8..of_q.end * 8], o_alone);
        for head in 0..2 {
            let alone = &lse_alone[head * of_q.len()..(head + 1) * of_q.len()];
            assert_eq!(&lse[head * 10..][of_q.clone()], alone);
        }
    }
    // Rows 0 and 9 belong to no sequence.
    for row in [0, 9] {
        assert!(o[row * 8..row * 8 + 8].iter().all(|&bits| bits == 0));
        for head in 0..2 {
            assert_eq!(lse[head * 10 + row], f32::NEG_INFINITY.to_bits());
        }
    }
}
