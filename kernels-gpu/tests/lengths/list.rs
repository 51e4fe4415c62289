//! The list of tiles against a plain model of it.

use super::*;

/// A side of sequences of random lengths.
pub fn random_side(random: &mut Random, batch: usize, packed: bool, wild: bool) -> Side {
    let max = 1 + random.below(700) as u32;
    let mut side = Side {
        max,
        rows: max,
        ..Side::default()
    };
    let number = |random: &mut Random, below: u32| {
        if wild && random.below(3) == 0 {
            [i32::MIN, -1, i32::MAX, 1 << 20][random.below(4) as usize]
        } else {
            random.below(u64::from(below) + 1) as i32
        }
    };
    if packed {
        let mut at = random.below(3) as i32;
        let mut cu_seqlens = vec![at];
        for _ in 0..batch {
            let len = if random.below(4) == 0 {
                0
            } else {
                number(random, max)
            };
            at = if wild { at.wrapping_add(len) } else { at + len };
            cu_seqlens.push(at);
        }
        side.rows = if wild {
            50 + random.below(900) as u32
        } else {
            at as u32 + random.below(70) as u32
        };
        side.cu_seqlens = Some(cu_seqlens);
    }
    if random.below(2) == 0 {
        side.seqused = Some((0..batch).map(|_| number(random, max)).collect());
    }
    side
}

/// How many blocks of so many rows a side can have.
fn room(side: &Side, batch: u32, rows: u32) -> u32 {
    match side.cu_seqlens {
        Some(_) => side.rows.div_ceil(rows) + batch,
        None => side.rows.div_ceil(rows) * batch,
    }
}

/// Keys of a split: at least so many, or as equal parts of so many blocks of keys need.
fn split_keys(least: u32, parts: u32, blocks: u32) -> u32 {
    match parts {
        0 => least,
        parts => split_kv::blocks_of_part(blocks, 8, parts, least / 64) * 64,
    }
}

/// How many splits a sequence has.
fn splits(seqlen_k: i64, split_keys: u32) -> i64 {
    match split_keys {
        0 => 1,
        keys => i64::from(split_kv::n_splits(seqlen_k as u32, keys)),
    }
}

/// Whether no sequence of a side ends before it begins.
fn follow_one_another(side: &Side) -> bool {
    side.cu_seqlens.as_ref().is_none_or(|ends| ends.is_sorted())
}

/// How many tiles, and how many query blocks, the kernel lists, with room for so many, of 64 rows and in the backward pass of 128 and of 64.
fn n_listed(q: &Side, k: &Side, backward: bool, room: [u32; 2]) -> [u32; 2] {
    let variant = variants::by_name("tile_list_sm80").unwrap();
    let batch = q.cu_seqlens.as_ref().unwrap().len() as u32 - 1;
    let mut workspace = Workspace::new(batch, room[0], room[1], 0);
    let mut params = listing(&workspace, batch, q, k, backward);
    let mut memory = GlobalMemory::new();
    params.lengths = lengths(&mut memory, q, k);
    params.list.tiles = memory.scratch("tiles", workspace.tiles.slice());
    params.list.q_blocks = memory.scratch("q_blocks", workspace.q_blocks.slice());
    params.scratch = memory.scratch("scratch", workspace.scratch.slice());
    launch(
        &mut memory,
        variant,
        1,
        Spec::PLAIN,
        &Params::TileList(params),
    );
    drop(memory);
    let n_q_blocks = match backward {
        true => Workspace::list(&workspace.q_blocks).len(),
        false => 0,
    };
    [Workspace::list(&workspace.tiles).len(), n_q_blocks].map(|n| n as u32)
}

/// Of one side alone, and of both: a list is empty then, whatever there is room for, and not a word is written behind its end.
#[test]
fn sequences_that_do_not_follow_one_another_have_no_tiles() {
    let side = |ends: &[i32]| Side {
        cu_seqlens: Some(ends.to_vec()),
        rows: 700,
        max: 700,
        ..Side::default()
    };
    let good = side(&[0, 100, 100, 300, 500, 700]);
    let wrong = [
        side(&[0, 700, 0, 700, 0, 700]),
        side(&[0, 100, 99, 300, 500, 700]),
        side(&[i32::MAX, 0, 100, 300, 500, i32::MIN]),
    ];
    let room = [700u32.div_ceil(64) + 5; 2];
    for backward in [false, true] {
        assert_ne!(n_listed(&good, &good, backward, room)[0], 0);
        for wrong in &wrong {
            for (q, k) in [(wrong, &good), (&good, wrong), (wrong, wrong)] {
                assert_eq!(n_listed(q, k, backward, room), [0, 0], "{q:?} {k:?}");
            }
        }
    }
}

/// A plan makes room for all; with less there is no list.
#[test]
fn a_list_without_room_is_empty() {
    let ends = Some(vec![0, 100, 100, 300, 500, 700]);
    let side = Side {
        cu_seqlens: ends,
        rows: 700,
        max: 700,
        ..Side::default()
    };
    // Sequences of 100 and three of 200 rows.
    let needed = [2 + 3 * 4, 0];
    assert_eq!(n_listed(&side, &side, false, needed), needed);
    assert_eq!(n_listed(&side, &side, false, [needed[0] - 1, 0]), [0, 0]);
    let needed = [1 + 3 * 2, 2 + 3 * 4];
    assert_eq!(n_listed(&side, &side, true, needed), needed);
    assert_eq!(
        n_listed(&side, &side, true, [needed[0] - 1, needed[1]]),
        [0, 0]
    );
    assert_eq!(
        n_listed(&side, &side, true, [needed[0], needed[1] - 1]),
        [0, 0]
    );
}

