//! A cache of keys and values that owns its pages: [`KvCache`], for someone who writes a serving loop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::append::Append;
use crate::arguments::{AppendInputs, AppendOutputs, Inputs};
use crate::attend::Call;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::{CacheError, Error};
use crate::place::{Data, Gpu, Host, Place, Shape};
use crate::problem::append::AppendProblem;
use crate::problem::{Pages, Problem};
use crate::tensor::Layout;
pub use crate::terms::Sequence;

/// Sequences of all caches of the process: one cache refuses those of another.
static N_BEGUN: AtomicU64 = AtomicU64::new(0);

/// Keys and values of many sequences, in the pages of one pool (PagedAttention; Kwon et al. 2023).
///
/// The cache knows which pages each sequence has, and which are free. Sequences that were forked share the pages that they have in
/// common; a page is copied when one of them goes on in it. A call that finds too few free pages gives an error and changes nothing, so that a
/// scheduler can make room and call again.
///
/// ```
/// use ferroflash::{Device, KvCache};
///
/// // A pool of 8 pages of 4 rows; 1 head of keys and values, 2 columns.
/// let mut cache = KvCache::<f32>::on_host([8, 4, 1, 2])?;
/// let (one, two) = (cache.begin(), cache.begin());
///
/// // Three tokens of a prompt, then a token of each.
/// let prompt = [1f32; 6];
/// cache.append(&[one], (&prompt, [1, 3, 1, 2]), (&prompt, [1, 3, 1, 2]))?;
/// let token = [2f32, 2.0, 4.0, 4.0];
/// cache.append(&[one, two], (&token, [2, 1, 1, 2]), (&token, [2, 1, 1, 2]))?;
/// assert_eq!(cache.seqlen(one)?, 4);
///
/// // A query of each sequence over all its keys.
/// let q = [0f32; 4];
/// let attended = cache.attend(&[one, two], (&q, [2, 1, 1, 2]))?.forward(&Device::cpu())?;
/// assert_eq!(attended.o, [1.25, 1.25, 4.0, 4.0]);
///
/// // A second answer to the same prompt shares its page.
/// let other = cache.fork(one)?;
/// assert_eq!(cache.free_pages(), 6);
/// cache.remove(one)?;
/// cache.remove(other)?;
/// assert_eq!(cache.free_pages(), 7);
/// # Ok::<(), ferroflash::Error>(())
/// ```
///
/// The calls here wait for the device. A loop that enqueues takes the parts ([`KvCache::tables`], [`KvCache::keys`], [`KvCache::values`]) to
/// prepared calls: see [`crate::prepared`].
#[derive(Debug)]
pub struct KvCache<T: Element, P: Place = Host> {
    device: Device,
    place: P,
    pool: Pool,
    k: P::Buffer<T>,
    v: P::Buffer<T>,
    /// Of the call that is under way.
    table: P::Buffer<i32>,
    seqused: P::Buffer<i32>,
    /// How many sequences have each page.
    owners: Vec<u32>,
    free: Vec<usize>,
    sequences: BTreeMap<u64, Rows>,
}

/// Which pages a batch of sequences has, and how many rows: what [`Inputs::page_table`] and [`Inputs::seqused_k`] take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tables {
    /// `[batch, columns]`; after a sequence's last page, 0.
    pub page_table: Vec<i32>,
    /// Columns of the table.
    pub columns: usize,
    /// `[batch]`.
    pub seqused: Vec<i32>,
}

/// `[n_pages, page_size, heads_k, head_dim]`.
#[derive(Clone, Copy, Debug)]
struct Pool {
    n_pages: usize,
    page_size: usize,
    heads_k: usize,
    head_dim: usize,
}

/// Where a sequence's rows are.
#[derive(Clone, Debug, Default)]
struct Rows {
    pages: Vec<usize>,
    seqlen: usize,
}

