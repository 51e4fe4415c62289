//! Sequences of lengths of their own on the emulator: the list of tiles against a plain model of it, and packed attention against
//! a dense call for each sequence, bit by bit.
#![cfg(feature = "emulator")]

mod standard;

use ferroflash_kernels::attention::lengths::ListedTile;
use ferroflash_kernels::config;
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{
    BACKWARD_MAPS, BackwardParams, FORWARD_MAPS, ForwardParams, Lengths, Params, Scale, Schedule,
    Shape, TensorMap, TensorView, TileList, TileListParams, TmaBackwardParams, TmaForwardParams,
    Window,
};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::{self, Kind, TileShape, Variant};

/// A generator that is good enough to make cases of.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn launch(memory: &mut GlobalMemory, variant: &Variant, grid: u32, spec: Spec, params: &Params) {
    let footprint = &variant.footprint;
    let launch = Launch {
        grid,
        threads: footprint.threads,
        shared_bytes: footprint.shared_bytes,
        resident_blocks: 3 * footprint.blocks_per_sm,
        blocks_per_sm: footprint.blocks_per_sm,
        spec: spec.among(variant.kind.constants()),
    };
    let kernel = entry::emulated(variant.name).unwrap();
    emu::run(&launch, &Options::seeded(7), memory, &|| kernel(params))
        .unwrap_or_else(|fault| panic!("{}: {fault}", variant.name));
}

/// Memory of whole 128-byte units: tensor maps lie at such places.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Unit([u32; 32]);

fn units(n_bytes: usize) -> Vec<Unit> {
    vec![Unit([0; 32]); n_bytes.div_ceil(128)]
}

fn words(units: &mut [Unit]) -> &mut [u32] {
    let len = units.len() * 32;
    // SAFETY: units are words, one behind the other.
    unsafe { std::slice::from_raw_parts_mut(units.as_mut_ptr().cast(), len) }
}

/// A copy of 16-bit elements that begins at a unit.
fn aligned(data: &[u16]) -> Vec<Unit> {
    let mut copy = units(data.len() * 2);
    for (word, pair) in words(&mut copy).iter_mut().zip(data.chunks(2)) {
        *word = u32::from(pair[0]) | pair.get(1).map_or(0, |&high| u32::from(high) << 16);
    }
    copy
}

/// The elements of such a copy.
fn elements(units: &mut [Unit], len: usize) -> &mut [u16] {
    // SAFETY: units are elements, one behind the other; there are as many.
    unsafe { std::slice::from_raw_parts_mut(units.as_mut_ptr().cast(), len) }
}

/// The workspace of a list.
struct Workspace {
    tiles: Vec<Unit>,
    q_blocks: Vec<Unit>,
    maps: Vec<Unit>,
    scratch: Vec<Unit>,
    counter: Vec<u32>,
    max_tiles: u32,
    max_q_blocks: u32,
}

impl Workspace {
    fn new(batch: u32, max_tiles: u32, max_q_blocks: u32, n_maps: u32) -> Workspace {
        let entries = |n: u32| units(((n + 1) * ListedTile::N_BYTES) as usize);
        Workspace {
            tiles: entries(max_tiles),
            q_blocks: entries(max_q_blocks),
            maps: units((batch * n_maps) as usize * size_of::<TensorMap>()),
            scratch: units(3 * 4 * batch as usize),
            counter: vec![0],
            max_tiles,
            max_q_blocks,
        }
    }

    fn list(units: &[Unit]) -> Vec<ListedTile> {
        let words: Vec<u32> = units.iter().flat_map(|unit| unit.0).collect();
        let mut entries = words.chunks_exact(8).skip(1);
        (0..words[0])
            .map(|_| {
                let entry = entries.next().unwrap();
                let half = |i: usize| <[u32; 4]>::try_from(&entry[i..i + 4]).unwrap();
                ListedTile::from_words([half(0), half(4)])
            })
            .collect()
    }
}

/// Lengths of one side, as the caller gives them.
#[derive(Clone, Debug, Default)]
struct Side {
    cu_seqlens: Option<Vec<i32>>,
    seqused: Option<Vec<i32>>,
    leftpad: Option<Vec<i32>>,
    rows: u32,
    max: u32,
}

impl Side {
    /// A sequence's first row and its length, worked out in a plain way.
    fn of(&self, sequence: usize) -> (i64, i64) {
        let (begin, end) = match &self.cu_seqlens {
            Some(cu_seqlens) => (
                i64::from(cu_seqlens[sequence]),
                i64::from(cu_seqlens[sequence + 1]),
            ),
            None => (0, i64::from(self.rows)),
        };
        let begin = begin.clamp(0, i64::from(self.rows));
        let end = end.clamp(begin, i64::from(self.rows));
        let mut used = (end - begin).min(i64::from(self.max));
        if let Some(seqused) = &self.seqused {
            used = used.min(i64::from(seqused[sequence]).max(0));
        }
        let pad = match &self.leftpad {
            Some(leftpad) => i64::from(leftpad[sequence]).clamp(0, used),
            None => 0,
        };
        (begin + pad, used - pad)
    }
}

