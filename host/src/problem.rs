//! The description of an attention problem: sizes, element type, mask, scale. Plain data; making one touches no device.

pub mod append;
mod block_mask;
mod builder;
mod dropout;
mod edit;
mod fp8;
mod fp8_kv;
mod given;
pub mod merge;
pub(crate) mod new_rows;
mod pages;
mod precision;
pub mod quantize;
pub mod rotate;
mod score;
mod shapes;
mod spec;
mod split_kv;
mod values;

use std::fmt;

pub use block_mask::BlockMask;
pub use builder::ProblemBuilder;
pub use dropout::Dropout;
pub(crate) use dropout::philox;
pub(crate) use edit::{DimUse, EditParts, ReadOf};
pub(crate) use fp8::ScaleLayout;
pub use fp8::{Fp8, Fp8Sums};
pub use fp8_kv::Fp8Kv;
pub use pages::Pages;
pub use precision::Precision;
use score::Expressions;
pub use score::{MaskExpression, Score};
pub use split_kv::SplitKv;
use values::Values;

use crate::dtype::{Dtype, ScalarType};
use crate::tensor::Layout;
use crate::terms::ArgumentSet;

/// Which keys a query sees. Query `i` has the position `i + seqlen_k − seqlen_q` among the keys: masks are aligned to the bottom right. Rows that
/// see no key give o = 0, lse = −∞ and gradients of 0.
///
/// [`ProblemBuilder::mask`] takes it; the [crate's documentation](crate) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// Every query sees every key.
    Full,
    /// A query sees the keys up to its own position: key `j` if `j ≤ i + seqlen_k − seqlen_q`. A row sees no key if `seqlen_q > seqlen_k + i`.
    Causal,
    /// Prefix-LM (T5: Raffel et al. 2020, section 3.2.1): a causal mask whose first `prefix` keys every query sees. 0 is [`Mask::Causal`]; the
    /// number of keys, or more, is [`Mask::Full`]. Sequences of different lengths have the same prefix; in a shorter sequence it is all keys.
    PrefixLm {
        /// The number of keys, from the first of a sequence on, that every query sees.
        prefix: usize,
    },
    /// A sliding window: a query sees the keys from `left` positions before its own to `right` positions after it; `None` is no limit.
    /// `Window { left: Some(n), right: Some(0) }` is the causal window of Mistral and Gemma: the last `n + 1` keys.
    Window {
        /// Keys before the query's position.
        left: Option<usize>,
        /// Keys after the query's position.
        right: Option<usize>,
    },
}

impl Mask {
    /// How many keys a query sees before and after its own position, in addition to those of [`Mask::prefix`]; `None`: all.
    pub fn window(self) -> (Option<usize>, Option<usize>) {
        match self {
            Mask::Full => (None, None),
            Mask::Causal | Mask::PrefixLm { .. } => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        }
    }

    /// The intersection of a mask without a prefix and a window.
    pub(crate) fn within(self, left: Option<usize>, right: Option<usize>) -> Mask {
        let least = |a: Option<usize>, b| [a, b].into_iter().flatten().min();
        let own = self.window();
        match (least(own.0, left), least(own.1, right)) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        }
    }

    /// How many of the first keys every query sees, at any position.
    pub fn prefix(self) -> usize {
        match self {
            Mask::PrefixLm { prefix } => prefix,
            Mask::Full | Mask::Causal | Mask::Window { .. } => 0,
        }
    }
}

/// `full`, `causal`, `prefix-lm 512`, `window 1024..0`.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, right) = match self {
            Mask::Full => return f.write_str("full"),
            Mask::Causal => return f.write_str("causal"),
            Mask::PrefixLm { prefix } => return write!(f, "prefix-lm {prefix}"),
            Mask::Window { left, right } => (left, right),
        };
        let side = |side: &Option<usize>| side.map_or(String::new(), |n| n.to_string());
        write!(f, "window {}..{}", side(left), side(right))
    }
}

