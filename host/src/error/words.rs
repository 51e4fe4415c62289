//! All words of errors, in one list: a chapter of the book. Whoever adds an error adds an example of it here, and reads its words among the others.

use std::fmt::{Debug, Display};
use std::io::ErrorKind;
use std::path::PathBuf;

use expect_test::expect_file;
use ferroflash_driver::extra::module::{JitLog, LoadError};
use ferroflash_driver::{MissingDriver, Version};
use ferroflash_expression::{ElementType, ExpressionError, NoReadDims, Type, Use};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::SpecialiseError;

use super::{
    Argument, CacheError, DriverError, Error, PlanError, ProblemError, PtxasError, QuantizeError,
    RotaryError, ScoreError,
};
use crate::dtype::{Dtype, ScalarType};
use crate::terms::{
    Algorithm, Backend, Candidate, Layout, Location, Outcome, Pass, Precision, Reason, Sequence,
};

/// The chapter's head.
const HEAD: &str = "# Every error, in its words\n\n\
    Each error of the library with an example of its text. A program matches the variant; a person searches this page for the words. What to do about\n\
    the frequent ones: [When something is refused](troubleshooting.md). The list is made by a test, `host/src/error/words.rs`.\n";

/// The enums: name, source, meaning.
const ENUMS: [(&str, &str, &str); 10] = [
    (
        "ProblemError",
        include_str!("problem.rs"),
        "The problem or a tensor is not what attention takes. No memory was touched.",
    ),
    (
        "ScoreError",
        include_str!("score.rs"),
        "The call does not give what the problem's expressions take. No memory was touched.",
    ),
    (
        "ExpressionError",
        include_str!("../../../kernels-gpu/expression/src/error.rs"),
        "A closure of a score or a mask cannot become an expression.",
    ),
    (
        "RotaryError",
        include_str!("rotary.rs"),
        "A rotary position embedding makes no sense. No memory was touched.",
    ),
    (
        "QuantizeError",
        include_str!("quantize.rs"),
        "A tensor cannot be quantised as asked. No memory was touched.",
    ),
    (
        "CacheError",
        include_str!("cache.rs"),
        "A `KvCache` has no room or no such sequence. Nothing was changed.",
    ),
    (
        "PlanError",
        include_str!("plan.rs"),
        "Nothing here can serve the problem as asked. No memory was touched.",
    ),
    (
        "Reason",
        include_str!("../terms/candidate.rs"),
        "Why a candidate cannot serve: a line of `PlanError::NoCandidate`, and of every explanation.",
    ),
    (
        "DriverError",
        include_str!("driver.rs"),
        "The driver refused, or there is none.",
    ),
    (
        "PtxasError",
        include_str!("ptxas.rs"),
        "`ptxas`, where a program names one, compiles nothing.",
    ),
];

/// Names and words of errors.
type Words = Vec<(String, String)>;

fn words<E: Debug + Display>(errors: impl IntoIterator<Item = E>) -> Words {
    let name = |error: &E| {
        let text = format!("{error:?}");
        let end = text
            .find(|c: char| !c.is_alphanumeric())
            .unwrap_or(text.len());
        text[..end].to_owned()
    };
    errors
        .into_iter()
        .map(|error| (name(&error), error.to_string()))
        .collect()
}

/// The variants of an enum with words of their own, as its source names them.
fn variants(of: &str, source: &str) -> Vec<String> {
    let begin = format!("pub enum {of} {{\n");
    let body = source.split_once(&begin).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let mut is_transparent = false;
    let mut names = Vec::new();
    for line in body.lines() {
        let Some(line) = line.strip_prefix("    ") else {
            continue;
        };
        if line.starts_with("#[error(transparent)]") {
            is_transparent = true;
        } else if line.starts_with(|c: char| c.is_ascii_uppercase()) {
            let end = line
                .find(|c: char| !c.is_alphanumeric())
                .unwrap_or(line.len());
            if !std::mem::take(&mut is_transparent) {
                names.push(line[..end].to_owned());
            }
        }
    }
    names
}