fn lend<'a>(memory: &mut GlobalMemory<'a>, name: &str, vector: &'a Option<Vec<i32>>) -> u64 {
    vector
        .as_ref()
        .map_or(0, |vector| memory.input(name, vector))
}

fn lengths<'a>(memory: &mut GlobalMemory<'a>, q: &'a Side, k: &'a Side) -> Lengths {
    Lengths {
        cu_seqlens_q: lend(memory, "cu_seqlens_q", &q.cu_seqlens),
        cu_seqlens_k: lend(memory, "cu_seqlens_k", &k.cu_seqlens),
        seqused_q: lend(memory, "seqused_q", &q.seqused),
        seqused_k: lend(memory, "seqused_k", &k.seqused),
        leftpad_k: lend(memory, "leftpad_k", &k.leftpad),
        rows_q: q.rows,
        rows_k: k.rows,
    }
}

fn listing(
    workspace: &Workspace,
    batch: u32,
    q: &Side,
    k: &Side,
    backward: bool,
) -> TileListParams {
    TileListParams {
        list: TileList {
            rows_q: q.rows,
            packed_q: q.cu_seqlens.is_some() as u32,
            packed_k: k.cu_seqlens.is_some() as u32,
            ..TileList::default()
        },
        shape: Shape {
            batch,
            heads_q: 2,
            heads_k: 1,
            group_size: 2,
            seqlen_q: q.max,
            seqlen_k: k.max,
            head_dim: 64,
            reserved: 0,
        },
        tile_rows: if backward { 128 } else { 64 },
        block_q: if backward { 64 } else { 0 },
        max_tiles: workspace.max_tiles,
        max_q_blocks: workspace.max_q_blocks,
        ..TileListParams::default()
    }
}

