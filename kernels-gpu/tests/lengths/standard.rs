//! Standard attention: a forward and a backward pass, kernel by kernel.

use super::*;
use ferroflash_kernels::params::StandardParams;
use ferroflash_kernels::variants::{Dtype, VARIANTS};

/// Both passes.
struct Standard {
    dtype: Dtype,
    head_dim: u32,
    window: (u32, u32),
    spec: Spec,
    heads: (u32, u32),
}

/// The kernels of the forward pass, which leave P as weights; with those behind them, dS.
const FORWARD: &[Kind] = &[
    Kind::StandardScores,
    Kind::StandardSoftmax,
    Kind::StandardOutput,
];
const BOTH: &[Kind] = &[
    Kind::StandardScores,
    Kind::StandardSoftmax,
    Kind::StandardOutput,
    Kind::StandardDelta,
    Kind::StandardDv,
    Kind::StandardDWeights,
    Kind::StandardDScores,
    Kind::StandardDq,
    Kind::StandardDk,
];

/// q, k, v and dO; the gradient of lse.
type Inputs<'a> = ([&'a [u16]; 4], &'a [f32]);

/// What kernels write.
struct Results {
    /// o and dQ, dK and dV.
    tensors: [Vec<u16>; 4],
    lse: Vec<f32>,
    weights: Vec<u16>,
}

impl Standard {
    fn view(&self, base: u64, side: &Side, heads: u32) -> TensorView {
        let d = i64::from(self.head_dim);
        TensorView {
            base,
            batch_stride: i64::from(side.rows) * i64::from(heads) * d,
            row_stride: i64::from(heads) * d,
            head_stride: d,
        }
    }

    fn variant(&self, kind: Kind) -> &'static Variant {
        let mut all = VARIANTS.iter();
        all.find(|v| v.kind == kind && v.dtype == Some(self.dtype))
            .unwrap()
    }

    fn grid(&self, variant: &Variant, shape: &Shape) -> u32 {
        let tile_config = &variant.tile_config;
        let (heads_q, heads_k) = (shape.batch * shape.heads_q, shape.batch * shape.heads_k);
        let tiles_q = shape.seqlen_q.div_ceil(tile_config.block_q);
        let tiles = |length: u32| length.div_ceil(tile_config.block_k);
        match variant.kind {
            Kind::StandardScores | Kind::StandardDWeights => {
                tiles_q * tiles(shape.seqlen_k) * heads_q
            }
            Kind::StandardOutput | Kind::StandardDq => tiles_q * tiles(self.head_dim) * heads_q,
            Kind::StandardDv | Kind::StandardDk => {
                tiles(shape.seqlen_k) * tiles(self.head_dim) * heads_k
            }
            _ => tiles_q * heads_q,
        }
    }

    fn run(
        &self,
        kinds: &[Kind],
        batch: u32,
        (inputs, d_lse): Inputs,
        sides: (&Side, &Side),
        listed: bool,
    ) -> Results {
        let (heads_q, heads_k) = self.heads;
        let (side_q, side_k) = sides;
        // The kernel that lists tiles is launched for what it clears: its lists have no room.
        let mut workspace = Workspace::new(batch, 0, 0, 0);
        let listing = listing(&workspace, batch, side_q, side_k, false);
        let mut listing = sized(listing, self.heads, self.head_dim, self.window, listed);
        let rows = (batch * heads_q * side_q.max) as usize;
        let padded_k = (side_k.max as usize).next_multiple_of(8);
        let [of_q, of_k] = [inputs[0].len(), inputs[1].len()];
        let mut tensors = [of_q, of_q, of_k, of_k].map(|len| vec![0x7fffu16; len]);
        let mut lse = vec![f32::NAN; d_lse.len()];
        let mut weights = vec![0x7fffu16; rows * padded_k];
        let mut scores = vec![f32::NAN; rows * padded_k];
        let mut delta = vec![f32::NAN; rows];

        let mut memory = GlobalMemory::new();
        listing.lengths = lengths(&mut memory, side_q, side_k);
        let [q, k, v, d_o] = inputs;
        let [o, d_q, d_k, d_v] = &mut tensors;
        let view_q = |base| self.view(base, side_q, heads_q);
        let view_k = |base| self.view(base, side_k, heads_k);
        let p = StandardParams {
            q: view_q(memory.input("q", q)),
            k: view_k(memory.input("k", k)),
            v: view_k(memory.input("v", v)),
            o: view_q(memory.output("o", o)),
            d_o: view_q(memory.input("d_o", d_o)),
            d_q: view_q(memory.output("d_q", d_q)),
            d_k: view_k(memory.output("d_k", d_k)),
            d_v: view_k(memory.output("d_v", d_v)),
            lse: memory.output("lse", &mut lse),
            d_lse: memory.input("d_lse", d_lse),
            scores: memory.output("scores", &mut scores),
            weights: memory.output("weights", &mut weights),
            delta: memory.output("delta", &mut delta),
            padded_k: padded_k as u64,
            shape: listing.shape,
            window: listing.window,
            scale: SCALE,
            lengths: listing.lengths,
            ..Default::default()
        };
        let mut spec = self.spec;
        if listed {
            spec = spec.with(Constant::Lengths);
            listing.list.tiles = memory.scratch("tiles", workspace.tiles.slice());
            listing.list.q_blocks = memory.scratch("q_blocks", workspace.q_blocks.slice());
            listing.scratch = memory.scratch("scratch", workspace.scratch.slice());
            let forward = TileListParams {
                o: p.o,
                lse: p.lse,
                ..listing
            };
            let backward = TileListParams {
                d_q: p.d_q,
                d_k: p.d_k,
                d_v: p.d_v,
                block_q: 1,
                ..listing
            };
            for params in [forward, backward] {
                launch_list(&mut memory, false, spec, &params);
            }
        }
        for &kind in kinds {
            let variant = self.variant(kind);
            let grid = self.grid(variant, &p.shape);
            launch(&mut memory, variant, grid, spec, &Params::Standard(p));
        }
        for name in ["o", "lse", "d_q", "d_k", "d_v", "weights"] {
            let written = memory.first_unwritten(name).is_none();
            assert!(
                written || kinds.len() == 3 && name.starts_with("d_"),
                "{name}"
            );
        }
        drop(memory);
        Results {
            tensors,
            lse,
            weights,
        }
    }
}

