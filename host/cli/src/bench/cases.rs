//! What is measured: every combination of sizes, mask, splits and pass that the options ask for.

use ferroflash::{Algorithm, Device, Order, Pages, Pass, Problem, SplitKv};
use ferroflash_kernels::variants::Arch;

use super::arguments::{BenchArguments, CacheLengths};
use super::subject::Variant;
use crate::expressions::Named;
use crate::failure::Failure;
use crate::input::Lengths;
use crate::mask::{MaskWords, Side};
use crate::words::Heads;

/// Heads of q and of k and v where decode is measured and nothing else is said.
const DECODE_HEADS: Heads = Heads { q: 32, k: 8 };

/// One problem and pass, of which every variant is measured.
#[derive(Clone)]
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
    check_options(arguments, on_gpu)?;
    let named = Named {
        score: arguments.score,
        mask: arguments.mask_expression,
    };
    let mut cases = Vec::new();
    for sizes in sizes(arguments, on_gpu) {
        for &split_kv in &arguments.split_kv {
            for &page_size in &arguments.page_size {
                let (problem, lengths) = problem(arguments, sizes, split_kv)?;
                let mut builder = in_pages(problem, page_size)?.to_builder();
                if let Some(scales) = arguments.kv_dtype {
                    builder = builder.fp8_kv(scales);
                }
                if let Some((scales, sums)) = arguments.fp8 {
                    builder = builder.fp8(scales).fp8_sums(sums);
                }
                let problem = named.put(builder.build()?)?;
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

/// Whether what options ask for can be measured.
fn check_options(arguments: &BenchArguments, on_gpu: bool) -> Result<(), Failure> {
    let on_device = arguments.cache_lengths == CacheLengths::Device;
    let (has_layers, in_8_bits) = (arguments.layers > 1, arguments.kv_dtype.is_some());
    let latent = arguments.values_in_keys.is_some();
    let in_pages = arguments.page_size.iter().any(|&page_size| page_size > 0);
    let refusals = [
        (
            in_pages && !on_gpu,
            "--page-size: it is measured on a GPU alone; allowed: 0",
        ),
        (
            in_8_bits && !on_gpu,
            "--kv-dtype: e4m3 is measured on a GPU alone; allowed: same",
        ),
        (
            on_device && !on_gpu,
            "--cache-lengths: device is measured on a GPU alone; allowed: shape",
        ),
        (
            latent && !on_gpu,
            "--values-in-keys: it is measured on a GPU alone",
        ),
        (
            arguments.layers == 0,
            "--layers: there is no model without a layer; allowed: 1 and more",
        ),
        (
            has_layers && !on_gpu,
            "--layers: they are measured on a GPU alone; allowed: 1",
        ),
        (
            has_layers && latent,
            "--layers: nothing is appended to a cache without values; allowed: 1, or no --values-in-keys",
        ),
        (
            has_layers && in_8_bits,
            "--layers: nothing is appended to a cache of 8 bits; allowed: 1, or --kv-dtype same",
        ),
    ];
    match refusals.into_iter().find(|(refused, _)| *refused) {
        Some((_, why)) => Err(Failure::Option(why.into())),
        None => Ok(()),
    }
}

/// Which passes are measured.
fn passes(arguments: &BenchArguments) -> Result<Vec<Pass>, Failure> {
    let default: &[Pass] = match arguments.decode {
        true => &[Pass::Forward],
        false => &[Pass::Forward, Pass::Backward],
    };
    let passes = given_or(&arguments.passes, default);
    if arguments.decode && passes.contains(&Pass::Backward) {
        return Err(Failure::Option(
            "--passes bwd: --decode measures the forward pass; allowed: --passes fwd".into(),
        ));
    }
    Ok(passes)
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

/// All combinations of sizes and mask. Of what options do not say, the CPU measures the first few.
fn sizes(arguments: &BenchArguments, on_gpu: bool) -> Vec<Sizes> {
    let decode = arguments.decode;
    let some = |all: &'static [usize], of_cpu: usize| match on_gpu {
        true => all,
        false => &all[..of_cpu],
    };
    let (head_dims, masks, seqs): (&[_], &[_], &[_]) = match decode {
        true => (&[128], &[None], &[1]),
        false => (
            &[64, 128],
            &[Some(false), Some(true)],
            some(&[512, 1024, 2048, 4096, 8192, 16384], 3),
        ),
    };
    let given = arguments.causal.iter().map(|&causal| Some(causal == 1));
    let masks = given_or(&given.collect::<Vec<_>>(), masks);
    let seqs = match arguments.lengths.iter().max() {
        Some(&longest) => vec![longest],
        None => given_or(&arguments.seqs.concat(), seqs),
    };
    // heads · head_dim stays the same, and batch · rows of k; not in decode.
    let heads_of = |head_dim| {
        let q = arguments.width.checked_div(head_dim).unwrap_or(1).max(1);
        let k = arguments.heads_k.unwrap_or(q);
        if decode { DECODE_HEADS } else { Heads { q, k } }
    };
    let seqs_k_of = |seqlen_q| match decode {
        true => given_or(&arguments.seqlen_k, some(&[1024, 8192, 32768, 131072], 2)),
        false => given_or(&arguments.seqlen_k, &[seqlen_q]),
    };
    let tokens = arguments
        .tokens
        .unwrap_or(if on_gpu { 16384 } else { 2048 });
    let batches_of = |seqlen_k| match decode {
        true => given_or(&arguments.batch, some(&[1, 8, 64], 2)),
        false => vec![tokens.checked_div(seqlen_k).unwrap_or(1).max(1)],
    };
    let mut all = Vec::new();
    for head_dim in given_or(&arguments.hdims, head_dims) {
        for head_dim_v in given_or(&arguments.hdims_v, &[head_dim]) {
            for &causal in &masks {
                for heads in given_or(&arguments.heads, &[heads_of(head_dim)]) {
                    for &seqlen_q in &seqs {
                        for seqlen_k in seqs_k_of(seqlen_q) {
                            all.extend(batches_of(seqlen_k).into_iter().map(|batch| Sizes {
                                head_dim,
                                head_dim_v,
                                causal,
                                heads,
                                seqlen_q,
                                seqlen_k,
                                batch,
                            }));
                        }
                    }
                }
            }
        }
    }
    all
}

/// What an option says; where it says nothing, this.
fn given_or<V: Clone>(given: &[V], default: &[V]) -> Vec<V> {
    if given.is_empty() { default } else { given }.to_vec()
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
    let mut builder = Problem::builder(arguments.dtype)
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
    let all = [Algorithm::Flash2, Algorithm::Flash3, Algorithm::Standard].map(Some);
    let algorithms = match asked.is_empty() {
        false => asked,
        true if !on_gpu => vec![None],
        true if on_hopper => all.to_vec(),
        true => vec![all[0], all[2]],
    };
    let mut variants = Vec::new();
    for algorithm in algorithms {
        let has_orders = ![Some(Algorithm::Standard), Some(Algorithm::Flash1)].contains(&algorithm);
        let ordered =
            pass == Pass::Backward && on_gpu && has_orders && arguments.compare.is_empty();
        let orders = match ordered {
            true => &*arguments.order,
            false => &[Order::Deterministic],
        };
        variants.extend(orders.iter().map(|&order| Variant {
            pass,
            algorithm,
            order,
        }));
    }
    variants
}

#[cfg(test)]
mod tests;