/// A side of sequences of random lengths.
fn random_side(random: &mut Random, batch: usize, packed: bool, wild: bool) -> Side {
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
        let spec = if causal {
            Spec::PLAIN.with(Constant::RightBound)
        } else {
            Spec::PLAIN
        };

        let room = |side: &Side, rows: u32| match side.cu_seqlens {
            Some(_) => side.rows.div_ceil(rows) + batch as u32,
            None => side.rows.div_ceil(rows) * batch as u32,
        };
        let max_tiles = if backward {
            room(&k, 128)
        } else {
            room(&q, 64)
        };
        let mut workspace = Workspace::new(batch as u32, max_tiles, room(&q, 64), 0);
        let mut params = listing(&workspace, batch as u32, &q, &k, backward);
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, &q, &k);
        params.list.tiles = memory.scratch("tiles", words(&mut workspace.tiles));
        params.list.q_blocks = memory.scratch("q_blocks", words(&mut workspace.q_blocks));
        params.scratch = memory.scratch("scratch", words(&mut workspace.scratch));
        launch(&mut memory, variant, 1, spec, &Params::TileList(params));
        drop(memory);

        // The model.
        let sequences: Vec<_> = (0..batch).map(|s| (q.of(s), k.of(s))).collect();
        let blocks = |len: i64, rows: i64| (len + rows - 1) / rows;
        let q_blocks = |s: usize| blocks(sequences[s].0.1, 64);
        let tiles = |s: usize| match (backward, sequences[s].0.1) {
            (false, len) => blocks(len, 64),
            (true, 0) => 0,
            (true, _) => blocks(sequences[s].1.1, 128),
        };
        let fits = (0..batch).map(tiles).sum::<i64>() <= i64::from(max_tiles)
            && (!backward
                || (0..batch).map(q_blocks).sum::<i64>() <= i64::from(workspace.max_q_blocks));
        assert!(fits || wild);
        let entry = |s: usize, block: i64| ListedTile {
            block: block as u32,
            sequence: s as u32,
            seqlen_q: sequences[s].0.1 as u32,
            seqlen_k: sequences[s].1.1 as u32,
            q_first: sequences[s].0.0 as u32,
            k_first: sequences[s].1.0 as u32,
            q_blocks_before: if backward {
                (0..s).map(q_blocks).sum::<i64>() as u32
            } else {
                0
            },
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

/// A number as bf16 or f16; small ones, whose sums of products stay small.
fn element(random: &mut Random, f16: bool) -> u16 {
    let x = (random.below(2001) as f32 - 1000.0) / 500.0;
    if f16 {
        half::f16::from_f32(x).to_bits()
    } else {
        half::bf16::from_f32(x).to_bits()
    }
}

/// A forward pass of one variant, of heads 4 over 2.
struct Forward {
    variant: &'static Variant,
    window: (u32, u32),
    spec: Spec,
    heads: (u32, u32),
}

/// o and lse.
type Output = (Vec<u16>, Vec<f32>);

impl Forward {
    fn head_dim(&self) -> u32 {
        self.variant.head_dim.unwrap()
    }

    fn view(&self, base: u64, rows: u32, heads: u32) -> TensorView {
        let d = i64::from(self.head_dim());
        TensorView {
            base,
            batch_stride: i64::from(rows) * i64::from(heads) * d,
            row_stride: i64::from(heads) * d,
            head_stride: d,
        }
    }

    fn map(&self, base: u64, batch: u32, rows: u32, heads: u32, boxes: (u32, u32)) -> TensorMap {
        let d = u64::from(self.head_dim());
        let (rows, heads) = (u64::from(rows), u64::from(heads));
        TensorMap {
            base,
            sizes: [d, rows.max(1), heads, u64::from(batch)],
            strides: [heads * d * 2, d * 2, rows * heads * d * 2],
            box_rows: boxes.0.into(),
            box_heads: boxes.1.into(),
            reserved: [0; 6],
        }
    }

    fn pack_gqa_log2(&self) -> u32 {
        (self.variant.tiles == TileShape::Compact) as u32
    }

    /// Of padded or packed sequences with lengths of their own, or of padded ones of equal lengths where there are none.
    fn run(
        &self,
        batch: u32,
        [q, k, v]: [&[u16]; 3],
        sides: (&Side, &Side),
        listed: bool,
    ) -> Output {
        let (heads_q, heads_k) = self.heads;
        let (side_q, side_k) = sides;
        let entries = |side: &Side| if side.cu_seqlens.is_some() { 1 } else { batch };
        let n_rows = (entries(side_q) * side_q.rows * heads_q) as usize;
        let o = vec![0x7fffu16; n_rows * self.head_dim() as usize];
        let mut lse = vec![f32::NAN; n_rows];
        let is_tma = self.variant.kind == Kind::TmaForward;
        let footprint = &self.variant.footprint;
        let pack = self.pack_gqa_log2();
        let tile_rows = footprint.block_q >> pack;
        let max_tiles = match side_q.cu_seqlens {
            Some(_) => side_q.rows.div_ceil(tile_rows) + batch,
            None => side_q.rows.div_ceil(tile_rows) * batch,
        };
        let n_maps = if is_tma { FORWARD_MAPS as u32 } else { 0 };
        let mut workspace = Workspace::new(batch, max_tiles, 0, n_maps);
        let mut params = listing(&workspace, batch, side_q, side_k, false);
        let mut inputs = [q, k, v].map(aligned);
        let mut own_o = aligned(&o);
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, side_q, side_k);
        let [own_q, own_k, own_v] = &mut inputs;
        let (q, k, v) = (
            memory.input("q", elements(own_q, q.len())),
            memory.input("k", elements(own_k, k.len())),
            memory.input("v", elements(own_v, v.len())),
        );
        let o_at = memory.output("o", elements(&mut own_o, o.len()));
        let lse_at = memory.output("lse", &mut lse);
        let counter = memory.kept("counter", &mut workspace.counter);
        params.list.tiles = memory.scratch("tiles", words(&mut workspace.tiles));
        params.list.maps = memory.scratch("maps", words(&mut workspace.maps));
        params.scratch = memory.scratch("scratch", words(&mut workspace.scratch));

        let views = [
            self.view(q, side_q.rows, heads_q),
            self.view(k, side_k.rows, heads_k),
            self.view(v, side_k.rows, heads_k),
            self.view(o_at, side_q.rows, heads_q),
        ];
        let boxes_q = (64 >> pack, 1 << pack);
        let boxes_k = (footprint.block_k, 1);
        let maps = [
            self.map(q, entries(side_q), side_q.rows, heads_q, boxes_q),
            self.map(k, entries(side_k), side_k.rows, heads_k, boxes_k),
            self.map(v, entries(side_k), side_k.rows, heads_k, boxes_k),
            self.map(o_at, entries(side_q), side_q.rows, heads_q, boxes_q),
        ];
        let shape = Shape {
            heads_q,
            heads_k,
            group_size: heads_q / heads_k,
            head_dim: self.head_dim(),
            ..params.shape
        };
        let (left, right) = self.window;
        let window = if listed {
            Window::new(0, 0, left, right)
        } else {
            Window::new(side_q.max, side_k.max, left, right)
        };
        params.shape = shape;
        params.window = window;
        params.n_maps = n_maps;
        params.tile_rows = tile_rows;
        params.o = views[3];
        params.lse = lse_at;
        params.maps[..4].copy_from_slice(&maps);
        params.mapped[..4].copy_from_slice(&views);
        let mut spec = self.spec;
        if listed {
            spec = spec.with(Constant::Lengths);
            let name = if is_tma {
                "tile_list_sm90a"
            } else {
                "tile_list_sm80"
            };
            let grid = 1 + entries(side_q) * side_q.rows.div_ceil(config::tile_list().block_q);
            let variant = variants::by_name(name).unwrap();
            launch(&mut memory, variant, grid, spec, &Params::TileList(params));
        }
        let tiles = side_q.max.div_ceil(tile_rows);
        let schedule = Schedule {
            tiles,
            heads_per_group: 2,
            heads: if listed { heads_q } else { batch * heads_q } >> pack,
            order: 0,
            stride: 1,
        };
        let (all, most) = (tiles * schedule.heads, max_tiles * schedule.heads);
        let scale = Scale {
            scale: 0.125,
            scale_log2: 0.125 * std::f32::consts::LOG2_E,
        };
        let list = params.list;
        let main = if is_tma {
            let [q, k, v, o] = maps;
            Params::TmaForward(TmaForwardParams {
                q,
                k,
                v,
                o,
                o_rows: views[3],
                lse: lse_at,
                tile_counter: counter,
                shape,
                window,
                scale,
                schedule,
                pack_gqa_log2: pack,
                list,
            })
        } else {
            let [q, k, v, o] = views;
            Params::Forward(ForwardParams {
                q,
                k,
                v,
                o,
                lse: lse_at,
                shape,
                window,
                scale,
                schedule,
                list,
            })
        };
        let grid = match (is_tma, listed) {
            (true, _) => 3.min(all.max(most)),
            (false, true) => most,
            (false, false) => all,
        };
        if all > 0 {
            launch(&mut memory, self.variant, grid, spec, &main);
        }
        for name in ["o", "lse"] {
            assert_eq!(memory.first_unwritten(name), None, "{name}");
        }
        drop(memory);
        assert_eq!(workspace.counter, [0]);
        let o = elements(&mut own_o, o.len()).to_vec();
        (o, lse)
    }
}