fn check(standard: &Standard, kinds: &[Kind], seed: u64, packed: (bool, bool)) {
    let heads = standard.heads;
    let f16 = standard.dtype == Dtype::F16;
    let mut problem = Problem::new(f16, standard.head_dim, seed, packed);
    let [q, d_o] = [(); 2].map(|()| problem.tensor(true, heads.0));
    let [k, v] = [(); 2].map(|()| problem.tensor(false, heads.1));
    let batch = problem.lens.len();
    let mut d_lse = vec![f32::NAN; problem.n_lse(heads.0)];
    for s in 0..batch {
        for head in 0..heads.0 as usize {
            for (i, row) in problem.lse_rows(heads.0, head, s).enumerate() {
                d_lse[row] = (i % 7) as f32 / 4.0 - 0.5;
            }
        }
    }
    let sides = (&problem.q, &problem.k);
    let inputs: [&[u16]; 4] = [&q, &k, &v, &d_o];
    let given = standard.run(kinds, batch as u32, (inputs, &d_lse), sides, true);

    let mut expected: [Vec<u16>; 4] = std::array::from_fn(|i| vec![0u16; given.tensors[i].len()]);
    let mut lse = vec![f32::NEG_INFINITY; given.lse.len()];
    let mut weights = vec![0u16; given.weights.len()];
    let width = (problem.k.max as usize).next_multiple_of(8);
    for s in (0..batch).filter(|s| problem.lens[*s].0 > 0 && problem.lens[*s].1 > 0) {
        let own_q = [&q, &d_o].map(|x| problem.cut(&problem.q, heads.0, x, s));
        let own_k = [&k, &v].map(|x| problem.cut(&problem.k, heads.1, x, s));
        let own_rows = |head| problem.lse_rows(heads.0, head, s);
        let all_heads = 0..heads.0 as usize;
        let own_d_lse: Vec<f32> = (all_heads.clone())
            .flat_map(|head| d_lse[own_rows(head)].to_vec())
            .collect();
        let inputs: [&[u16]; 4] = [&own_q[0], &own_k[0], &own_k[1], &own_q[1]];
        let (side_q, side_k) = problem.alone(s);
        let own = standard.run(kinds, 1, (inputs, &own_d_lse), (&side_q, &side_k), false);
        let [len_q, len_k] = [side_q.max, side_k.max].map(|len| len as usize);
        for (i, x) in own.tensors.iter().enumerate() {
            let (side, heads) = if i < 2 {
                (&problem.q, heads.0)
            } else {
                (&problem.k, heads.1)
            };
            problem.paste(side, heads, x, &mut expected[i], s);
        }
        for head in all_heads {
            lse[own_rows(head)].copy_from_slice(&own.lse[head * len_q..][..len_q]);
            for row in 0..len_q {
                let own_width = len_k.next_multiple_of(8);
                let from = &own.weights[(head * len_q + row) * own_width..][..own_width];
                let head = s * heads.0 as usize + head;
                let to = (head * problem.q.max as usize + row) * width;
                weights[to..to + own_width].copy_from_slice(from);
            }
        }
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&given.lse), bits(&lse), "lse");
    assert!(given.weights == weights, "weights");
    let names = ["o", "d_q", "d_k", "d_v"];
    for (i, name) in names
        .into_iter()
        .enumerate()
        .take(if kinds.len() == 3 { 1 } else { 4 })
    {
        assert!(given.tensors[i] == expected[i], "{name}");
    }
}

#[test]
fn packed_sequences_of_standard_are_as_each_alone() {
    let case = |dtype, head_dim, window, spec| Standard {
        dtype,
        head_dim,
        window,
        spec,
        heads: (4, 2),
    };
    let plain = case(Dtype::Bf16, 40, (OPEN, OPEN), Spec::PLAIN);
    check(&plain, FORWARD, 1, (true, true));
    check(&plain, BOTH, 2, (false, true));
    let causal = case(Dtype::F16, 64, (OPEN, 0), CAUSAL);
    check(&causal, BOTH, 3, (true, false));
    let window = case(Dtype::Bf16, 8, (30, 9), WINDOW);
    check(&window, BOTH, 4, (true, true));
    check(&window, FORWARD, 5, (false, false));
}
