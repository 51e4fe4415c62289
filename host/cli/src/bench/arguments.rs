//! Options of `bench`.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use ferroflash::{Dtype, Fp8Kv, Order, Pass, Precision, SplitKv};
use ferroflash_expression::named::{NamedMask, NamedScore};

use super::subject::Effort;
use crate::device::DeviceWords;
use crate::expressions::{mask_by_name, score_by_name};
use crate::words::{
    Heads, InEightBits, Lens, Schedule, dtype, fp8, lengths, one_of, order, pass, schedule,
};

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Decode: few queries over a cache of many keys, forward, for every combination of --batch, --seqlen-k and --heads. On a GPU a time is that of
    /// one call of a CUDA graph, whose calls read keys and values that the L2 cache does not hold.
    #[arg(long, conflicts_with_all = ["lengths", "tokens", "width", "heads_k", "order", "prefix"])]
    pub decode: bool,
    /// With --decode: numbers of sequences. Unless given: 1, 8 and 64 on a GPU, 1 and 8 on the CPU.
    #[arg(long, value_delimiter = ',', requires = "decode")]
    pub batch: Vec<usize>,
    /// Values of head_dim. Unless given: 64 and 128; with --decode 128.
    #[arg(long, value_delimiter = ',')]
    pub hdims: Vec<usize>,
    /// Columns of v and o, combined with each of --hdims: 192 of q and k with 128 of v are MLA's in training. Unless given: those of q and k. The
    /// rows name a different number.
    #[arg(long, value_delimiter = ',', conflicts_with = "decode")]
    pub hdims_v: Vec<usize>,
    /// Sequence lengths; only of q, if --seqlen-k sets that of k. Unless given: 512 to 16384 on a GPU, 512 to 2048 on the
    /// CPU; with --decode 1. Or a sweep, 512..16384: doubled from the first number on.
    #[arg(long, value_delimiter = ',', value_parser = lengths)]
    pub seqs: Vec<Lens>,
    /// Sequences of these lengths, packed one after the other, in place of batch entries of one length.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["seqs", "seqlen_k", "tokens"])]
    pub lengths: Vec<usize>,
    /// 0: every key visible, 1: causal. Unless given: both; with --decode 1 for several queries, the last of which sees every key, and 0 for one.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=1))]
    pub causal: Vec<u8>,
    /// A sliding window: keys that a query sees before its own position, with each of --causal.
    #[arg(long)]
    pub window: Option<usize>,
    /// Prefix-LM: with --causal 1, every query also sees this many first keys.
    #[arg(long, conflicts_with = "window")]
    pub prefix: Option<usize>,
    /// An expression in place of the scores, in addition to the masks; its parameters and tensors are generated. The rows name it.
    #[arg(long, conflicts_with = "decode", value_parser = score_by_name())]
    pub score: Option<NamedScore>,
    /// An expression that hides keys, in addition to --causal, --window and --prefix. Operations are counted as without it. The rows name it.
    #[arg(long, conflicts_with = "decode", value_parser = mask_by_name())]
    pub mask_expression: Option<NamedMask>,
    /// Each head of q has a sink, an additional term in its softmax; backward passes also compute its gradient. The rows say so.
    #[arg(long, conflicts_with = "decode")]
    pub sinks: bool,
    /// Weights are dropped at random, each with this probability. The rows name it.
    #[arg(long, default_value_t = 0.0, conflicts_with = "decode")]
    pub dropout: f32,
    /// Split-KV: the forward pass divides the keys of a sequence into splits of this many; auto: as the planner predicts to be fastest; never.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    pub split_kv: Vec<SplitKv>,
    /// With --decode, on a GPU: keys and values in pages of this many rows, in random order; 0: contiguous.
    #[arg(long, value_delimiter = ',', requires = "decode", default_value = "0")]
    pub page_size: Vec<usize>,
    /// With --decode, on a GPU: the source of the number of keys of a sequence. In pages and with --layers it is always the device.
    #[arg(long, requires = "decode", default_value = "shape")]
    pub cache_lengths: CacheLengths,
    /// With --decode, on a GPU: type of the elements of keys and values; e4m3 has a scale for each sequence and head.
    #[arg(long, requires = "decode", default_value = "same", value_parser = kv_dtype())]
    pub kv_dtype: KvScales,
    /// With --decode, on a GPU: layers of a model, each with its own cache. A call is then an append of the new rows, rotated by their positions,
    /// and attention with the resulting lengths on the device. 1: only attention.
    #[arg(long, requires = "decode", default_value_t = 1)]
    pub layers: usize,
    /// With --decode, on a GPU: no values, but this many first columns of the keys (MLA: --hdims 576 --heads 128/1 --values-in-keys 512).
    #[arg(long, requires = "decode", conflicts_with = "kv_dtype")]
    pub values_in_keys: Option<usize>,
    /// Type of the elements.
    #[arg(long, default_value = "bf16", value_parser = dtype())]
    pub dtype: Dtype,
    /// q, k and v in e4m3, multiplied in 8 bits in the forward pass: which scales they have, and of how many levels sums over the keys are. o has the type of
    /// --dtype. The rows name it.
    #[arg(
        long, value_name = "two-levels|one-level|blocks", value_parser = fp8(),
        conflicts_with_all = ["decode", "compare", "dropout", "values_in_keys"]
    )]
    pub fp8: Option<InEightBits>,
    /// How exact products of f32 tensors are on a GPU: `tensor`, tf32; or `full`, three products of tf32 in place of one.
    #[arg(long, default_value = "tensor", value_name = "tensor|full")]
    pub precision: Precision,
    /// The passes. Unless given: both; with --decode fwd, the only one that it measures.
    #[arg(long, value_delimiter = ',', value_parser = pass())]
    pub passes: Vec<Pass>,
    /// Rows of k and v. Unless given: as many as of q; with --decode 1024 to 131072 on a GPU, 1024 and 8192 on the CPU.
    #[arg(long, value_delimiter = ',')]
    pub seqlen_k: Vec<usize>,
    /// batch · rows of k, at least one batch entry. Unless given: 16384 on a GPU, 2048 on the CPU.
    #[arg(long)]
    pub tokens: Option<usize>,
    /// heads · head_dim, at least one head.
    #[arg(long, default_value_t = 2048)]
    pub width: usize,
    /// Heads of k and v. Unless given: as many as of q.
    #[arg(long)]
    pub heads_k: Option<usize>,
    /// Heads of q and of k and v, such as 32/8,64/8, in place of --width and --heads-k. Unless given: from these; with --decode 32/8.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["width", "heads_k"])]
    pub heads: Vec<Heads>,
    /// How long a round takes.
    #[command(flatten)]
    pub effort: Effort,
    /// Rounds, each in another order of the variants; the median of their medians counts.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Measures without first comparing the results with the processor's, which may take long for each case. A time may then be that of a wrong result.
    #[arg(long)]
    pub unchecked: bool,
    /// Orders of the backward pass's sums.
    #[arg(long, value_delimiter = ',', default_value = "deterministic,fastest", value_parser = order())]
    pub order: Vec<Order>,
    /// Schedules to compare. Unless given: all that can run the problem, except flash1.
    #[arg(long, value_delimiter = ',', value_parser = schedule())]
    pub algorithm: Vec<Schedule>,
    /// Schedules, measured and compared with their predictions: time, TFLOP/s, bytes through HBM by count, memory in addition to inputs and outputs,
    /// and the time by `ferroflash estimate`.
    #[arg(
        long, value_delimiter = ',', value_parser = schedule(),
        conflicts_with_all = ["algorithm", "order", "decode", "lengths", "score", "mask_expression", "dropout"]
    )]
    pub compare: Vec<Schedule>,
    /// With --compare: the GPU of the predictions, as for `ferroflash estimate`. Unless given: the measured one.
    #[arg(long, requires = "compare")]
    pub gpu: Option<String>,
    /// With --compare: writes the rows to a file; an existing file is replaced.
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub csv: Option<PathBuf>,
    /// With --compare: draws times and memory by length, and the roofline with the measured points; an existing file is replaced.
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub svg: Option<PathBuf>,
    /// With --compare, on a GPU: also counts bytes through memory. Each row runs once more under `ncu`, which has to be on PATH.
    #[arg(long, requires = "compare")]
    pub ncu: bool,
    /// Writes a page of HTML that stands alone: a chart, a table, the machine, a check against float64, and this command. It replaces an existing
    /// file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The device.
    #[command(flatten)]
    pub on: DeviceWords,
    /// Prints one JSON object a line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// The kind of scales of keys and values in 8 bits; `None`: they have the type of queries.
