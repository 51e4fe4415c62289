//! Tensor maps describe exactly the tensors of a problem: each coordinate inside is the address that the strides give,
//! and the driver takes every map that a plan makes.

use ferroflash::arguments::Argument;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, plan};
use ferroflash::tensor::{Description, Location};
use ferroflash::validate::{self, Pass};
use ferroflash::{Dtype, Layout, Mask, Problem};
use ferroflash_kernels::params::{BOX_COLUMNS, Params, TensorMap, TmaForwardParams};
use ferroflash_kernels::variants::{Kind, TileConfig, VARIANTS};
use proptest::prelude::*;
use proptest::sample::select;

/// Bytes of an element of the kernels' types.
const ELEMENT_BYTES: u64 = 2;

/// A layout with gaps of 0 to 3 times 8 elements, the dimensions outside the row in any order; a stride that nobody
/// takes is anything.
fn layout(shape: [usize; 4], gaps: [usize; 3], order: [usize; 3], unused: usize) -> Layout {
    let [batch, seqlen, heads, head_dim] = shape;
    let n = [batch, seqlen, heads];
    let mut strides = [0; 3];
    let mut step = head_dim;
    for at in order {
        strides[at] = step + 8 * gaps[at];
        step = strides[at] * n[at].max(1);
    }
    for (stride, n) in strides.iter_mut().zip(n) {
        if n < 2 {
            *stride = unused;
        }
    }
    Layout::strided(shape, strides)
}

/// Where a map says that an element lies; `None` outside the tensor.
fn address(map: &TensorMap, at: [u64; 4]) -> Option<u64> {
    let inside = at.iter().zip(map.sizes).all(|(&at, size)| at < size);
    let steps = at[1..]
        .iter()
        .zip(map.strides)
        .map(|(&at, stride)| at * stride);
    inside.then(|| map.base + at[0] * ELEMENT_BYTES + steps.sum::<u64>())
}

fn assert_describes(map: &TensorMap, layout: &Layout, base: u64) {
    let last = [layout.head_dim, layout.seqlen, layout.heads, layout.batch].map(|n| n as u64);
    let places = |n: u64| [0, n / 2, n - 1];
    for column in places(last[0]) {
        for row in places(last[1]) {
            for head in places(last[2]) {
                for batch in places(last[3]) {
                    let elems = batch * layout.batch_stride as u64
                        + row * layout.row_stride as u64
                        + head * layout.head_stride as u64
                        + column;
                    let at = [column, row, head, batch];
                    assert_eq!(address(map, at), Some(base + elems * ELEMENT_BYTES));
                }
            }
        }
    }
    for dimension in 0..4 {
        let mut beyond = [0; 4];
        beyond[dimension] = last[dimension];
        assert_eq!(address(map, beyond), None);
    }
}

/// What `cuTensorMapEncodeTiled` asks for.
fn assert_legal(map: &TensorMap) {
    assert!(map.base.is_multiple_of(16) && map.base != 0);
    assert!(map.sizes.iter().all(|n| (1..=1 << 32).contains(n)));
    assert!(
        map.strides
            .iter()
            .all(|&stride| stride.is_multiple_of(16) && 0 < stride && stride < 1 << 40)
    );
    assert!((1..=256).contains(&map.box_rows) && (1..=256).contains(&map.box_heads));
    assert_eq!(u64::from(BOX_COLUMNS) * ELEMENT_BYTES, 128);
}

/// Where arguments lie, and the workspace.
const AT: [(Argument, u64); 5] = [
    (Argument::Q, 0x10_0000),
    (Argument::K, 0x20_0010),
    (Argument::V, 0x30_0020),
    (Argument::O, 0x40_0030),
    (Argument::Lse, 0x50_0000),
];
const WORKSPACE: u64 = 0x60_0000;

fn lies_at(argument: Argument) -> u64 {
    let at = AT.iter().find(|&&(other, _)| other == argument);
    at.map_or(0, |&(_, address)| address)
}

