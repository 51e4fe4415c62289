//! The bytes that flash1, flash2 and flash3 move: their tiles are those of the list of kernels.

use ferroflash::plan::{Thresholds, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Algorithm, Backend, Order, Pass, Problem};
use ferroflash_kernels::config::TileConfig;
use ferroflash_kernels::variants::{Dtype, Kind, TileShape, VARIANTS, Variant};

use super::sizes::{F32_BYTES, Sizes, Visits};
use super::tiles::Tiles;
use super::{Counts, Gpu, Launch, multiplies_8_bits};

/// The main kernel of a pass: that of the fewest columns that hold the problem's, in default tiles if a block may have their shared memory, else in
/// compact ones. If it may have neither, default tiles count, as on a GPU with enough memory. Of kernels that multiply 8 bits it is the planned one.
pub(super) fn kernel(
    algorithm: Algorithm,
    pass: Pass,
    problem: &Problem,
    gpu: &Gpu,
) -> Option<&'static Variant> {
    if multiplies_8_bits(problem, pass) {
        return kernel_of_8_bits(algorithm, problem, gpu);
    }
    let kind = match (algorithm, pass) {
        (Algorithm::Flash3, Pass::Backward) => Kind::TmaBackward,
        (Algorithm::Flash3, _) => Kind::TmaForward,
        (Algorithm::Flash1, Pass::Backward) => Kind::Flash1Backward,
        (Algorithm::Flash1, _) => Kind::Flash1Forward,
        (_, Pass::Backward) => Kind::Backward,
        _ => Kind::Forward,
    };
    let (head_dim, head_dim_v) = (problem.head_dim() as u32, problem.head_dim_v() as u32);
    let rows = |tiles: TileShape| {
        let rows = VARIANTS.iter().filter(move |row| {
            row.kind == kind
                && row.tiles == tiles
                && row.dtype == Some(problem.dtype().of_kernels())
                && row.holds_columns(head_dim, head_dim_v)
        });
        rows.min_by_key(|row| row.head_dims().most + row.head_dims_v().most)
    };
    let default = rows(TileShape::Default);
    let compact = match pass {
        Pass::Backward => rows(TileShape::Compact),
        _ => None,
    };
    let mut fitting = default.iter().chain(&compact);
    fitting.find(|row| fits(row, gpu)).copied().or(default)
}

/// The kernel by which a GPU multiplies q, k and v in 8 bits. Its tiles depend on lengths, mask and sums.
fn kernel_of_8_bits(
    algorithm: Algorithm,
    problem: &Problem,
    gpu: &Gpu,
) -> Option<&'static Variant> {
    let checked = without_tensors(problem, Pass::Forward, Location::Cuda(0)).ok()?;
    let plan = plan(
        &checked,
        &gpu.device_info()?,
        Backend::Cuda,
        Some(algorithm),
    );
    let mut launches = plan.ok()?.launches.into_iter();
    let main = launches.find(|launch| launch.variant.kind == Kind::TmaForward);
    // Without queries or keys nothing is launched.
    main.map(|launch| launch.variant).or_else(|| {
        VARIANTS.iter().find(|row| {
            row.kind == Kind::TmaForward
                && row.dtype == Some(Dtype::E4m3)
                && row.holds_columns(problem.head_dim() as u32, problem.head_dim_v() as u32)
        })
    })
}

/// Whether a block may have the kernel's shared memory.
pub(super) fn fits(variant: &Variant, gpu: &Gpu) -> bool {
    u64::from(variant.tile_config.shared_bytes) <= gpu.block_bytes()
}

/// Up to this many queries plans split the keys if tiles are few.
const FEW_QUERIES: u64 = 64;

/// A pass by its main kernel.
struct Flash<'a> {
    sizes: &'a Sizes,
    tile_config: &'a TileConfig,
    /// Columns of keys and of values that the kernel is compiled for.
    columns: u64,
    columns_v: u64,
    /// Semaphores of a block of queries.
    semaphores: u64,
    gpu: &'a Gpu,
}

/// The kernels of a pass, with the bytes of its workspace.
pub(super) fn counts(
    algorithm: Algorithm,
    pass: Pass,
    problem: &Problem,
    sizes: &Sizes,
    gpu: &Gpu,
    main: &'static Variant,
) -> Counts {
    let flash = Flash {
        sizes,
        tile_config: &main.tile_config,
        columns: main.head_dims().most.into(),
        columns_v: main.head_dims_v().most.into(),
        semaphores: blocks_of_tile(problem, main),
        gpu,
    };
    match pass {
        Pass::Backward => flash.backward(algorithm, problem.order()),
        _ if algorithm == Algorithm::Flash1 => flash.forward_of_flash1(),
        _ => flash.forward(algorithm),
    }
}