/// A backward pass of flash2 or flash3: its main kernel and what comes before and, in flash2, after it.
struct Backward {
    main: &'static Variant,
    delta: &'static Variant,
    d_q: Option<&'static Variant>,
    window: (u32, u32),
    spec: Spec,
    heads: (u32, u32),
    heads_per_group: u32,
}

/// What a backward pass reads: q, k, v, o and dO; lse.
type Saved<'a> = ([&'a [u16]; 5], &'a [f32]);

impl Backward {
    /// dQ, dK and dV.
    fn run(&self, batch: u32, saved: Saved, sides: (&Side, &Side), listed: bool) -> [Vec<u16>; 3] {
        let forward = Forward {
            variant: self.main,
            window: self.window,
            spec: self.spec,
            heads: self.heads,
        };
        let (heads_q, heads_k) = self.heads;
        let (side_q, side_k) = sides;
        let entries = |side: &Side| if side.cu_seqlens.is_some() { 1 } else { batch };
        let footprint = &self.main.footprint;
        let (block_q, block_k) = (footprint.block_q, footprint.block_k);
        let most = |side: &Side, rows: u32| match (listed, &side.cu_seqlens) {
            (true, Some(_)) => side.rows.div_ceil(rows) + batch,
            (true, None) => side.rows.div_ceil(rows) * batch,
            (false, _) => side.max.div_ceil(rows),
        };
        let (max_q_blocks, max_tiles) = (most(side_q, block_q), most(side_k, block_k));
        let is_tma = self.main.kind == Kind::TmaBackward;
        let n_maps = if is_tma { BACKWARD_MAPS as u32 } else { 0 };
        let mut workspace = Workspace::new(batch, max_tiles, max_q_blocks, n_maps);
        let (inputs, lse) = saved;
        let lens = inputs.map(<[u16]>::len);
        let mut inputs = inputs.map(aligned);
        let n_elems = |side: &Side, heads: u32| {
            (entries(side) * side.rows * heads * forward.head_dim()) as usize
        };
        let result_lens = [
            n_elems(side_q, heads_q),
            n_elems(side_k, heads_k),
            n_elems(side_k, heads_k),
        ];
        let mut results = result_lens.map(|len| units(len * 2));
        let padded_q = max_q_blocks * block_q;
        let columns = config::padded_columns(self.main.head_dim.unwrap());
        let heads_of_workspace = if listed { heads_q } else { batch * heads_q };
        let rows = (heads_of_workspace * padded_q) as usize;
        let mut statistics = [(); 2].map(|()| units(rows * 4));
        let mut accumulator = units(rows * columns as usize * 4);
        let mut semaphores = units((heads_of_workspace * max_q_blocks) as usize * 4);
        let mut counters = units(8);

        let mut params = listing(&workspace, batch, side_q, side_k, true);
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, side_q, side_k);
        let mut at = [0; 5];
        for ((at, (input, len)), name) in at
            .iter_mut()
            .zip(inputs.iter_mut().zip(lens))
            .zip(["q", "k", "v", "o", "d_o"])
        {
            *at = memory.input(name, elements(input, len));
        }
        let mut to = [0; 3];
        for ((to, (result, len)), name) in to
            .iter_mut()
            .zip(results.iter_mut().zip(result_lens))
            .zip(["d_q", "d_k", "d_v"])
        {
            *to = memory.output(name, elements(result, len));
        }
        let lse = memory.input("lse", lse);
        params.list.tiles = memory.scratch("tiles", words(&mut workspace.tiles));
        params.list.q_blocks = memory.scratch("q_blocks", words(&mut workspace.q_blocks));
        params.list.maps = memory.scratch("maps", words(&mut workspace.maps));
        params.scratch = memory.scratch("scratch", words(&mut workspace.scratch));

