//! Sinks, dropout and gradients of biases beside candle's own operations, forward and backward.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    self as ff, Argument, Error, Expressions, Options, Score, flash_attn_varlen_with_options,
    flash_attn_with_options,
};
use ferroflash::{Problem, dropout_mask};
use support::{Case, assert_close, naive_beside, numbers, refusal, variable, widened};

/// f32 on both sides: sums in another order.
const F32: f32 = 5e-6;

const SINKS: [f32; 4] = [0.5, -3.0, 2.0, 1.0];
const SEED: u64 = 7;
const OFFSET: u64 = 1 << 40 | 12;

/// What candle's operations compute of widened variables: q, k, v and the others.
type Naive<'a> = &'a dyn Fn(&[Var]) -> Result<Tensor>;

/// o and all gradients beside autograd through candle's operations.
fn compare(
    case: Case,
    others: &[&Var],
    ours: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    naive: Naive,
) -> Result<()> {
    let variables = case.variables(DType::F32)?;
    let [q, k, v] = &variables;
    let weights = case.weights(DType::F32)?;
    let o = ours(q, k, v)?;
    let gradients = (&o * &weights)?.sum_all()?.backward()?;
    let all: Vec<&Var> = variables.iter().chain(others.iter().copied()).collect();
    let wide: Vec<Var> = all.iter().map(|x| widened(x)).collect::<Result<_>>()?;
    let expected = naive(&wide)?;
    let expected_gradients = (&expected * &weights)?.sum_all()?.backward()?;
    assert_close("o", &o, &expected, F32);
    for (at, (ours, theirs)) in all.iter().zip(&wide).enumerate() {
        let found = gradients.get(ours).expect("a gradient");
        assert_eq!(found.dtype(), ours.dtype(), "gradient {at}");
        let theirs = expected_gradients.get(theirs).expect("a gradient");
        let rounding = match ours.dtype() {
            DType::F32 => 8.0 * F32,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        assert_close(&format!("gradient {at}"), found, theirs, rounding);
    }
    Ok(())
}

/// 1 / keep where a weight is kept, else 0.
fn factors(case: Case, p: f32) -> Result<Tensor> {
    let problem = Problem::builder(ferroflash::Dtype::F32)
        .batch(case.batch)
        .seqlen_q(case.seqlen_q)
        .seqlen_k(case.seqlen_k)
        .heads(case.heads_q)
        .head_dim(1)
        .dropout(p)
        .build()
        .map_err(ferroflash::Error::from)
        .map_err(Error::from)?;
    let keep = problem.dropout().expect("dropout").keep_probability();
    let kept = dropout_mask(&problem, SEED, OFFSET).map_err(ferroflash::Error::from);
    let kept = kept.map_err(Error::from)?.into_iter();
    let factors = kept.map(|kept| if kept { 1.0 / keep } else { 0.0 });
    let shape = (case.batch, case.heads_q, case.seqlen_q, case.seqlen_k);
    Tensor::from_vec(factors.collect::<Vec<f32>>(), shape, &Device::Cpu)
}

#[test]
fn sinks_have_gradients() -> Result<()> {
    for (left, right) in [(None, None), (None, Some(0)), (Some(5), Some(7))] {
        let case = Case {
            left,
            right,
            ..Case::PLAIN
        };
        let sinks = Var::new(&SINKS, &Device::Cpu)?;
        let options = Options::new().sinks(&sinks);
        compare(
            case,
            &[&sinks],
            |q, k, v| flash_attn_with_options(q, k, v, &options, case.scale(), left, right),
            &|x| Ok(naive_beside(&x[0], &x[1], &x[2], case, Ok, Some(&x[3]), None)?.0),
        )?;
    }
    Ok(())
}

/// Sinks that are no variable change o, and have no gradient; those of a narrowed tensor are read where they lie.
#[test]
fn sinks_that_ask_for_no_gradient() -> Result<()> {
    let case = Case::PLAIN;
    let all = numbers((2, 4), 5)?;
    let sinks = all.narrow(0, 1, 1)?.squeeze(0)?;
    let options = Options::new().sinks(&sinks);
    compare(
        case,
        &[],
        |q, k, v| flash_attn_with_options(q, k, v, &options, case.scale(), None, None),
        &|x| Ok(naive_beside(&x[0], &x[1], &x[2], case, Ok, Some(&sinks), None)?.0),
    )
}

/// Any of the library's optional inputs, by its name: here the factors of the heads' scores, which are factors of their queries.
#[test]
fn an_input_of_the_library_is_given_by_its_name() -> Result<()> {
    let case = Case::PLAIN;
    let factors = Tensor::new(&[0.5f32, 2.0, -1.0, 1.25], &Device::Cpu)?;
    let options = Options::new().input(Argument::HeadScale, &factors);
    let of_heads = factors.reshape((4, 1))?;
    compare(
        case,
        &[],
        |q, k, v| flash_attn_with_options(q, k, v, &options, case.scale(), None, None),
        &|x| {
            let q = x[0].broadcast_mul(&of_heads)?;
            Ok(naive_beside(&q, &x[1], &x[2], case, Ok, None, None)?.0)
        },
    )?;

    let q = numbers((2, 6, 4, 16), 1)?;
    let attend = |argument, vector: &Tensor| {
        let options = Options::new().input(argument, vector);
        refusal(flash_attn_with_options(
            &q, &q, &q, &options, 0.25, None, None,
        ))
    };
    let short = factors.narrow(0, 0, 3)?;
    let refused = attend(Argument::HeadScale, &short);
    assert!(refused.contains("head_scale has shape [3]"), "{refused}");
    // It is an argument, and none of these inputs.
    let refused = attend(Argument::DLse, &factors);
    assert!(refused.contains("d_lse"), "{refused}");
    Ok(())
}

#[test]
fn dropout_drops_the_same_weights_in_both_passes() -> Result<()> {
    for (p, right) in [(0.25, None), (0.5, Some(0))] {
        let case = Case {
            right,
            ..Case::PLAIN
        };
        let factors = factors(case, p)?;
        let options = Options::new().dropout(p, SEED, OFFSET);
        compare(
            case,
            &[],
            |q, k, v| flash_attn_with_options(q, k, v, &options, case.scale(), None, right),
            &|x| Ok(naive_beside(&x[0], &x[1], &x[2], case, Ok, None, Some(&factors))?.0),
        )?;
    }
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let none = flash_attn_with_options(
        &q,
        &k,
        &v,
        &Options::new().dropout(0.0, 1, 2),
        0.3,
        None,
        None,
    )?;
    assert_close("o", &none, &ff::flash_attn(&q, &k, &v, 0.3, false)?, 0.0);
    Ok(())
}

/// A bias of all batch entries, of every type.
#[test]
fn biases_have_gradients() -> Result<()> {
    let case = Case::PLAIN;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let score = Score::new(|s, at| {
            let indices = [at.head, at.q, at.k];
            s + match dtype {
                DType::F16 => at.tensor_f16("bias", indices),
                DType::BF16 => at.tensor_bf16("bias", indices),
                _ => at.tensor_f32("bias", indices),
            }
        })
        .map_err(Error::from)?;
        let bias = variable((4, 37, 37), 5, dtype)?;
        let expressions = Expressions::new().score(score).tensor("bias", &bias);
        compare(
            case,
            &[&bias],
            |q, k, v| {
                ff::flash_attn_with_expressions(q, k, v, &expressions, case.scale(), None, Some(0))
            },
            &|x| {
                let case = Case {
                    right: Some(0),
                    ..case
                };
                let added = |s: Tensor| s.broadcast_add(&x[3].unsqueeze(0)?);
                Ok(naive_beside(&x[0], &x[1], &x[2], case, added, None, None)?.0)
            },
        )?;
    }
    Ok(())
}