pub type KvScales = Option<Fp8Kv>;

/// Takes a type of the elements of keys and values.
fn kv_dtype() -> impl TypedValueParser<Value = KvScales> {
    one_of(&[
        (&["same"], "That of queries", None),
        (&["e4m3"], "8 bits", Some(Fp8Kv::PerSequence)),
    ])
}

/// The source of the number of keys of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheLengths {
    /// The shape of k.
    Shape,
    /// Numbers on the device (seqused_k), as for a growing cache.
    Device,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;
    use crate::arguments::{Arguments, Command};

    impl BenchArguments {
        /// Parses a command line after `ferroflash bench`.
        pub fn parse(line: &str) -> Result<BenchArguments, clap::Error> {
            let words = ["ferroflash", "bench"].into_iter();
            let arguments = Arguments::try_parse_from(words.chain(line.split_whitespace()))?;
            let Command::Bench(arguments) = arguments.command else {
                unreachable!("the second word is bench");
            };
            Ok(*arguments)
        }
    }

    #[test]
    fn heads_are_a_pair_or_one_number() {
        let heads = |q, k| Heads { q, k };
        let given = BenchArguments::parse("--decode --heads 32/8,64/8,16")
            .unwrap()
            .heads;
        assert_eq!(given, [heads(32, 8), heads(64, 8), heads(16, 16)]);
        for wrong in ["32/", "/8", "32/8/4", "many", "-1"] {
            assert!(wrong.parse::<Heads>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn decode_takes_lists() {
        let line =
            "--decode --batch 1,8,64 --seqlen-k 1024,8192 --seqs 1,4 --split-kv auto,never,512";
        let arguments = BenchArguments::parse(line).unwrap();
        assert!(arguments.decode);
        assert_eq!(arguments.batch, [1, 8, 64]);
        assert_eq!(arguments.seqlen_k, [1024, 8192]);
        assert_eq!(arguments.seqs.concat(), [1, 4]);
        assert_eq!(
            arguments.split_kv,
            [SplitKv::Auto, SplitKv::Never, SplitKv::Keys(512)]
        );
    }

    #[test]
    fn lengths_are_listed_or_swept() {
        let seqs =
            |line: &str| BenchArguments::parse(line).map(|arguments| arguments.seqs.concat());
        assert_eq!(seqs("--seqs 64,512..2048").unwrap(), [64, 512, 1024, 2048]);
        assert_eq!(seqs("").unwrap(), [0; 0]);
        for wrong in ["--seqs 8..4", "--seqs many"] {
            assert!(seqs(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_comparison_is_of_plain_problems() {
        BenchArguments::parse("--compare standard,flash2 --gpu H100 --csv a.csv --svg a.svg")
            .unwrap();
        for other in [
            "--algorithm flash2",
            "--decode",
            "--lengths 3,4",
            "--score alibi",
            "--order fastest",
        ] {
            let error = BenchArguments::parse(&format!("--compare flash2 {other}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
        }
        for alone in ["--gpu H100", "--csv a.csv", "--svg a.svg", "--ncu"] {
            let error = BenchArguments::parse(alone).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{alone}");
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let with_decode = [
            "--lengths 3,4",
            "--tokens 64",
            "--width 256",
            "--heads-k 2",
            "--order fastest",
            "--prefix 9",
        ];
        for other in with_decode {
            let error = BenchArguments::parse(&format!("--decode {other}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
            BenchArguments::parse(other).unwrap();
        }
        for other in [
            "--sinks",
            "--dropout 0.1",
            "--hdims-v 64",
            "--fp8 two-levels",
        ] {
            let error = BenchArguments::parse(&format!("--decode {other}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
        }
        for other in ["--score alibi", "--mask-expression causal"] {
            let error = BenchArguments::parse(&format!("--decode {other}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{other}");
            let unknown = BenchArguments::parse(&format!("{other}s")).unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::InvalidValue, "{other}");
            BenchArguments::parse(other).unwrap();
        }
        for line in ["--heads 4 --width 256", "--heads 4 --heads-k 2"] {
            let error = BenchArguments::parse(line).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
        }
        let alone = BenchArguments::parse("--batch 8").unwrap_err();
        assert_eq!(alone.kind(), ErrorKind::MissingRequiredArgument);
    }
}