        let view_q = |base| forward.view(base, side_q.rows, heads_q);
        let view_k = |base| forward.view(base, side_k.rows, heads_k);
        let map_q = |base| forward.map(base, entries(side_q), side_q.rows, heads_q, (block_q, 1));
        let map_k =
            |base, rows| forward.map(base, entries(side_k), side_k.rows, heads_k, (rows, 1));
        let [q, k, v, o, d_o] = at;
        let [d_q, d_k, d_v] = to;
        let maps = [
            map_q(q),
            map_k(k, block_k),
            map_k(v, block_k),
            map_q(d_o),
            map_k(d_k, 64),
            map_k(d_v, 64),
        ];
        let (left, right) = self.window;
        params.window = if listed {
            Window::new(0, 0, left, right)
        } else {
            Window::new(side_q.max, side_k.max, left, right)
        };
        params.shape = Shape {
            heads_q,
            heads_k,
            group_size: heads_q / heads_k,
            head_dim: forward.head_dim(),
            ..params.shape
        };
        params.n_maps = n_maps;
        params.tile_rows = block_k;
        params.block_q = block_q;
        params.maps = maps;
        params.mapped = [
            view_q(q),
            view_k(k),
            view_k(v),
            view_q(d_o),
            view_k(d_k),
            view_k(d_v),
        ];
        (params.d_q, params.d_k, params.d_v) = (view_q(d_q), view_k(d_k), view_k(d_v));
        let [lse_log2, delta] = &mut statistics;
        let pass = BackwardParams {
            q: view_q(q),
            k: view_k(k),
            v: view_k(v),
            o: view_q(o),
            d_o: view_q(d_o),
            d_q: view_q(d_q),
            d_k: view_k(d_k),
            d_v: view_k(d_v),
            lse,
            lse_log2: memory.scratch("lse_log2", words(lse_log2)),
            delta: memory.scratch("delta", words(delta)),
            d_q_accum: memory.scratch("d_q_accum", words(&mut accumulator)),
            dq_semaphore: memory.scratch("dq_semaphore", words(&mut semaphores)),
            tile_counters: memory.scratch("tile_counters", words(&mut counters)),
            padded_q: padded_q.into(),
            shape: params.shape,
            window: params.window,
            scale: Scale {
                scale: 0.125,
                scale_log2: 0.125 * std::f32::consts::LOG2_E,
            },
            schedule: Schedule {
                tiles: side_k.max.div_ceil(block_k),
                heads_per_group: self.heads_per_group,
                heads: if listed { heads_k } else { batch * heads_k },
                order: 0,
                stride: 1,
            },
            list: params.list,
            ..BackwardParams::default()
        };
        let mut spec = self.spec;
        if listed {
            spec = spec.with(Constant::Lengths);
            let blocks =
                |side: &Side| entries(side) * side.rows.div_ceil(config::tile_list().block_q);
            let grid = 1 + blocks(side_q) + blocks(side_k);
            let name = if is_tma {
                "tile_list_sm90a"
            } else {
                "tile_list_sm80"
            };
            let variant = variants::by_name(name).unwrap();
            launch(&mut memory, variant, grid, spec, &Params::TileList(params));
        }
        let blocks = heads_of_workspace * max_q_blocks;
        launch(
            &mut memory,
            self.delta,
            blocks,
            spec,
            &Params::Backward(pass),
        );
        if let Some(d_q) = self.d_q {
            launch(&mut memory, self.main, 3, spec, &Params::Backward(pass));
            launch(&mut memory, d_q, blocks, spec, &Params::Backward(pass));
        } else {
            let [q, k, v, d_o, d_k, d_v] = maps;
            let main = TmaBackwardParams {
                q,
                k,
                v,
                d_o,
                d_k,
                d_v,
                pass,
            };
            launch(&mut memory, self.main, 3, spec, &Params::TmaBackward(main));
        }
        for name in ["d_q", "d_k", "d_v"] {
            assert_eq!(memory.first_unwritten(name), None, "{name}");
        }
        drop(memory);
        let mut results = results.iter_mut().zip(result_lens);
        std::array::from_fn(|_| {
            let (result, len) = results.next().unwrap();
            elements(result, len).to_vec()
        })
    }
}

