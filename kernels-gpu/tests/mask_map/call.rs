//! A call that a mask is mapped for, and what its map has to be.

use ferroflash_expression::ptx::Edit;
use ferroflash_expression::{
    Binary, Bounds, Contiguous, ElementType, Elements, Evaluator, Expression, Index, Kept,
    MaskOver, MaskProgram, Node, ParamValue, Ranges, ScoreIndices, ScoreTensor, TooLong, Type,
    Unary, mask_mapping, mask_program,
};
use ferroflash_kernels::attention::mask::{Band, Bounds as Sides};
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::params::{
    BlockMap, FULL_BLOCK, HIDDEN_BLOCK, MAP_THREADS, MaskMapParams, MaskMapPhase, PARTIAL_BLOCK,
    Params, ScoreParams, Shape, Window,
};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants;
use half::{bf16, f16};

const BATCH: u32 = 2;
const HEADS_Q: u32 = 4;
const HEADS_K: u32 = 2;
/// Queries, and keys, of a block.
const BLOCK: u32 = 128;

/// A mask with what a call gives.
pub struct Call {
    pub mask: Expression,
    pub params: Vec<ParamValue>,
    pub tensors: Vec<Contiguous>,
    pub seqlen_q: u32,
    pub seqlen_k: u32,
    pub causal: bool,
}

/// The map of a call.
pub struct Map {
    bytes: Vec<u8>,
    maps: Vec<(u32, u32)>,
}

impl Call {
    /// The batch entries and heads that have a map of their own.
    fn maps(&self) -> Vec<(u32, u32)> {
        let on = |index| self.mask.depends_on(index);
        let batch = if on(Index::Batch) { BATCH } else { 1 };
        let heads = match on(Index::Head) || on(Index::KvHead) {
            true => HEADS_Q,
            false => 1,
        };
        let of_entry = |entry| (0..heads).map(move |head| (entry, head));
        (0..batch).flat_map(of_entry).collect()
    }

    fn blocks(&self) -> (u32, u32) {
        (self.seqlen_q.div_ceil(BLOCK), self.seqlen_k.div_ceil(BLOCK))
    }

    fn window(&self) -> Window {
        Window::new(self.seqlen_q, self.seqlen_k, 0, 0)
    }

    fn band(&self) -> Band {
        let sides = Sides {
            left: false,
            right: self.causal,
            prefix: false,
        };
        Band::new(self.seqlen_q, self.seqlen_k, self.window(), sides)
    }

    /// Runs the kernel, which looks at intervals alone.
    pub fn map(&self, seed: u64) -> Result<Map, TooLong> {
        let program = mask_program(&self.mask, self.mask.params(), self.mask.tensors())?;
        Ok(self.mapped(program, false, seed))
    }

    /// Runs the kernel, which looks at the pairs that intervals leave open.
    pub fn map_at_pairs(&self, seed: u64) -> Map {
        let mapping = mask_mapping(&self.mask, self.mask.params(), self.mask.tensors());
        self.mapped(mapping.program, true, seed)
    }

    fn mapped(&self, program: MaskProgram, at_pairs: bool, seed: u64) -> Map {
        let (maps, (q_blocks, k_blocks)) = (self.maps(), self.blocks());
        let n_maps = maps.len() as u32;
        let n_bytes = (n_maps * q_blocks * k_blocks) as usize;
        let n_bounds = n_maps * (q_blocks * program.row_bounds + k_blocks * program.column_bounds);
        let mut map = vec![0u32; n_bytes.div_ceil(4)];
        let mut bounds = vec![[0u32; 4]; n_bounds as usize + 1].concat();
        let aligned = bounds.as_ptr().align_offset(16);
        let memory_of: Vec<Vec<u16>> = self
            .tensors
            .iter()
            .zip(self.mask.tensors())
            .map(bits)
            .collect();
        let mut memory = GlobalMemory::new();
        let mut score = ScoreParams::default();
        for (place, value) in score.values.iter_mut().zip(&self.params) {
            *place = match *value {
                ParamValue::F32(x) => x.to_bits(),
                ParamValue::I32(x) => x as u32,
            };
        }
        for (at, (tensor, data)) in self.tensors.iter().zip(&memory_of).enumerate() {
            let name = ["tensor 0", "tensor 1", "tensor 2", "tensor 3"][at];
            score.tensors[at] = described(tensor, memory.input(name, data));
        }
        let row_bounds = memory.scratch("bounds", &mut bounds[aligned..]);
        let params = MaskMapParams {
            program,
            row_bounds,
            column_bounds: row_bounds + u64::from(n_maps * q_blocks * program.row_bounds) * 16,
            map: BlockMap {
                map: memory.scratch("map", &mut map),
                q_blocks,
                k_blocks,
                block_q: BLOCK,
                block_k: BLOCK,
                ..BlockMap::default()
            },
            shape: self.shape(),
            window: self.window(),
            maps_per_batch: if self.mask_is_of_heads() { HEADS_Q } else { 1 },
            n_maps,
            phase: 0,
            score,
            padding: [0; 2],
        };
        let of_side = |n_bounds: u32, blocks: u32| if n_bounds > 0 { n_maps * blocks } else { 0 };
        let sides =
            of_side(program.row_bounds, q_blocks) + of_side(program.column_bounds, k_blocks);
        let phases = [
            (MaskMapPhase::Bounds, sides * BLOCK),
            (MaskMapPhase::Map, n_bytes as u32),
            (MaskMapPhase::Pairs, n_bytes as u32 * MAP_THREADS),
        ];
        for (phase, threads) in phases {
            let is_needed = match phase {
                MaskMapPhase::Bounds => true,
                MaskMapPhase::Map => program.end > 0,
                MaskMapPhase::Pairs => at_pairs,
            };
            if is_needed {
                self.launch(params, phase, threads, seed, &mut memory);
            }
        }
        drop(memory);
        let bytes = map.iter().flat_map(|word| word.to_le_bytes());
        Map {
            bytes: bytes.take(n_bytes).collect(),
            maps,
        }
    }