/// The order in which the backward pass sums the gradient of q.
///
/// [`ProblemBuilder::order`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// One fixed order: equal inputs give bit-equal results, run after run. The default.
    Deterministic,
    /// The order in which contributions arrive: faster, and the last bits of dQ differ from run to run.
    Fastest,
}

/// One attention problem: `o = softmax(q·kᵀ · softmax_scale, masked) · v` for every batch entry and head.
///
/// q and o are `[batch, seqlen_q, heads_q, head_dim]`, k and v `[batch, seqlen_k, heads_k, head_dim]`; query head `h`
/// reads key and value head `h / (heads_q / heads_k)`. v and o may have another number of columns ([`ProblemBuilder::head_dim_v`]). A length of 0 is
/// allowed. Sequences of different lengths are packed
/// ([`ProblemBuilder::packed_q`]), or use some of the rows of their batch entry ([`crate::Inputs::seqused_q`]); masks are
/// aligned to the bottom right of each one.
///
/// ```
/// use ferroflash::{Dtype, Mask, Problem};
///
/// let problem = Problem::builder(Dtype::Bf16)
///     .batch(2)
///     .seqlen(1024)
///     .heads_q(8)
///     .heads_k(2)
///     .head_dim(64)
///     .mask(Mask::Causal)
///     .build()?;
/// assert_eq!(problem.scale(), 0.125);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    batch: usize,
    heads_q: usize,
    heads_k: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    head_dim: usize,
    /// `None`: as head_dim.
    head_dim_v: Option<usize>,
    values: Values,
    dtype: Dtype,
    mask: Mask,
    softmax_scale: Option<Number>,
    order: Order,
    precision: Precision,
    total_q: Option<usize>,
    total_k: Option<usize>,
    block_mask: Option<BlockMask>,
    split_kv: SplitKv,
    pages: Option<Pages>,
    fp8_kv: Option<Fp8Kv>,
    fp8: Option<Fp8>,
    fp8_sums: Fp8Sums,
    expressions: Expressions,
    /// The optional inputs that every call gives.
    given: ArgumentSet,
    dropout: Number,
}

/// A floating-point setting of a problem, compared by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Number(u32);

impl Number {
    const ZERO: Number = Number::of(0.0);

    const fn of(number: f32) -> Number {
        Number(number.to_bits())
    }

