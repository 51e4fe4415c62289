//! The kernel that lists what a block mask leaves: every rank and every list, beside a count block by block.

use ferroflash_expression::random::Random;
use ferroflash_kernels::attention::block_mask::{SparseBlock, is_listed};
use ferroflash_kernels::attention::mask::{Band, Blocks, Bounds as Sides, Rows};
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{
    BlockListParams, BlockListPhase, BlockLists, BlockMap, FULL_BLOCK, HIDDEN_BLOCK, PARTIAL_BLOCK,
    Params, Shape, Window,
};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants;

/// Rows and columns of a block of the map.
const OF_MAP: u32 = 128;
/// Rows of the kernel's blocks of queries and of keys.
const BLOCK: u32 = 64;
const N_MAPS: u32 = 2;
const SEQLEN_Q: u32 = 300;
/// What nobody has written.
const UNWRITTEN: u32 = 0xdead_beef;

/// Maps of so many columns, under a causal mask or none.
struct Case {
    columns: u32,
    causal: bool,
    states: Vec<u8>,
}

impl Case {
    fn new(columns: u32, causal: bool) -> Case {
        let mut random = Random(u64::from(columns * 2 + u32::from(causal)));
        let n = N_MAPS * Case::map_rows() * columns;
        let states = [HIDDEN_BLOCK, PARTIAL_BLOCK, FULL_BLOCK];
        Case {
            columns,
            causal,
            states: (0..n).map(|_| random.choose(&states)).collect(),
        }
    }

    fn map_rows() -> u32 {
        SEQLEN_Q.div_ceil(OF_MAP)
    }

    fn q_blocks() -> u32 {
        SEQLEN_Q.div_ceil(BLOCK)
    }

    /// The last block of keys is not whole.
    fn seqlen_k(&self) -> u32 {
        (self.columns * OF_MAP).saturating_sub(10)
    }

    fn tiles(&self) -> u32 {
        self.seqlen_k().div_ceil(BLOCK)
    }

    fn sides(&self) -> Sides {
        Sides {
            left: false,
            right: self.causal,
            prefix: false,
        }
    }

    fn window(&self) -> Window {
        Window::new(SEQLEN_Q, self.seqlen_k(), 0, 0)
    }

    fn band(&self, q_block: u32) -> Blocks {
        let band = Band::new(SEQLEN_Q, self.seqlen_k(), self.window(), self.sides());
        band.kv_blocks(Rows::of_sequence(q_block * BLOCK, BLOCK, SEQLEN_Q), BLOCK)
    }

    /// Whether a block is listed, and whether it is full.
    fn listed(&self, map: u32, q_block: u32, k_block: u32) -> Option<bool> {
        let (row, column) = (q_block * BLOCK / OF_MAP, k_block * BLOCK / OF_MAP);
        let at = (map * Case::map_rows() + row) * self.columns + column;
        let state = self.states[at as usize];
        is_listed(state, self.band(q_block), k_block).then_some(state == FULL_BLOCK)
    }

    /// How many blocks of keys before this one are listed.
    fn rank(&self, map: u32, q_block: u32, k_block: u32) -> u32 {
        let before = (0..k_block).filter(|&block| self.listed(map, q_block, block).is_some());
        before.count() as u32
    }

