//! Backward passes of flash2 and flash3.

use super::*;

/// A backward pass of flash2 or flash3: its main kernel and what comes before and, in flash2, after it.
pub struct Backward {
    pub main: &'static Variant,
    pub delta: &'static Variant,
    pub d_q: Option<&'static Variant>,
    pub window: (u32, u32),
    pub spec: Spec,
    pub heads: (u32, u32),
    pub heads_per_group: u32,
}

/// What a backward pass reads: q, k, v, o and dO; lse.
pub type Saved<'a> = ([&'a [u16]; 5], &'a [f32]);

/// The workspace beside the lists.
struct Sums {
    lse_log2: Aligned<u32>,
    delta: Aligned<u32>,
    accumulator: Aligned<u32>,
    semaphores: Aligned<u32>,
    counters: Aligned<u32>,
}

impl Sums {
    /// For `blocks` query blocks of all heads together, each of `rows` rows.
    fn new(blocks: u32, rows: u32, head_dim: u32) -> Sums {
        let words = |n: u32| words(n as usize * 4);
        Sums {
            lse_log2: words(blocks * rows),
            delta: words(blocks * rows),
            accumulator: words(blocks * rows * config::padded_columns(head_dim)),
            semaphores: words(blocks),
            counters: words(2),
        }
    }

    /// Parameters with its addresses.
    fn lend<'a>(&'a mut self, memory: &mut GlobalMemory<'a>) -> BackwardParams {
        BackwardParams {
            lse_log2: memory.scratch("lse_log2", self.lse_log2.slice()),
            delta: memory.scratch("delta", self.delta.slice()),
            d_q_accum: memory.scratch("d_q_accum", self.accumulator.slice()),
            dq_semaphore: memory.scratch("dq_semaphore", self.semaphores.slice()),
            tile_counters: memory.scratch("tile_counters", self.counters.slice()),
            ..BackwardParams::default()
        }
    }
}

impl Backward {
    fn is_tma(&self) -> bool {
        self.main.kind == Kind::TmaBackward
    }

