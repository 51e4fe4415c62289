//! Sequences of lengths of their own, and block masks: a kernel lists the tiles or the blocks first. Its lists have room for whatever the
//! device finds, and all kernels of the pass are told of the same ones.

use ferroflash::BlockMask;
use ferroflash::plan::PlannedLaunch;
use ferroflash_kernels::attention::block_mask::SparseBlock;
use ferroflash_kernels::attention::lengths::ListedTile;
use ferroflash_kernels::params::{
    BlockListParams, BlockListPhase, BlockLists, BlockMap, ClearParams, TensorMap, TileList,
    TileListParams, in_workspace,
};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::Kind;

use super::*;

/// Where a piece of the workspace lies, as parameters say it, and its bytes.
fn piece(plan: &Plan, name: &str) -> (u64, u64) {
    let mut pieces = plan.workspace.pieces().iter();
    let piece = pieces.find(|piece| piece.name == name);
    let piece = piece.unwrap_or_else(|| panic!("{plan} has no {name}"));
    (in_workspace(piece.offset_bytes), piece.n_bytes)
}

/// The lists that a kernel reads, if it reads any.
fn lists_of(params: &Params) -> Option<(TileList, BlockLists)> {
    match params {
        Params::Forward(params) => Some((params.list, params.blocks)),
        Params::TmaForward(params) => Some((params.list, params.blocks)),
        Params::Combine(params) => Some((params.list, BlockLists::default())),
        other => {
            let pass = other.backward()?;
            Some((pass.list, pass.blocks))
        }
    }
}

/// The tensor maps that a kernel is given, in its order.
fn maps_of(params: &Params) -> Vec<TensorMap> {
    match params {
        Params::TmaForward(params) => vec![params.q, params.k, params.v, params.o],
        Params::TmaBackward(p) => vec![p.q, p.k, p.v, p.d_o, p.d_k, p.d_v],
        _ => Vec::new(),
    }
}

fn main_of(plan: &Plan) -> &PlannedLaunch {
    const MAIN: [Kind; 4] = [
        Kind::Forward,
        Kind::TmaForward,
        Kind::Backward,
        Kind::TmaBackward,
    ];
    let mut launches = plan.launches.iter();
    launches
        .find(|launch| MAIN.contains(&launch.variant.kind))
        .unwrap()
}

/// Room for the blocks of these sequences is there, and no more than any of such lengths can need.
fn assert_room(room: u64, lengths: &[usize], longest: usize, rows: u32) {
    let blocks = |length: usize| (length as u64).div_ceil(rows.into());
    let needed: u64 = lengths.iter().copied().map(blocks).sum();
    let batch = lengths.len() as u64;
    let total = lengths.iter().sum::<usize>() as u64;
    assert!(needed <= room, "{room} for {needed} blocks of {lengths:?}");
    assert!(room <= batch * blocks(longest) && room <= total / u64::from(rows) + batch);
}

/// What the kernel that lists the tiles is told.
fn hold_tile_list(plan: &Plan, params: &TileListParams, [q, k]: [&[usize]; 2]) {
    let problem = &plan.problem;
    let is_backward = plan.pass == Pass::Backward;
    let (of_tiles, longest) = match is_backward {
        true => (k, problem.seqlen_k()),
        false => (q, problem.seqlen_q()),
    };
    let max_tiles = u64::from(params.max_tiles);
    let splits = match params.split_keys {
        0 => 1,
        keys => (problem.seqlen_k() as u64).div_ceil(keys.into()),
    };
    assert_eq!(max_tiles % splits, 0);
    assert_room(max_tiles / splits, of_tiles, longest, params.tile_rows);
    let entry = u64::from(ListedTile::N_BYTES);
    let list = params.list;
    assert_eq!((list.tiles, (max_tiles + 1) * entry), piece(plan, "tiles"));
    let batch = problem.batch() as u64;
    assert_eq!((params.scratch, 7 * batch * 4), piece(plan, "sequences"));
    if is_backward {
        let blocks = u64::from(params.max_q_blocks);
        assert_room(blocks, q, problem.seqlen_q(), params.block_q);
        assert_eq!(
            (list.q_blocks, (blocks + 1) * entry),
            piece(plan, "q_blocks")
        );
    }
    let [rows_q, rows_k] = [q, k].map(|lengths| lengths.iter().sum::<usize>() as u32);
    assert_eq!(
        (params.lengths.rows_q, params.lengths.rows_k),
        (rows_q, rows_k)
    );
    assert_eq!((list.rows_q, list.packed_q, list.packed_k), (rows_q, 1, 1));
    // A block of threads makes the list, and the others clear rows.
    let cleared = [rows_q, if is_backward { rows_k } else { 0 }];
    let block = plan.launches[0].variant.tile_config.block_q;
    let blocks: u32 = cleared.map(|rows| rows.div_ceil(block)).iter().sum();
    assert_eq!(plan.launches[0].grid, (blocks + 1).max(2));
}

