//! The description of an append to a cache of keys and values.

use std::fmt;

use super::new_rows::NewRows;
use super::{Fp8Kv, Pages};
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::terms::{Pairs, QueryPositions, Turns};

/// New rows of k and v, to be written after the rows that a cache already has: see [`crate::Append`]. Plain data.
///
/// ```
/// use ferroflash::rotary::Pairs;
/// use ferroflash::{AppendProblem, Dtype};
///
/// // A step of decoding: one new row for each of 16 sequences.
/// let problem = AppendProblem::builder(Dtype::Bf16)
///     .batch(16)
///     .seqlen_new(1)
///     .heads_q(32)
///     .heads_k(8)
///     .head_dim(128)
///     .seqlen_cache(4096)
///     .rotary(Pairs::Halves, 128, 4096)
///     .build()?;
/// assert_eq!(problem.shape_new(), [16, 1, 8, 128]);
/// assert_eq!(problem.shape_cache(), [16, 4096, 8, 128]);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AppendProblem {
    dtype: Dtype,
    batch: usize,
    rows: NewRows,
    heads_q: usize,
    heads_k: usize,
    head_dim: usize,
    seqlen_cache: usize,
    pages: Option<Pages>,
    fp8_kv: Option<Fp8Kv>,
    turns: Option<Turns>,
    query_positions: QueryPositions,
}

/// Collects an [`AppendProblem`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct AppendBuilder {
    dtype: Dtype,
    batch: usize,
    rows: Option<NewRows>,
    heads_q: usize,
    heads_k: Option<usize>,
    head_dim: Option<usize>,
    seqlen_cache: Option<usize>,
    pages: Option<Pages>,
    fp8_kv: Option<Fp8Kv>,
    turns: Option<Turns>,
    query_positions: QueryPositions,
}

impl AppendProblem {
    /// Starts a problem of this element type: one sequence, no queries, no rotary position embedding. New rows, heads_k, head_dim and
    /// the cache's rows have no default.
    pub fn builder(dtype: Dtype) -> AppendBuilder {
        AppendBuilder {
            dtype,
            batch: 1,
            rows: None,
            heads_q: 0,
            heads_k: None,
            head_dim: None,
            seqlen_cache: None,
            pages: None,
            fp8_kv: None,
            turns: None,
            query_positions: QueryPositions::default(),
        }
    }

    /// Element type of every tensor, but of a cache in 8 bits ([`AppendProblem::fp8_kv`]).
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Heads of q; 0 without q.
    pub fn heads_q(&self) -> usize {
        self.heads_q
    }

    /// Heads of k, v and the cache.
    pub fn heads_k(&self) -> usize {
        self.heads_k
    }

    /// Columns of every tensor.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rows of a sequence in the cache.
    pub fn seqlen_cache(&self) -> usize {
        self.seqlen_cache
    }

    /// How k and q are rotated, if they are.
    pub fn turns(&self) -> Option<Turns> {
        self.turns
    }

    /// The positions of the queries.
    pub fn query_positions(&self) -> QueryPositions {
        self.query_positions
    }

    /// Shape of the new rows of k and v: `[batch, seqlen_new, heads_k, head_dim]`; packed, `[1, total, heads_k, head_dim]`.
    pub fn shape_new(&self) -> [usize; 4] {
        self.rows.shape(self.batch, self.heads_k, self.head_dim)
    }

    /// Shape of q and of q_out: as [`AppendProblem::shape_new`], with the heads of q.
    pub fn shape_q(&self) -> [usize; 4] {
        self.rows.shape(self.batch, self.heads_q, self.head_dim)
    }

    /// Shape of each cache: `[batch, seqlen_cache, heads_k, head_dim]`; in pages, `[n_pages, page_size, heads_k, head_dim]`.
    pub fn shape_cache(&self) -> [usize; 4] {
        let (entries, rows) = match self.pages {
            Some(pages) => (pages.n_pages(), pages.page_size()),
            None => (self.batch, self.seqlen_cache),
        };
        [entries, rows, self.heads_k, self.head_dim]
    }

