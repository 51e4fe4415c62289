//! One problem's memory, and the kernels run on it one by one: each sees what it reads as input, which it may not
//! write, and what it writes as output, which it must not read first.

use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{Params, StandardParams};
use ferroflash_kernels::variants::{Kind, VARIANTS, Variant};

use crate::case::{Case, GAP, Order, Random, Tensor};

/// The memory of one problem.
#[derive(Clone, Debug)]
pub struct Attention {
    pub case: Case,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub o: Tensor,
    pub d_o: Tensor,
    pub d_q: Tensor,
    pub d_k: Tensor,
    pub d_v: Tensor,
    pub lse: Vec<f32>,
    /// Gradient of lse; NaN in rows that see no key.
    pub d_lse: Option<Vec<f32>>,
    pub delta: Vec<f32>,
    pub scores: Vec<f32>,
    pub weights: Vec<u16>,
}

impl Attention {
    /// Random inputs, with a gradient of lse where the seed is odd; outputs hold NaN.
    pub fn new(case: Case, seed: u64) -> Self {
        let mut random = Random(seed);
        let of_q = |order| Tensor::new(&case, case.heads_q, case.seqlen_q, order);
        let of_k = |order| Tensor::new(&case, case.heads_k, case.seqlen_k, order);
        let scores = case.rows() * case.padded_k();
        Attention {
            case,
            q: of_q(Order::HeadsInRow).fill(&case, &mut random),
            k: of_k(Order::RowsInHead).fill(&case, &mut random),
            v: of_k(Order::HeadsInRow).fill(&case, &mut random),
            o: of_q(Order::RowsInHead),
            d_o: of_q(Order::RowsInHead).fill(&case, &mut random),
            d_lse: (seed % 2 == 1).then(|| d_lse(&case, &mut random)),
            d_q: of_q(Order::HeadsInRow),
            d_k: of_k(Order::HeadsInRow),
            d_v: of_k(Order::RowsInHead),
            lse: vec![f32::NAN; case.rows()],
            delta: vec![f32::NAN; case.rows()],
            scores: vec![f32::NAN; scores],
            weights: vec![GAP; scores],
        }
    }

    /// The parameters with strides, without addresses.
    fn params(&self) -> StandardParams {
        StandardParams {
            q: self.q.view,
            k: self.k.view,
            v: self.v.view,
            o: self.o.view,
            d_o: self.d_o.view,
            d_q: self.d_q.view,
            d_k: self.d_k.view,
            d_v: self.d_v.view,
            ..self.case.params()
        }
    }

    /// Runs one kernel, if it has anything to do, in the order that the seed gives; a fault fails the test.
    pub fn run(&mut self, kind: Kind, seed: u64) {
        let case = self.case;
        let variant = VARIANTS
            .iter()
            .find(|v| v.kind == kind && v.dtype == Some(case.dtype));
        let variant = variant.expect("the kernel is in the list");
        let mut p = self.params();
        let mut memory = GlobalMemory::new();
        match kind {
            Kind::StandardScores => {
                p.q.base = memory.input("q", &self.q.bits);
                p.k.base = memory.input("k", &self.k.bits);
                p.scores = memory.output("scores", &mut self.scores);
            }
            Kind::StandardSoftmax => {
                p.scores = memory.input("scores", &self.scores);
                p.weights = memory.output("weights", &mut self.weights);
                p.lse = memory.output("lse", &mut self.lse);
            }
            Kind::StandardOutput => {
                p.weights = memory.input("weights", &self.weights);
                p.v.base = memory.input("v", &self.v.bits);
                p.o.base = memory.output("o", &mut self.o.bits);
            }
            Kind::StandardDelta => {
                p.o.base = memory.input("o", &self.o.bits);
                p.d_o.base = memory.input("d_o", &self.d_o.bits);
                p.lse = memory.input("lse", &self.lse);
                if let Some(d_lse) = &self.d_lse {
                    p.d_lse = memory.input("d_lse", d_lse);
                }
                p.delta = memory.output("delta", &mut self.delta);
            }
            Kind::StandardDv => {
                p.weights = memory.input("weights", &self.weights);
                p.d_o.base = memory.input("d_o", &self.d_o.bits);
                p.d_v.base = memory.output("d_v", &mut self.d_v.bits);
            }
            Kind::StandardDWeights => {
                p.d_o.base = memory.input("d_o", &self.d_o.bits);
                p.v.base = memory.input("v", &self.v.bits);
                p.scores = memory.output("scores", &mut self.scores);
            }
            Kind::StandardDScores => {
                p.scores = memory.input("scores", &self.scores);
                p.delta = memory.input("delta", &self.delta);
                p.weights = memory.in_out("weights", &mut self.weights);
            }
            Kind::StandardDq => {
                p.weights = memory.input("weights", &self.weights);
                p.k.base = memory.input("k", &self.k.bits);
                p.d_q.base = memory.output("d_q", &mut self.d_q.bits);
            }
            Kind::StandardDk => {
                p.weights = memory.input("weights", &self.weights);
                p.q.base = memory.input("q", &self.q.bits);
                p.d_k.base = memory.output("d_k", &mut self.d_k.bits);
            }
            _ => panic!("{kind:?} is no kernel of standard attention"),
        }
        launch(&case, variant, &Params::Standard(p), &mut memory, seed);
        let whole = ["scores", "weights", "lse", "delta"];
        if grid(&case, variant) > 0 {
            for name in whole {
                assert_eq!(
                    memory.first_unwritten(name),
                    None,
                    "{kind:?} left {name} unwritten"
                );
            }
        }
    }
}

fn d_lse(case: &Case, random: &mut Random) -> Vec<f32> {
    let rows = (0..case.heads().len()).flat_map(|_| 0..case.seqlen_q as usize);
    rows.map(|i| {
        if case.sees_any(i) {
            (4.0 * random.draw()) as f32
        } else {
            f32::NAN
        }
    })
    .collect()
}

/// The number of blocks, as the host's plans have it.
fn grid(case: &Case, variant: &Variant) -> u32 {
    let tile_config = &variant.tile_config;
    let (heads_q, heads_k) = (case.batch * case.heads_q, case.batch * case.heads_k);
    let tiles_q = case.seqlen_q.div_ceil(tile_config.block_q);
    let tiles = |length: u32| length.div_ceil(tile_config.block_k);
    match variant.kind {
        Kind::StandardScores | Kind::StandardDWeights => tiles_q * tiles(case.seqlen_k) * heads_q,
        Kind::StandardOutput | Kind::StandardDq => tiles_q * tiles(case.head_dim) * heads_q,
        Kind::StandardDv | Kind::StandardDk => {
            tiles(case.seqlen_k) * tiles(case.head_dim) * heads_k
        }
        _ => tiles_q * heads_q,
    }
}

fn launch(
    case: &Case,
    variant: &Variant,
    params: &Params,
    memory: &mut GlobalMemory<'_>,
    seed: u64,
) {
    let launch = Launch {
        grid: grid(case, variant),
        threads: variant.tile_config.threads,
        shared_bytes: variant.tile_config.shared_bytes,
        resident_blocks: variant.tile_config.blocks_per_sm,
        blocks_per_sm: variant.tile_config.blocks_per_sm,
        cluster: 1,
        spec: case.spec().among(variant.capabilities()),
    };
    if launch.grid == 0 {
        return;
    }
    let kernel = entry::emulated(variant.name).expect("the kernel is in the list");
    if let Err(fault) = emu::run(&launch, &Options::seeded(seed), memory, &|| kernel(params)) {
        panic!("{} of {case:?}, seed {seed}: {fault}", variant.name);
    }
}