    /// Ranks and lists, as the kernel makes them.
    fn made(&self) -> (Vec<u32>, Vec<u32>) {
        let (q_blocks, tiles) = (Case::q_blocks(), self.tiles());
        let mut ranks = vec![UNWRITTEN; (N_MAPS * q_blocks * (self.columns + 1)) as usize];
        let unwritten = u64::from(UNWRITTEN) << 32 | u64::from(UNWRITTEN);
        let mut lists = vec![unwritten; (N_MAPS * tiles * (1 + q_blocks)).max(1) as usize];
        let mut memory = GlobalMemory::new();
        let params = BlockListParams {
            map: BlockMap {
                map: match self.states.is_empty() {
                    true => 0,
                    false => memory.input("map", &self.states),
                },
                q_blocks: Case::map_rows(),
                k_blocks: self.columns,
                block_q: OF_MAP,
                block_k: OF_MAP,
                ..BlockMap::default()
            },
            lists: BlockLists {
                lists: memory.scratch("lists", &mut lists),
                ranks: memory.scratch("ranks", &mut ranks),
                batch_stride: 0,
                head_stride: 1,
                tiles,
                entries: q_blocks,
                columns: self.columns,
                growing: self.causal.into(),
            },
            shape: Shape {
                batch: 1,
                heads_q: N_MAPS,
                heads_k: N_MAPS,
                group_size: 1,
                seqlen_q: SEQLEN_Q,
                seqlen_k: self.seqlen_k(),
                head_dim: 64,
                head_dim_v: 64,
            },
            window: self.window(),
            block_q: BLOCK,
            block_k: BLOCK,
            n_maps: N_MAPS,
            phase: 0,
        };
        for (phase, warps) in [
            (BlockListPhase::Ranks, N_MAPS * q_blocks),
            (BlockListPhase::Backward, N_MAPS * tiles),
        ] {
            self.launch(params, phase, warps, &mut memory);
        }
        drop(memory);
        let words = lists
            .iter()
            .flat_map(|pair| [*pair as u32, (pair >> 32) as u32]);
        (ranks, words.collect())
    }

    fn launch(
        &self,
        params: BlockListParams,
        phase: BlockListPhase,
        warps: u32,
        memory: &mut GlobalMemory<'_>,
    ) {
        let variant = variants::by_name("block_list_sm80").unwrap();
        let threads = variant.tile_config.threads;
        let launch = Launch {
            grid: warps.div_ceil(threads / 32),
            threads,
            shared_bytes: variant.tile_config.shared_bytes,
            resident_blocks: 4,
            blocks_per_sm: variant.tile_config.blocks_per_sm,
            cluster: 1,
            spec: match self.causal {
                true => Spec::PLAIN.with(Constant::RightBound),
                false => Spec::PLAIN,
            },
        };
        if launch.grid == 0 {
            return;
        }
        let kernel = entry::emulated(variant.name).unwrap();
        let params = Params::BlockList(BlockListParams {
            phase: phase as u32,
            ..params
        });
        let ran = emu::run(&launch, &Options::seeded(1), memory, &|| kernel(&params));
        ran.unwrap_or_else(|fault| panic!("{} columns: {fault}", self.columns));
    }

    fn check(&self) {
        let (ranks, lists) = self.made();
        let (q_blocks, tiles, columns) = (Case::q_blocks(), self.tiles(), self.columns);
        let per_column = OF_MAP / BLOCK;
        for map in 0..N_MAPS {
            for q_block in 0..q_blocks {
                for column in 0..=columns {
                    let at = (map * q_blocks + q_block) * (columns + 1) + column;
                    let expected = self.rank(map, q_block, (column * per_column).min(tiles));
                    let place = format!("{columns} columns, block {q_block}, column {column}");
                    assert_eq!(ranks[at as usize], expected, "{place}");
                }
            }
            for tile in 0..tiles {
                let list = (map * tiles + tile) * (1 + q_blocks);
                let words = |at: u32| [0, 1].map(|word| lists[((list + at) * 2 + word) as usize]);
                let expected = (0..q_blocks).filter_map(|block| {
                    Some(SparseBlock {
                        block,
                        is_full: self.listed(map, block, tile)?,
                        rank: self.rank(map, block, tile),
                    })
                });
                let found = (1..=words(0)[0]).map(|at| SparseBlock::from_words(words(at)));
                assert!(found.eq(expected), "{columns} columns, tile {tile}");
            }
        }
    }
}

/// A warp takes 32 columns at a time, and one entry more than there are columns says how many tiles there are in all.
#[test]
fn ranks_count_before_each_column_and_in_all() {
    for columns in [1, 31, 32, 33, 64, 0] {
        for causal in [false, true] {
            Case::new(columns, causal).check();
        }
    }
}
