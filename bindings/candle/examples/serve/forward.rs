//! One step of the model: rows of several sequences at once, over the cache in pages.

use candle_core::{D, Device, Result, Tensor};
use candle_ferroflash::{KvCache, NewRows, Rotary, append_kvcache, flash_attn_varlen_with_kvcache};

use crate::model::Model;
use crate::pages::Pages;

/// What a sequence does in a step.
pub struct Rows<'a> {
    /// Its new tokens.
    pub tokens: &'a [u8],
    /// Tokens before them, whose keys and values lie in the cache.
    pub cached: usize,
    /// Its pages, with room for the new tokens.
    pub pages: &'a [u32],
}

/// The model, and the pools of keys and values of its layers.
pub struct Forward<'a> {
    model: &'a Model,
    device: &'a Device,
    pools: Vec<[Tensor; 2]>,
    /// Columns of the tables of pages: those of the longest sequence.
    columns: usize,
    page_size: usize,
}

impl Forward<'_> {
    /// Pools of empty pages: NaN, which would be seen in every result if a row were read that nobody has written.
    pub fn new<'a>(
        model: &'a Model,
        n_pages: usize,
        pages: &Pages,
        device: &'a Device,
    ) -> Result<Forward<'a>> {
        let (config, page_size) = (model.config(), pages.page_size());
        let shape = (n_pages, page_size, config.heads, config.head_dim);
        let pool = || Tensor::full(f32::NAN, shape, device)?.to_dtype(config.dtype);
        let pools = (0..config.layers).map(|_| Ok([pool()?, pool()?]));
        Ok(Forward {
            model,
            device,
            pools: pools.collect::<Result<_>>()?,
            columns: config.positions.div_ceil(page_size),
            page_size,
        })
    }

    /// Takes up the new tokens, and gives the likeliest byte behind the last one of each sequence.
    pub fn step(&self, batch: &[Rows]) -> Result<Vec<u8>> {
        let device = self.device;
        let numbers = |numbers: Vec<u32>| Tensor::new(numbers, device);
        let tokens = batch.iter().flat_map(|rows| rows.tokens);
        let tokens = numbers(tokens.map(|&byte| byte.into()).collect())?;
        let cached = numbers(batch.iter().map(|rows| rows.cached as u32).collect())?;
        let mut ends = vec![0];
        for rows in batch {
            ends.push(ends[ends.len() - 1] + rows.tokens.len() as u32);
        }
        let last = numbers(ends[1..].iter().map(|end| end - 1).collect())?;
        let ends = numbers(ends)?;
        let longest = batch.iter().map(|rows| rows.tokens.len()).max();
        let step = Step {
            table: self.table(batch)?,
            cached,
            ends,
            longest: longest.unwrap_or(0),
        };
        let stream = self
            .model
            .stream(&tokens, |layer, qkv| self.attend(&step, layer, qkv))?;
        let scores = self.model.scores(&stream.index_select(&last, 0)?)?;
        let bytes = scores.argmax(D::Minus1)?.to_vec1::<u32>()?;
        Ok(bytes.into_iter().map(|byte| byte as u8).collect())
    }

    /// The pages of each sequence, `[batch, columns]`. Entries behind a sequence's last page are not looked at.
    fn table(&self, batch: &[Rows]) -> Result<Tensor> {
        let mut table = Vec::with_capacity(batch.len() * self.columns);
        for rows in batch {
            table.extend_from_slice(rows.pages);
            table.extend(std::iter::repeat_n(0, self.columns - rows.pages.len()));
        }
        Tensor::from_vec(table, (batch.len(), self.columns), self.device)
    }

    /// Attention of one layer: the new keys go to the cache, they and the queries rotated by their positions; then every query sees
    /// the keys up to its own.
    fn attend(&self, step: &Step, layer: usize, [q, k, v]: [Tensor; 3]) -> Result<Tensor> {
        let [k_pool, v_pool] = &self.pools[layer];
        let most = self.columns * self.page_size;
        let cache = KvCache::paged(k_pool, v_pool, &step.table, most, &step.cached);
        let new = NewRows::packed(&k, &v, &step.ends).with_q(&q);
        let (cos, sin) = self.model.rotary();
        let appended = append_kvcache(&cache, &new, Some(&Rotary::halves(cos, sin)))?;
        let cache = cache.with_seqused_k(&appended.seqused_k);
        let scale = 1.0 / (self.model.config().head_dim as f32).sqrt();
        let q = appended.q.unwrap_or(q);
        flash_attn_varlen_with_kvcache(&q, &step.ends, step.longest, &cache, scale, None, Some(0))
    }

    /// Bytes of all pools.
    pub fn n_bytes(&self) -> usize {
        let bytes = |pool: &Tensor| pool.elem_count() * pool.dtype().size_in_bytes();
        self.pools.iter().flatten().map(bytes).sum()
    }
}

/// What all layers of a step are told.
struct Step {
    /// u32 `[batch, columns]`.
    table: Tensor,
    /// Rows in the cache before: u32 `[batch]`.
    cached: Tensor,
    /// Where each sequence's new rows begin: u32 `[batch + 1]`.
    ends: Tensor,
    /// The most new rows of a sequence.
    longest: usize,
}