/// A bias for each batch entry and KV head with room behind its queries and keys, a transposed one that all share, sinks and dropout, in one pass. One is behind
/// another operation of candle's.
#[test]
fn all_together() -> Result<()> {
    let case = Case {
        seqlen_q: 20,
        seqlen_k: 30,
        ..Case::PLAIN
    };
    let score = Score::new(|s, at| {
        s * at.tensor_f32("gate", [at.k, at.q])
            + at.tensor_f32("bias", [at.batch, at.kv_head, at.q, at.k])
    })
    .map_err(Error::from)?;
    let gate = variable((20, 30), 5, DType::F32)?;
    let bias = variable((2, 2, 23, 35), 6, DType::F32)?;
    let sinks = Var::new(&SINKS, &Device::Cpu)?;
    let factors = factors(case, 0.25)?;
    let transposed = gate.t()?;
    let doubled = (sinks.as_tensor() * 2.0)?;
    let expressions = Expressions::new()
        .score(score)
        .tensor("gate", &transposed)
        .tensor("bias", &bias);
    let options = Options::new()
        .expressions(&expressions)
        .sinks(&doubled)
        .dropout(0.25, SEED, OFFSET);
    compare(
        case,
        &[&gate, &bias, &sinks],
        |q, k, v| flash_attn_with_options(q, k, v, &options, case.scale(), None, None),
        &|x| {
            let edit = |s: Tensor| {
                let bias = x[4].narrow(2, 0, 20)?.narrow(3, 0, 30)?.unsqueeze(2)?;
                let bias = bias
                    .broadcast_as((2, 2, 2, 20, 30))?
                    .reshape((2, 4, 20, 30))?;
                s.broadcast_mul(&x[3].reshape((1, 1, 20, 30))?)? + bias
            };
            let sinks = (x[5].as_tensor() * 2.0)?;
            let (o, _) = naive_beside(
                &x[0],
                &x[1],
                &x[2],
                case,
                edit,
                Some(&sinks),
                Some(&factors),
            )?;
            Ok(o)
        },
    )
}