/// Sequences of lengths of their own: q and k packed or padded, with rows between and behind them that are nobody's.
struct Problem {
    lens: Vec<(i32, i32)>,
    q: Side,
    k: Side,
    random: Random,
    f16: bool,
    head_dim: u32,
}

impl Problem {
    /// Of a variant's elements and head_dim.
    fn of(variant: &Variant, seed: u64, packed: (bool, bool)) -> Problem {
        let f16 = variant.name.contains("_f16");
        Problem::new(f16, variant.head_dim.unwrap(), seed, packed)
    }

    /// How many numbers lse has.
    fn n_lse(&self, heads: u32) -> usize {
        self.entries(&self.q) * self.q.rows as usize * heads as usize
    }

    fn new(f16: bool, head_dim: u32, seed: u64, packed: (bool, bool)) -> Problem {
        let mut random = Random(seed);
        let lens = vec![
            (70, 200),
            (0, 60),
            (33, 0),
            (130, 129),
            (1, 1),
            (0, 0),
            (150, 40),
            (64, 128),
        ];
        let mut side = |packed: bool, lens: Vec<i32>, leftpad: bool| {
            let max = *lens.iter().max().unwrap() as u32;
            if packed {
                let gap = |i: usize| if i % 3 == 0 { 5 } else { 0 };
                let mut cu_seqlens = vec![3];
                for (i, len) in lens.iter().enumerate() {
                    cu_seqlens.push(cu_seqlens[i] + len + gap(i));
                }
                Side {
                    rows: *cu_seqlens.last().unwrap() as u32 + 9,
                    cu_seqlens: Some(cu_seqlens),
                    seqused: Some(lens),
                    leftpad: None,
                    max: max + 5,
                }
            } else {
                let pad = |_: &i32| if leftpad { random.below(7) as i32 } else { 0 };
                let pad: Vec<i32> = lens.iter().map(pad).collect();
                let used = lens.iter().zip(&pad).map(|(len, pad)| len + pad).collect();
                Side {
                    rows: max + 11,
                    cu_seqlens: None,
                    seqused: Some(used),
                    leftpad: Some(pad).filter(|_| leftpad),
                    max: max + 11,
                }
            }
        };
        let q = side(packed.0, lens.iter().map(|len| len.0).collect(), false);
        let k = side(packed.1, lens.iter().map(|len| len.1).collect(), true);
        Problem {
            lens,
            q,
            k,
            random,
            f16,
            head_dim,
        }
    }

    fn width(&self, heads: u32) -> usize {
        (heads * self.head_dim) as usize
    }

    fn entries(&self, side: &Side) -> usize {
        if side.cu_seqlens.is_some() {
            1
        } else {
            self.lens.len()
        }
    }

    /// Random numbers in the sequences' rows, NaN in all others.
    fn tensor(&mut self, of_q: bool, heads: u32) -> Vec<u16> {
        let side = if of_q { self.q.clone() } else { self.k.clone() };
        let width = self.width(heads);
        let nan = if self.f16 { 0x7e00 } else { 0x7fc0 };
        let mut data = vec![nan; self.entries(&side) * side.rows as usize * width];
        for s in 0..self.lens.len() {
            let (entry, first, len) = self.rows(&side, s);
            let begin = (entry * side.rows as usize + first) * width;
            for x in &mut data[begin..begin + len * width] {
                *x = element(&mut self.random, self.f16);
            }
        }
        data
    }

    /// The batch entry of a sequence, its first row there and its length.
    fn rows(&self, side: &Side, s: usize) -> (usize, usize, usize) {
        let (first, len) = side.of(s);
        let entry = if side.cu_seqlens.is_some() { 0 } else { s };
        (entry, first as usize, len as usize)
    }

    /// A sequence's rows of a tensor, as one of their own.
    fn cut(&self, side: &Side, heads: u32, tensor: &[u16], s: usize) -> Vec<u16> {
        let (entry, first, len) = self.rows(side, s);
        let width = self.width(heads);
        let begin = (entry * side.rows as usize + first) * width;
        tensor[begin..begin + len * width].to_vec()
    }