    /// dQ, dK and dV.
    pub fn run(
        &self,
        batch: u32,
        saved: Saved,
        sides: (&Side, &Side),
        listed: bool,
    ) -> [Vec<u16>; 3] {
        let (heads_q, heads_k) = self.heads;
        let (side_q, side_k) = sides;
        let head_dim = self.main.head_dim.unwrap();
        let tile_config = &self.main.tile_config;
        let (block_q, block_k) = (tile_config.block_q, tile_config.block_k);
        let most = |side: &Side, rows: u32| {
            if listed {
                side.most(rows, batch)
            } else {
                side.max.div_ceil(rows)
            }
        };
        let (max_q_blocks, max_tiles) = (most(side_q, block_q), most(side_k, block_k));
        let n_maps = if self.is_tma() {
            BACKWARD_MAPS as u32
        } else {
            0
        };
        let mut workspace = Workspace::new(batch, max_tiles, max_q_blocks, n_maps);
        let (inputs, lse) = saved;
        let lens = inputs.map(<[u16]>::len);
        let mut inputs = inputs.map(Aligned::copy);
        let result_lens = [lens[0], lens[1], lens[1]];
        let mut results = result_lens.map(Aligned::<u16>::new);
        let sequences = if listed { 1 } else { batch };
        let blocks = sequences * heads_q * max_q_blocks;
        let mut sums = Sums::new(blocks, block_q, head_dim);

        let params = listing(&workspace, batch, side_q, side_k, true);
        let mut params = sized(params, self.heads, head_dim, self.window, listed);
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, side_q, side_k);
        let mut pass = sums.lend(&mut memory);
        let names = ["q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v"];
        let mut at = [0; 8];
        for (i, input) in inputs.iter_mut().enumerate() {
            at[i] = memory.input(names[i], input.slice());
        }
        for (i, result) in results.iter_mut().enumerate() {
            at[5 + i] = memory.output(names[5 + i], result.slice());
        }
        pass.lse = memory.input("lse", lse);
        params.list.tiles = memory.scratch("tiles", workspace.tiles.slice());
        params.list.q_blocks = memory.scratch("q_blocks", workspace.q_blocks.slice());
        params.list.maps = memory.scratch("maps", workspace.maps.slice());
        params.scratch = memory.scratch("scratch", workspace.scratch.slice());
        pass.schedule = Schedule {
            tiles: side_k.max.div_ceil(block_k),
            heads_per_group: self.heads_per_group,
            heads: sequences * heads_k,
            order: 0,
            stride: 1,
        };
        pass.padded_q = (max_q_blocks * block_q).into();
        params.n_maps = n_maps;
        self.place(batch, sides, at, &mut params, &mut pass);
        let spec = if listed {
            self.spec.with(Constant::Lengths)
        } else {
            self.spec
        };
        self.launch(&mut memory, blocks, spec, &params, pass);
        for name in ["d_q", "d_k", "d_v"] {
            assert_eq!(memory.first_unwritten(name), None, "{name}");
        }
        drop(memory);
        results.map(|mut result| result.slice().to_vec())
    }

    /// Puts the tensors at these addresses into the parameters.
    fn place(
        &self,
        batch: u32,
        (side_q, side_k): (&Side, &Side),
        at: [u64; 8],
        params: &mut TileListParams,
        pass: &mut BackwardParams,
    ) {
        let forward = Forward {
            variant: self.main,
            window: self.window,
            spec: self.spec,
            heads: self.heads,
        };
        let (heads_q, heads_k) = self.heads;
        let tile_config = &self.main.tile_config;
        let (block_q, block_k) = (tile_config.block_q, tile_config.block_k);
        let view_q = |base| forward.view(base, side_q.rows, heads_q);
        let view_k = |base| forward.view(base, side_k.rows, heads_k);
        let (entries_q, entries_k) = (side_q.entries(batch), side_k.entries(batch));
        let map_q = |base| forward.map(base, entries_q, side_q.rows, heads_q, (block_q, 1));
        let map_k = |base, rows| forward.map(base, entries_k, side_k.rows, heads_k, (rows, 1));
        let [q, k, v, o, d_o, d_q, d_k, d_v] = at;
        *pass = BackwardParams {
            q: view_q(q),
            k: view_k(k),
            v: view_k(v),
            o: view_q(o),
            d_o: view_q(d_o),
            d_q: view_q(d_q),
            d_k: view_k(d_k),
            d_v: view_k(d_v),
            shape: params.shape,
            window: params.window,
            scale: SCALE,
            list: params.list,
            ..*pass
        };
        let rows_out = match self.main.head_dim {
            Some(head_dim) if self.is_tma() => {
                config::TmaBackward::of(head_dim, head_dim, self.main.tiles).rows_out()
            }
            _ => 0,
        };
        params.maps = [
            map_q(q),
            map_k(k, block_k),
            map_k(v, block_k),
            map_q(d_o),
            map_k(d_k, rows_out),
            map_k(d_v, rows_out),
        ];
        params.mapped = [pass.q, pass.k, pass.v, pass.d_o, pass.d_k, pass.d_v];
        (params.d_q, params.d_k, params.d_v) = (pass.d_q, pass.d_k, pass.d_v);
        (params.tile_rows, params.block_q) = (block_k, block_q);
    }

    /// All kernels of the pass, which has this many query blocks.
    fn launch(
        &self,
        memory: &mut GlobalMemory,
        blocks: u32,
        spec: Spec,
        listing: &TileListParams,
        pass: BackwardParams,
    ) {
        if spec.has(Constant::Lengths) {
            launch_list(memory, self.is_tma(), spec, listing);
        }
        let rows = Params::Backward(pass);
        launch(memory, self.delta, blocks, spec, &rows);
        if let Some(d_q) = self.d_q {
            launch(memory, self.main, 3, spec, &rows);
            launch(memory, d_q, blocks, spec, &rows);
        } else {
            let [q, k, v, d_o, d_k, d_v] = listing.maps;
            let main = TmaBackwardParams {
                q,
                k,
                v,
                d_o,
                d_k,
                d_v,
                pass,
            };
            launch(memory, self.main, 3, spec, &Params::TmaBackward(main));
        }
    }
}

pub fn check_backward(
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
        delta: variant("backward_preprocess"),
        d_q: (arch == "sm80").then(|| variant("backward_postprocess")),
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
