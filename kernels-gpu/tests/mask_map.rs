//! The kernel that maps masks, on the emulator: what it says of a block is so at each pair, and it says as much as the host's bounds do.
#![cfg(feature = "emulator")]

use ferroflash_kernels::attention::mask::{Band, Bounds as Sides};
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::entry;
use ferroflash_kernels::expression::random::{Kind, Random, Sample, random};
use ferroflash_kernels::expression::{
    At, Binary, Bounds, Cond, Contiguous, ElementType, Elements, Evaluator, Expression, Index,
    MaskOver, Node, ParamValue, Place, Ranges, TooLong, Type, Unary, mask_program,
};
use ferroflash_kernels::params::{
    BlockMap, FULL_BLOCK, HIDDEN_BLOCK, MaskMapParams, MaskMapPhase, PARTIAL_BLOCK, Params,
    ScoreParams, ScoreTensor, Shape, Window,
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
struct Call {
    mask: Expression,
    params: Vec<ParamValue>,
    tensors: Vec<Contiguous>,
    seqlen_q: u32,
    seqlen_k: u32,
    causal: bool,
}

/// The map of a call.
struct Map {
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

    /// Runs the kernel.
    fn map(&self, seed: u64) -> Result<Map, TooLong> {
        let program = mask_program(&self.mask, self.mask.params(), self.mask.tensors())?;
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
        let warps =
            of_side(program.row_bounds, q_blocks) + of_side(program.column_bounds, k_blocks);
        let phases = [
            (MaskMapPhase::Bounds, warps * 32),
            (MaskMapPhase::Map, n_bytes as u32),
        ];
        for (phase, threads) in phases {
            self.launch(params, phase, threads, seed, &mut memory);
        }
        drop(memory);
        let bytes = map.iter().flat_map(|word| word.to_le_bytes());
        Ok(Map {
            bytes: bytes.take(n_bytes).collect(),
            maps,
        })
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
        // More blocks than there is work for.
        let grid = threads.div_ceil(variant.footprint.threads) + 1;
        let launch = Launch {
            grid,
            threads: variant.footprint.threads,
            shared_bytes: variant.footprint.shared_bytes,
            resident_blocks: 4,
            blocks_per_sm: variant.footprint.blocks_per_sm,
            spec: match self.causal {
                true => Spec::PLAIN.with(Constant::RightBound),
                false => Spec::PLAIN,
            },
        };
        let params = Params::MaskMap(MaskMapParams {
            phase: phase as u32,
            ..params
        });
        let run = emu::run(&launch, &Options::seeded(seed), memory, &|| kernel(&params));
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
    fn check(&self, map: &Map, what: &str) -> [usize; 3] {
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

    fn place(&self, batch: u32, head: u32, query: i32, key: i32) -> Place {
        Place::default()
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
fn bits((tensor, of): (&Contiguous, &ferroflash_kernels::expression::Tensor)) -> Vec<u16> {
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
    use ferroflash_kernels::expression::Tensors;
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

#[test]
fn what_it_says_of_random_masks_is_so_at_each_pair() {
    let (mut n_mapped, mut n_known) = (0, 0);
    for seed in 0..160 {
        let mask = random(seed, 6 + seed as u32 % 40, Kind::Mask);
        let mask = match seed % 3 {
            0 => mask,
            _ => mask.simplified().unwrap(),
        };
        let mut random = Random(seed ^ 0xb10c);
        let sample = Sample::new(&mask, seed);
        let call = Call {
            seqlen_q: random.choose(&[130, 128, 257, 40]),
            seqlen_k: random.choose(&[129, 128, 200, 7]),
            causal: random.below(3) == 0,
            params: sample.params,
            tensors: sample.tensors,
            mask,
        };
        let Ok(map) = call.map(seed) else {
            continue;
        };
        n_mapped += 1;
        let [hidden, _, full] = call.check(&map, &format!("seed {seed}"));
        n_known += usize::from(hidden + full > 0);
    }
    // What nothing is known of is right, too.
    assert!(n_mapped > 140 && n_known > 50, "{n_mapped} {n_known}");
}

/// Masks that are used, of each of whose blocks all is known that can be.
#[test]
fn usual_masks_are_known_wherever_they_can_be() {
    let check = |name: &str, f: fn(At) -> Cond| {
        let mask = Expression::mask(f).unwrap();
        let params = mask.params().iter().map(|_| ParamValue::I32(150));
        let document = |at: i32| [at / 100, at / 100 + 1];
        let elements: Vec<i32> = (0..2)
            .flat_map(|b| (0..400).map(move |at| document(at)[b]))
            .collect();
        let tensors = mask.tensors().iter().map(|tensor| match tensor.rank {
            1 => Contiguous::new(&[400], Elements::I32(elements[..400].to_vec())),
            _ => Contiguous::new(&[2, 400], Elements::I32(elements.clone())),
        });
        for (seqlen_q, seqlen_k, causal) in [(400, 400, false), (300, 400, true), (257, 257, true)]
        {
            let call = Call {
                seqlen_q,
                seqlen_k,
                causal,
                params: params.clone().collect(),
                tensors: tensors.clone().map(Result::unwrap).collect(),
                mask: mask.clone(),
            };
            let map = call.map(1).unwrap();
            let [hidden, missed, full] = call.check(&map, name);
            assert_eq!(missed, 0, "{name} {hidden} {full}");
        }
    };
    check("causal", |at| at.k.le(at.q));
    check("causal, from the end", |at| {
        (at.q + at.seqlen_k - at.seqlen_q - at.k).ge(0)
    });
    check("window", |at| (at.q - at.k).lt(at.i32("window")));
    check("causal window", |at| {
        at.q.ge(at.k) & (at.q - at.k).lt(at.i32("window"))
    });
    check("prefix", |at| at.k.lt(at.i32("prefix")) | at.q.ge(at.k));
    check("blocks", |at| (at.q / 128).eq(at.k / 128));
    check("every fourth", |at| (at.k % 4).eq(0));
    check("distance", |at| (at.q - at.k).abs().le(70));
    check("numbers", |at| (at.q - at.k).to_f32().ge(0.0));
    check("documents", |at| {
        at.tensor_i32("documents", [at.q])
            .eq(at.tensor_i32("documents", [at.k]))
    });
    check("causal documents of entries", |at| {
        let document = |place| at.tensor_i32("documents", [at.batch, place]);
        document(at.q).eq(document(at.k)) & at.k.le(at.q)
    });
    check("heads", |at| {
        at.head.lt(2).select(at.q.ge(at.k), at.q.gt(at.k - 130))
    });
    check("last keys", |at| {
        at.k.ge(at.tensor_i32("documents", [at.batch, at.q]) * 100)
    });
    check("every other block of keys", |at| {
        ((at.k >> 7) & 1).eq(at.kv_head)
    });
    check("all", |at| at.constant(true));
    check("none", |at| at.constant(false));
}

#[test]
fn long_masks_make_no_program() {
    let program = |mask: &Expression| mask_program(mask, mask.params(), mask.tensors());
    let long = Expression::mask(|at| {
        let hides = |n: i32| (at.q * at.k).ne(n);
        (1..40).fold(hides(0), |all, n| all & hides(n))
    });
    let TooLong::Instructions { given, most } = program(&long.unwrap()).unwrap_err() else {
        panic!("it has too many instructions");
    };
    assert!(given > most && most == 64);
    let of_rows = Expression::mask(|at| {
        let hides = |n: i32| ((at.q % (n + 2)) + at.k).ne(n);
        (1..9).fold(hides(0), |all, n| all & hides(n))
    });
    let given = program(&of_rows.unwrap()).unwrap_err();
    assert_eq!(given, TooLong::Bounds { given: 9, most: 8 });
}