    /// Puts a sequence's rows where they are in the whole tensor.
    fn paste(&self, side: &Side, heads: u32, own: &[u16], whole: &mut [u16], s: usize) {
        let (entry, first, _) = self.rows(side, s);
        let begin = (entry * side.rows as usize + first) * self.width(heads);
        whole[begin..begin + own.len()].copy_from_slice(own);
    }

    /// Where a sequence's rows of lse of a head lie.
    fn lse_rows(&self, heads: u32, head: usize, s: usize) -> std::ops::Range<usize> {
        let (entry, first, len) = self.rows(&self.q, s);
        let begin = (entry * heads as usize + head) * self.q.rows as usize + first;
        begin..begin + len
    }

    /// The two sides of a sequence alone.
    fn alone(&self, s: usize) -> (Side, Side) {
        let side = |len: i32| Side {
            rows: len as u32,
            max: len as u32,
            ..Side::default()
        };
        (side(self.lens[s].0), side(self.lens[s].1))
    }
}

fn check(variant: &'static str, window: (u32, u32), spec: Spec, seed: u64, packed: (bool, bool)) {
    let variant = variants::by_name(variant).unwrap();
    let forward = Forward {
        variant,
        window,
        spec,
        heads: (4, 2),
    };
    let mut problem = Problem::of(variant, seed, packed);
    let (heads_q, heads_k) = forward.heads;
    let q = problem.tensor(true, heads_q);
    let [k, v] = [(); 2].map(|()| problem.tensor(false, heads_k));
    let batch = problem.lens.len();
    let sides = (&problem.q, &problem.k);
    let (o, lse) = forward.run(batch as u32, [&q, &k, &v], sides, true);

    let mut expected_o = vec![0u16; o.len()];
    let mut expected_lse = vec![f32::NEG_INFINITY; lse.len()];
    for s in (0..batch).filter(|s| problem.lens[*s].0 > 0) {
        let own_q = problem.cut(&problem.q, heads_q, &q, s);
        let [own_k, own_v] = [&k, &v].map(|x| problem.cut(&problem.k, heads_k, x, s));
        let (side_q, side_k) = problem.alone(s);
        let (own_o, own_lse) = forward.run(1, [&own_q, &own_k, &own_v], (&side_q, &side_k), false);
        problem.paste(&problem.q, heads_q, &own_o, &mut expected_o, s);
        let len = problem.lens[s].0 as usize;
        for head in 0..heads_q as usize {
            let own = &own_lse[head * len..(head + 1) * len];
            expected_lse[problem.lse_rows(heads_q, head, s)].copy_from_slice(own);
        }
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&lse), bits(&expected_lse), "lse of {}", variant.name);
    assert!(o == expected_o, "o of {}", variant.name);
}

fn check_backward(
    arch: &str,
    head_dim: &str,
    window: (u32, u32),
    spec: Spec,
    seed: u64,
    packed: (bool, bool),
    heads_per_group: u32,
) {
    let variant = |kind: &str| variants::by_name(&format!("{kind}_{arch}_{head_dim}")).unwrap();
    let heads = (4, 2);
    let backward = Backward {
        main: variant("backward"),
        delta: variant("backward_delta"),
        d_q: (arch == "sm80").then(|| variant("backward_dq")),
        window,
        spec,
        heads,
        heads_per_group,
    };
    let mut problem = Problem::of(backward.main, seed, packed);
    let q = problem.tensor(true, heads.0);
    let [k, v] = [(); 2].map(|()| problem.tensor(false, heads.1));
    let [o, d_o] = [(); 2].map(|()| problem.tensor(true, heads.0));
    let batch = problem.lens.len();
    // Any numbers: both calls are given the same. Rows of no sequence have NaN.
    let mut lse = vec![f32::NAN; problem.n_lse(heads.0)];
    for s in 0..batch {
        for head in 0..heads.0 as usize {
            for (i, row) in problem.lse_rows(heads.0, head, s).enumerate() {
                lse[row] = 5.0 + (i % 7) as f32 / 4.0;
            }
        }
    }
    let sides = (&problem.q, &problem.k);
    let inputs: [&[u16]; 5] = [&q, &k, &v, &o, &d_o];
    let given = backward.run(batch as u32, (inputs, &lse), sides, true);
    let mut expected: [Vec<u16>; 3] = std::array::from_fn(|i| vec![0; given[i].len()]);
    for s in (0..batch).filter(|s| problem.lens[*s].0 > 0 && problem.lens[*s].1 > 0) {
        let own_q = [&q, &o, &d_o].map(|x| problem.cut(&problem.q, heads.0, x, s));
        let own_k = [&k, &v].map(|x| problem.cut(&problem.k, heads.1, x, s));
        let own_lse: Vec<f32> = (0..heads.0 as usize)
            .flat_map(|head| lse[problem.lse_rows(heads.0, head, s)].to_vec())
            .collect();
        let inputs: [&[u16]; 5] = [&own_q[0], &own_k[0], &own_k[1], &own_q[1], &own_q[2]];
        let (side_q, side_k) = problem.alone(s);
        let [d_q, d_k, d_v] = backward.run(1, (inputs, &own_lse), (&side_q, &side_k), false);
        problem.paste(&problem.q, heads.0, &d_q, &mut expected[0], s);
        problem.paste(&problem.k, heads.1, &d_k, &mut expected[1], s);
        problem.paste(&problem.k, heads.1, &d_v, &mut expected[2], s);
    }
    for (i, name) in ["d_q", "d_k", "d_v"].into_iter().enumerate() {
        assert!(given[i] == expected[i], "{name} of {head_dim}");
    }
}

