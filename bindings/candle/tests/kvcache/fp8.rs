//! Caches in 8 bits: beside candle's own operations on the numbers that they stand for, and refusals.

use candle_core::{DType, IndexOp, Result, Tensor};
use candle_ferroflash::{
    KvCache, NewRows, append_kvcache, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_with_kvcache, flash_attn_with_kvcache,
};

use super::support::{assert_close, numbers, refusal};
use super::{
    CPU, F32, HEAD_DIM, HEADS_K, HEADS_Q, LENGTHS_K, LENGTHS_Q, MOST, Pool, SCALE, contiguous,
    cumulative, expected, lengths, queries, rows,
};

const BATCH: usize = LENGTHS_K.len();

/// Rows of each sequence that e4m3 holds.
fn rounded(seed: u64) -> Result<Vec<Tensor>> {
    let rounded = |x: &Tensor| x.to_dtype(DType::F8E4M3)?.to_dtype(DType::F32);
    rows(seed, DType::F32)?.iter().map(rounded).collect()
}

/// Scales between a half and one and a half, `[entries, HEADS_K]`.
fn scales(entries: usize, seed: u64) -> Result<Tensor> {
    (numbers((entries, HEADS_K), seed)? * 0.5)? + 1.0
}

/// Each row times the scale of its entry and head, which is that of its sequence or its page.
fn scaled(
    rows: &[Tensor],
    scales: &Tensor,
    entry: impl Fn(usize, usize) -> usize,
) -> Result<Vec<Tensor>> {
    let of = |(sequence, rows): (usize, &Tensor)| {
        let entries: Vec<u32> = (0..rows.dim(0)?)
            .map(|row| entry(sequence, row) as u32)
            .collect();
        let of_rows = scales.index_select(&Tensor::new(entries, CPU)?, 0)?;
        rows.broadcast_mul(&of_rows.unsqueeze(2)?)
    };
    rows.iter().enumerate().map(of).collect()
}

#[test]
fn scales_of_sequences_and_of_pages() -> Result<()> {
    let (ks, vs) = (rounded(10)?, rounded(20)?);
    let (ends_q, used) = (cumulative(&LENGTHS_Q)?, lengths(&LENGTHS_K)?);
    for (dtype, allowed) in [(DType::F32, F32), (DType::BF16, 1.0 / 128.0)] {
        let q = queries(dtype)?;
        let check = |cache: &KvCache, ks: &[Tensor], vs: &[Tensor]| -> Result<()> {
            for left in [None, Some(9)] {
                let o =
                    flash_attn_varlen_with_kvcache(&q, &ends_q, 17, cache, SCALE, left, Some(0))?;
                assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
                assert_close("o", &o, &expected(&q, [ks, vs], left, Some(0))?, allowed);
            }
            Ok(())
        };
        let (of_k, of_v) = (scales(BATCH, 1)?, scales(BATCH, 2)?);
        let by_sequence = |rows: &[Tensor], scales| scaled(rows, scales, |sequence, _| sequence);
        let (wide_k, wide_v) = (by_sequence(&ks, &of_k)?, by_sequence(&vs, &of_v)?);
        let e4m3 = |x: Tensor| x.to_dtype(DType::F8E4M3);
        let (k, v) = (e4m3(contiguous(&ks)?)?, e4m3(contiguous(&vs)?)?);
        let cache = KvCache::new(&k, &v, &used);
        check(&cache, &ks, &vs)?;
        check(&cache.with_descale(&of_k, &of_v), &wide_k, &wide_v)?;

        for page_size in [1, 7, 16] {
            let pool = Pool::new(page_size, LENGTHS_K);
            let (k, v) = (e4m3(pool.filled(&ks)?)?, e4m3(pool.filled(&vs)?)?);
            let table = pool.table()?;
            let cache = KvCache::paged(&k, &v, &table, MOST, &used);
            check(&cache, &ks, &vs)?;
            check(&cache.with_descale(&of_k, &of_v), &wide_k, &wide_v)?;

            let (of_k, of_v) = (scales(pool.n_pages, 3)?, scales(pool.n_pages, 4)?);
            let page = |sequence, row| pool.place(sequence, row) / page_size;
            let (wide_k, wide_v) = (scaled(&ks, &of_k, page)?, scaled(&vs, &of_v, page)?);
            let cache = cache.with_descale_of_pages(&of_k, &of_v);
            check(&cache, &wide_k, &wide_v)?;
        }
    }
    Ok(())
}