#[test]
fn every_error_is_in_the_list() {
    let mut chapter = HEAD.to_owned();
    let listed = [
        words(problem()),
        words(score()),
        words(expression()),
        words(rotary()),
        words(quantize()),
        words(cache()),
        words(plan()),
        words(reasons()),
        words(driver()),
        words(ptxas()),
    ];
    for ((of, source, meaning), listed) in ENUMS.into_iter().zip(listed) {
        for variant in variants(of, source) {
            let is_listed = listed.iter().any(|(name, _)| *name == variant);
            assert!(is_listed, "{of}::{variant} has no example in this file");
        }
        chapter.push_str(&format!(
            "\n## {of}\n\n{meaning}\n\n| variant | words |\n|---|---|\n"
        ));
        for (name, words) in listed {
            // A table's cell is one line, in which a bar ends it.
            let words = words.replace('|', "\\|").replace('\n', "<br>");
            chapter.push_str(&format!("| `{name}` | {words} |\n"));
        }
    }
    expect_file!["../../../docs/src/errors.md"].assert_eq(&chapter);
}

#[test]
fn variants_are_read_from_a_source() {
    let source = "pub enum E {\n    /// a\n    #[error(\"a\")]\n    A {\n        /// b\n        B: u8,\n    },\n    #[error(transparent)]\n    C(D),\n    F,\n}\n";
    assert_eq!(variants("E", source), ["A", "F"]);
    assert!(variants("ProblemError", ENUMS[0].1).len() > 40);
    for (of, source, _) in ENUMS {
        assert!(
            !variants(of, source).is_empty(),
            "{of} is not in its source"
        );
    }
}

fn layout() -> Layout {
    Layout::strided([2, 128, 8, 64], [65536, 512, 0])
}

// A line for each.
#[rustfmt::skip]
fn problem() -> Vec<ProblemError> {
    use Argument::{CuSeqlensQ, DQ, K, KDescale, O, Q, SeqUsedK, Sinks, V};
    use ProblemError as E;
    let shapes = ([2, 128, 8, 64], [2, 128, 2, 64]);
    vec![
        E::Unset { field: "heads" },
        E::HeadDimOutOfRange { given: 600, min: 1, max: 576 },
        E::HeadDimVOutOfRange { given: 0, min: 1, max: 576 },
        E::HeadsNotMultiple { heads_q: 8, heads_k: 3 },
        E::SoftmaxScale { given: f32::NAN },
        E::Dropout { given: 1.5 },
        E::DropoutWith { what: "values in the keys" },
        E::Precision { given: Precision::Full, dtype: Dtype::Bf16 },
        E::SizeOverflow { what: "the shape of q" },
        E::LengthMismatch { shape: shapes.0, needed: 131_072, given: 131_071 },
        E::OutOfBounds { layout: layout(), needed: 131_072, given: 65_536 },
        E::PackedParts { given: 2 },
        E::ShapeMismatch { argument: K, given: shapes.0, needed: shapes.1 },
        E::DtypeMismatch { argument: V, given: ScalarType::F32, needed: ScalarType::Float(Dtype::Bf16) },
        E::Missing { argument: Sinks },
        E::NotTaken { argument: Sinks },
        E::BlockSize { side: "block_q", given: 100, multiple: 128 },
        E::Pages { columns: 4, page_size: 64, seqlen_k: 512 },
        E::PagesWith { what: "a block mask" },
        E::Fp8KvWith { what: "dropout" },
        E::Fp8With { what: "dropout" },
        E::Fp8Sums,
        E::Descale { argument: KDescale, at: 3, given: 0.0 },
        E::ValuesInKeysWith { what: "dropout" },
        E::Page { sequence: 1, slot: 3, given: 900, n_pages: 512 },
        E::BlockMaskWithLengths { argument: CuSeqlensQ },
        E::SplitKv,
        E::BlockMaskWithSplitKv,
        E::Length { argument: SeqUsedK, sequence: 1, given: 200, min: 0, max: 128 },
        E::OtherForm { argument: Q, needed: "tensor" },
        E::ElementCount { argument: CuSeqlensQ, given: 2, needed: 3 },
        E::WeightsLayout { given: layout(), needed: layout() },
        E::WeightsOf { what: "head", given: 8, n: 8 },
        E::WeightsOfRows { given: 100..200, sequence: 0, seqlen_q: 128 },
        E::OutputAliases { argument: O, layout: layout() },
        E::SharesMemory { argument: DQ, with: Q },
        E::NewRowsBeyondCache { given: 256, seqlen_cache: 128 },
        E::MixedPlaces { argument: K, given: Location::Host, needed: Location::Cuda(0) },
        E::OtherDevice { given: Location::Host, needed: Location::Cuda(0) },
        E::NotAsPrepared { argument: Q, given: layout(), prepared: layout() },
        E::Misaligned { argument: Q, address: 0x7f01, alignment: 16 },
        E::QueueElsewhere,
        E::GraphElsewhere,
        E::WorkspaceTooSmall { given: 1024, needed: 4096 },
        E::WorkspaceMisaligned { address: 0x7f10, alignment: 256 },
    ]
}

