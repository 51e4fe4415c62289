//! Values in the keys: beside candle's own operations with the keys for values, and refusals.

use candle_core::{DType, Result, Tensor, Var};
use candle_ferroflash::{Error, flash_mla_with_kvcache};

use super::support::{Case, assert_close, naive, numbers, refusal};
use super::{CPU, F32, LENGTHS_K, MOST, Pool, lengths};

const BATCH: usize = LENGTHS_K.len();

/// A cache of each sequence's rows and NaN: by sequences, or in the pages of a pool.
fn filled(rows: &[Tensor], pool: Option<&Pool>) -> Result<Tensor> {
    let (_, heads, columns) = rows[0].dims3()?;
    let (entries, n_rows) = pool.map_or((BATCH, MOST), |pool| (pool.n_pages, pool.page_size));
    let nan = Tensor::full(f32::NAN, (heads, columns), CPU)?.to_dtype(rows[0].dtype())?;
    let mut all = vec![nan; entries * n_rows];
    for (sequence, rows) in rows.iter().enumerate() {
        for row in 0..rows.dim(0)? {
            let place = pool.map_or(sequence * MOST + row, |pool| pool.place(sequence, row));
            all[place] = rows.get(row)?;
        }
    }
    Tensor::stack(&all, 0)?.reshape((entries, n_rows, heads, columns))
}

#[test]
fn values_are_columns_of_the_keys() -> Result<()> {
    let used = lengths(&LENGTHS_K)?;
    for (dtype, heads_k, [head_dim, head_dim_v]) in [
        (DType::F32, 1, [576, 512]),
        (DType::F32, 2, [20, 13]),
        (DType::F32, 2, [8, 8]),
        (DType::BF16, 1, [96, 64]),
    ] {
        let allowed = match dtype {
            DType::F32 => F32,
            _ => 1.0 / 128.0,
        };
        let case = Case {
            batch: 1,
            seqlen_q: 2,
            heads_q: 4,
            heads_k,
            head_dim,
            ..Case::PLAIN
        };
        let q = numbers((BATCH, 2, 4, head_dim), 5)?.to_dtype(dtype)?;
        let of = |(sequence, &n): (usize, &usize)| {
            numbers((n, heads_k, head_dim), 10 + sequence as u64)?.to_dtype(dtype)
        };
        let rows: Vec<Tensor> = LENGTHS_K
            .iter()
            .enumerate()
            .map(of)
            .collect::<Result<_>>()?;
        for (page_size, causal) in [(None, true), (Some(7), true), (Some(16), false)] {
            let pool = page_size.map(|page_size| Pool::new(page_size, LENGTHS_K));
            let cache = filled(&rows, pool.as_ref())?;
            let table = pool.map(|pool| pool.table()).transpose()?;
            let (o, lse) = flash_mla_with_kvcache(
                &q,
                &cache,
                table.as_ref(),
                &used,
                head_dim_v,
                case.scale(),
                causal,
            )?;
            assert_eq!(
                (o.dims(), o.dtype()),
                (&[BATCH, 2, 4, head_dim_v][..], dtype)
            );
            assert_eq!((lse.dims(), lse.dtype()), (&[BATCH, 4, 2][..], DType::F32));
            for (sequence, rows) in rows.iter().enumerate() {
                let (o, lse) = (o.narrow(0, sequence, 1)?, lse.narrow(0, sequence, 1)?);
                let n = rows.dim(0)?;
                if n == 0 {
                    assert_close("o", &o, &o.zeros_like()?, 0.0);
                    let none = Tensor::full(f32::NEG_INFINITY, lse.dims(), CPU)?;
                    assert_close("lse", &lse, &none, 0.0);
                    continue;
                }
                let wide = |x: Tensor| x.to_dtype(DType::F32);
                let k = wide(rows.unsqueeze(0)?)?;
                let case = Case {
                    seqlen_k: n,
                    right: causal.then_some(0),
                    ..case
                };
                let (of_o, of_lse) = naive(&wide(q.narrow(0, sequence, 1)?)?, &k, &k, case)?;
                assert_close("o", &o, &of_o.narrow(3, 0, head_dim_v)?, allowed);
                assert_close("lse", &lse, &of_lse, allowed);
            }
        }
    }
    Ok(())
}