/// What the kernels after it are told.
fn hold_listed(plan: &Plan, device: &DeviceInfo, listed: &TileListParams) {
    let problem = &plan.problem;
    let main = main_of(plan);
    let tile_config = &main.variant.tile_config;
    let (heads_q, heads_k) = (problem.heads_q() as u64, problem.heads_k() as u64);
    let maps = maps_of(&main.params);
    let boxes = |map: &TensorMap| (map.box_rows, map.box_heads);
    let given = &listed.maps[..listed.n_maps as usize];
    assert!(given.iter().map(boxes).eq(maps.iter().map(boxes)));
    if !maps.is_empty() {
        let bytes = (problem.batch() * maps.len() * size_of::<TensorMap>()) as u64;
        assert_eq!((listed.list.maps, bytes), piece(plan, "tensor_maps"));
    }
    for launch in &plan.launches[1..] {
        assert_eq!(lists_of(&launch.params).unwrap().0, listed.list);
    }
    let tiles = u64::from(listed.max_tiles);
    let resident = u64::from(device.n_sms * tile_config.blocks_per_sm);
    let (shape, window, schedule, heads, grid) = match &main.params {
        Params::Forward(p) => (p.shape, p.window, p.schedule, heads_q, tiles * heads_q),
        Params::TmaForward(p) => {
            let heads = heads_q >> p.pack_gqa_log2;
            assert_eq!(
                (p.split.keys, p.split.parts),
                (listed.split_keys, listed.split_parts)
            );
            let of_sequences = tiles / u64::from(p.split.n.max(1));
            // Where each key is read once, an SM has one block.
            let once = main.variant.tiles == TileShape::Compact
                && of_sequences * heads <= problem.batch() as u64 * heads_k;
            let resident = if once { device.n_sms.into() } else { resident };
            (
                p.shape,
                p.window,
                p.schedule,
                heads,
                resident.min(tiles * heads),
            )
        }
        other => {
            let p = other.backward().unwrap();
            let q_blocks = u64::from(listed.max_q_blocks);
            assert_eq!(p.padded_q, q_blocks * u64::from(tile_config.block_q));
            for name in ["lse_log2", "delta"] {
                assert_eq!(piece(plan, name).1, heads_q * p.padded_q * 4);
            }
            assert_eq!(piece(plan, "dq_semaphore").1, heads_q * q_blocks * 4);
            let converted = match main.variant.kind {
                Kind::TmaBackward => q_blocks * heads_q,
                _ => 0,
            };
            let grid = converted.max(tiles * heads_k).min(resident);
            (p.shape, p.window, p.schedule, heads_k, grid)
        }
    };
    assert_eq!((listed.shape, listed.window), (shape, window));
    assert_eq!(
        (schedule.tiles, u64::from(schedule.heads)),
        (listed.max_tiles, heads)
    );
    assert_eq!(u64::from(main.grid), grid);
}

/// A problem, and what it is packed of: the lengths of q, and of k and v.
fn packed() -> impl Strategy<Value = (Problem, [Vec<usize>; 2])> {
    let length = || prop_oneof![1 => Just(0usize), 2 => 1usize..200, 4 => 1usize..1500];
    let lengths = prop::collection::vec((length(), length()), 1..6);
    let heads = (1usize..4, select(vec![1usize, 2, 3, 4]));
    let head_dim = select(vec![64usize, 128]);
    let mask = select(vec![
        Mask::Full,
        Mask::Causal,
        Mask::Window {
            left: Some(40),
            right: Some(7),
        },
    ]);
    let longer = (0usize..2, 0usize..300);
    (lengths, heads, head_dim, mask, longer).prop_map(
        |(lengths, (heads_k, group), head_dim, mask, (more, by))| {
            let (q, k): (Vec<usize>, Vec<usize>) = lengths.into_iter().unzip();
            let longest = |of: &[usize]| (of.iter().max().unwrap() + more * by).max(1);
            let problem = Problem::builder(Dtype::Bf16)
                .batch(q.len())
                .heads_q(heads_k * group)
                .heads_k(heads_k)
                .head_dim(head_dim)
                .mask(mask)
                .seqlen_q(longest(&q))
                .seqlen_k(longest(&k))
                .packed_q(q.iter().sum())
                .packed_k(k.iter().sum());
            (problem.build().unwrap(), [q, k])
        },
    )
}