fn score() -> Vec<ScoreError> {
    use ScoreError as E;
    let name = || "slopes".to_owned();
    vec![
        E::Together {
            error: ExpressionError::Params {
                given: 40,
                allowed: 16,
            },
        },
        E::NoDerivative {
            error: ExpressionError::Nodes {
                given: 400,
                allowed: 256,
            },
        },
        E::TooMany {
            what: "parameters",
            given: 40,
            allowed: 16,
        },
        E::Unknown {
            what: "tensor",
            name: "slope".to_owned(),
            taken: vec![name()],
        },
        E::Twice { name: name() },
        E::Missing {
            name: name(),
            needed: Use::Tensor {
                element: ElementType::F32,
                rank: 1,
            },
        },
        E::ParamType {
            name: "cap".to_owned(),
            given: Type::I32,
            needed: Type::F32,
        },
        E::TensorType {
            name: name(),
            given: ScalarType::Float(Dtype::Bf16),
            needed: ElementType::F32,
        },
        E::TensorRank {
            name: name(),
            what: "dimensions",
            given: 2,
            needed: 1,
        },
        E::TensorExtent {
            name: name(),
            dim: 0,
            given: 4,
            min: 8,
            max: 8,
        },
        E::TensorStride {
            name: name(),
            dim: 0,
            given: -1,
            max: i64::from(i32::MAX),
        },
        E::NoTensorGradient {
            name: name(),
            why: NoReadDims::Twice,
        },
        E::TensorMemory {
            name: name(),
            needed: 8,
            given: 4,
        },
        E::TensorMisaligned {
            name: name(),
            address: 0x7f01,
            alignment: 4,
        },
    ]
}

fn expression() -> Vec<ExpressionError> {
    use ExpressionError as E;
    let name = || "slopes".to_owned();
    let (first, second) = (Use::Param(Type::F32), Use::Param(Type::I32));
    vec![
        E::Empty,
        E::Nodes {
            given: 400,
            allowed: 256,
        },
        E::Params {
            given: 40,
            allowed: 16,
        },
        E::Tensors {
            given: 9,
            allowed: 4,
        },
        E::Name {
            name: "2nd".to_owned(),
        },
        E::Conflict {
            name: name(),
            first,
            second,
        },
        E::Rank {
            name: name(),
            given: 5,
        },
        E::ParamType { name: name() },
        E::Foreign,
        E::ScoreInMask,
        E::Value {
            given: Type::Bool,
            wanted: Type::F32,
        },
        E::Order {
            node: 3,
            operand: 5,
        },
        E::Operands { node: 3 },
        E::Missing { node: 3, slot: 1 },
        E::Given {
            reason: "cap is missing".to_owned(),
        },
        E::Text {
            line: 2,
            reason: "a name is missing",
        },
    ]
}

