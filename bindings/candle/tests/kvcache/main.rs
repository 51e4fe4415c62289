//! Attention over caches, contiguous and in pages, and appends to them: sequence by sequence beside candle's own operations.

mod append;
mod fp8;
mod mla;
#[path = "../support/mod.rs"]
mod support;

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_ferroflash::{
    Appended, KvCache, NewRows, Rotary, append_kvcache, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_with_kvcache, flash_attn_with_kvcache,
};
use support::{Case, assert_close, naive, numbers};

const CPU: &Device = &Device::Cpu;
const F32: f32 = 5e-6;
const HEADS_Q: usize = 4;
const HEADS_K: usize = 2;
const HEAD_DIM: usize = 16;
const SCALE: f32 = 0.25;

/// Queries and keys by sequence: one begins, one decodes, one has nothing to do, one is in the midst of its prompt, one is new.
const LENGTHS_Q: [usize; 5] = [17, 1, 0, 8, 0];
const LENGTHS_K: [usize; 5] = [17, 41, 4, 30, 0];
/// Rows for which the tables below have pages.
const MOST: usize = 48;

fn cumulative(lengths: &[usize]) -> Result<Tensor> {
    let mut ends = vec![0u32];
    for &length in lengths {
        ends.push(ends[ends.len() - 1] + length as u32);
    }
    Tensor::new(ends, CPU)
}

fn lengths(lengths: &[usize]) -> Result<Tensor> {
    let lengths: Vec<u32> = lengths.iter().map(|&length| length as u32).collect();
    Tensor::new(lengths, CPU)
}

/// Rows of each sequence's keys or values, `[rows, HEADS_K, HEAD_DIM]`.
fn rows(seed: u64, dtype: DType) -> Result<Vec<Tensor>> {
    let of = |(sequence, &length): (usize, &usize)| {
        numbers((length, HEADS_K, HEAD_DIM), seed + sequence as u64)?.to_dtype(dtype)
    };
    LENGTHS_K.iter().enumerate().map(of).collect()
}

/// A pool in which sequences have pages by turns, from the last page down, and the table that says so. What belongs to no sequence is
/// NaN in the pool, and no page in the table.
struct Pool {
    page_size: usize,
    table: Vec<Vec<u32>>,
    n_pages: usize,
}

impl Pool {
    /// With pages for these rows.
    fn new(page_size: usize, lengths: [usize; 5]) -> Pool {
        let columns = MOST.div_ceil(page_size);
        let mut table = vec![vec![u32::MAX; columns]; lengths.len()];
        let n_pages = 3 + lengths.iter().map(|n| n.div_ceil(page_size)).sum::<usize>();
        let mut next = n_pages as u32 - 1;
        for column in 0..columns {
            for (row, length) in table.iter_mut().zip(lengths) {
                if column * page_size < length {
                    row[column] = next;
                    next -= 1;
                }
            }
        }
        Pool {
            page_size,
            table,
            n_pages,
        }
    }

    fn table(&self) -> Result<Tensor> {
        Tensor::new(self.table.clone(), CPU)
    }

    /// `[n_pages, page_size, HEADS_K, HEAD_DIM]` with the rows of each sequence.
    fn filled(&self, sequences: &[Tensor]) -> Result<Tensor> {
        let nan =
            Tensor::full(f32::NAN, (HEADS_K, HEAD_DIM), CPU)?.to_dtype(sequences[0].dtype())?;
        let mut pool = vec![nan; self.n_pages * self.page_size];
        for (sequence, rows) in sequences.iter().enumerate() {
            for row in 0..rows.dim(0)? {
                pool[self.place(sequence, row)] = rows.i(row)?;
            }
        }
        let shape = (self.n_pages, self.page_size, HEADS_K, HEAD_DIM);
        Tensor::stack(&pool, 0)?.reshape(shape)
    }

    fn place(&self, sequence: usize, row: usize) -> usize {
        let page = self.table[sequence][row / self.page_size] as usize;
        page * self.page_size + row % self.page_size
    }

