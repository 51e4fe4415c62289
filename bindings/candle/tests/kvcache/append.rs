//! Appends: new rows are written, and rotated.

use super::*;

/// Rows that each sequence gets, as many as it has queries.
const BEFORE: [usize; 5] = [0, 40, 4, 22, 0];

/// Cosines and sines of `MOST` positions.
fn tables(rotary_dim: usize) -> Result<(Tensor, Tensor)> {
    let half = rotary_dim / 2;
    let angle = |at: usize| (at / half) as f32 * 0.37f32.powi((at % half) as i32);
    let angles: Vec<f32> = (0..MOST * half).map(angle).collect();
    let angles = Tensor::from_vec(angles, (MOST, half), CPU)?;
    Ok((angles.cos()?, angles.sin()?))
}

/// Rows `[rows, heads, head_dim]` rotated from a position on, in f32 by candle-nn's operations.
fn rotated(
    x: &Tensor,
    first: usize,
    rotary: (&Tensor, &Tensor),
    interleaved: bool,
) -> Result<Tensor> {
    let (n, half) = (x.dim(0)?, rotary.0.dim(1)?);
    let x = x.to_dtype(DType::F32)?;
    let own = |table: &Tensor| table.narrow(0, first, n)?.contiguous();
    let (cos, sin) = (own(rotary.0)?, own(rotary.1)?);
    let by_head = x.narrow(2, 0, 2 * half)?.transpose(0, 1)?;
    let by_head = by_head.unsqueeze(0)?.contiguous()?;
    let by_head = match interleaved {
        true => candle_nn::rotary_emb::rope_i(&by_head, &cos, &sin)?,
        false => candle_nn::rotary_emb::rope(&by_head, &cos, &sin)?,
    };
    let rest = x.narrow(2, 2 * half, x.dim(2)? - 2 * half)?;
    Tensor::cat(&[by_head.squeeze(0)?.transpose(0, 1)?, rest], 2)
}

/// What the first rows of each sequence's keys and values are when the new ones have been appended.
fn after(old: &Tensor, sequence: usize, new: Option<Tensor>) -> Result<Tensor> {
    let old = old.narrow(0, 0, BEFORE[sequence])?.to_dtype(DType::F32)?;
    match new {
        Some(new) => Tensor::cat(&[old, new.to_dtype(DType::F32)?], 0),
        None => Ok(old),
    }
}

/// Appends packed rows to a pool and to a contiguous cache, and looks at every row of both.
fn append(dtype: DType, rotary_dim: usize, interleaved: bool, allowed: f32) -> Result<()> {
    let total = LENGTHS_Q.iter().sum::<usize>();
    // As they come out of one product: views of one tensor.
    let qkv = numbers((total, HEADS_Q + 2 * HEADS_K, HEAD_DIM), 60)?.to_dtype(dtype)?;
    let q = qkv.narrow(1, 0, HEADS_Q)?;
    let (new_k, new_v) = (
        qkv.narrow(1, HEADS_Q, HEADS_K)?,
        qkv.narrow(1, HEADS_Q + HEADS_K, HEADS_K)?,
    );
    let (ends, before) = (cumulative(&LENGTHS_Q)?, lengths(&BEFORE)?);
    let (cos, sin) = tables(rotary_dim)?;
    let rotary = match interleaved {
        true => Rotary::interleaved(&cos, &sin),
        false => Rotary::halves(&cos, &sin),
    };
    let (ks, vs) = (rows(10, dtype)?, rows(20, dtype)?);
    let old = |all: &[Tensor]| -> Result<Vec<Tensor>> {
        let rows = all.iter().zip(BEFORE);
        rows.map(|(rows, n)| rows.narrow(0, 0, n)).collect()
    };
    let pool = Pool::new(7, LENGTHS_K);
    let (table, new) = (
        pool.table()?,
        NewRows::packed(&new_k, &new_v, &ends).with_q(&q),
    );
    let (pool_k, pool_v) = (pool.filled(&old(&ks)?)?, pool.filled(&old(&vs)?)?);
    let (own_k, own_v) = (contiguous(&old(&ks)?)?, contiguous(&old(&vs)?)?);
    let paged = KvCache::paged(&pool_k, &pool_v, &table, MOST, &before);
    let own = KvCache::new(&own_k, &own_v, &before);
    for cache in [paged, own] {
        let Appended {
            q: q_out,
            seqused_k,
        } = append_kvcache(&cache, &new, Some(&rotary))?;
        let q_out = q_out.expect("queries were given");
        assert_eq!((q_out.dims(), q_out.dtype()), (q.dims(), dtype));
        assert_eq!(seqused_k.to_vec1::<u32>()?, LENGTHS_K.map(|n| n as u32));
        let mut first = 0;
        for (sequence, n) in LENGTHS_Q.into_iter().enumerate() {
            if n == 0 {
                continue;
            }
            let own = |x: &Tensor| x.narrow(0, first, n);
            let turn = |x: &Tensor| rotated(&own(x)?, BEFORE[sequence], (&cos, &sin), interleaved);
            assert_close("q", &own(&q_out)?, &turn(&q)?, allowed);
            first += n;
        }
    }
    let mut first = 0;
    let mut n_written = 0;
    for (sequence, n) in LENGTHS_Q.into_iter().enumerate() {
        let own = |x: &Tensor| x.narrow(0, first, n);
        let (mut k, mut v) = (None, None);
        if n > 0 {
            k = Some(rotated(
                &own(&new_k)?,
                BEFORE[sequence],
                (&cos, &sin),
                interleaved,
            )?);
            v = Some(own(&new_v)?);
        }
        first += n;
        let rows = BEFORE[sequence] + n;
        n_written += rows;
        let (k, v) = (
            after(&ks[sequence], sequence, k)?,
            after(&vs[sequence], sequence, v)?,
        );
        if rows > 0 {
            assert_close("pool k", &pool.rows(&pool_k, sequence, rows)?, &k, allowed);
            assert_close("pool v", &pool.rows(&pool_v, sequence, rows)?, &v, 0.0);
            let own = |x: &Tensor| x.i(sequence)?.narrow(0, 0, rows);
            assert_close("k", &own(&own_k)?, &k, allowed);
            assert_close("v", &own(&own_v)?, &v, 0.0);
        }
    }
    // Nothing else was written.
    for cache in [&pool_k, &pool_v, &own_k, &own_v] {
        let elements = cache
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let numbers = elements.iter().filter(|x| !x.is_nan()).count();
        assert_eq!(numbers, n_written * HEADS_K * HEAD_DIM);
    }
    Ok(())
}