fn rotary() -> Vec<RotaryError> {
    use RotaryError as E;
    vec![
        E::RotaryDim { given: 63 },
        E::HeadDim {
            rotary_dim: 128,
            head_dim: 64,
        },
        E::Factor {
            what: "base",
            given: -1.0,
            from: 1.0,
        },
        E::TooManyPositions { given: usize::MAX },
        E::Tables {
            cos: 64,
            sin: 32,
            n_pairs: 32,
        },
        E::Positions {
            what: "batch entries",
            given: 1,
            needed: 2,
        },
        E::Position {
            given: 4096,
            n_positions: 2048,
        },
        E::Shape {
            given: [2, 128, 8, 64],
            needed: [2, 128, 2, 64],
        },
        E::Dtype {
            given: ScalarType::F32,
            needed: ScalarType::Float(Dtype::Bf16),
        },
        E::Overlapping { given: layout() },
    ]
}

// A line for each.
#[rustfmt::skip]
fn quantize() -> Vec<QuantizeError> {
    use Argument::{K, Q, V};
    use QuantizeError as E;
    vec![
        E::NotFinite { argument: K, given: f32::NAN, at: [0, 17, 2, 5] },
        E::Dtype { argument: Q, given: ScalarType::E4m3 },
        E::Location { argument: V, given: Location::Cuda(0) },
        E::Heads { argument: Q, given: 6, heads_k: 4 },
        E::Memory { argument: Q, n_elems: usize::MAX },
        E::NotTaken { what: "smooth", allowed: "k", argument: V },
        E::DescaleCount { argument: K, given: 3, per_head: 8, per_block: 16 },
        E::Descale { argument: K, given: 0.0 },
        E::MeanShape { given: [1, 2, 64], needed: [2, 2, 64] },
        E::LseCount { given: 128, needed: 256 },
        E::NoHistory,
        E::AmaxCount { given: 1, needed: 8 },
    ]
}

fn cache() -> Vec<CacheError> {
    use CacheError as E;
    let sequence = Sequence(7);
    vec![
        E::Pool {
            given: [0, 64, 2, 64],
        },
        E::NotOnGpu {
            given: Backend::Cpu,
        },
        E::NoPages { needed: 3, free: 1 },
        E::Unknown { sequence },
        E::Twice { sequence },
        E::Batch {
            given: 3,
            needed: 2,
        },
    ]
}

fn plan() -> Vec<PlanError> {
    use PlanError as E;
    let (backend, algorithm) = (Backend::Cuda, Algorithm::Flash3);
    let outcome = Outcome::Refused(Reason::Dtype { given: Dtype::F32 });
    vec![
        E::NoCandidate {
            backend,
            asked: Some(algorithm),
            candidates: vec![Candidate { algorithm, outcome }],
        },
        E::Operation {
            backend,
            verb: "merge",
            reason: Reason::HeadDimMultiple {
                given: 6,
                multiple: 4,
                most: 256,
            },
        },
        E::NeedsQueue,
        E::NotAsynchronous {
            backend: Backend::Cpu,
        },
    ]
}

fn reasons() -> Vec<Reason> {
    use Argument::{HeadScale, K, Q};
    use Reason as E;
    vec![
        E::NotBuilt {
            pass: Pass::Backward,
        },
        E::OtherBackend {
            backend: Backend::Cuda,
        },
        E::NoWeights,
        E::Dtype { given: Dtype::F32 },
        E::DtypeBeside {
            given: Dtype::F32,
            beside: "split keys",
        },
        E::HeadDimMultiple {
            given: 100,
            multiple: 8,
            most: 256,
        },
        E::Mask,
        E::BlockMask {
            block_q: 64,
            block_k: 80,
        },
        E::Lengths,
        E::SplitKv,
        E::Pages,
        E::Score { beside: None },
        E::Dropout,
        E::NotRead {
            argument: HeadScale,
        },
        E::Fp8Kv,
        E::Fp8,
        E::ScaleBlocks {
            block_k: 192,
            rows: 128,
        },
        E::HeadDimV {
            given: 32,
            needed: 64,
        },
        E::HeadDimVMultiple {
            given: 100,
            multiple: 8,
            most: 256,
        },
        E::ValuesInKeys,
        E::PackedQueries,
        E::ComputeCapability {
            given: (7, 5),
            needed: (8, 0),
        },
        E::OtherArchitecture {
            given: (10, 0),
            needed: (9, 0),
        },
        E::SharedMemory {
            given: 101_376,
            needed: 163_840,
        },
        E::BaseAlignment {
            argument: Q,
            address: 0x7f02,
        },
        E::StrideAlignment {
            argument: K,
            stride: 513,
        },
        E::RepeatedEntries { argument: K, n: 8 },
        E::StrideTooLong {
            argument: K,
            n_bytes: 1 << 41,
            limit: 1 << 40,
        },
        E::TooLarge {
            what: "seqlen_k",
            given: 1 << 33,
            limit: 1 << 31,
        },
        E::Memory {
            given: 1 << 30,
            needed: 1 << 34,
        },
    ]
}