    fn launch(
        &self,
        params: MaskMapParams,
        phase: MaskMapPhase,
        threads: u32,
        seed: u64,
        memory: &mut GlobalMemory<'_>,
    ) {
        let variant = variants::by_name("mask_map_sm80").unwrap();
        let kernel = entry::emulated(variant.name).unwrap();
        let at_pairs = phase == MaskMapPhase::Pairs;
        // More blocks than there is work for.
        let grid = threads.div_ceil(variant.tile_config.threads) + 1;
        let spec = match self.causal {
            true => Spec::PLAIN.with(Constant::RightBound),
            false => Spec::PLAIN,
        };
        let launch = Launch {
            grid,
            threads: variant.tile_config.threads,
            shared_bytes: variant.tile_config.shared_bytes,
            resident_blocks: 4,
            blocks_per_sm: variant.tile_config.blocks_per_sm,
            cluster: 1,
            spec: match at_pairs {
                true => spec.with(Constant::Score),
                false => spec,
            },
        };
        let params = Params::MaskMap(MaskMapParams {
            phase: phase as u32,
            ..params
        });
        let options = Options::seeded(seed);
        let kernel = || kernel(&params);
        let edit = || {
            Kept::new(Edit {
                mask: Some(self.mask.clone()),
                ..Edit::default()
            })
        };
        let run = match at_pairs {
            true => emu::run_edited(&launch, edit(), &options, memory, &kernel),
            false => emu::run(&launch, &options, memory, &kernel),
        };
        run.unwrap_or_else(|found| panic!("{}: {found}", self.mask));
    }

    fn mask_is_of_heads(&self) -> bool {
        self.mask.depends_on(Index::Head) || self.mask.depends_on(Index::KvHead)
    }

    fn shape(&self) -> Shape {
        Shape {
            batch: BATCH,
            heads_q: HEADS_Q,
            heads_k: HEADS_K,
            group_size: HEADS_Q / HEADS_K,
            seqlen_q: self.seqlen_q,
            seqlen_k: self.seqlen_k,
            head_dim: 64,
            head_dim_v: 64,
        }
    }

    /// The first and last query, and key, of a block.
    fn places(&self, q_block: u32, k_block: u32) -> [(i32, i32); 2] {
        let rows = |block: u32, seqlen: u32| {
            let end = ((block + 1) * BLOCK).min(seqlen);
            ((block * BLOCK) as i32, end as i32 - 1)
        };
        [rows(q_block, self.seqlen_q), rows(k_block, self.seqlen_k)]
    }

    /// What the host's bounds say of a block, of the tensors of which they know nothing.
    fn by_host(&self, (batch, head): (u32, u32), [q, k]: [(i32, i32); 2]) -> MaskOver {
        let params: Vec<Bounds> = self.params.iter().map(|&value| value.into()).collect();
        let point = |x: u32| (x as i32, x as i32);
        let ranges = [
            (Index::Batch, point(batch)),
            (Index::Head, point(head)),
            (Index::KvHead, point(head / (HEADS_Q / HEADS_K))),
            (Index::Query, q),
            (Index::Key, k),
            (Index::SeqlenQ, point(self.seqlen_q)),
            (Index::SeqlenK, point(self.seqlen_k)),
        ];
        let all = Ranges::all().with_params(&params);
        let ranges = ranges.into_iter();
        let ranges = ranges.fold(all, |all, (index, (lo, hi))| all.with_index(index, lo, hi));
        self.mask.mask_over(&ranges)
    }