/// Sequences that have got rows.
struct Grown {
    rows: Vec<Rows>,
    copies: Vec<Copy>,
    /// How many pages that were free they have.
    n_taken: usize,
}

/// Rows of a page that others have, too, and that is written to from now on.
struct Copy {
    from: usize,
    to: usize,
    n_rows: usize,
}

/// The table of a batch, `[batch, columns]`, and how many columns it has: at least one, though no sequence has a page.
fn table(batch: &[&Rows]) -> (Vec<i32>, usize) {
    let columns = batch.iter().map(|rows| rows.pages.len()).max();
    let columns = columns.unwrap_or(0).max(1);
    let entries = batch.iter().flat_map(|rows| {
        let pages = rows.pages.iter().map(|&page| page as i32);
        pages.chain(std::iter::repeat(0)).take(columns)
    });
    (entries.collect(), columns)
}

/// How many rows each sequence of a batch has.
fn seqused(batch: &[&Rows]) -> Vec<i32> {
    batch.iter().map(|rows| rows.seqlen as i32).collect()
}

impl Pool {
    fn layout(&self) -> Result<Layout, Error> {
        Ok(Layout::bshd([
            self.n_pages,
            self.page_size,
            self.heads_k,
            self.head_dim,
        ])?)
    }

    fn pages(&self, columns: usize) -> Pages {
        Pages::new(self.n_pages, self.page_size).columns(columns)
    }
}

impl<T: Element> KvCache<T> {
    /// In the host's memory, for calls on [`Device::cpu`]. `pool` is `[n_pages, page_size, heads_k, head_dim]`.
    pub fn on_host(pool: [usize; 4]) -> Result<KvCache<T>, Error> {
        KvCache::new(&Device::cpu(), Host, pool)
    }
}

impl<T: Element> KvCache<T, Gpu> {
    /// In the memory of a GPU. `pool` is `[n_pages, page_size, heads_k, head_dim]`.
    pub fn on_gpu(device: &Device, pool: [usize; 4]) -> Result<KvCache<T, Gpu>, Error> {
        let gpu = device.as_cuda().ok_or(CacheError::NotOnGpu {
            given: device.backend(),
        })?;
        KvCache::new(device, Gpu(gpu.clone()), pool)
    }
}

impl<T: Element, P: Place> KvCache<T, P> {
    fn new(device: &Device, place: P, pool: [usize; 4]) -> Result<KvCache<T, P>, Error> {
        let [n_pages, page_size, heads_k, head_dim] = pool;
        if pool.contains(&0) || n_pages > i32::MAX as usize {
            return Err(CacheError::Pool { given: pool }.into());
        }
        let n_elems = Layout::bshd(pool)?.n_elems()?;
        Ok(KvCache {
            k: place.room(n_elems)?,
            v: place.room(n_elems)?,
            table: place.of(&[])?,
            seqused: place.of(&[])?,
            device: device.clone(),
            place,
            pool: Pool {
                n_pages,
                page_size,
                heads_k,
                head_dim,
            },
            owners: vec![0; n_pages],
            free: (0..n_pages).rev().collect(),
            sequences: BTreeMap::new(),
        })
    }

    /// A sequence without rows.
    pub fn begin(&mut self) -> Sequence {
        self.add(Rows::default())
    }

    /// A sequence with the rows of another, whose pages it shares.
    pub fn fork(&mut self, of: Sequence) -> Result<Sequence, Error> {
        let rows = self.rows(of)?.clone();
        for &page in &rows.pages {
            self.owners[page] += 1;
        }
        Ok(self.add(rows))
    }

    fn add(&mut self, rows: Rows) -> Sequence {
        let sequence = Sequence(N_BEGUN.fetch_add(1, Ordering::Relaxed));
        self.sequences.insert(sequence.0, rows);
        sequence
    }

    /// Ends a sequence; pages that no other has are free again.
    pub fn remove(&mut self, sequence: Sequence) -> Result<(), Error> {
        self.truncate(sequence, 0)?;
        self.sequences.remove(&sequence.0);
        Ok(())
    }

