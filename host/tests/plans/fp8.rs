//! Queries, keys and values in 8 bits: which kernels run, and where they find the scales.

use ferroflash::plan::{Outcome, Reason};
use ferroflash::{BlockMask, Fp8, Fp8Kv, Pages};
use ferroflash_kernels::params::{Descales, Params, ScaleStrides};
use ferroflash_kernels::spec::Constant;

use super::*;

fn decode() -> ProblemBuilder {
    llama_like().seqlen_q(1).seqlen_k(8192).fp8(Fp8::PerHead)
}

fn chosen(problem: ProblemBuilder) -> Algorithm {
    plan_of(problem, Pass::Forward, None).unwrap().algorithm
}

#[test]
fn a_query_over_many_keys() {
    check(
        decode(),
        Pass::Forward,
        None,
        expect![[r#"
        Forward with flash2 on cuda
          problem   bf16 q [2, 1, 32, 128] k [2, 8192, 8, 128] causal, q, k and v in e4m3 with a scale per head, sums of two levels scale 0.088388346 Deterministic
          launch    forward_e4m3_sm89_bf16_d128_compact split_kv+q_e4m3 grid 256 threads 128 shared 84480
                    tiles 1 heads 16 heads_per_group 8, 16 splits of 512 keys, 4 heads of q share a tile
          workspace 790784 bytes
                      arrivals      at          256, 256 bytes
                      split_o       at       262400, 524288 bytes
                      split_lse     at       786688, 4096 bytes
          standard attention would need 3145728 bytes
          candidate flash2    chosen
          candidate flash3    could run; a faster one can too
          candidate flash1    cannot run: no kernel of it reads q, k and v in e4m3
          candidate standard  cannot run: no kernel of it reads q, k and v in e4m3
          candidate tiled     cannot run: it does not run on cuda
    "#]],
    );
}

/// Where heads of few queries share a tile flash2 runs, as flash3 divides no keys of 8 bits; whatever flash2 has no kernel for is left to flash3.
#[test]
fn flash2_is_for_few_queries() {
    for few in [
        decode(),
        decode().seqlen_q(8),
        decode().seqlen_k(1),
        decode().head_dim(80),
        decode().fp8(Fp8::PerTensor),
        decode().fp8(Fp8::PerBlock),
        decode().pages(Pages::new(2000, 16)),
        decode().sinks(),
        // As asked, however many queries there are.
        decode().seqlen_q(4096).split_kv(1024),
    ] {
        assert_eq!(chosen(few), Algorithm::Flash2);
    }
    let edited = Score::new(|s, _| s * 0.5).unwrap();
    for (other, reason) in [
        (decode().seqlen_q(9), None),
        (decode().packed_q(2), Some(Reason::PackedQueries)),
        (
            decode().head_dim(192),
            Some(Reason::HeadDimMultiple {
                given: 192,
                multiple: 16,
                most: 128,
            }),
        ),
        (
            decode().block_mask(BlockMask::new(128, 128)),
            Some(Reason::BlockMask {
                block_q: 16,
                block_k: 64,
            }),
        ),
        (
            decode().score(edited),
            Some(Reason::Score {
                beside: Some("q, k and v in 8 bits"),
            }),
        ),
        (
            f32(decode()),
            Some(Reason::DtypeBeside {
                given: Dtype::F32,
                beside: "q, k and v in e4m3",
            }),
        ),
    ] {
        let plan = plan_of(other, Pass::Forward, None).unwrap();
        assert_eq!(plan.algorithm, Algorithm::Flash3, "{plan}");
        let mut candidates = plan.candidates.iter();
        let of_flash2 = candidates.find(|other| other.algorithm == Algorithm::Flash2);
        let outcome = reason.map_or(Outcome::NotPreferred, Outcome::Refused);
        assert_eq!(of_flash2.map(|other| &other.outcome), Some(&outcome));
    }
}

/// The same problem with o in f32.
fn f32(problem: ProblemBuilder) -> ProblemBuilder {
    let of_16_bits = problem.build().unwrap();
    Problem::builder(Dtype::F32)
        .batch(of_16_bits.batch())
        .seqlen_q(of_16_bits.seqlen_q())
        .seqlen_k(of_16_bits.seqlen_k())
        .heads_q(of_16_bits.heads_q())
        .heads_k(of_16_bits.heads_k())
        .head_dim(of_16_bits.head_dim())
        .fp8(Fp8::PerHead)
}

/// GPUs without flash3 run flash2's, where they have conversions of e4m3.
#[test]
fn other_gpus_run_it_too() {
    let checked = without_tensors(&decode().build().unwrap(), Pass::Forward, Location::Cuda(0));
    let checked = checked.unwrap();
    let on = |device| plan(&checked, &device, Backend::Cuda, None);
    assert_eq!(
        on(DeviceInfo::rtx4090()).unwrap().algorithm,
        Algorithm::Flash2
    );
    let refused = on(DeviceInfo::a100()).unwrap_err().to_string();
    assert!(refused.contains("its kernels need 8.9"), "{refused}");
}

/// Scales of pages, too.
#[test]
fn kernels_find_the_scales() {
    let cache = llama_like().seqlen_q(1).pages(Pages::new(2000, 16));
    let strides = |[batch, head, block]: [u32; 3]| ScaleStrides { batch, head, block };
    for (problem, of_q, of_k, page_scales) in [
        (decode().fp8(Fp8::PerTensor), [0; 3], [0; 3], 0),
        (decode(), [8, 1, 0], [8, 1, 0], 0),
        (decode().fp8(Fp8::PerBlock), [8, 1, 1], [8 * 64, 64, 1], 0),
        (cache.fp8_kv(Fp8Kv::PerSequence), [0; 3], [8, 1, 0], 0),
        (cache.fp8_kv(Fp8Kv::PerPage), [0; 3], [0, 1, 0], 8),
    ] {
        let plan = plan_of(problem, Pass::Forward, None).unwrap();
        let launch = &plan.launches[0];
        let Params::Forward(params) = &launch.params else {
            panic!("{plan}")
        };
        let expected = Descales {
            strides_q: strides(of_q),
            strides_k: strides(of_k),
            ..Descales::default()
        };
        assert_eq!(
            (params.descales, params.page_scales),
            (expected, page_scales)
        );
        let fp8 = plan.problem.fp8();
        assert_eq!(launch.spec.has(Constant::QE4m3), fp8.is_some());
        let of_blocks = fp8 == Some(Fp8::PerBlock);
        assert_eq!(launch.spec.has(Constant::ScaleBlocks), of_blocks);
    }
}
