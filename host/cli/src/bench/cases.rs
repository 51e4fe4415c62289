//! What is measured: every combination of sizes, mask, splits and pass that the options ask for.

use ferroflash::{Device, Fp8Kv, Pages, Pass, Problem, SplitKv};
use ferroflash_kernels::variants::Arch;

use super::subject::Variant;
use crate::arguments::{
    AlgorithmName, BenchArguments, BenchPass, CacheLengths, Heads, KvDtype, OrderName,
};
use crate::expressions::Named;
use crate::failure::Failure;
use crate::lengths::Lengths;
use crate::mask::{MaskWords, Side};

/// Heads of q and of k and v where decode is measured and nothing else is said.
const DECODE_HEADS: Heads = Heads { q: 32, k: 8 };

/// One problem and pass, of which every variant is measured.
pub struct Case {
    /// The problem.
    pub problem: Problem,
    /// Of each sequence, where they are packed.
    pub lens: Vec<usize>,
    /// The same as the library takes them.
    pub lengths: Lengths,
    /// The pass.
    pub pass: Pass,
    /// Its expressions.
    pub named: Named,
    /// Whether it is measured as decode: [`super::decode`].
    pub decode: bool,
    /// Of a model, each with an append and a cache of its own; 1: attention alone.
    pub layers: usize,
    /// What says how many keys a sequence has, where that is asked for.
    pub cache_lengths: CacheLengths,
    /// What is compared.
    pub variants: Vec<Variant>,
}

impl Case {
    /// The pass, the mask and the shapes of q and k.
    pub fn in_words(&self) -> String {
        let p = &self.problem;
        let (batch, head_dim) = (p.batch(), p.head_dim());
        format!(
            "{:?} {:?} [{batch}, {}, {}, {head_dim}] [{batch}, {}, {}, {head_dim}]",
            self.pass,
            p.mask(),
            p.seqlen_q(),
            p.heads_q(),
            p.seqlen_k(),
            p.heads_k()
        )
    }
}

/// All combinations, in the order of the peers' script: head_dim, that of v, mask, heads, lengths, batch, splits, pass.
pub fn cases(arguments: &BenchArguments, device: &Device) -> Result<Vec<Case>, Failure> {
    let on_gpu = device.as_cuda().is_some();
    let passes = passes(arguments)?;
    check_layers(arguments, on_gpu)?;
    let named = Named {
        score: arguments.score,
        mask: arguments.mask_expression,
    };
    let mut cases = Vec::new();
    for sizes in sizes(arguments, on_gpu) {
        for &split_kv in &arguments.split_kv {
            for &page_size in &arguments.page_size {
                if page_size > 0 && !on_gpu {
                    let message = "--page-size: it is measured on a GPU alone; allowed: 0";
                    return Err(Failure::Option(message.into()));
                }
                if arguments.kv_dtype != KvDtype::Same && !on_gpu {
                    let message = "--kv-dtype: e4m3 is measured on a GPU alone; allowed: same";
                    return Err(Failure::Option(message.into()));
                }
                if arguments.cache_lengths == CacheLengths::Device && !on_gpu {
                    let message =
                        "--cache-lengths: device is measured on a GPU alone; allowed: shape";
                    return Err(Failure::Option(message.into()));
                }
                if arguments.values_in_keys.is_some() && !on_gpu {
                    let message = "--values-in-keys: it is measured on a GPU alone";
                    return Err(Failure::Option(message.into()));
                }
                let (problem, lengths) = problem(arguments, sizes, split_kv)?;
                let problem = in_pages(problem, page_size)?;
                let problem = match arguments.kv_dtype {
                    KvDtype::Same => problem,
                    KvDtype::E4m3 => problem.to_builder().fp8_kv(Fp8Kv::PerSequence).build()?,
                };
                let problem = named.put(problem)?;
                cases.extend(passes.iter().map(|&pass| Case {
                    problem,
                    lens: arguments.lengths.clone(),
                    lengths: lengths.clone(),
                    pass,
                    named,
                    decode: arguments.decode,
                    layers: arguments.layers,
                    cache_lengths: arguments.cache_lengths,
                    variants: variants(arguments, device, pass),
                }));
            }
        }
    }
    Ok(cases)
}

/// Whether appends can be measured, where they are asked for.
fn check_layers(arguments: &BenchArguments, on_gpu: bool) -> Result<(), Failure> {
    let message = match arguments.layers {
        0 => "--layers: there is no model without a layer; allowed: 1 and more",
        1 => return Ok(()),
        _ if !on_gpu => "--layers: they are measured on a GPU alone; allowed: 1",
        _ if arguments.values_in_keys.is_some() => {
            "--layers: nothing is appended to a cache without values; allowed: 1, or no --values-in-keys"
        }
        _ if arguments.kv_dtype != KvDtype::Same => {
            "--layers: nothing is appended to a cache of 8 bits; allowed: 1, or --kv-dtype same"
        }
        _ => return Ok(()),
    };
    Err(Failure::Option(message.into()))
}