/// Blocks of a cluster that share a tile of the backward pass, where a plan takes such tiles. Each has semaphores of its own; the times are those of other tiles.
fn blocks_of_tile(problem: &Problem, main: &Variant) -> u64 {
    let paired = VARIANTS.iter().find(|row| {
        row.tiles == TileShape::Paired
            && (row.kind, row.dtype, row.head_dim) == (main.kind, main.dtype, main.head_dim)
    });
    let takes = problem.seqlen_q() as u64 >= Thresholds::MEASURED.paired_gradients;
    paired
        .filter(|_| takes)
        .map_or(1, |row| row.tile_config.cluster.into())
}

impl Flash<'_> {
    /// Blocks of threads that the GPU holds at a time.
    fn resident(&self) -> u64 {
        u64::from(self.gpu.n_sms) * u64::from(self.tile_config.blocks_per_sm)
    }

    /// Scores in all blocks that are visited, of all heads.
    fn scores(&self, visits: Visits) -> u64 {
        let block = u64::from(self.tile_config.block_q) * u64::from(self.tile_config.block_k);
        self.sizes.heads_q * visits.blocks * block
    }

    /// How often tensors that all tiles of a *set* read, `set_bytes` for each of `n_sets`, come from memory: once, if the L2 cache keeps those of
    /// the sets that are resident together, or its size is not known; else once for each wave of tiles of one set.
    fn readings(&self, tiles_of_set: u64, n_sets: u64, set_bytes: u64) -> u64 {
        let resident = self.resident();
        let together = resident.div_ceil(tiles_of_set.max(1)).min(n_sets);
        match self.gpu.l2_bytes {
            Some(l2_bytes) if together * set_bytes > l2_bytes => {
                tiles_of_set.div_ceil(resident).max(1)
            }
            _ => 1,
        }
    }

    /// Query tiles are resident; keys and values are streamed.
    fn forward(&self, algorithm: Algorithm) -> Counts {
        let sizes = self.sizes;
        let visits = sizes.of_query_tiles(self.tile_config.block_q, self.tile_config.block_k);
        let scores = self.scores(visits);
        let own = sizes.q() + sizes.o() + sizes.row_values();
        // Query heads of a group have the same keys.
        let keys = sizes.k() + sizes.v();
        let set_bytes = keys / sizes.heads_k.max(1);
        let readings = self.readings(visits.tiles * sizes.group, sizes.heads_k, set_bytes);
        let key_bytes = (sizes.head_dim + sizes.head_dim_v) * sizes.input;
        let own_row_bytes = sizes.head_dim * sizes.input + sizes.head_dim_v * sizes.element;
        Counts {
            launches: vec![Launch {
                name: "forward",
                flops: 2 * scores * (self.columns + self.columns_v) * sizes.products,
                exponentials: scores,
                hbm_bytes: own + readings * keys,
                l2_bytes: own + sizes.heads_q * visits.rows * key_bytes,
            }],
            tiles: Some(Tiles {
                // Not those of 8 bits.
                splits: sizes.seqlen_q <= FEW_QUERIES && sizes.input == sizes.element,
                ..Tiles::new(
                    sizes.heads_q,
                    visits,
                    u64::from(self.tile_config.block_q) * own_row_bytes,
                    self.tile_config.blocks_per_sm,
                )
            }),
            // flash3's tile counter.
            extra_bytes: if algorithm == Algorithm::Flash3 { 4 } else { 0 },
        }
    }

    /// flash1's forward pass (FlashAttention, Dao et al. 2022, Algorithm 1), whose outer loop is over blocks of keys.
    /// Every query head reads its keys and values once, and for each block of them q; it reads and writes O, l and m again.
    fn forward_of_flash1(&self) -> Counts {
        let sizes = self.sizes;
        let block_q = u64::from(self.tile_config.block_q);
        let visits = sizes.of_key_tiles(self.tile_config.block_q, self.tile_config.block_k);
        let scores = self.scores(visits);
        // O, in f32 and in the kernel's columns, l and m; of whole blocks of queries.
        let kept_of_row = self.columns * F32_BYTES + 2 * F32_BYTES;
        let kept = sizes.heads_q * sizes.seqlen_q.next_multiple_of(block_q) * kept_of_row;
        let q = visits.rows * sizes.head_dim * sizes.element;
        let streamed = sizes.heads_q * (q + visits.blocks * block_q * 2 * kept_of_row);
        let keys = sizes.group * (sizes.k() + sizes.v());
        let results = sizes.o() + sizes.row_values();
        // Written before the first block, zeros and −∞, and read after the last one.
        let bytes = keys + streamed + 2 * kept + results;
        Counts {
            launches: vec![Launch {
                name: "forward",
                flops: 2 * scores * (self.columns + self.columns_v) * sizes.products,
                exponentials: scores,
                hbm_bytes: bytes,
                l2_bytes: bytes,
            }],
            tiles: Some(Tiles::of_heads(
                sizes.heads_q,
                visits.blocks,
                u64::from(self.tile_config.block_k)
                    * (sizes.head_dim + sizes.head_dim_v)
                    * sizes.element,
                self.tile_config.blocks_per_sm,
            )),
            extra_bytes: kept,
        }
    }

    /// Key tiles are resident; q, dO, lse and Δ are streamed, and dQ is added to its accumulator. In flash1 one block of threads has all tiles of a
    /// KV head, and it streams from memory each time: dQ is read and written.
    fn backward(&self, algorithm: Algorithm, order: Order) -> Counts {
        let sizes = self.sizes;
        let block_q = u64::from(self.tile_config.block_q);
        let visits = sizes.of_key_tiles(self.tile_config.block_q, self.tile_config.block_k);
        let scores = self.scores(visits);
        let q_blocks = sizes.heads_q * sizes.seqlen_q.div_ceil(block_q);
        let padded_rows = q_blocks * block_q;
        let statistics = 2 * padded_rows * F32_BYTES;
        let accumulator = padded_rows * self.columns * F32_BYTES;
        let semaphores = q_blocks * self.semaphores * 4;

        // Reads o, dO and lse; in the fastest order, and in flash1, the accumulator is cleared, in the other the first tile writes it.
        let is_flash1 = algorithm == Algorithm::Flash1;
        let cleared = if is_flash1 || order == Order::Fastest {
            accumulator
        } else {
            0
        };
        let delta = 2 * sizes.o() + sizes.row_values() + statistics + semaphores + cleared;
        let keys = sizes.k() + sizes.v();
        let streamed = sizes.q() + sizes.o() + statistics;
        let set_bytes = (streamed + accumulator) / sizes.heads_q.max(1);
        let readings = self.readings(visits.tiles, sizes.heads_q, set_bytes);
        let row_bytes = (sizes.head_dim + sizes.head_dim_v) * sizes.element + 2 * F32_BYTES;
        let sums = sizes.heads_q * visits.blocks * block_q * self.columns * F32_BYTES;
        let of_visits = 2 * keys + sizes.heads_q * visits.rows * row_bytes;
        let main = Launch {
            name: "backward",
            flops: 2 * scores * (3 * self.columns + 2 * self.columns_v) * sizes.products,
            exponentials: scores,
            // Of each reading but the first, the accumulator is read and written; in the first it is written.
            hbm_bytes: match is_flash1 {
                true => of_visits + 2 * sums,
                false => 2 * keys + readings * streamed + (2 * readings - 1) * accumulator,
            },
            l2_bytes: of_visits + if is_flash1 { 2 * sums } else { sums },
        };
        let d_q = accumulator + sizes.q();
        let launches = match algorithm {
            // It converts dQ in its main kernel.
            Algorithm::Flash3 => vec![
                Launch::of_rows("delta", delta),
                Launch {
                    hbm_bytes: main.hbm_bytes + d_q,
                    l2_bytes: main.l2_bytes + d_q,
                    ..main
                },
            ],
            _ => vec![
                Launch::of_rows("delta", delta),
                main,
                Launch::of_rows("d_q", d_q),
            ],
        };
        // k and v, dK and dV.
        let own_bytes = 2
            * u64::from(self.tile_config.block_k)
            * (sizes.head_dim + sizes.head_dim_v)
            * sizes.element;
        let blocks_per_sm = self.tile_config.blocks_per_sm;
        Counts {
            launches,
            tiles: Some(match is_flash1 {
                true => Tiles::of_heads(
                    sizes.heads_k,
                    sizes.group * visits.blocks,
                    own_bytes,
                    blocks_per_sm,
                ),
                false => Tiles::new(sizes.heads_q, visits, own_bytes, blocks_per_sm),
            }),
            // Two tile counters of 4 bytes.
            extra_bytes: statistics + accumulator + semaphores + 8,
        }
    }
}