/// Where nothing else asks for a gradient, and where a graph is gone through twice.
#[test]
fn gradients_of_sinks_alone() -> Result<()> {
    let case = Case::PLAIN;
    let [q, k, v] = case.variables(DType::F32)?.map(|x| x.as_tensor().detach());
    let sinks = Var::new(&SINKS, &Device::Cpu)?;
    let o = flash_attn_with_options(&q, &k, &v, &Options::new().sinks(&sinks), 0.25, None, None)?;
    let loss = (&o * case.weights(DType::F32)?)?.sum_all()?;
    let [first, second] = [loss.backward()?, loss.backward()?];
    let of = |store: &candle_core::backprop::GradStore| {
        store.get(&sinks).expect("a gradient").to_vec1::<f32>()
    };
    assert_eq!(of(&first)?, of(&second)?);
    let wide = widened(&sinks)?;
    let (expected, _) = naive_beside(&q, &k, &v, case, Ok, Some(&wide), None)?;
    let expected = (expected * case.weights(DType::F32)?)?
        .sum_all()?
        .backward()?;
    let expected = expected.get(&wide).expect("a gradient");
    assert_close(
        "d_sinks",
        first.get(&sinks).expect("a gradient"),
        expected,
        8.0 * F32,
    );
    Ok(())
}

/// Each sequence of packed ones is as it is alone; gradients of sinks and of a bias that all share are sums over them.
#[test]
fn packed_sequences() -> Result<()> {
    let score = Score::new(|s, at| s + at.tensor_f32("bias", [at.q, at.k])).map_err(Error::from)?;
    let [q, k, v] = [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| numbers((30, heads, 16), seed));
    let (q, k, v) = (q?, k?, v?);
    let ends = Tensor::new(&[0u32, 9, 30], &Device::Cpu)?;
    let weights = numbers((30, 4, 16), 4)?;
    let [bias, one_bias] = [
        variable((21, 21), 5, DType::F32)?,
        variable((21, 21), 5, DType::F32)?,
    ];
    let [sinks, one_sinks] = [
        Var::new(&SINKS, &Device::Cpu)?,
        Var::new(&SINKS, &Device::Cpu)?,
    ];
    let expressions = Expressions::new().score(score).tensor("bias", &bias);
    let options = Options::new().expressions(&expressions).sinks(&sinks);
    let o = flash_attn_varlen_with_options(
        &q,
        &k,
        &v,
        &options,
        &ends,
        &ends,
        21,
        21,
        0.3,
        None,
        Some(0),
    )?;
    let gradients = (&o * &weights)?.sum_all()?.backward()?;

    let expressions = Expressions::new().score(score).tensor("bias", &one_bias);
    let options = Options::new().expressions(&expressions).sinks(&one_sinks);
    let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu)?;
    for (start, n) in [(0, 9), (9, 21)] {
        let one = |x: &Tensor| x.narrow(0, start, n)?.unsqueeze(0);
        let (q, k, v) = (one(&q)?, one(&k)?, one(&v)?);
        let alone = flash_attn_with_options(&q, &k, &v, &options, 0.3, None, Some(0))?;
        assert_close("o", &one(&o)?, &alone, F32);
        loss = (loss + (alone * one(&weights)?)?.sum_all()?)?;
    }
    let alone = loss.backward()?;
    for (what, ours, theirs) in [("bias", &bias, &one_bias), ("sinks", &sinks, &one_sinks)] {
        let [ours, theirs] =
            [gradients.get(ours), alone.get(theirs)].map(|x| x.expect("a gradient"));
        assert_close(what, ours, theirs, 8.0 * F32);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let run = |options: Options| {
        refusal(flash_attn_with_options(
            &q, &k, &v, &options, 0.3, None, None,
        ))
    };
    let sinks = Tensor::new(&SINKS, &Device::Cpu)?;
    assert_eq!(
        run(Options::new().sinks(&sinks.narrow(0, 0, 3)?)),
        "sinks has shape [3]; allowed: [4]"
    );
    assert_eq!(
        run(Options::new().sinks(&sinks.to_dtype(DType::F16)?)),
        "sinks is F16; allowed: [F32]"
    );
    assert_eq!(
        run(Options::new().sinks(&sinks.unsqueeze(0)?)),
        "sinks has 2 dimensions; allowed: 1"
    );
    let p = run(Options::new().dropout(1.0, 1, 2));
    assert!(p.contains("dropout") && p.contains('1'), "{p}");
    let score =
        Score::new(|s, at| s + at.tensor_f32("table", [at.k - at.q + 40])).map_err(Error::from)?;
    let table = Var::zeros(80, DType::F32, &Device::Cpu)?;
    let expressions = Expressions::new().score(score).tensor("table", &table);
    let options = Options::new().expressions(&expressions);
    let o = flash_attn_with_options(&q, &k, &v, &options, 0.3, None, None)?;
    let refused = refusal(o.sum_all()?.backward().map(drop));
    assert!(
        refused.starts_with("tensor table has no gradient: "),
        "{refused}"
    );
    Ok(())
}