fn driver() -> Vec<DriverError> {
    use DriverError as E;
    let kernel = "forward_sm90a_bf16_d128";
    let call = |code, name: &str, text: &str| ferroflash_driver::DriverError::Call {
        call: "cuLaunchKernelEx",
        code,
        name: name.to_owned(),
        text: text.to_owned(),
    };
    let no_driver = MissingDriver {
        library: "libcuda.so.1".to_owned(),
        reason: "cannot open shared object file: No such file or directory".to_owned(),
    };
    vec![
        E::NoDevice {
            ordinal: 1,
            n_devices: 1,
        },
        E::NoContext,
        E::NoKernels {
            detail: "FERROFLASH_KERNELS was \"off\"".to_owned(),
        },
        E::DriverTooOld {
            found: (11, 8),
            needed: (12, 0),
        },
        E::OutOfMemory {
            needed_bytes: 1 << 34,
            free_bytes: 1 << 30,
        },
        E::NotEmbedded { kernel },
        E::CorruptKernel { kernel },
        E::Specialise {
            kernel,
            source: SpecialiseError::NoScores,
        },
        E::WouldHang {
            kernel,
            spec: Spec::default(),
            registers: 160,
            needed_registers: 168,
            blocks_per_sm: 1,
            needed_blocks_per_sm: 1,
        },
        E::Load {
            kernel,
            source: Box::new(LoadError {
                source: call(
                    218,
                    "CUDA_ERROR_INVALID_PTX",
                    "a PTX JIT compilation failed",
                ),
                log: JitLog::default(),
            }),
        },
        E::KernelCache {
            folder: PathBuf::from("/cache"),
            needed: "written to",
            kind: ErrorKind::PermissionDenied,
            detail: "Permission denied (os error 13)".to_owned(),
        },
        E::CopyWithin {
            from: 0..8,
            to: 4,
            n_elems: 16,
        },
        E::CopyLength {
            needed: 16,
            given: 8,
        },
        E::StreamElsewhere,
        E::QueuePoisoned,
        E::QueueCaptured,
        E::QueueReplaced,
        E::Capture {
            source: call(
                900,
                "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
                "operation not permitted when stream is capturing",
            ),
        },
        E::Call(call(
            700,
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "an illegal memory access was encountered",
        )),
        E::Call(no_driver.into()),
    ]
}

fn ptxas() -> Vec<PtxasError> {
    use PtxasError as E;
    let program = || PathBuf::from("/usr/local/cuda/bin/ptxas");
    let kernel = "forward_sm90a_bf16_d128";
    let version = |major, minor| Version { major, minor };
    vec![
        E::NotRun {
            program: program(),
            kind: ErrorKind::NotFound,
            detail: "No such file or directory (os error 2)".to_owned(),
        },
        E::NoVersion {
            program: program(),
            said: "hello".to_owned(),
        },
        E::TooOld {
            program: program(),
            release: version(11, 8),
            kernel,
            needed: version(12, 3),
        },
        E::Refused {
            program: program(),
            kernel,
            said: "Unknown modifier".to_owned(),
        },
        E::File {
            program: program(),
            folder: PathBuf::from("/tmp"),
            kind: ErrorKind::StorageFull,
            detail: "No space left on device (os error 28)".to_owned(),
        },
    ]
}

/// What is not of the enums above: the emulator's.
#[test]
fn the_emulator_names_its_kernel() {
    let error = Error::Emulator {
        kernel: "forward_sm80_bf16_d64",
        report: "a data race".to_owned(),
    };
    assert_eq!(
        error.to_string(),
        "kernel forward_sm80_bf16_d64 on the emulator: a data race"
    );
}