    /// The first rows of a sequence, of a pool.
    fn rows(&self, pool: &Tensor, sequence: usize, n: usize) -> Result<Tensor> {
        let places: Vec<u32> = (0..n).map(|row| self.place(sequence, row) as u32).collect();
        pool.flatten(0, 1)?
            .index_select(&Tensor::new(places, CPU)?, 0)
    }
}

/// A contiguous cache with the rows of each sequence, and NaN behind them.
fn contiguous(sequences: &[Tensor]) -> Result<Tensor> {
    let filled = |rows: &Tensor| {
        let n = MOST - rows.dim(0)?;
        let nan = Tensor::full(f32::NAN, (n, HEADS_K, HEAD_DIM), CPU)?.to_dtype(rows.dtype())?;
        Tensor::cat(&[rows, &nan], 0)
    };
    let all: Vec<Tensor> = sequences.iter().map(filled).collect::<Result<_>>()?;
    Tensor::stack(&all, 0)
}

fn queries(dtype: DType) -> Result<Tensor> {
    let total = LENGTHS_Q.iter().sum::<usize>();
    numbers((total, HEADS_Q, HEAD_DIM), 50)?.to_dtype(dtype)
}

/// Attention of packed queries over the keys of each sequence, by candle's operations.
fn expected(
    q: &Tensor,
    [ks, vs]: [&[Tensor]; 2],
    left: Option<usize>,
    right: Option<usize>,
) -> Result<Tensor> {
    let (mut first, mut os) = (0, Vec::new());
    for (sequence, n_q) in LENGTHS_Q.into_iter().enumerate() {
        let n_k = ks[sequence].dim(0)?;
        if n_q == 0 {
            continue;
        }
        let case = Case {
            batch: 1,
            seqlen_q: n_q,
            seqlen_k: n_k,
            heads_q: HEADS_Q,
            heads_k: HEADS_K,
            head_dim: HEAD_DIM,
            left,
            right,
        };
        let wide = |x: Tensor| x.to_dtype(DType::F32)?.unsqueeze(0);
        let (k, v) = (wide(ks[sequence].clone())?, wide(vs[sequence].clone())?);
        let (o, _) = naive(&wide(q.narrow(0, first, n_q)?)?, &k, &v, case)?;
        os.push(o.squeeze(0)?);
        first += n_q;
    }
    Tensor::cat(&os, 0)
}

#[test]
fn pages_of_every_size_and_all_masks() -> Result<()> {
    for (dtype, allowed) in [(DType::F32, F32), (DType::BF16, 1.0 / 256.0)] {
        let (q, ks, vs) = (queries(dtype)?, rows(10, dtype)?, rows(20, dtype)?);
        let (ends_q, ends_k) = (cumulative(&LENGTHS_Q)?, cumulative(&LENGTHS_K)?);
        for page_size in [1, 7, 16, 32] {
            let pool = Pool::new(page_size, LENGTHS_K);
            let (k, v, table) = (pool.filled(&ks)?, pool.filled(&vs)?, pool.table()?);
            for (left, right) in [(None, None), (None, Some(0)), (Some(9), Some(0))] {
                let o = flash_attn_varlen_paged_windowed(
                    &q, &k, &v, &ends_q, &ends_k, &table, None, 17, MOST, SCALE, left, right,
                    page_size, None,
                )?;
                assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
                let expected = expected(&q, [&ks, &vs], left, right)?;
                assert_close("o", &o, &expected, allowed);
            }
        }
    }
    Ok(())
}

