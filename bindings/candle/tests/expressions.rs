//! Scores and masks of the caller's own, ALiBi and soft caps among them, beside candle's own operations, forward and backward.

mod support;

use candle_core::{DType, Device, Result, Tensor};
use candle_ferroflash::{
    self as ff, Error, Expressions, Mask, Score, flash_attn_alibi_windowed_softcap,
    flash_attn_with_expressions,
};
use support::{Case, assert_close, naive_edited, numbers, refusal, widened};

/// f32 on both sides: sums in another order, and another tanh.
const F32: f32 = 5e-6;

const SLOPES: [f32; 4] = [0.5, 0.25, 0.1, 0.02];

/// Both passes beside autograd through candle's operations.
fn compare(
    case: Case,
    ours: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    edit: impl FnOnce(Tensor) -> Result<Tensor>,
) -> Result<()> {
    let variables = case.variables(DType::F32)?;
    let [q, k, v] = &variables;
    let weights = case.weights(DType::F32)?;
    let o = ours(q, k, v)?;
    let gradients = (&o * &weights)?.sum_all()?.backward()?;
    let wide = [widened(q)?, widened(k)?, widened(v)?];
    let (expected, _) = naive_edited(&wide[0], &wide[1], &wide[2], case, edit)?;
    let expected_gradients = (&expected * &weights)?.sum_all()?.backward()?;
    assert_close("o", &o, &expected, F32);
    for (name, (ours, theirs)) in ["dq", "dk", "dv"].iter().zip(variables.iter().zip(&wide)) {
        let ours = gradients.get(ours).expect("a gradient");
        let theirs = expected_gradients.get(theirs).expect("a gradient");
        assert_close(name, ours, theirs, 4.0 * F32);
    }
    Ok(())
}

/// A number for each query and key.
fn over_pairs(case: Case, f: impl Fn(i32, i32) -> f32) -> Result<Tensor> {
    let (n_q, n_k) = (case.seqlen_q, case.seqlen_k);
    let pairs = (0..n_q).flat_map(|i| (0..n_k).map(move |j| (i as i32, j as i32)));
    let values: Vec<f32> = pairs.map(|(i, j)| f(i, j)).collect();
    Tensor::from_vec(values, (1, 1, n_q, n_k), &Device::Cpu)
}

/// ALiBi by its definition, behind a soft cap.
fn alibi(scores: Tensor, case: Case, softcap: f64, slopes: Option<&Tensor>) -> Result<Tensor> {
    let scores = match softcap {
        0.0 => scores,
        cap => ((scores / cap)?.tanh()? * cap)?,
    };
    let Some(slopes) = slopes else {
        return Ok(scores);
    };
    let behind = case.seqlen_k as i32 - case.seqlen_q as i32;
    let distance = over_pairs(case, |i, j| (i + behind - j).abs() as f32)?;
    scores.broadcast_sub(&slopes.reshape((1, 4, 1, 1))?.broadcast_mul(&distance)?)
}