#[test]
fn the_list_has_every_tile_of_every_sequence_the_longest_first() {
    let variant = variants::by_name("tile_list_sm80").unwrap();
    let mut random = Random(1);
    for case in 0..60 {
        let batch = 1 + random.below([3, 40, 1500][case % 3]) as usize;
        let wild = case % 5 == 4;
        let (packed_q, packed_k) = (random.below(4) > 0, random.below(4) > 0);
        let q = random_side(&mut random, batch, packed_q, wild);
        let mut k = random_side(&mut random, batch, packed_k, wild);
        if random.below(2) == 0 {
            k.leftpad = Some((0..batch).map(|_| random.below(40) as i32 - 5).collect());
        }
        let backward = random.below(2) == 0;
        let causal = random.below(2) == 0;
        let spec = causal.then_some(Constant::RightBound);
        let spec = spec.map_or(Spec::PLAIN, |bound| Spec::PLAIN.with(bound));

        let room = |side: &Side, rows: u32| room(side, batch as u32, rows);
        // Keys divided, in the forward pass: into splits of so many at least, or as equal parts of the work need.
        let least = 64 * (1 + random.below(3)) as u32;
        let parts = [0, 5, 132][random.below(3) as usize];
        let divided = !backward && random.below(2) == 0;
        let max_tiles = match (backward, divided) {
            (true, _) => room(&k, 128),
            (false, true) => room(&q, 64) * k.max.div_ceil(least),
            (false, false) => room(&q, 64),
        };
        let mut workspace = Workspace::new(batch as u32, max_tiles, room(&q, 64), 0);
        let mut params = listing(&workspace, batch as u32, &q, &k, backward);
        if divided {
            (params.split_keys, params.split_parts) = (least, parts);
            (params.split_heads, params.block_k) = (8, 64);
        }
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, &q, &k);
        params.list.tiles = memory.scratch("tiles", workspace.tiles.slice());
        params.list.q_blocks = memory.scratch("q_blocks", workspace.q_blocks.slice());
        params.scratch = memory.scratch("scratch", workspace.scratch.slice());
        launch(&mut memory, variant, 1, spec, &Params::TileList(params));
        drop(memory);

        // The model.
        let sequences: Vec<_> = (0..batch).map(|s| (q.of(s), k.of(s))).collect();
        let blocks = |len: i64, rows: i64| (len + rows - 1) / rows;
        let q_blocks = |s: usize| blocks(sequences[s].0.1, 64);
        let work = |s: usize| blocks(sequences[s].0.1, 64) * blocks(sequences[s].1.1, 64);
        let all = (0..batch).map(work).sum::<i64>() as u32;
        let split_keys = if divided {
            split_keys(least, parts, all)
        } else {
            0
        };
        let splits = |s: usize| splits(sequences[s].1.1, split_keys);
        let tiles = |s: usize| match (backward, sequences[s].0.1) {
            (false, len) => blocks(len, 64) * splits(s),
            (true, 0) => 0,
            (true, _) => blocks(sequences[s].1.1, 128),
        };
        // Of sequences that follow one another there is room for all.
        let fits = follow_one_another(&q) && follow_one_another(&k);
        assert!(fits || wild);
        let entry = |s: usize, block: i64| ListedTile {
            block: block as u32,
            sequence: s as u32,
            seqlen_q: sequences[s].0.1 as u32,
            seqlen_k: sequences[s].1.1 as u32,
            q_first: sequences[s].0.0 as u32,
            k_first: sequences[s].1.0 as u32,
            new_maps: 0,
            q_blocks_before: (0..s).filter(|_| backward).map(q_blocks).sum::<i64>() as u32,
        };
        let mut order: Vec<usize> = (0..batch).collect();
        let work = |s: &usize| if backward { sequences[*s].0.1 } else { sequences[*s].1.1 } / 16;
        order.sort_by_key(|s| std::cmp::Reverse(work(s)));
        let mut expected = Vec::new();
        for s in order.into_iter().filter(|_| fits) {
            let mut own: Vec<_> = (0..tiles(s)).map(|block| entry(s, block)).collect();
            if causal && !backward {
                own.reverse();
            }
            expected.extend(own);
        }
        assert_eq!(Workspace::list(&workspace.tiles), expected, "case {case}");
        assert_eq!(Workspace::split_keys(&workspace.tiles), split_keys);
        if backward {
            let expected: Vec<_> = (0..batch)
                .filter(|_| fits)
                .flat_map(|s| (0..q_blocks(s)).map(move |block| (s, block)))
                .map(|(s, block)| entry(s, block))
                .collect();
            assert_eq!(
                Workspace::list(&workspace.q_blocks),
                expected,
                "case {case}"
            );
        }
    }
}