/// A problem under a block mask.
fn block_masked() -> impl Strategy<Value = Problem> {
    let block = || select(vec![128usize, 256, 384, 1024]);
    let maps = (block(), block(), any::<[bool; 2]>());
    let heads = (1usize..4, 1usize..3, select(vec![1usize, 3, 4]));
    let head_dim = select(vec![64usize, 128, 192, 256]);
    let seqlens = (prop_oneof![1usize..40, 1usize..3000], 1usize..3000);
    let mask = select(vec![Mask::Full, Mask::Causal]);
    (maps, heads, head_dim, seqlens, mask).prop_map(
        |((block_q, block_k, [batches, each]), (batch, heads_k, group), head_dim, (q, k), mask)| {
            let blocks = BlockMask::new(block_q, block_k);
            let blocks = if batches { blocks.per_batch() } else { blocks };
            let blocks = if each { blocks.per_head() } else { blocks };
            let problem = Problem::builder(Dtype::F16)
                .batch(batch)
                .heads_q(heads_k * group)
                .heads_k(heads_k)
                .head_dim(head_dim)
                .mask(mask)
                .seqlen_q(q)
                .seqlen_k(k)
                .block_mask(blocks);
            problem.build().unwrap()
        },
    )
}

/// The caller's map, at no address yet.
fn map_of(problem: &Problem) -> BlockMap {
    let blocks = problem.block_mask().unwrap();
    let [batch, heads, q_blocks, k_blocks] = problem.block_mask_shape().unwrap();
    let stride = |n: usize, elems: usize| if n > 1 { elems as u32 } else { 0 };
    BlockMap {
        map: 0,
        batch_stride: stride(batch, heads * q_blocks * k_blocks),
        head_stride: stride(heads, q_blocks * k_blocks),
        q_blocks: q_blocks as u32,
        k_blocks: k_blocks as u32,
        block_q: blocks.block_q() as u32,
        block_k: blocks.block_k() as u32,
    }
}

/// What a launch of the kernel that lists blocks is told, and its grid.
fn hold_block_list(plan: &Plan, launch: &PlannedLaunch, params: &BlockListParams) {
    let problem = &plan.problem;
    let tile_config = &main_of(plan).variant.tile_config;
    assert_eq!(
        (params.block_q, params.block_k),
        (tile_config.block_q, tile_config.block_k)
    );
    let q_blocks = (problem.seqlen_q() as u64).div_ceil(params.block_q.into());
    let k_blocks = (problem.seqlen_k() as u64).div_ceil(params.block_k.into());
    let (tiles, entries) = match plan.pass {
        Pass::Backward => (k_blocks, q_blocks),
        _ => (q_blocks, k_blocks),
    };
    let [batch, heads, _, columns] = problem.block_mask_shape().unwrap().map(|n| n as u64);
    let maps = batch * heads;
    let lists = params.lists;
    assert_eq!(params.map, map_of(problem));
    assert_eq!(u64::from(params.n_maps), maps);
    assert_eq!(
        [lists.tiles, lists.entries, lists.columns].map(u64::from),
        [tiles, entries, columns]
    );
    // Where there is one map, or one of an entry, nothing is stepped over.
    let strides = (if batch == 1 { 0 } else { heads }, u64::from(heads != 1));
    assert_eq!(
        (lists.batch_stride.into(), lists.head_stride.into()),
        strides
    );
    let n_bytes = maps * tiles * (entries + 1) * u64::from(SparseBlock::N_BYTES);
    assert_eq!((lists.lists, n_bytes), piece(plan, "block_lists"));
    if plan.pass == Pass::Backward {
        let n_bytes = maps * q_blocks * (columns + 1) * 4;
        assert_eq!((lists.ranks, n_bytes), piece(plan, "block_ranks"));
    }
    let warps = maps
        * if params.phase == BlockListPhase::Ranks as u32 {
            q_blocks
        } else {
            tiles
        };
    let warps_of_block = u64::from(launch.variant.tile_config.threads) / 32;
    assert_eq!(u64::from(launch.grid), warps.div_ceil(warps_of_block));
}