/// One tensor for both, scales of other strides, padded queries: the same bits.
#[test]
fn however_scales_are_given() -> Result<()> {
    let q = numbers((BATCH, 2, HEADS_Q, HEAD_DIM), 50)?;
    let used = lengths(&LENGTHS_K)?;
    let k = contiguous(&rounded(10)?)?.to_dtype(DType::F8E4M3)?;
    let of_k = scales(BATCH, 1)?;
    let cache = KvCache::new(&k, &k, &used);
    let run = |k_descale: &Tensor, v_descale: &Tensor| {
        let cache = cache.with_descale(k_descale, v_descale);
        flash_attn_with_kvcache(&q, &cache, SCALE, None, Some(0))
    };
    let o = run(&of_k, &of_k)?;
    assert_close("two tensors", &run(&of_k, &of_k.copy()?)?, &o, 0.0);
    let transposed = of_k.t()?.contiguous()?.t()?;
    assert_close("strides", &run(&transposed, &of_k)?, &o, 0.0);
    let ones = of_k.ones_like()?;
    let without = flash_attn_with_kvcache(&q, &cache, SCALE, None, Some(0))?;
    assert_close("ones", &run(&ones, &ones)?, &without, 0.0);
    Ok(())
}

/// New rows are divided by the scale of their sequence or page and head, and rounded; attention over the cache is that over the numbers they stand for.
#[test]
fn appended_rows_are_rounded() -> Result<()> {
    let (ks, vs) = (rows(10, DType::F32)?, rows(20, DType::F32)?);
    let total: usize = LENGTHS_K.iter().sum();
    let packed = |rows: &[Tensor]| Tensor::cat(rows, 0);
    let (new_k, new_v) = (packed(&ks)?, packed(&vs)?);
    assert_eq!(new_k.dim(0)?, total);
    let ends = cumulative(&LENGTHS_K)?;
    let nothing = lengths(&[0; BATCH])?;
    let page_size = 7;
    let pool = Pool::new(page_size, LENGTHS_K);
    let (of_k, of_v) = (
        (scales(pool.n_pages, 3)? / 448.0)?,
        (scales(pool.n_pages, 4)? / 400.0)?,
    );
    let empty: Vec<Tensor> = ks
        .iter()
        .map(|rows| rows.zeros_like())
        .collect::<Result<_>>()?;
    let cache = || pool.filled(&empty)?.to_dtype(DType::F8E4M3);
    let (k, v, table) = (cache()?, cache()?, pool.table()?);
    let cache = KvCache::paged(&k, &v, &table, MOST, &nothing).with_descale_of_pages(&of_k, &of_v);
    let new = NewRows::packed(&new_k, &new_v, &ends);
    let appended = append_kvcache(&cache, &new, None)?;
    let expected_lengths: Vec<u32> = LENGTHS_K.iter().map(|&n| n as u32).collect();
    assert_eq!(appended.seqused_k.to_vec1::<u32>()?, expected_lengths);

    // The same by candle: divided by the scale of its page, rounded, and multiplied again.
    let page = |sequence, row| pool.place(sequence, row) / page_size;
    let stand_for = |rows: &[Tensor], of: &Tensor| -> Result<Vec<Tensor>> {
        let divided = scaled(rows, &of.recip()?, page)?;
        let rounded = divided
            .iter()
            .map(|x| x.to_dtype(DType::F8E4M3)?.to_dtype(DType::F32));
        scaled(&rounded.collect::<Result<Vec<_>>>()?, of, page)
    };
    let (wide_k, wide_v) = (stand_for(&ks, &of_k)?, stand_for(&vs, &of_v)?);
    let q = queries(DType::F32)?;
    let cache = cache.with_seqused_k(&appended.seqused_k);
    let ends_q = cumulative(&LENGTHS_Q)?;
    let o = flash_attn_varlen_with_kvcache(&q, &ends_q, 17, &cache, SCALE, None, Some(0))?;
    assert_close(
        "o",
        &o,
        &expected(&q, [&wide_k, &wide_v], None, Some(0))?,
        F32,
    );
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let q = Tensor::zeros((2, 1, 4, 8), DType::BF16, CPU)?;
    let k = Tensor::zeros((5, 4, 2, 8), DType::BF16, CPU)?;
    let k8 = k.to_dtype(DType::F8E4M3)?;
    let table = Tensor::new(&[[4u32, 0], [2, 9]], CPU)?;
    let used = Tensor::new(&[7u32, 3], CPU)?;
    let ones = Tensor::ones((2, 2), DType::F32, CPU)?;
    let of = |cache: &KvCache| refusal(flash_attn_with_kvcache(&q, cache, 0.5, None, None));
    let paged = KvCache::paged(&k8, &k8, &table, 8, &used);
    assert!(flash_attn_with_kvcache(&q, &paged, 0.5, None, None).is_ok());
    assert_eq!(
        of(&KvCache::paged(&k8, &k, &table, 8, &used)),
        "v is BF16; allowed: [F8E4M3]"
    );
    assert_eq!(
        of(&KvCache::paged(&k, &k8, &table, 8, &used)),
        "v is F8E4M3; allowed: [BF16]"
    );
    assert_eq!(
        of(&KvCache::paged(&k, &k, &table, 8, &used).with_descale(&ones, &ones)),
        "k_descale is a tensor [2, 2] of F32; allowed: none, but of a cache of F8E4M3"
    );
    assert_eq!(
        of(&paged.with_descale(&ones.i(0)?, &ones)),
        "k_descale has shape [2]; allowed: [2, 2]"
    );
    assert_eq!(
        of(&paged.with_descale_of_pages(&Tensor::ones((5, 2), DType::F32, CPU)?, &ones)),
        "v_descale has shape [2, 2]; allowed: [5, 2]"
    );
    assert_eq!(
        of(&paged.with_descale(&ones, &ones.to_dtype(DType::F64)?)),
        "v_descale is F64; allowed: [F32]"
    );
    let text =
        of(&KvCache::new(&k8.i(..2)?, &k8.i(..2)?, &used).with_descale_of_pages(&ones, &ones));
    assert!(text.contains("a scale for each page"), "{text}");
    let new = q.i((.., .., ..2))?;
    let append = |cache: &KvCache| refusal(append_kvcache(cache, &NewRows::new(&new, &new), None));
    let v8 = k8.copy()?;
    assert_eq!(
        append(&KvCache::paged(&k8, &k, &table, 8, &used)),
        "v_cache is BF16; allowed: [F8E4M3]"
    );
    assert_eq!(
        append(&KvCache::paged(&k8, &v8, &table, 8, &used).with_descale(&ones.i(0)?, &ones)),
        "k_descale has shape [2]; allowed: [2, 2]"
    );
    let zeros = ones.zeros_like()?;
    assert_eq!(
        append(&KvCache::paged(&k8, &v8, &table, 8, &used).with_descale(&ones, &zeros)),
        "v_descale is 0 at 0; allowed: finite numbers above 0"
    );

    let packed = q.squeeze(1)?;
    let ends = Tensor::new(&[0u32, 1, 2], CPU)?;
    let text = refusal(flash_attn_varlen_paged_windowed(
        &packed, &k8, &k8, &ends, &ends, &table, None, 1, 8, 0.5, None, None, 4, None,
    ));
    assert_eq!(text, "k is F8E4M3; allowed: [BF16]");
    Ok(())
}