#[test]
fn alibi_and_soft_caps() -> Result<()> {
    let slopes = Tensor::new(&SLOPES, &Device::Cpu)?;
    let windows = [
        (None, None),
        (None, Some(0)),
        (Some(9), Some(0)),
        (Some(5), Some(7)),
    ];
    for (seqlen_q, seqlen_k) in [(37, 37), (12, 30), (30, 12)] {
        for (left, right) in windows {
            let case = Case {
                seqlen_q,
                seqlen_k,
                left,
                right,
                ..Case::PLAIN
            };
            for (softcap, slopes) in [(0.0, Some(&slopes)), (0.7, None), (0.7, Some(&slopes))] {
                let ours = |q: &Tensor, k: &Tensor, v: &Tensor| {
                    let scale = case.scale();
                    let softcap = softcap as f32;
                    flash_attn_alibi_windowed_softcap(q, k, v, slopes, scale, left, right, softcap)
                };
                compare(case, ours, |s| alibi(s, case, softcap, slopes))?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_other_functions_of_alibi_are_that_one() -> Result<()> {
    let slopes = Tensor::new(&SLOPES, &Device::Cpu)?;
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let equal = |a: Tensor, b: Tensor| assert_close("o", &a, &b, 0.0);
    for (causal, right) in [(false, None), (true, Some(0))] {
        let general =
            flash_attn_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), 0.3, None, right, 0.0)?;
        equal(
            ff::flash_attn_alibi(&q, &k, &v, &slopes, 0.3, causal)?,
            general.clone(),
        );
        let windowed = ff::flash_attn_alibi_windowed(&q, &k, &v, &slopes, 0.3, None, right)?;
        equal(windowed, general);
    }
    Ok(())
}

/// Each sequence of packed ones is as it is alone.
#[test]
fn packed_sequences() -> Result<()> {
    let slopes = Tensor::new(&SLOPES, &Device::Cpu)?;
    let [q, k, v] = [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| numbers((30, heads, 16), seed));
    let (q, k, v) = (q?, k?, v?);
    let ends = Tensor::new(&[0u32, 9, 30], &Device::Cpu)?;
    for (softcap, right) in [(0.0, None), (0.7, Some(0)), (0.7, Some(4))] {
        let o = ff::flash_attn_varlen_alibi_windowed_softcap(
            &q,
            &k,
            &v,
            Some(&slopes),
            &ends,
            &ends,
            21,
            21,
            0.3,
            None,
            right,
            softcap,
        )?;
        for (start, n) in [(0, 9), (9, 21)] {
            let one = |x: &Tensor| x.narrow(0, start, n)?.unsqueeze(0);
            let (q, k, v) = (one(&q)?, one(&k)?, one(&v)?);
            let alone = flash_attn_alibi_windowed_softcap(
                &q,
                &k,
                &v,
                Some(&slopes),
                0.3,
                None,
                right,
                softcap,
            )?;
            assert_close("o", &one(&o)?, &alone, F32);
        }
    }
    let causal = ff::flash_attn_varlen_alibi(&q, &k, &v, &slopes, &ends, &ends, 21, 21, 0.3, true)?;
    let windowed = ff::flash_attn_varlen_alibi_windowed(
        &q,
        &k,
        &v,
        &slopes,
        &ends,
        &ends,
        21,
        21,
        0.3,
        None,
        Some(0),
    )?;
    assert_close("o", &causal, &windowed, 0.0);
    Ok(())
}

#[test]
fn a_soft_cap_over_pages() -> Result<()> {
    let (q, k) = (numbers((1, 5, 4, 16), 1)?, numbers((1, 24, 2, 16), 2)?);
    let pages = k.reshape((3, 8, 2, 16))?;
    let ends = |n: u32| Tensor::new(&[0, n], &Device::Cpu);
    let table = Tensor::new(&[[0u32, 1, 2]], &Device::Cpu)?;
    let paged = ff::flash_attn_varlen_paged_windowed(
        &q.squeeze(0)?,
        &pages,
        &pages,
        &ends(5)?,
        &ends(24)?,
        &table,
        None,
        5,
        24,
        0.3,
        None,
        Some(0),
        8,
        Some(0.5),
    )?;
    let whole = flash_attn_alibi_windowed_softcap(&q, &k, &k, None, 0.3, None, Some(0), 0.5)?;
    assert_close("o", &paged, &whole.squeeze(0)?, F32);
    Ok(())
}

/// A bias that is a transposed tensor, a parameter, and a mask of documents.
#[test]
fn expressions_of_ones_own() -> Result<()> {
    let score =
        Score::new(|s, at| at.f32("factor") * s + at.tensor_f32("bias", [at.head, at.q, at.k]))
            .map_err(Error::from)?;
    let mask = Mask::new(|at| {
        let document = |place| at.tensor_i32("document", [place]);
        document(at.q).eq(document(at.k)) | at.k.lt(at.i32("shared"))
    })
    .map_err(Error::from)?;
    let case = Case::PLAIN;
    let bias = numbers((37, 37, 4), 7)?.permute((2, 0, 1))?;
    let document = Tensor::from_iter((0..37).map(|place| place / 10), &Device::Cpu)?;
    let expressions = Expressions::new()
        .score(score)
        .mask(mask)
        .param("factor", 1.5f32)
        .param("shared", 3)
        .tensor("bias", &bias)
        .tensor("document", &document);
    let hidden = over_pairs(case, |i, j| match i / 10 == j / 10 || j < 3 {
        true => 0.0,
        false => -1e30,
    })?;
    compare(
        case,
        |q, k, v| flash_attn_with_expressions(q, k, v, &expressions, case.scale(), None, None),
        |s| {
            (s * 1.5)?
                .broadcast_add(&bias.unsqueeze(0)?)?
                .broadcast_add(&hidden)
        },
    )
}

/// Packed sequences count their own queries and keys; elements of 16 bits are read.
#[test]
fn expressions_of_packed_sequences() -> Result<()> {
    let score = Score::new(|s, at| {
        s + at.tensor_f16("half", [at.q]) * at.tensor_bf16("brain", [at.batch, at.k])
    })
    .map_err(Error::from)?;
    let [q, k, v] = [1, 2, 3].map(|seed| numbers((20, 2, 8), seed));
    let (q, k, v) = (q?, k?, v?);
    let half = numbers(13, 5)?.to_dtype(DType::F16)?;
    let brain = numbers((2, 13), 6)?.to_dtype(DType::BF16)?;
    let ends = Tensor::new(&[0i32, 7, 20], &Device::Cpu)?;
    let both = Expressions::new()
        .score(score)
        .tensor("half", &half)
        .tensor("brain", &brain);
    let o = ff::flash_attn_varlen_with_expressions(
        &q, &k, &v, &both, &ends, &ends, 13, 13, 0.3, None, None,
    )?;
    for (sequence, (start, n)) in [(0, 7), (7, 13)].into_iter().enumerate() {
        let one = |x: &Tensor| x.narrow(0, start, n)?.unsqueeze(0);
        // Its second dimension has strides of the whole.
        let brain = brain.narrow(0, sequence, 1)?;
        let alone = Expressions::new()
            .score(score)
            .tensor("half", &half)
            .tensor("brain", &brain);
        let (q, k, v) = (one(&q)?, one(&k)?, one(&v)?);
        let alone = flash_attn_with_expressions(&q, &k, &v, &alone, 0.3, None, None)?;
        assert_close("o", &one(&o)?, &alone, F32);
    }
    Ok(())
}

#[test]
fn one_tensor_may_have_two_names() -> Result<()> {
    let score = Score::new(|s, at| s + at.tensor_f32("a", [at.q]) * at.tensor_f32("b", [at.k]))
        .map_err(Error::from)?;
    let x = numbers(37, 5)?;
    let expressions = Expressions::new()
        .score(score)
        .tensor("a", &x)
        .tensor("b", &x);
    let product = x
        .reshape((1, 1, 37, 1))?
        .broadcast_mul(&x.reshape((1, 1, 1, 37))?)?;
    let case = Case::PLAIN;
    compare(
        case,
        |q, k, v| flash_attn_with_expressions(q, k, v, &expressions, case.scale(), None, None),
        |s| s.broadcast_add(&product),
    )
}

#[test]
fn slopes_have_no_gradient() -> Result<()> {
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let slopes = candle_core::Var::new(&SLOPES, &Device::Cpu)?;
    let o = ff::flash_attn_alibi(&q, &k, &v, &slopes, 0.3, true)?;
    assert_eq!(
        refusal(o.sum_all()?.backward().map(drop)),
        "tensor alibi_slopes has no gradient: a dimension must be indexed by q"
    );
    let o = ff::flash_attn_alibi(&q, &k, &v, &slopes.detach(), 0.3, true)?;
    assert!(o.sum_all()?.backward()?.get(&k).is_some());
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let score = Score::new(|s, at| s * at.f32("factor") + at.tensor_f32("bias", [at.head]))
        .map_err(Error::from)?;
    let expressions = || Expressions::new().score(score);
    let run = |expressions: Expressions| {
        refusal(flash_attn_with_expressions(
            &q,
            &k,
            &v,
            &expressions,
            0.3,
            None,
            None,
        ))
    };
    let bias = Tensor::new(&SLOPES, &Device::Cpu)?;
    let given = || expressions().param("factor", 2.0f32).tensor("bias", &bias);
    assert_eq!(
        run(given().tensor("biases", &bias)),
        "tensor biases was given; the expressions take bias"
    );
    assert_eq!(
        run(given().param("factors", 2.0f32)),
        "parameter factors was given; the expressions take factor"
    );
    assert_eq!(
        run(expressions().param("factor", 2.0f32)),
        "bias is missing: the expressions take a tensor of f32 with 1 dimensions"
    );
    assert_eq!(
        run(expressions().param("factor", 2).tensor("bias", &bias)),
        "parameter factor is i32; needed: f32"
    );
    let wide = bias.to_dtype(DType::F64)?;
    assert_eq!(
        run(expressions().param("factor", 2.0f32).tensor("bias", &wide)),
        "bias is F64; allowed: [F32]"
    );
    let few = bias.narrow(0, 1, 3)?;
    assert!(
        run(expressions().param("factor", 2.0f32).tensor("bias", &few))
            .starts_with("dimension 0 of tensor bias has 3 elements; allowed: 4 to")
    );
    let traced = Score::new(|s, at| s * at.f32("2"));
    let error = Error::from(traced.expect_err("a name")).to_string();
    assert!(error.starts_with("\"2\" is no name"), "{error}");
    Ok(())
}
