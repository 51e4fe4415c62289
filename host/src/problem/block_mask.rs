//! Block masks: a byte for every block of queries and keys.

use std::fmt;

use ferroflash_kernels::params::BLOCK_MULTIPLE;

use super::Problem;

/// Block-sparse attention: in addition to the mask, a map has a byte for each block of `block_q` queries and `block_k` keys.
///
/// | byte | the block is | its pairs |
/// |---|---|---|
/// | 0 | hidden | none is visible; kernels skip the block |
/// | 1 | partial | the problem's [`Mask`](super::Mask) decides for each |
/// | any other | full | all are visible, also those that the mask hides |
///
/// Block `(i, j)` has the queries from `i · block_q` on and the keys from `j · block_k` on; the last ones end with the sequence. Both
/// sizes are multiples of 128. All batch entries and heads share one map unless [`BlockMask::per_batch`] or [`BlockMask::per_head`]
/// says otherwise; the map is `u8`, contiguous, of [`Problem::block_mask_shape`]. Rows that see no key give o = 0, lse = −∞ and
/// gradients of 0.
///
/// Partial and full blocks are FlexAttention's (Dong et al. 2024, arXiv:2412.05496, section 3); attention that skips blocks is
/// block-sparse FlashAttention (Dao et al. 2022, arXiv:2205.14135, section 3.3).
///
/// ```
/// use ferroflash::{
///     Attention, BlockMask, Device, Dtype, Inputs, Mask, Outputs, Problem, Tensor, TensorMut,
/// };
///
/// // 256 queries and keys, causal; the first 128 keys are seen by all queries of the second block, and by no other.
/// let problem = Problem::builder(Dtype::F32)
///     .seqlen(256)
///     .heads(1)
///     .head_dim(1)
///     .mask(Mask::Causal)
///     .block_mask(BlockMask::new(128, 128))
///     .build()?;
/// assert_eq!(problem.block_mask_shape(), Some([1, 1, 2, 2]));
/// let map = [
///     0u8, 0, // nothing
///     2, 1, // all of the first keys; of its own block those up to itself
/// ];
///
/// let (q, v) = (vec![0f32; 256], vec![1f32; 256]);
/// let (mut o, mut lse) = (vec![0f32; 256], vec![0f32; 256]);
/// let shape = problem.shape_q();
/// let inputs = Inputs::new(&Tensor::bshd(&q, shape)?, &Tensor::bshd(&q, shape)?, &Tensor::bshd(&v, shape)?)
///     .block_mask(&map);
/// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape)?, &mut lse);
/// Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut outputs)?;
///
/// // All scores are 0: lse is the logarithm of how many keys a row sees.
/// assert_eq!((o[127], lse[127]), (0.0, f32::NEG_INFINITY));
/// assert!((lse[128] - 129f32.ln()).abs() < 1e-6 && (lse[255] - 256f32.ln()).abs() < 1e-6);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockMask {
    block_q: usize,
    block_k: usize,
    maps: Maps,
}

/// Whether each batch entry and each query head has its own map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Maps {
    per_batch: bool,
    per_head: bool,
}

impl BlockMask {
    /// Blocks of these sizes, with one map for all batch entries and heads.
    pub fn new(block_q: usize, block_k: usize) -> BlockMask {
        BlockMask {
            block_q,
            block_k,
            maps: Maps::default(),
        }
    }

    /// The same with a map for each batch entry.
    #[must_use]
    pub fn per_batch(mut self) -> BlockMask {
        self.maps.per_batch = true;
        self
    }

    /// The same with a map for each query head.
    #[must_use]
    pub fn per_head(mut self) -> BlockMask {
        self.maps.per_head = true;
        self
    }

    /// Queries of a block.
    pub fn block_q(self) -> usize {
        self.block_q
    }

    /// Keys of a block.
    pub fn block_k(self) -> usize {
        self.block_k
    }

    /// Both sizes are multiples of this.
    pub const MULTIPLE: usize = BLOCK_MULTIPLE as usize;

    /// Shape of a problem's map. A size of 0 counts as 1: validation refuses it.
    pub(super) fn shape(self, problem: &Problem) -> [usize; 4] {
        let maps = |each: bool, n: usize| if each { n } else { 1 };
        [
            maps(self.maps.per_batch, problem.batch()),
            maps(self.maps.per_head, problem.heads_q()),
            problem.seqlen_q().div_ceil(self.block_q.max(1)),
            problem.seqlen_k().div_ceil(self.block_k.max(1)),
        ]
    }
}

/// `blocks 128×128 per batch entry, per head`.
impl fmt::Display for BlockMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}×{}", self.block_q, self.block_k)?;
        f.write_str(match self.maps {
            Maps {
                per_batch: false,
                per_head: false,
            } => "",
            Maps {
                per_batch: true,
                per_head: false,
            } => " per batch entry",
            Maps {
                per_batch: false,
                per_head: true,
            } => " per head",
            Maps {
                per_batch: true,
                per_head: true,
            } => " per batch entry and head",
        })
    }
}