    /// The pages of the cache, if it is in pages.
    pub fn pages(&self) -> Option<Pages> {
        self.pages
    }

    /// The kind of scales of a cache in 8 bits; `None`: the cache has the problem's type.
    pub fn fp8_kv(&self) -> Option<Fp8Kv> {
        self.fp8_kv
    }

    /// Scales of k or of v; 0 if they have none. Saturates.
    pub(crate) fn n_scales(&self) -> u64 {
        self.fp8_kv.map_or(0, |scales| {
            scales.n_scales(self.batch, self.pages, self.heads_k)
        })
    }

    /// Entries of the page table; 0 if there is none. Saturates.
    pub(crate) fn n_table_entries(&self) -> u64 {
        let columns = |pages: Pages| pages.n_columns(self.seqlen_cache) as u64;
        (self.batch as u64).saturating_mul(self.pages.map_or(0, columns))
    }

    pub(crate) fn rows(&self) -> NewRows {
        self.rows
    }

    /// How many rows a sequence may have: those of the cache or, if k is rotated, at most the positions of the tables.
    pub(crate) fn room(&self) -> usize {
        let n_positions = self
            .turns
            .map_or(self.seqlen_cache, |turns| turns.n_positions);
        self.seqlen_cache.min(n_positions)
    }
}

impl AppendBuilder {
    /// Number of sequences; 1 unless set.
    pub fn batch(self, batch: usize) -> Self {
        AppendBuilder { batch, ..self }
    }

    /// Each sequence has this many new rows: q, k_new and v_new are `[batch, seqlen_new, heads, head_dim]`.
    pub fn seqlen_new(self, seqlen: usize) -> Self {
        AppendBuilder {
            rows: Some(NewRows::Padded { seqlen }),
            ..self
        }
    }

    /// In place of [`AppendBuilder::seqlen_new`]: the new rows of all sequences are packed, one sequence after the other,
    /// `[total, heads, head_dim]`, and [`AppendInputs::cu_seqlens_new`](crate::AppendInputs::cu_seqlens_new) has the first row of each. So sequences
    /// that begin and sequences that continue share a call (continuous batching).
    pub fn packed_new(self, total: usize) -> Self {
        AppendBuilder {
            rows: Some(NewRows::Packed { total }),
            ..self
        }
    }

    /// Queries of this many heads are rotated as well; that needs [`AppendBuilder::rotary`]. None unless set.
    pub fn heads_q(self, heads_q: usize) -> Self {
        AppendBuilder { heads_q, ..self }
    }

    /// Heads of k, v and the cache.
    pub fn heads_k(self, heads_k: usize) -> Self {
        AppendBuilder {
            heads_k: Some(heads_k),
            ..self
        }
    }

    /// Columns of every tensor.
    pub fn head_dim(self, head_dim: usize) -> Self {
        AppendBuilder {
            head_dim: Some(head_dim),
            ..self
        }
    }

    /// Rows of a sequence in the cache.
    pub fn seqlen_cache(self, seqlen_cache: usize) -> Self {
        AppendBuilder {
            seqlen_cache: Some(seqlen_cache),
            ..self
        }
    }

    /// The cache is in pages, given by [`AppendInputs::page_table`](crate::AppendInputs::page_table): see [`Pages`]. [`AppendBuilder::seqlen_cache`]
    /// is then the most rows that a sequence has. A page to which rows are appended must belong to one sequence only.
    pub fn pages(self, pages: Pages) -> Self {
        AppendBuilder {
            pages: Some(pages),
            ..self
        }
    }