    /// Drops the rows from `seqlen` on: those of draft tokens that were rejected, say.
    pub fn truncate(&mut self, sequence: Sequence, seqlen: usize) -> Result<(), Error> {
        let n_pages = seqlen.div_ceil(self.pool.page_size);
        let rows = self.sequences.get_mut(&sequence.0);
        let rows = rows.ok_or(CacheError::Unknown { sequence })?;
        if seqlen >= rows.seqlen {
            return Ok(());
        }
        rows.seqlen = seqlen;
        let left: Vec<_> = rows.pages.drain(n_pages..).collect();
        for page in left {
            self.leave(page);
        }
        Ok(())
    }

    /// One sequence less has a page.
    fn leave(&mut self, page: usize) {
        self.owners[page] -= 1;
        if self.owners[page] == 0 {
            self.free.push(page);
        }
    }

    /// How many rows a sequence has.
    pub fn seqlen(&self, sequence: Sequence) -> Result<usize, Error> {
        Ok(self.rows(sequence)?.seqlen)
    }

    /// How many pages no sequence has.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// The keys, `[n_pages, page_size, heads_k, head_dim]`, contiguous.
    pub fn keys(&self) -> &P::Buffer<T> {
        &self.k
    }

    /// The values, of the same shape.
    pub fn values(&self) -> &P::Buffer<T> {
        &self.v
    }

    fn rows(&self, sequence: Sequence) -> Result<&Rows, CacheError> {
        let rows = self.sequences.get(&sequence.0);
        rows.ok_or(CacheError::Unknown { sequence })
    }

    fn all_rows(&self, batch: &[Sequence]) -> Result<Vec<&Rows>, CacheError> {
        batch.iter().map(|&sequence| self.rows(sequence)).collect()
    }

    /// Where the rows of these sequences lie.
    pub fn tables(&self, batch: &[Sequence]) -> Result<Tables, Error> {
        let rows = self.all_rows(batch)?;
        let (page_table, columns) = table(&rows);
        Ok(Tables {
            page_table,
            columns,
            seqused: seqused(&rows),
        })
    }