/// Lengths as cumulative ones or by themselves, u32 or i32, tables wider than they need to be, pools and caches of other strides and
/// inside of larger memory: the same bits.
#[test]
fn however_the_cache_is_given() -> Result<()> {
    let (q, ks, vs) = (
        queries(DType::F32)?,
        rows(10, DType::F32)?,
        rows(20, DType::F32)?,
    );
    let (ends_q, used) = (cumulative(&LENGTHS_Q)?, lengths(&LENGTHS_K)?);
    let pool = Pool::new(7, LENGTHS_K);
    let (k, v, table) = (pool.filled(&ks)?, pool.filled(&vs)?, pool.table()?);
    let attend = |cache: &KvCache, ends_q: &Tensor| {
        flash_attn_varlen_with_kvcache(&q, ends_q, 17, cache, SCALE, None, Some(0))
    };
    let o = attend(&KvCache::paged(&k, &v, &table, MOST, &used), &ends_q)?;
    let expected = expected(&q, [&ks, &vs], None, Some(0))?;
    assert_close("o", &o, &expected, F32);

    let ends_k = cumulative(&LENGTHS_K)?.to_dtype(DType::I32)?;
    let theirs = flash_attn_varlen_paged_windowed(
        &q,
        &k,
        &v,
        &ends_q,
        &ends_k,
        &table,
        None,
        17,
        MOST,
        SCALE,
        None,
        Some(0),
        7,
        Some(0.0),
    )?;
    assert_close("cumulative", &theirs, &o, 0.0);

    let i32s = [&table, &used, &ends_q].map(|x| x.to_dtype(DType::I32));
    let [table_i32, used_i32, ends_i32] = i32s;
    let cache = KvCache::paged(
        &k,
        &v,
        table_i32.as_ref().unwrap(),
        MOST,
        used_i32.as_ref().unwrap(),
    );
    assert_close("i32", &attend(&cache, &ends_i32?)?, &o, 0.0);

    let wider = Tensor::cat(&[&table, &table], 1)?;
    let narrowed = wider.narrow(1, 0, table.dim(1)?)?;
    for table in [wider.clone(), narrowed] {
        let cache = KvCache::paged(&k, &v, &table, MOST, &used);
        assert_close("table", &attend(&cache, &ends_q)?, &o, 0.0);
    }

    let by_head = |x: &Tensor| x.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let behind = |x: &Tensor| Tensor::cat(&[x, x], 0)?.narrow(0, x.dim(0)?, x.dim(0)?);
    for (k, v) in [(by_head(&k)?, by_head(&v)?), (behind(&k)?, behind(&v)?)] {
        let cache = KvCache::paged(&k, &v, &table, MOST, &used);
        assert_close("strides", &attend(&cache, &ends_q)?, &o, 0.0);
    }

    let (k, v) = (contiguous(&ks)?, contiguous(&vs)?);
    let o = attend(&KvCache::new(&k, &v, &used), &ends_q)?;
    assert_close("contiguous", &o, &expected, F32);
    Ok(())
}

/// Two queries of each sequence, the last two keys of which are theirs.
#[test]
fn padded_queries() -> Result<()> {
    let (ks, vs) = (rows(10, DType::F32)?, rows(20, DType::F32)?);
    let (batch, n_q) = (LENGTHS_K.len(), 2);
    let q = numbers((batch, n_q, HEADS_Q, HEAD_DIM), 50)?;
    let (pool, used) = (Pool::new(4, LENGTHS_K), lengths(&LENGTHS_K)?);
    let (k, v, table) = (pool.filled(&ks)?, pool.filled(&vs)?, pool.table()?);
    let cache = KvCache::paged(&k, &v, &table, MOST, &used);
    let paged = flash_attn_with_kvcache(&q, &cache, SCALE, None, Some(0))?;
    let (k, v) = (contiguous(&ks)?, contiguous(&vs)?);
    let cache = KvCache::new(&k, &v, &used);
    let padded = flash_attn_with_kvcache(&q, &cache, SCALE, None, Some(0))?;
    for (sequence, n_k) in LENGTHS_K.into_iter().enumerate() {
        let of = |o: &Tensor| o.narrow(0, sequence, 1);
        let q = of(&q)?;
        let expected = match n_k {
            0 => q.zeros_like()?,
            _ => {
                let case = Case {
                    batch: 1,
                    seqlen_q: n_q,
                    seqlen_k: n_k,
                    heads_q: HEADS_Q,
                    heads_k: HEADS_K,
                    head_dim: HEAD_DIM,
                    left: None,
                    right: Some(0),
                };
                let (k, v) = (ks[sequence].unsqueeze(0)?, vs[sequence].unsqueeze(0)?);
                naive(&q, &k, &v, case)?.0
            }
        };
        assert_close("paged", &of(&paged)?, &expected, F32);
        assert_close("padded", &of(&padded)?, &expected, F32);
    }
    Ok(())
}