const CAUSAL: Spec = Spec::PLAIN.with(Constant::RightBound);
const WINDOW: Spec = CAUSAL.with(Constant::LeftBound);
const OPEN: u32 = ferroflash_kernels::params::MAX_ROWS;

#[test]
fn packed_sequences_of_flash2_are_as_each_alone() {
    check(
        "forward_sm80_bf16_d32",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
    );
    check("forward_sm80_f16_d64", (OPEN, 0), CAUSAL, 2, (true, false));
    check("forward_sm80_bf16_d128", (30, 9), WINDOW, 3, (false, true));
    check(
        "forward_sm80_bf16_d64",
        (OPEN, 0),
        CAUSAL,
        4,
        (false, false),
    );
}

#[test]
fn packed_sequences_of_flash3_are_as_each_alone() {
    check(
        "forward_sm90a_bf16_d64",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
    );
    check(
        "forward_sm90a_f16_d128",
        (OPEN, 0),
        CAUSAL,
        2,
        (true, false),
    );
    check(
        "forward_sm90a_bf16_d64_wide",
        (OPEN, 0),
        CAUSAL,
        3,
        (false, true),
    );
    check("forward_sm90a_bf16_d256", (30, 9), WINDOW, 4, (true, true));
}

#[test]
fn packed_sequences_in_compact_tiles_are_as_each_alone() {
    check(
        "forward_sm90a_bf16_d64_compact",
        (OPEN, 0),
        CAUSAL,
        1,
        (true, true),
    );
    check(
        "forward_sm90a_f16_d128_compact",
        (OPEN, OPEN),
        Spec::PLAIN,
        2,
        (true, true),
    );
    check(
        "forward_sm90a_bf16_d96_compact",
        (30, 9),
        WINDOW,
        3,
        (false, false),
    );
}

#[test]
fn gradients_of_packed_sequences_are_as_of_each_alone() {
    check_backward(
        "sm90a",
        "bf16_d64",
        (OPEN, OPEN),
        Spec::PLAIN,
        1,
        (true, true),
        2,
    );
    check_backward("sm90a", "f16_d128", (OPEN, 0), CAUSAL, 2, (true, false), 1);
    check_backward("sm90a", "bf16_d96", (150, 9), WINDOW, 3, (false, true), 2);
}

#[test]
fn gradients_of_packed_sequences_in_other_tiles_are_as_of_each_alone() {
    check_backward(
        "sm90a",
        "bf16_d128_wide",
        (OPEN, 0),
        CAUSAL,
        1,
        (true, true),
        1,
    );
    check_backward(
        "sm90a",
        "bf16_d192",
        (OPEN, OPEN),
        Spec::PLAIN,
        2,
        (false, false),
        2,
    );
    check_backward("sm90a", "f16_d256", (OPEN, 0), CAUSAL, 3, (true, true), 1);
}

#[test]
fn gradients_of_packed_sequences_of_flash2_are_as_of_each_alone() {
    let check = |name, window, spec, seed, packed, heads_per_group| {
        check_backward("sm80", name, window, spec, seed, packed, heads_per_group);
    };
    // Groups of one head walk up and down in turn, where later queries see more keys; a single group walks down.
    check("bf16_d32", (OPEN, OPEN), Spec::PLAIN, 1, (true, true), 2);
    check("f16_d64", (OPEN, 0), CAUSAL, 2, (true, false), 1);
    check("bf16_d64", (30, 9), WINDOW, 3, (false, true), 2);
    check("bf16_d128", (150, 9), WINDOW, 4, (true, true), 1);
    check("f16_d128", (OPEN, 0), CAUSAL, 5, (false, false), 1);
    check("bf16_d128_compact", (OPEN, 0), CAUSAL, 6, (true, true), 1);
    check("f16_d128_compact", (150, 9), WINDOW, 7, (false, true), 1);
}