    /// Appends new rows, `[batch, seqlen_new, heads_k, head_dim]`, to these sequences, each of which is there once.
    pub fn append<'a, K, V>(
        &mut self,
        batch: &[Sequence],
        k_new: (K, impl Shape),
        v_new: (V, impl Shape),
    ) -> Result<(), Error>
    where
        K: Data<'a, Element = T, Place = P>,
        V: Data<'a, Element = T, Place = P>,
    {
        let (of_k, of_v) = (k_new.1.layout()?, v_new.1.layout()?);
        self.check_batch(batch, of_k)?;
        let grown = self.grown(batch, of_k.seqlen)?;
        let (page_table, columns) = table(&grown.rows.iter().collect::<Vec<_>>());
        let problem = AppendProblem::builder(T::DTYPE)
            .batch(batch.len())
            .seqlen_new(of_k.seqlen)
            .heads_k(self.pool.heads_k)
            .head_dim(self.pool.head_dim)
            .seqlen_cache(columns * self.pool.page_size)
            .pages(self.pool.pages(columns))
            .build()?;
        let append = Append::new(&self.device, problem)?;
        self.seqused = self.place.of(&seqused(&self.all_rows(batch)?))?;
        self.table = self.place.of(&page_table)?;
        let row_elems = self.pool.heads_k * self.pool.head_dim;
        let page_elems = self.pool.page_size * row_elems;
        for copy in &grown.copies {
            let first = copy.from * page_elems;
            let rows = first..first + copy.n_rows * row_elems;
            for buffer in [&mut self.k, &mut self.v] {
                P::copy_within(buffer, rows.clone(), copy.to * page_elems)?;
            }
        }
        let pool = self.pool.layout()?;
        let inputs = AppendInputs::new(
            &k_new.0.tensor(of_k)?,
            &v_new.0.tensor(of_v)?,
            P::vector(&self.seqused),
        );
        append.run(
            &inputs.page_table(P::vector(&self.table)),
            &mut AppendOutputs::new(
                P::tensor_mut(&mut self.k, pool)?,
                P::tensor_mut(&mut self.v, pool)?,
            ),
        )?;
        self.keep(batch, grown);
        Ok(())
    }

    /// These sequences with so many rows more, in pages that are free now. Nothing is changed.
    fn grown(&self, batch: &[Sequence], seqlen_new: usize) -> Result<Grown, CacheError> {
        let page_size = self.pool.page_size;
        let mut free = self.free.iter().rev().copied();
        let mut needed = 0;
        let mut take = || {
            needed += 1;
            free.next().unwrap_or(0)
        };
        let (mut all, mut copies) = (Vec::new(), Vec::<Copy>::new());
        for (at, &sequence) in batch.iter().enumerate() {
            if batch[..at].contains(&sequence) {
                return Err(CacheError::Twice { sequence });
            }
            let mut rows = self.rows(sequence)?.clone();
            let n_rows = rows.seqlen % page_size;
            if let Some(last) = rows
                .pages
                .last_mut()
                .filter(|_| n_rows > 0 && seqlen_new > 0)
            {
                let left = copies.iter().filter(|copy| copy.from == *last).count();
                if self.owners[*last] as usize > left + 1 {
                    let (from, to) = (*last, take());
                    copies.push(Copy { from, to, n_rows });
                    *last = to;
                }
            }
            rows.seqlen += seqlen_new;
            while rows.pages.len() * page_size < rows.seqlen {
                rows.pages.push(take());
            }
            all.push(rows);
        }
        let free = self.free.len();
        match needed <= free {
            true => Ok(Grown {
                rows: all,
                copies,
                n_taken: needed,
            }),
            false => Err(CacheError::NoPages { needed, free }),
        }
    }

    fn keep(&mut self, batch: &[Sequence], grown: Grown) {
        for page in self.free.drain(self.free.len() - grown.n_taken..) {
            self.owners[page] = 1;
        }
        for copy in &grown.copies {
            self.leave(copy.from);
        }
        self.sequences
            .extend(batch.iter().map(|sequence| sequence.0).zip(grown.rows));
    }

    /// Queries `[batch, seqlen_q, heads_q, head_dim]` of these sequences over all their rows: a call as [`attend()`](crate::attend()) makes it.
    pub fn attend<'a, Q>(
        &'a mut self,
        batch: &[Sequence],
        q: (Q, impl Shape),
    ) -> Result<Call<'a, T, P>, Error>
    where
        Q: Data<'a, Element = T, Place = P>,
    {
        let tables = self.tables(batch)?;
        self.table = self.place.of(&tables.page_table)?;
        self.seqused = self.place.of(&tables.seqused)?;
        let of_q = q.1.layout()?;
        self.check_batch(batch, of_q)?;
        let of_k = self.pool.layout()?;
        let inputs = Inputs::new(
            &q.0.tensor(of_q)?,
            &P::tensor(&self.k, of_k)?,
            &P::tensor(&self.v, of_k)?,
        );
        let inputs = inputs
            .page_table(P::vector(&self.table))
            .seqused_k(P::vector(&self.seqused));
        let problem = Problem::of(T::DTYPE, of_q, of_k)
            .seqlen_k(tables.columns * self.pool.page_size)
            .pages(self.pool.pages(tables.columns));
        Ok(Call::new(q.0.place(), problem, inputs))
    }

    /// Whether tensors have an entry for each sequence.
    fn check_batch(&self, batch: &[Sequence], layout: Layout) -> Result<(), CacheError> {
        if layout.batch != batch.len() {
            let (given, needed) = (layout.batch, batch.len());
            return Err(CacheError::Batch { given, needed });
        }
        Ok(())
    }
}