    /// The cache is in 8 bits, e4m3, with scales that are given
    /// ([`AppendInputs::k_descale`](crate::AppendInputs::k_descale)): see [`Fp8Kv`]. New rows and queries keep the problem's type. Not unless set.
    ///
    /// ```
    /// use ferroflash::{Append, AppendInputs, AppendOutputs, AppendProblem, Device, Dtype, Fp8Kv, Tensor, TensorMut};
    /// use float8::F8E4M3;
    ///
    /// let problem = AppendProblem::builder(Dtype::F32)
    ///     .seqlen_new(1)
    ///     .heads_k(1)
    ///     .head_dim(2)
    ///     .seqlen_cache(2)
    ///     .fp8_kv(Fp8Kv::PerSequence)
    ///     .build()?;
    /// let (rows, mut k, mut v) = ([3f32, -600.0], [F8E4M3::ZERO; 4], [F8E4M3::ZERO; 4]);
    /// let new = Tensor::bshd(&rows, problem.shape_new())?;
    /// // The second row of the only sequence.
    /// let inputs = AppendInputs::new(&new, &new, &[1]).descale(&[2f32], &[1f32]);
    /// let of_cache = problem.shape_cache();
    /// let mut outputs = AppendOutputs::new(TensorMut::bshd(&mut k, of_cache)?, TensorMut::bshd(&mut v, of_cache)?);
    /// Append::new(&Device::cpu(), problem)?.run(&inputs, &mut outputs)?;
    /// assert_eq!(k.map(|x| x.to_f32()), [0.0, 0.0, 1.5, -288.0]); // -300 lies between -288 and -320
    /// assert_eq!(v.map(|x| x.to_f32()), [0.0, 0.0, 3.0, -448.0]); // cut
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn fp8_kv(self, scales: Fp8Kv) -> Self {
        AppendBuilder {
            fp8_kv: Some(scales),
            ..self
        }
    }

    /// The first `rotary_dim` elements of each row of k and q are rotated by the row's position, with tables of `n_positions` positions.
    pub fn rotary(self, pairs: Pairs, rotary_dim: usize, n_positions: usize) -> Self {
        AppendBuilder {
            turns: Some(Turns {
                pairs,
                rotary_dim,
                n_positions,
            }),
            ..self
        }
    }

    /// The positions of the queries; [`QueryPositions::Ascending`] unless set.
    pub fn query_positions(self, query_positions: QueryPositions) -> Self {
        AppendBuilder {
            query_positions,
            ..self
        }
    }

    /// The problem; an error names a size that was not set. [`crate::Append::new`] checks the sizes.
    pub fn build(self) -> Result<AppendProblem, ProblemError> {
        let set = |value: Option<usize>, field| value.ok_or(ProblemError::Unset { field });
        if self.heads_q > 0 && self.turns.is_none() {
            return Err(ProblemError::Unset { field: "rotary" });
        }
        Ok(AppendProblem {
            dtype: self.dtype,
            batch: self.batch,
            rows: self.rows.ok_or(ProblemError::Unset {
                field: "seqlen_new",
            })?,
            heads_q: self.heads_q,
            heads_k: set(self.heads_k, "heads_k")?,
            head_dim: set(self.head_dim, "head_dim")?,
            seqlen_cache: set(self.seqlen_cache, "seqlen_cache")?,
            pages: self.pages,
            fp8_kv: self.fp8_kv,
            turns: self.turns,
            query_positions: self.query_positions,
        })
    }
}

/// `bf16 k [16, 1, 8, 128] to [16, 4096, 8, 128], q [16, 1, 32, 128], halves 128 of 4096 positions`.
impl fmt::Display for AppendProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (new, cache) = (self.shape_new(), self.shape_cache());
        write!(f, "{} k {new:?} to {cache:?}", self.dtype)?;
        if let Some(scales) = self.fp8_kv {
            write!(f, " in {scales}")?;
        }
        if self.heads_q > 0 {
            write!(f, ", q {:?}", self.shape_q())?;
        }
        match self.turns {
            Some(turns) => write!(f, ", {turns}"),
            None => Ok(()),
        }
    }
}