    const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Problem {
    /// Starts a problem of this element type: one batch entry, every key visible, scale 1/√head_dim, deterministic.
    /// Lengths, heads and head_dim have no default.
    pub fn builder(dtype: Dtype) -> ProblemBuilder {
        ProblemBuilder::new(Problem {
            batch: 1,
            heads_q: 0,
            heads_k: 0,
            seqlen_q: 0,
            seqlen_k: 0,
            head_dim: 0,
            head_dim_v: None,
            values: Values::Given,
            dtype,
            mask: Mask::Full,
            softmax_scale: None,
            order: Order::Deterministic,
            precision: Precision::Tensor,
            total_q: None,
            total_k: None,
            block_mask: None,
            split_kv: SplitKv::Auto,
            pages: None,
            fp8_kv: None,
            fp8: None,
            fp8_sums: Fp8Sums::TwoLevels,
            expressions: Expressions::default(),
            given: ArgumentSet::default(),
            dropout: Number::ZERO,
        })
    }

    /// Starts the problem of these queries and keys: all sizes are set; mask, scale and order remain.
    pub fn of(dtype: Dtype, q: Layout, k: Layout) -> ProblemBuilder {
        Problem::builder(dtype)
            .batch(q.batch)
            .seqlen_q(q.seqlen)
            .seqlen_k(k.seqlen)
            .heads_q(q.heads)
            .heads_k(k.heads)
            .head_dim(q.head_dim)
    }

    /// A builder with the settings of this problem, to change some of them.
    pub fn to_builder(&self) -> ProblemBuilder {
        ProblemBuilder::of(*self)
    }

    /// Number of batch entries, or of packed sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number of query heads: a multiple of `heads_k`.
    pub fn heads_q(&self) -> usize {
        self.heads_q
    }

    /// Number of key and value heads.
    pub fn heads_k(&self) -> usize {
        self.heads_k
    }

    /// Rows of q and o; if sequences have different lengths, those of the longest.
    pub fn seqlen_q(&self) -> usize {
        self.seqlen_q
    }

    /// Rows of k and v; if sequences have different lengths, those of the longest.
    pub fn seqlen_k(&self) -> usize {
        self.seqlen_k
    }

    /// Rows of q and o of all sequences, if they are packed; see [`ProblemBuilder::packed_q`].
    pub fn total_q(&self) -> Option<usize> {
        self.total_q
    }

    /// Rows of k and v of all sequences, if they are packed; see [`ProblemBuilder::packed_k`].
    pub fn total_k(&self) -> Option<usize> {
        self.total_k
    }

    /// Columns of q and k, and of v and o unless [`Problem::head_dim_v`] differs.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Element type of o, of q without [`Problem::fp8`], and of k and v without that and [`Problem::fp8_kv`].
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Which keys a query sees.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// The block mask in addition to the mask, if there is one.
    pub fn block_mask(&self) -> Option<BlockMask> {
        self.block_mask
    }

    /// How the forward pass divides the keys of a sequence.
    pub fn split_kv(&self) -> SplitKv {
        self.split_kv
    }

    /// The pages of keys and values, if they are in pages.
    pub fn pages(&self) -> Option<Pages> {
        self.pages
    }

    /// The kind of scales of keys and values, if they are in 8 bits.
    pub fn fp8_kv(&self) -> Option<Fp8Kv> {
        self.fp8_kv
    }

    /// The kind of scales of q, k and v, if all are in 8 bits.
    pub fn fp8(&self) -> Option<Fp8> {
        self.fp8
    }

    /// How P V is summed there.
    pub fn fp8_sums(&self) -> Fp8Sums {
        self.fp8_sums
    }

    /// The problem of the backward pass: with q, k and v of the problem's type, of which those in 8 bits are taken out.
    pub(crate) fn dequantized(&self) -> Problem {
        Problem {
            fp8: None,
            fp8_sums: Fp8Sums::TwoLevels,
            ..*self
        }
    }

    /// Element type of q.
    pub fn dtype_q(&self) -> ScalarType {
        match self.fp8 {
            Some(_) => ScalarType::E4m3,
            None => self.dtype.into(),
        }
    }

    /// Element type of k and v.
    pub fn dtype_k(&self) -> ScalarType {
        match (self.fp8, self.fp8_kv) {
            (None, None) => self.dtype.into(),
            _ => ScalarType::E4m3,
        }
    }

    /// Shape of the block mask's map: `[batch or 1, heads_q or 1, blocks of queries, blocks of keys]`.
    pub fn block_mask_shape(&self) -> Option<[usize; 4]> {
        Some(self.block_mask?.shape(self))
    }

    /// The factor of the scores that was given; `None`: 1/√head_dim.
    pub fn softmax_scale(&self) -> Option<f32> {
        self.softmax_scale.map(Number::get)
    }

    /// Order of the sums of the backward pass.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The factor of the scores that is used: the one given, or [`Problem::default_scale`].
    pub fn scale(&self) -> f32 {
        self.softmax_scale().unwrap_or_else(|| self.default_scale())
    }

    /// 1/√head_dim.
    pub fn default_scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Query heads that share one key and value head; 0 when there are none.
    pub fn group_size(&self) -> usize {
        self.heads_q.checked_div(self.heads_k).unwrap_or(0)
    }

    /// The same problem of padded sequences, all of these lengths.
    pub(crate) fn of_equal_lengths(&self, seqlen_q: usize, seqlen_k: usize) -> Problem {
        Problem {
            seqlen_q,
            seqlen_k,
            total_q: None,
            total_k: None,
            pages: None,
            ..*self
        }
    }
}
