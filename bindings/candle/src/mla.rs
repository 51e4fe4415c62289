//! Decode of multi-head latent attention, whose values are columns of its keys: FlashMLA's function.

use std::sync::Arc;

use candle_core::{CustomOp2, Result, Shape, Tensor};
use ferroflash::Pages;
use ferroflash::arguments::Argument;

use crate::cached::columns;
use crate::call::Call;
use crate::error::Error;
use crate::given::{Given, Source};
use crate::layout::aligned;
use crate::memory::{Place, Stored};
use crate::operation::on_two;
use crate::request::Request;
use crate::rules::{backend, beside, dims, dtype, has_elements, has_shape};

/// How errors call it.
const NAME: &str = "flash_mla_with_kvcache";

/// Attention over a cache of latent rows, as in the decode of multi-head latent attention: each row is a key, and its first columns are the value.
/// Returns o, in the type of `q`, and lse. FlashMLA's function.
///
/// * `q`: `[batch, seqlen_q, heads_q, head_dim]`.
/// * `k_cache`: `[n_pages, page_size, heads_k, head_dim]`, pages of any size up to 256; without `block_table`
///   `[batch, seqlen_cache, heads_k, head_dim]`. It is read in place. DeepSeek's models have one KV head and a head_dim of 576.
/// * `block_table`: u32 or i32 `[batch, columns]`: row `r` of sequence `b` is row `r % page_size` of page
///   `block_table[b, r / page_size]`. Entries after a sequence's last page are ignored.
/// * `cache_seqlens`: u32 or i32 `[batch]`, how many rows each sequence has.
/// * `head_dim_v`: columns of a value, 1 to head_dim; 512 in DeepSeek's models.
/// * `softmax_scale`: factor of the scores, greater than 0.
/// * `causal`: whether a query sees only the keys up to its own position; the last query is at the position of the last key.
///
/// o is `[batch, seqlen_q, heads_q, head_dim_v]`. lse is f32 `[batch, heads_q, seqlen_q]`, log Σ exp of a row's scores. A row that
/// sees no key gives o = 0 and lse = −∞.
///
/// There is no backward pass: a gradient through it is [`Error::Gradient`]. Lengths and pages are checked only on the CPU. GPUs of
/// compute capability 9.0 have a kernel, for head_dim and head_dim_v that are multiples of 8 up to 576 and 512.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_ferroflash::flash_mla_with_kvcache;
///
/// // Two sequences of 5 and of 2 rows, in pages of 4; the pool has three.
/// let device = Device::Cpu;
/// let q = Tensor::randn(0f32, 1f32, (2, 1, 16, 576), &device)?;
/// let k_cache = Tensor::randn(0f32, 1f32, (3, 4, 1, 576), &device)?;
/// let block_table = Tensor::new(&[[2u32, 0], [1, 0]], &device)?;
/// let cache_seqlens = Tensor::new(&[5u32, 2], &device)?;
///
/// let scale = 1.0 / 192f32.sqrt();
/// let (o, lse) =
///     flash_mla_with_kvcache(&q, &k_cache, Some(&block_table), &cache_seqlens, 512, scale, true)?;
/// assert_eq!((o.dims(), lse.dims()), ([2, 1, 16, 512].as_slice(), [2, 16, 1].as_slice()));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_mla_with_kvcache(
    q: &Tensor,
    k_cache: &Tensor,
    block_table: Option<&Tensor>,
    cache_seqlens: &Tensor,
    head_dim_v: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<(Tensor, Tensor)> {
    backend("q", q)?;
    dtype("q", q)?;
    beside("q", q, 4, q, q.dtype())?;
    beside("k_cache", k_cache, 4, q, q.dtype())?;
    let [batch, seqlen_q, _, head_dim] = dims(q);
    let [entries, rows, heads_k, _] = dims(k_cache);
    let right = causal.then_some(0);
    let problem = Request::new([q, k_cache, k_cache], softmax_scale)
        .window(None, right)
        .problem()?;
    let problem = problem.batch(batch).seqlen_q(seqlen_q);
    let problem = problem.head_dim_v(head_dim_v).values_in_keys();
    let (problem, page_table) = match block_table {
        None => {
            has_shape("k_cache", k_cache, &[batch, rows, heads_k, head_dim])?;
            (problem.seqlen_k(rows), None)
        }
        Some(block_table) => {
            has_shape("k_cache", k_cache, &[entries, rows, heads_k, head_dim])?;
            let columns = columns(block_table, batch)?;
            let pages = Pages::new(entries, rows).columns(columns);
            let problem = problem.seqlen_k(columns.saturating_mul(rows)).pages(pages);
            (problem, Some(Source::pages("block_table", block_table, q)?))
        }
    };
    let why = "one for each sequence of q";
    has_elements("cache_seqlens", cache_seqlens, batch, why)?;
    let seqused_k = Source::lengths("cache_seqlens", cache_seqlens, q)?;
    let given = Given::default()
        .with(Argument::SeqUsedK, seqused_k)
        .with_optional(Argument::PageTable, page_table);
    let problem = problem.build().map_err(Error::from)?;
    let call = Arc::new(Call::new(problem, given));
    let latent = |result| Latent {
        call: Arc::clone(&call),
        result,
    };
    let q = aligned(q)?;
    let o = q.apply_op2(k_cache, latent(Of::O))?;
    let lse = q.apply_op2(k_cache, latent(Of::Lse))?;
    Ok((o, lse))
}

/// q and k → o, or, after the pass has run, lse.
struct Latent {
    call: Arc<Call>,
    result: Of,
}

/// The result of a node.
#[derive(Clone, Copy)]
enum Of {
    O,
    Lse,
}

impl Latent {
    fn forward<P: Place>(&self, [q, k]: [Stored<P>; 2]) -> Result<(P::Storage, Shape)> {
        match self.result {
            Of::O => {
                let o = self.call.forward::<P>([q, k, k])?;
                Ok((o, Shape::from(self.call.problem.shape_o().to_vec())))
            }
            Of::Lse => self.call.lse_of::<P>(q.0),
        }
    }
}

impl CustomOp2 for Latent {
    fn name(&self) -> &'static str {
        NAME
    }

    on_two!(forward);

    fn bwd(
        &self,
        q: &Tensor,
        _k: &Tensor,
        _result: &Tensor,
        _gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let argument = match q.track_op() {
            true => "q",
            false => "k_cache",
        };
        let operation = NAME;
        Err(Error::Gradient {
            argument,
            operation,
        }
        .into())
    }
}