/// Which passes are measured.
fn passes(arguments: &BenchArguments) -> Result<Vec<Pass>, Failure> {
    let default: &[BenchPass] = match arguments.decode {
        true => &[BenchPass::Fwd],
        false => &[BenchPass::Fwd, BenchPass::Bwd],
    };
    let passes = given_or(&arguments.passes, default);
    if arguments.decode && passes.contains(&BenchPass::Bwd) {
        return Err(Failure::Option(
            "--passes bwd: --decode measures the forward pass; allowed: --passes fwd".into(),
        ));
    }
    Ok(passes.into_iter().map(Pass::from).collect())
}

/// Sizes and mask of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    head_dim: usize,
    head_dim_v: usize,
    /// `None`: where there are several queries.
    causal: Option<bool>,
    heads: Heads,
    seqlen_q: usize,
    seqlen_k: usize,
    batch: usize,
}

/// All combinations of sizes and mask.
fn sizes(arguments: &BenchArguments, on_gpu: bool) -> Vec<Sizes> {
    let defaults = Defaults::of(arguments, on_gpu);
    let longest = arguments.lengths.iter().copied().max();
    let seqs = longest.map_or(given_or(&arguments.seqs(), defaults.seqs), |len| vec![len]);
    let masks = arguments.causal.iter().map(|&causal| Some(causal == 1));
    let masks = given_or(&masks.collect::<Vec<_>>(), defaults.masks);

    let all = vec![Sizes {
        head_dim: 0,
        head_dim_v: 0,
        causal: None,
        heads: DECODE_HEADS,
        seqlen_q: 0,
        seqlen_k: 0,
        batch: 0,
    }];
    let head_dims = |_: &Sizes| given_or(&arguments.hdims, defaults.head_dims);
    let all = with_each(all, head_dims, |sizes, head_dim| sizes.head_dim = head_dim);
    let head_dims_v = |sizes: &Sizes| given_or(&arguments.hdims_v, &[sizes.head_dim]);
    let all = with_each(all, head_dims_v, |sizes, head_dim_v| {
        sizes.head_dim_v = head_dim_v;
    });
    let all = with_each(
        all,
        |_| masks.clone(),
        |sizes, causal| sizes.causal = causal,
    );
    let heads = |sizes: &Sizes| {
        let default = defaults.heads(arguments, sizes.head_dim);
        given_or(&arguments.heads, &[default])
    };
    let all = with_each(all, heads, |sizes, heads| sizes.heads = heads);
    let all = with_each(
        all,
        |_| seqs.clone(),
        |sizes, seqlen| sizes.seqlen_q = seqlen,
    );
    let seqs_k = |sizes: &Sizes| match defaults.seqs_k {
        [] => given_or(&arguments.seqlen_k, &[sizes.seqlen_q]),
        seqs_k => given_or(&arguments.seqlen_k, seqs_k),
    };
    let all = with_each(all, seqs_k, |sizes, seqlen| sizes.seqlen_k = seqlen);
    let batches = |sizes: &Sizes| match defaults.tokens {
        Some(tokens) => vec![tokens.checked_div(sizes.seqlen_k).unwrap_or(1).max(1)],
        None => given_or(&arguments.batch, defaults.batches),
    };
    with_each(all, batches, |sizes, batch| sizes.batch = batch)
}

/// Each of `all` with each of its values.
fn with_each<V>(
    all: Vec<Sizes>,
    values: impl Fn(&Sizes) -> Vec<V>,
    set: impl Fn(&mut Sizes, V),
) -> Vec<Sizes> {
    let mut combined = Vec::new();
    for sizes in all {
        for value in values(&sizes) {
            let mut sizes = sizes;
            set(&mut sizes, value);
            combined.push(sizes);
        }
    }
    combined
}

/// What an option says; where it says nothing, this.
fn given_or<V: Clone>(given: &[V], default: &[V]) -> Vec<V> {
    if given.is_empty() { default } else { given }.to_vec()
}

/// What is measured where options do not say it.
struct Defaults {
    head_dims: &'static [usize],
    masks: &'static [Option<bool>],
    seqs: &'static [usize],
    /// None: as many keys as queries.
    seqs_k: &'static [usize],
    /// batch · rows of k, which takes the place of `batches`.
    tokens: Option<usize>,
    batches: &'static [usize],
}

