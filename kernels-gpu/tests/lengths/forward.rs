//! Forward passes of flash2 and flash3.

use super::*;

/// A forward pass of one variant, of heads 4 over 2.
pub struct Forward {
    pub variant: &'static Variant,
    pub window: (u32, u32),
    pub spec: Spec,
    pub heads: (u32, u32),
}

/// o and lse.
pub type Output = (Vec<u16>, Vec<f32>);

impl Forward {
    pub fn head_dim(&self) -> u32 {
        self.variant.head_dim.unwrap()
    }

    pub fn view(&self, base: u64, rows: u32, heads: u32) -> TensorView {
        let d = i64::from(self.head_dim());
        TensorView {
            base,
            batch_stride: i64::from(rows) * i64::from(heads) * d,
            row_stride: i64::from(heads) * d,
            head_stride: d,
        }
    }

    pub fn map(
        &self,
        base: u64,
        batch: u32,
        rows: u32,
        heads: u32,
        boxes: (u32, u32),
    ) -> TensorMap {
        let d = u64::from(self.head_dim());
        let (rows, heads) = (u64::from(rows), u64::from(heads));
        TensorMap {
            base,
            sizes: [d, rows.max(1), heads, u64::from(batch)],
            strides: [heads * d * 2, d * 2, rows * heads * d * 2],
            box_rows: boxes.0.into(),
            box_heads: boxes.1.into(),
            element_bytes: 2,
            reserved: [0; 5],
        }
    }

    fn is_tma(&self) -> bool {
        self.variant.kind == Kind::TmaForward
    }

    pub fn pack_gqa_log2(&self) -> u32 {
        (self.variant.tiles == TileShape::Compact) as u32
    }

    /// Of padded or packed sequences with lengths of their own, or of padded ones of equal lengths where there are none.
    pub fn run(
        &self,
        batch: u32,
        [q, k, v]: [&[u16]; 3],
        sides: (&Side, &Side),
        listed: bool,
    ) -> Output {
        let (heads_q, heads_k) = self.heads;
        let (side_q, side_k) = sides;
        let n_rows = (side_q.entries(batch) * side_q.rows * heads_q) as usize;
        let o = vec![0x7fffu16; n_rows * self.head_dim() as usize];
        let mut lse = vec![f32::NAN; n_rows];
        let tile_config = &self.variant.tile_config;
        let pack = self.pack_gqa_log2();
        let tile_rows = tile_config.block_q >> pack;
        let n_maps = if self.is_tma() {
            FORWARD_MAPS as u32
        } else {
            0
        };
        let mut workspace = Workspace::new(batch, side_q.most(tile_rows, batch), 0, n_maps);
        let params = listing(&workspace, batch, side_q, side_k, false);
        let mut params = sized(params, self.heads, self.head_dim(), self.window, listed);
        let are_empty = [q, k, v].map(<[u16]>::is_empty);
        let mut inputs = [q, k, v].map(Aligned::copy);
        let mut own_o = Aligned::copy(&o);
        let mut memory = GlobalMemory::new();
        params.lengths = lengths(&mut memory, side_q, side_k);
        let [own_q, own_k, own_v] = &mut inputs;
        let (q, k, v) = (
            memory.input("q", own_q.slice()),
            memory.input("k", own_k.slice()),
            memory.input("v", own_v.slice()),
        );
        let o_at = memory.output("o", own_o.slice());
        let lse_at = memory.output("lse", &mut lse);
        let counter = memory.kept("counter", &mut workspace.counter);
        // A tensor without elements lies where the workspace does, as in a plan.
        let [q, k, v] = [0, 1, 2].map(|idx| match are_empty[idx] {
            true => counter,
            false => [q, k, v][idx],
        });
        params.list.tiles = memory.scratch("tiles", workspace.tiles.slice());
        params.list.maps = memory.scratch("maps", workspace.maps.slice());
        params.scratch = memory.scratch("scratch", workspace.scratch.slice());

        let views = [
            self.view(q, side_q.rows, heads_q),
            self.view(k, side_k.rows, heads_k),
            self.view(v, side_k.rows, heads_k),
            self.view(o_at, side_q.rows, heads_q),
        ];
        let boxes_q = (64 >> pack, 1 << pack);
        let boxes_k = (tile_config.block_k, 1);
        let maps = [
            self.map(q, side_q.entries(batch), side_q.rows, heads_q, boxes_q),
            self.map(k, side_k.entries(batch), side_k.rows, heads_k, boxes_k),
            self.map(v, side_k.entries(batch), side_k.rows, heads_k, boxes_k),
            self.map(o_at, side_q.entries(batch), side_q.rows, heads_q, boxes_q),
        ];
        params.n_maps = n_maps;
        params.tile_rows = tile_rows;
        params.o = views[3];
        params.lse = lse_at;
        params.maps[..4].copy_from_slice(&maps);
        params.mapped[..4].copy_from_slice(&views);
        let mut spec = self.spec;
        if listed {
            spec = spec.with(Constant::Lengths);
            launch_list(&mut memory, self.is_tma(), spec, &params);
        }
        self.launch(&mut memory, &params, counter, spec);
        for name in ["o", "lse"] {
            assert_eq!(memory.first_unwritten(name), None, "{name}");
        }
        drop(memory);
        assert_eq!(workspace.counter, [0]);
        let o = own_o.slice().to_vec();
        (o, lse)
    }

    /// The main kernel, of the tensors and lists of `listing`.
    fn launch(
        &self,
        memory: &mut GlobalMemory,
        listing: &TileListParams,
        counter: u64,
        spec: Spec,
    ) {
        let &TileListParams {
            shape,
            window,
            lse,
            list,
            max_tiles,
            ..
        } = listing;
        let listed = spec.has(Constant::Lengths);
        let pack = self.pack_gqa_log2();
        let tiles = shape.seqlen_q.div_ceil(listing.tile_rows);
        let sequences = if listed { 1 } else { shape.batch };
        let schedule = Schedule {
            tiles,
            heads_per_group: 2,
            heads: (sequences * shape.heads_q) >> pack,
            order: 0,
            stride: 1,
        };
        let (all, most) = (tiles * schedule.heads, max_tiles * schedule.heads);
        let main = if self.is_tma() {
            let [q, k, v, o, ..] = listing.maps;
            Params::TmaForward(TmaForwardParams {
                q,
                k,
                v,
                o,
                o_rows: listing.o,
                lse,
                tile_counter: counter,
                shape,
                window,
                scale: SCALE,
                schedule,
                pack_gqa_log2: pack,
                list,
                ..Default::default()
            })
        } else {
            let [q, k, v, o, ..] = listing.mapped;
            Params::Forward(ForwardParams {
                q,
                k,
                v,
                o,
                lse,
                shape,
                window,
                scale: SCALE,
                schedule,
                list,
                ..Default::default()
            })
        };
        let grid = match (self.is_tma(), listed) {
            (true, _) => 3.min(all.max(most)),
            (false, true) => most,
            (false, false) => all,
        };
        if all > 0 {
            launch(memory, self.variant, grid, spec, &main);
        }
    }
}

pub fn check(
    variant: &'static str,
    window: (u32, u32),
    spec: Spec,
    seed: u64,
    packed: (bool, bool),
) {
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