#[test]
fn appends_turn_and_write_the_new_rows_alone() -> Result<()> {
    for (rotary_dim, interleaved) in [(16, false), (16, true), (10, false), (4, true)] {
        append(DType::F32, rotary_dim, interleaved, 1e-6)?;
        append(DType::BF16, rotary_dim, interleaved, 1.0 / 128.0)?;
        append(DType::F16, rotary_dim, interleaved, 1.0 / 1024.0)?;
    }
    Ok(())
}

#[test]
fn without_rotary_embedding_rows_are_copied() -> Result<()> {
    let (k, v) = (numbers((2, 3, 1, 8), 1)?, numbers((2, 3, 1, 8), 2)?);
    let zeros = || Tensor::zeros((2, 2, 5, 1, 8), DType::F32, CPU);
    let (k_all, v_all) = (zeros()?, zeros()?);
    // The second half of the memory.
    let (k_cache, v_cache) = (k_all.i(1)?, v_all.i(1)?);
    let before = Tensor::new(&[2i64, 1], CPU)?.to_dtype(DType::I32)?;
    let cache = KvCache::new(&k_cache, &v_cache, &before);
    let appended = append_kvcache(&cache, &NewRows::new(&k, &v), None)?;
    assert!(appended.q.is_none());
    assert_eq!(appended.seqused_k.dtype(), DType::I32);
    assert_eq!(appended.seqused_k.to_vec1::<i32>()?, [5, 4]);
    let zero = |n| Tensor::zeros((n, 1, 8), DType::F32, CPU);
    for (all, new) in [(&k_all, &k), (&v_all, &v)] {
        let none = all.i(0)?;
        assert_close("before", &none, &none.zeros_like()?, 0.0);
        let first = Tensor::cat(&[&zero(2)?, &new.i(0)?], 0)?;
        let second = Tensor::cat(&[&zero(1)?, &new.i(1)?, &zero(1)?], 0)?;
        assert_close("0", &all.i((1, 0))?, &first, 0.0);
        assert_close("1", &all.i((1, 1))?, &second, 0.0);
    }
    Ok(())
}

/// A prompt in two chunks and steps of one row, by append and attention: the rows of attention over the whole at once.
#[test]
fn a_text_in_steps() -> Result<()> {
    let (n, page_size) = (29, 4);
    let of = |heads, seed| numbers((n, heads, HEAD_DIM), seed);
    let (q, k, v) = (of(HEADS_Q, 1)?, of(HEADS_K, 2)?, of(HEADS_K, 3)?);
    let (cos, sin) = tables(HEAD_DIM)?;
    let rotary = Rotary::halves(&cos, &sin);
    let pool = Pool::new(page_size, [n, 0, 0, 0, 0]);
    let table = pool.table()?.narrow(0, 0, 1)?;
    let nan = || Tensor::full(f32::NAN, (pool.n_pages, page_size, HEADS_K, HEAD_DIM), CPU);
    let (k_cache, v_cache) = (nan()?, nan()?);
    let mut used = Tensor::zeros(1, DType::U32, CPU)?;
    let (mut first, mut os) = (0, Vec::new());
    for step in [11, 13, 1, 1, 1, 1, 1] {
        let ends = Tensor::new(&[0u32, step as u32], CPU)?;
        let rows = |x: &Tensor| x.narrow(0, first, step);
        let (q, k, v) = (rows(&q)?, rows(&k)?, rows(&v)?);
        let cache = KvCache::paged(&k_cache, &v_cache, &table, MOST, &used);
        let appended = append_kvcache(
            &cache,
            &NewRows::packed(&k, &v, &ends).with_q(&q),
            Some(&rotary),
        )?;
        let q = appended.q.expect("queries were given");
        let cache = cache.with_seqused_k(&appended.seqused_k);
        let o = flash_attn_varlen_with_kvcache(&q, &ends, step, &cache, SCALE, None, Some(0))?;
        os.push(o);
        used = appended.seqused_k;
        first += step;
    }
    let turn = |x: &Tensor| rotated(x, 0, (&cos, &sin), false)?.unsqueeze(0);
    let case = Case {
        batch: 1,
        seqlen_q: n,
        seqlen_k: n,
        heads_q: HEADS_Q,
        heads_k: HEADS_K,
        head_dim: HEAD_DIM,
        left: None,
        right: Some(0),
    };
    let (expected, _) = naive(&turn(&q)?, &turn(&k)?, &v.unsqueeze(0)?, case)?;
    assert_close("o", &Tensor::cat(&os, 0)?, &expected.squeeze(0)?, F32);
    Ok(())
}