impl Defaults {
    fn of(arguments: &BenchArguments, on_gpu: bool) -> Defaults {
        if arguments.decode {
            return Defaults {
                head_dims: &[128],
                masks: &[None],
                seqs: &[1],
                seqs_k: if on_gpu {
                    &[1024, 8192, 32768, 131072]
                } else {
                    &[1024, 8192]
                },
                tokens: None,
                batches: if on_gpu { &[1, 8, 64] } else { &[1, 8] },
            };
        }
        let tokens = if on_gpu { 16384 } else { 2048 };
        let seqs: &[usize] = &[512, 1024, 2048, 4096, 8192, 16384];
        Defaults {
            head_dims: &[64, 128],
            masks: &[Some(false), Some(true)],
            seqs: if on_gpu { seqs } else { &seqs[..3] },
            seqs_k: &[],
            tokens: Some(arguments.tokens.unwrap_or(tokens)),
            batches: &[],
        }
    }

    /// heads · head_dim stays the same; not in decode.
    fn heads(&self, arguments: &BenchArguments, head_dim: usize) -> Heads {
        if arguments.decode {
            return DECODE_HEADS;
        }
        let q = arguments.width.checked_div(head_dim).unwrap_or(1).max(1);
        let k = arguments.heads_k.unwrap_or(q);
        Heads { q, k }
    }
}

/// The problem of these sizes, with the lengths of its sequences where they are packed.
fn problem(
    arguments: &BenchArguments,
    sizes: Sizes,
    split_kv: SplitKv,
) -> Result<(Problem, Lengths), Failure> {
    let causal = sizes.causal.unwrap_or(sizes.seqlen_q > 1);
    let mask = MaskWords {
        causal: Some(causal),
        window_left: Some(Side(arguments.window)),
        window_right: None,
        prefix: arguments.prefix.filter(|_| causal),
    };
    let mut builder = Problem::builder(arguments.dtype.into())
        .batch(sizes.batch)
        .seqlen_q(sizes.seqlen_q)
        .seqlen_k(sizes.seqlen_k)
        .heads_q(sizes.heads.q)
        .heads_k(sizes.heads.k)
        .head_dim(sizes.head_dim)
        .head_dim_v(sizes.head_dim_v)
        .precision(arguments.precision)
        .mask(mask.mask().map_err(Failure::Option)?);
    if let Some(columns) = arguments.values_in_keys {
        builder = builder.head_dim_v(columns).values_in_keys();
    }
    if arguments.sinks {
        builder = builder.sinks();
    }
    builder = builder.dropout(arguments.dropout);
    let lens = &arguments.lengths;
    let mut lengths = Lengths::default();
    if !lens.is_empty() {
        lengths = Lengths::packed(lens)
            .ok_or_else(|| Failure::Option("--lengths: their sum is beyond 32 bits".into()))?;
        let total = lens.iter().sum();
        builder = builder.batch(lens.len()).packed_q(total).packed_k(total);
    }
    let problem = builder.split_kv(split_kv).build()?;
    ferroflash::validate::sizes(&problem)?;
    Ok((problem, lengths))
}

/// The same with keys and values in pages of so many rows, if any, none of them free.
fn in_pages(problem: Problem, page_size: usize) -> Result<Problem, Failure> {
    if page_size == 0 {
        return Ok(problem);
    }
    let n_pages = problem.batch() * problem.seqlen_k().div_ceil(page_size);
    let pages = Pages::new(n_pages, page_size);
    let problem = problem.to_builder().pages(pages).build()?;
    ferroflash::validate::sizes(&problem)?;
    Ok(problem)
}

/// The schedules to compare, each once per order where the order makes a difference.
fn variants(arguments: &BenchArguments, device: &Device, pass: Pass) -> Vec<Variant> {
    let on_gpu = device.as_cuda().is_some();
    let on_hopper = on_gpu && Arch::Sm90a.runs_on(device.info().compute_capability);
    let asked = [&*arguments.algorithm, &*arguments.compare].concat();
    let algorithms = match (asked.is_empty(), pass) {
        (false, _) => asked,
        (true, _) if !on_gpu => vec![AlgorithmName::Auto],
        (true, Pass::Forward | Pass::Backward) if on_hopper => vec![
            AlgorithmName::Flash2,
            AlgorithmName::Flash3,
            AlgorithmName::Standard,
        ],
        (true, _) => vec![AlgorithmName::Flash2, AlgorithmName::Standard],
    };
    let mut variants = Vec::new();
    for algorithm in algorithms {
        let has_orders = ![AlgorithmName::Standard, AlgorithmName::Flash1].contains(&algorithm);
        let ordered =
            pass == Pass::Backward && on_gpu && has_orders && arguments.compare.is_empty();
        let orders = if ordered {
            arguments.order.clone()
        } else {
            vec![OrderName::Deterministic]
        };
        for order in orders {
            variants.push(Variant {
                pass,
                algorithm: algorithm.algorithm(),
                order: order.into(),
            });
        }
    }
    variants
}

#[cfg(test)]
mod tests;