#[test]
fn there_is_no_gradient() -> Result<()> {
    let q = Var::from_tensor(&numbers((2, 1, 4, 16), 1)?)?;
    let k = numbers((2, 9, 1, 16), 2)?;
    let used = Tensor::new(&[9u32, 4], CPU)?;
    let (o, lse) = flash_mla_with_kvcache(&q, &k, None, &used, 8, 0.25, false)?;
    for result in [o, lse] {
        let error = result.sum_all()?.backward().unwrap_err();
        assert!(
            matches!(
                Error::of(&error),
                Some(Error::Gradient { argument: "q", .. })
            ),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, CPU);
    let (q, k) = (zeros(&[2, 1, 4, 16])?, zeros(&[5, 4, 2, 16])?);
    let table = Tensor::new(&[[4u32, 0], [2, 9]], CPU)?;
    let used = Tensor::new(&[7u32, 3], CPU)?;
    let run = |q: &Tensor, k: &Tensor, table: Option<&Tensor>, used: &Tensor, head_dim_v| {
        flash_mla_with_kvcache(q, k, table, used, head_dim_v, 0.5, true)
    };
    assert!(
        run(&q, &k, Some(&table), &used, 16).is_ok(),
        "page 9 is nobody's"
    );
    let of = |result| refusal::<(Tensor, Tensor)>(result);
    for (result, text) in [
        (
            run(&zeros(&[2, 4, 16])?, &k, Some(&table), &used, 8),
            "q has 3 dimensions; allowed: 4",
        ),
        (
            run(&q, &zeros(&[5, 4, 16])?, Some(&table), &used, 8),
            "k_cache has 3 dimensions; allowed: 4",
        ),
        (
            run(&q, &k.to_dtype(DType::F16)?, Some(&table), &used, 8),
            "k_cache is F16; allowed: [F32]",
        ),
        (
            run(&q, &k.narrow(3, 0, 8)?, Some(&table), &used, 8),
            "k_cache has shape [5, 4, 2, 8]; allowed: [5, 4, 2, 16]",
        ),
        (
            run(&q, &k, None, &used, 8),
            "k_cache has shape [5, 4, 2, 16]; allowed: [2, 4, 2, 16]",
        ),
        (
            run(
                &q,
                &k.transpose(2, 3)?.contiguous()?.transpose(2, 3)?,
                Some(&table),
                &used,
                8,
            ),
            "k_cache has strides [128, 32, 1, 2]; allowed: 1 in the last dimension",
        ),
        (
            run(&q, &k, Some(&table.narrow(0, 0, 1)?), &used, 8),
            "block_table has shape [1, 2]; allowed: [2, 2]",
        ),
        (
            run(&q, &k, Some(&table), &used.narrow(0, 0, 1)?, 8),
            "cache_seqlens has 1 elements; allowed: 2, one for each sequence of q",
        ),
    ] {
        assert_eq!(of(result), text);
    }
    for head_dim_v in [0, 17] {
        let text = of(run(&q, &k, Some(&table), &used, head_dim_v));
        assert!(
            text.contains(&format!("head_dim_v is {head_dim_v}")),
            "{text}"
        );
    }
    let text = of(run(&q, &k, Some(&table), &Tensor::new(&[7u32, 9], CPU)?, 8));
    assert!(text.contains('9'), "{text}");
    let text = of(run(&q, &k, Some(&table), &Tensor::new(&[7u32, 5], CPU)?, 8));
    assert!(text.contains("page 9"), "{text}");
    Ok(())
}