fn hold_clear(plan: &Plan, params: &ClearParams, lists: BlockLists) {
    let main = main_of(plan);
    assert_eq!(params.blocks, lists);
    assert_eq!(params.tile_rows, main.variant.tile_config.block_k);
    assert_eq!(params.window, main.params.backward().unwrap().window);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_of_tiles_have_room_for_all_sequences(
        (problem, [q, k]) in packed(),
        algorithm in select(vec![Algorithm::Flash3, Algorithm::Flash2, Algorithm::Standard]),
        pass in select(vec![Pass::Forward, Pass::Backward]),
        device in select(vec![DeviceInfo::h200(), DeviceInfo::emulated_hopper()]),
    ) {
        let plan = plan_of(&problem, pass, &device, Some(algorithm));
        let Params::TileList(listed) = plan.launches[0].params else { panic!("{plan}") };
        hold_tile_list(&plan, &listed, [&q, &k]);
        match plan.launches[1].params {
            Params::Standard(params) => prop_assert_eq!(params.lengths, listed.lengths),
            _ => hold_listed(&plan, &device, &listed),
        }
    }

    #[test]
    fn lists_of_blocks_have_room_for_all_blocks(
        problem in block_masked(),
        algorithm in select(vec![None, Some(Algorithm::Flash2), Some(Algorithm::Standard)]),
        pass in select(vec![Pass::Forward, Pass::Backward]),
    ) {
        let device = DeviceInfo::h200();
        let checked = validate::without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        // Flash2 has no kernels above head_dim 128.
        let Ok(plan) = plan(&checked, &device, Backend::Cuda, algorithm) else {
            prop_assert!(problem.head_dim() > 128 && algorithm.is_some());
            return Ok(());
        };
        prop_assert!(plan.launches.iter().all(|launch| launch.variant.takes(Constant::BlockMask)));
        if plan.algorithm == Algorithm::Standard {
            for launch in &plan.launches {
                let Params::Standard(params) = launch.params else { panic!("{plan}") };
                prop_assert_eq!(params.blocks, map_of(&problem));
            }
            return Ok(());
        }
        let (_, lists) = lists_of(&main_of(&plan).params).unwrap();
        let mut phases = Vec::new();
        for launch in &plan.launches {
            match &launch.params {
                Params::BlockList(params) => {
                    phases.push(params.phase);
                    prop_assert_eq!(params.lists, lists);
                    hold_block_list(&plan, launch, params);
                }
                Params::Clear(params) => hold_clear(&plan, params, lists),
                // Heads that shared a tile would need one list for all of them.
                Params::TmaForward(params) => {
                    prop_assert_eq!((params.pack_gqa_log2, params.blocks), (0, lists));
                }
                other => prop_assert_eq!(lists_of(other).unwrap().1, lists),
            }
        }
        let expected = match pass {
            Pass::Backward => vec![BlockListPhase::Ranks, BlockListPhase::Backward],
            _ => vec![BlockListPhase::Forward],
        };
        prop_assert!(phases.into_iter().eq(expected.into_iter().map(|phase| phase as u32)));
    }
}

/// Tiles are chosen by how long sequences are on average, not by the longest that there may be.
#[test]
fn many_short_sequences_and_one_long_get_compact_tiles() {
    let builder = Problem::builder(Dtype::Bf16)
        .batch(64)
        .heads_q(32)
        .heads_k(8)
        .head_dim(128)
        .seqlen(8192);
    let tiles = |builder: ferroflash::ProblemBuilder| {
        let problem = builder.build().unwrap();
        let plan = plan_of(&problem, Pass::Forward, &DeviceInfo::h200(), None);
        main_of(&plan).variant.tiles
    };
    assert_eq!(tiles(builder.packed_q(64 * 4)), TileShape::Compact);
    assert_ne!(tiles(builder.packed_q(64 * 4096)), TileShape::Compact);
}