    /// Whether the host bounds what the kernel does not.
    fn is_beyond_the_kernel(&self) -> bool {
        let types = self.mask.types();
        self.mask.nodes().iter().any(|node| match *node {
            Node::Unary(op, _) => matches!(
                op,
                Unary::Exp2(_) | Unary::Ln(_) | Unary::Tanh(_) | Unary::Sigmoid(_) | Unary::Sqrt(_)
            ),
            Node::Binary(Binary::Div, a, _) => types[a as usize] == Type::F32,
            Node::Read(..) => true,
            _ => false,
        })
    }

    /// Looks at each pair of each block; gives how many blocks are hidden, partial though all of their pairs are alike, and full.
    pub fn check(&self, map: &Map, what: &str) -> [usize; 3] {
        let (q_blocks, k_blocks) = self.blocks();
        let mut evaluator = Evaluator::<f32>::new(&self.mask, &self.params, &self.tensors).unwrap();
        let band = self.band();
        let mut counts = [0; 3];
        let mut bytes = map.bytes.iter();
        for &(batch, head) in &map.maps {
            for (q_block, k_block) in (0..q_blocks).flat_map(|q| (0..k_blocks).map(move |k| (q, k)))
            {
                let byte = *bytes.next().unwrap();
                let places = self.places(q_block, k_block);
                let [q, k] = places;
                let (mut all, mut any, mut all_of_band) = (true, false, true);
                for query in q.0..=q.1 {
                    for key in k.0..=k.1 {
                        let keeps = evaluator.mask(&self.place(batch, head, query, key));
                        all &= keeps;
                        any |= keeps;
                        all_of_band &= band.keep(query as u32, key as u32);
                    }
                }
                let at = || {
                    format!(
                        "{what}: {}: {q_block} {k_block} of {batch} {head}",
                        self.mask
                    )
                };
                match byte {
                    HIDDEN_BLOCK => assert!(!any, "hidden: {}", at()),
                    FULL_BLOCK => assert!(all && all_of_band, "full: {}", at()),
                    PARTIAL_BLOCK => {}
                    byte => panic!("{byte}: {}", at()),
                }
                let by_host = self.by_host((batch, head), places);
                if !self.is_beyond_the_kernel() {
                    assert!(
                        byte == HIDDEN_BLOCK || by_host != MaskOver::AllFalse,
                        "{}",
                        at()
                    );
                    let is_full = byte == FULL_BLOCK || !all_of_band;
                    assert!(is_full || by_host != MaskOver::AllTrue, "{}", at());
                }
                match byte {
                    HIDDEN_BLOCK => counts[0] += 1,
                    FULL_BLOCK => counts[2] += 1,
                    _ if !any || all && all_of_band => counts[1] += 1,
                    _ => {}
                }
            }
        }
        counts
    }

    fn place(&self, batch: u32, head: u32, query: i32, key: i32) -> ScoreIndices {
        ScoreIndices::default()
            .with(Index::Batch, batch as i32)
            .with(Index::Head, head as i32)
            .with(Index::KvHead, (head / (HEADS_Q / HEADS_K)) as i32)
            .with(Index::Query, query)
            .with(Index::Key, key)
            .with(Index::SeqlenQ, self.seqlen_q as i32)
            .with(Index::SeqlenK, self.seqlen_k as i32)
    }
}

/// The elements of a tensor as memory has them.
fn bits((tensor, of): (&Contiguous, &ferroflash_expression::Tensor)) -> Vec<u16> {
    let words = |bits: u32| [bits as u16, (bits >> 16) as u16];
    match (tensor.elements(), of.element) {
        (Elements::I32(all), _) => all.iter().flat_map(|&x| words(x as u32)).collect(),
        (Elements::F32(all), ElementType::F16) => {
            all.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
        }
        (Elements::F32(all), ElementType::Bf16) => {
            all.iter().map(|&x| bf16::from_f32(x).to_bits()).collect()
        }
        (Elements::F32(all), _) => all.iter().flat_map(|&x| words(x.to_bits())).collect(),
    }
}

/// A tensor as the kernel is given it.
fn described(tensor: &Contiguous, base: u64) -> ScoreTensor {
    use ferroflash_expression::Tensors;
    let shape = vec![tensor.clone()].shape(0);
    let mut stride = [1i64; 4];
    for dim in (0..3).rev() {
        stride[dim] = stride[dim + 1] * shape[dim + 1] as i64;
    }
    ScoreTensor {
        base,
        len: shape.map(|len| len as u32),
        stride,
    }
}
