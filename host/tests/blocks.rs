//! Block masks: what makes no sense is refused, and a map that says nothing new changes not a bit on the CPU.

use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{check, sizes, without_tensors};
use ferroflash::{
    Attention, BlockMask, Device, Dtype, Gradients, Inputs, Mask, OutputGradients, Outputs, Pass,
    Problem, ProblemBuilder, Saved, Tensor, TensorMut,
};

/// Not a length that blocks divide.
fn problem() -> ProblemBuilder {
    Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen_q(300)
        .seqlen_k(420)
        .heads_q(4)
        .heads_k(2)
        .head_dim(8)
}

fn blocks() -> BlockMask {
    BlockMask::new(128, 256)
}

#[test]
fn the_map_has_the_shape_of_the_blocks() {
    let shape = |blocks| {
        problem()
            .block_mask(blocks)
            .build()
            .unwrap()
            .block_mask_shape()
    };
    assert_eq!(shape(blocks()), Some([1, 1, 3, 2]));
    assert_eq!(shape(blocks().per_batch()), Some([2, 1, 3, 2]));
    assert_eq!(shape(blocks().per_head()), Some([1, 4, 3, 2]));
    assert_eq!(shape(blocks().per_head().per_batch()), Some([2, 4, 3, 2]));
    assert_eq!(problem().build().unwrap().block_mask_shape(), None);
}

#[test]
fn blocks_of_other_sizes_are_refused() {
    let multiple = BlockMask::MULTIPLE;
    for (block_q, block_k, side, given) in [
        (0, 128, "block_q", 0),
        (64, 128, "block_q", 64),
        (128, 0, "block_k", 0),
        (256, 192, "block_k", 192),
    ] {
        let blocks = BlockMask::new(block_q, block_k);
        let refused = sizes(&problem().block_mask(blocks).build().unwrap());
        let expected = ProblemError::BlockSize {
            side,
            given,
            multiple,
        };
        assert_eq!(refused, Err(expected));
    }
    let long = problem().seqlen_q(1 << 45).seqlen_k(1 << 45).heads(1);
    let refused = sizes(&long.block_mask(BlockMask::new(128, 128)).build().unwrap());
    let what = "the map of the block mask";
    assert_eq!(refused, Err(ProblemError::SizeOverflow { what }));
}

#[test]
fn lengths_beside_a_block_mask_are_refused() {
    let refused = |argument| Err(ProblemError::BlockMaskWithLengths { argument });
    let packed_q = problem().block_mask(blocks()).packed_q(9).build().unwrap();
    let packed_k = problem().block_mask(blocks()).packed_k(9).build().unwrap();
    assert_eq!(sizes(&packed_q), refused(Argument::CuSeqlensQ));
    assert_eq!(sizes(&packed_k), refused(Argument::CuSeqlensK));
    let problem = problem().block_mask(blocks()).build().unwrap();
    let fitting = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
    let lengths = VectorDescription::unplaced(2, ScalarType::I32, Location::Host);
    for argument in [Argument::SeqUsedQ, Argument::SeqUsedK, Argument::LeftpadK] {
        let given = fitting.arguments().with(argument, lengths);
        let outcome = check(&problem, Pass::Forward, given).map(|_| ());
        assert_eq!(outcome, refused(argument));
    }
}

#[test]
fn a_map_that_does_not_fit_is_refused() {
    let plain = problem().build().unwrap();
    let masked = problem().block_mask(blocks().per_batch()).build().unwrap();
    let argument = Argument::BlockMask;
    for pass in [Pass::Forward, Pass::ForwardWithWeights, Pass::Backward] {
        let with = |problem: &Problem, map: VectorDescription| {
            let fitting = without_tensors(problem, pass, Location::Host).unwrap();
            let given = fitting.arguments().with(argument, map);
            check(problem, pass, given).map(|_| ())
        };
        let map = VectorDescription::unplaced(12, ScalarType::U8, Location::Host);
        assert_eq!(with(&masked, map), Ok(()));
        assert_eq!(with(&plain, map), Err(ProblemError::NotTaken { argument }));
        let fitting = without_tensors(&masked, pass, Location::Host).unwrap();
        let without = fitting.arguments().without(argument);
        assert_eq!(
            check(&masked, pass, without).map(|_| ()),
            Err(ProblemError::Missing { argument })
        );
        let short = VectorDescription { n_elems: 6, ..map };
        let expected = ProblemError::ElementCount {
            argument,
            given: 6,
            needed: 12,
        };
        assert_eq!(with(&masked, short), Err(expected));
        let wide = VectorDescription {
            dtype: ScalarType::I32,
            ..map
        };
        let expected = ProblemError::DtypeMismatch {
            argument,
            given: ScalarType::I32,
            needed: ScalarType::U8,
        };
        assert_eq!(with(&masked, wide), Err(expected));
    }
}

/// o, lse, d_q, d_k and d_v by the CPU, as bits.
fn bits(problem: Problem, map: Option<&[u8]>) -> Vec<Vec<u32>> {
    let n_elems = |shape: [usize; 4]| shape.iter().product::<usize>();
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let values = |n: usize, salt: usize| -> Vec<f32> {
        (0..n)
            .map(|at| ((at * 37 + salt) % 101) as f32 / 50.0 - 1.0)
            .collect()
    };
    let (q, d_o) = (values(n_elems(like_q), 1), values(n_elems(like_q), 2));
    let (k, v) = (values(n_elems(like_k), 3), values(n_elems(like_k), 4));
    let (mut o, mut lse) = (q.clone(), vec![0f32; problem.shape_lse().iter().product()]);
    let (mut d_q, mut d_k, mut d_v) = (q.clone(), k.clone(), v.clone());
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let tensor = |data| Tensor::bshd(data, like_q).unwrap();
    let of_keys = |data| Tensor::bshd(data, like_k).unwrap();
    let mut inputs = Inputs::new(&tensor(&q), &of_keys(&k), &of_keys(&v));
    inputs.block_mask = map.map(Into::into);
    attention.check_lengths(&inputs).unwrap();
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, like_q).unwrap(), &mut lse);
    attention.forward(&inputs, &mut outputs).unwrap();
    let mut gradients = Gradients::new(
        TensorMut::bshd(&mut d_q, like_q).unwrap(),
        TensorMut::bshd(&mut d_k, like_k).unwrap(),
        TensorMut::bshd(&mut d_v, like_k).unwrap(),
    );
    let saved = Saved::new(&Tensor::bshd(&o, like_q).unwrap(), &lse);
    let of_output = OutputGradients::new(&tensor(&d_o));
    attention
        .backward(&inputs, &saved, &of_output, &mut gradients)
        .unwrap();
    let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect();
    [&o, &lse, &d_q, &d_k, &d_v].map(|data| bits(data)).to_vec()
}

#[test]
fn partial_blocks_alone_give_the_bits_of_the_mask_alone() {
    let window = Mask::Window {
        left: Some(50),
        right: Some(20),
    };
    for mask in [Mask::Full, Mask::Causal, window] {
        let plain = problem().mask(mask).build().unwrap();
        let masked = plain.to_builder().block_mask(blocks().per_head());
        let partial = bits(masked.build().unwrap(), Some(&[1; 24]));
        assert!(partial == bits(plain, None), "{mask}");
    }
}

#[test]
fn full_blocks_alone_give_the_bits_of_no_mask() {
    let plain = problem().build().unwrap();
    let masked = problem().mask(Mask::Causal).block_mask(blocks());
    let full = bits(masked.build().unwrap(), Some(&[2, 2, 3, 2, 255, 2]));
    assert!(full == bits(plain, None));
}