fn params(
    problem: &Problem,
    layouts: [Layout; 4],
    address: impl Fn(Argument) -> u64,
) -> Option<(TmaForwardParams, TileConfig)> {
    let checked = validate::without_tensors(problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let mut arguments = *checked.arguments();
    for (layout, argument) in
        layouts
            .into_iter()
            .zip([Argument::Q, Argument::K, Argument::V, Argument::O])
    {
        let tensor = *arguments.tensor(argument).unwrap();
        arguments = arguments.with(argument, Description { layout, ..tensor });
    }
    let checked = validate::check(problem, Pass::Forward, arguments).unwrap();
    let asked = Some(Algorithm::Flash3);
    let plan = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked).unwrap();
    let launch = plan.launches.first()?;
    match plan.params(launch, WORKSPACE, address) {
        Params::TmaForward(params) => Some((params, launch.variant.tile_config)),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_map_covers_its_tensor_and_nothing_else(
        (batch, heads_k, group) in (1usize..4, 1usize..5, 1usize..10),
        (seqlen_q, seqlen_k) in (1usize..300, 0usize..300),
        head_dim in (1usize..=32).prop_map(|n| 8 * n),
        mask in select(vec![Mask::Full, Mask::Causal]),
        gaps in prop::array::uniform4(prop::array::uniform3(0usize..4)),
        order in Just([0usize, 1, 2]).prop_shuffle(),
        unused in select(vec![0usize, 1, 8, 1 << 50]),
    ) {
        let heads_q = heads_k * group;
        let problem = Problem::builder(Dtype::Bf16)
            .batch(batch).heads_q(heads_q).heads_k(heads_k).seqlen_q(seqlen_q).seqlen_k(seqlen_k)
            .head_dim(head_dim).mask(mask).build().unwrap();
        let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
        let shapes = [like_q, like_k, like_k, like_q];
        let layouts = [0, 1, 2, 3].map(|at| layout(shapes[at], gaps[at], order, unused));
        let (params, tile_config) = params(&problem, layouts, lies_at).unwrap();
        let maps = [params.q, params.k, params.v, params.o];
        maps.iter().for_each(assert_legal);
        let rows = [64, tile_config.block_k, tile_config.block_k, 64].map(u64::from);
        prop_assert_eq!(maps.map(|map| map.box_rows * map.box_heads), rows);
        // Boxes begin at multiples of their heads: all of these share K and V.
        prop_assert!(maps.iter().all(|map| (group as u64).is_multiple_of(map.box_heads)));
        prop_assert_eq!((maps[1].box_heads, maps[2].box_heads), (1, 1));
        prop_assert_eq!(maps[0].box_heads, maps[3].box_heads);
        for (at, (_, base)) in AT[..4].iter().enumerate() {
            if layouts[at].seqlen > 0 {
                assert_describes(&maps[at], &layouts[at], *base);
            }
        }
        prop_assert_eq!((params.lse, params.tile_counter), (lies_at(Argument::Lse), WORKSPACE));
    }
}

#[test]
fn without_keys_the_maps_are_legal_although_k_and_v_lie_nowhere() {
    let problem = Problem::builder(Dtype::F16)
        .batch(3)
        .seqlen_q(5)
        .seqlen_k(0)
        .heads(2)
        .head_dim(40)
        .build()
        .unwrap();
    let (q, k) = (
        Layout::bshd(problem.shape_q()).unwrap(),
        Layout::bshd(problem.shape_k()).unwrap(),
    );
    let nowhere = |argument| match argument {
        Argument::K => 0,
        Argument::V => 1,
        _ => lies_at(argument),
    };
    let (params, _) = params(&problem, [q, k, k, q], nowhere).unwrap();
    [params.q, params.k, params.v, params.o]
        .iter()
        .for_each(assert_legal);
}

#[test]
fn without_rows_nothing_is_launched() {
    for (batch, heads, seqlen_q) in [(0, 2, 5), (1, 0, 5), (1, 2, 0)] {
        let problem = Problem::builder(Dtype::F16)
            .batch(batch)
            .heads(heads)
            .seqlen_q(seqlen_q)
            .seqlen_k(7)
            .head_dim(64)
            .build()
            .unwrap();
        let (q, k) = (
            Layout::bshd(problem.shape_q()).unwrap(),
            Layout::bshd(problem.shape_k()).unwrap(),
        );
        assert_eq!(params(&problem, [q, k, k, q], lies_at), None);
    }
}

#[test]
fn every_kernels_box_is_one_that_the_driver_takes() {
    for variant in VARIANTS.iter().filter(|row| row.kind == Kind::TmaForward) {
        let TileConfig {
            block_q, block_k, ..
        } = variant.tile_config;
        assert!(
            (8..=256).contains(&block_k) && block_k.is_multiple_of(8),
            "{}",
            variant.name
        );
        assert!(block_q.is_multiple_of(64), "{}", variant.name);
    }
}
