//! Plans as text, for devices that are not here.

use expect_test::{Expect, expect};
use ferroflash::arguments::Argument;
use ferroflash::error::PlanError;
use ferroflash::plan::{DeviceInfo, Plan, plan};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{self, without_tensors};
use ferroflash::{
    Algorithm, Backend, Dtype, Mask, Order, Pass, Precision, Problem, ProblemBuilder, Score,
};

mod backward;
mod fp8;
mod launches;
mod limits;
mod mask_map;
mod pages;
mod split_kv;

fn plan_of(
    problem: ProblemBuilder,
    pass: Pass,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    let checked = without_tensors(&problem.build().unwrap(), pass, Location::Cuda(0)).unwrap();
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked)
}

fn check(problem: ProblemBuilder, pass: Pass, asked: Option<Algorithm>, expected: Expect) {
    let text = match plan_of(problem, pass, asked) {
        Ok(plan) => plan.to_string(),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&text);
}

fn llama_like() -> ProblemBuilder {
    Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen(4096)
        .heads_q(32)
        .heads_k(8)
        .head_dim(128)
        .mask(Mask::Causal)
}

#[test]
fn forward_causal() {
    check(
        llama_like(),
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm90a_bf16_d128 right_bound grid 132 threads 384 shared 229696
                        tiles 32 heads 64 heads_per_group 64
              workspace 256 bytes
                          tile_counter  at            0, 4 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    chosen
              candidate flash2    could run; a faster one can too
              candidate flash1    could run; it does only when asked for by name
              candidate standard  could run; a faster one can too
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn forward_causal_of_long_sequences() {
    check(
        llama_like().seqlen(8192),
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash3 on cuda
              problem   bf16 q [2, 8192, 32, 128] k [2, 8192, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm90a_bf16_d128_wide right_bound grid 132 threads 512 shared 229712
                        tiles 43 heads 64 heads_per_group 32
              workspace 256 bytes
                          tile_counter  at            0, 4 bytes
              standard attention would need 25769803776 bytes
              candidate flash3    chosen
              candidate flash2    could run; a faster one can too
              candidate flash1    could run; it does only when asked for by name
              candidate standard  could run; a faster one can too
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn forward_full_of_odd_lengths() {
    let problem = Problem::builder(Dtype::F16)
        .seqlen_q(1000)
        .seqlen_k(77)
        .heads(3)
        .head_dim(64);
    check(
        problem,
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash3 on cuda
              problem   f16 q [1, 1000, 3, 64] k [1, 77, 3, 64] full scale 0.125 Deterministic
              launch    forward_sm90a_f16_d64_compact plain grid 48 threads 256 shared 90416
                        tiles 16 heads 3 heads_per_group 1
              workspace 256 bytes
                          tile_counter  at            0, 4 bytes
              standard attention would need 1440000 bytes
              candidate flash3    chosen
              candidate flash2    could run; a faster one can too
              candidate flash1    could run; it does only when asked for by name
              candidate standard  could run; a faster one can too
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn forward_of_flash2() {
    check(
        llama_like(),
        Pass::Forward,
        Some(Algorithm::Flash2),
        expect![[r#"
            Forward with flash2 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm80_bf16_d128 right_bound grid 2048 threads 128 shared 98304
                        tiles 32 heads 64 heads_per_group 64
              workspace 0 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    could run; another was asked for by name
              candidate flash2    chosen
              candidate flash1    could run; another was asked for by name
              candidate standard  could run; another was asked for by name
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn forward_padded_to_the_next_head_dim() {
    check(
        llama_like().head_dim(72).mask(Mask::Full),
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 72] k [2, 4096, 8, 72] full scale 0.11785113 Deterministic
              launch    forward_sm90a_bf16_d128_wide plain grid 132 threads 512 shared 229712
                        tiles 22 heads 64 heads_per_group 1
              workspace 256 bytes
                          tile_counter  at            0, 4 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    chosen
              candidate flash2    could run; a faster one can too
              candidate flash1    could run; it does only when asked for by name
              candidate standard  could run; a faster one can too
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn backward_of_flash2() {
    check(
        llama_like(),
        Pass::Backward,
        Some(Algorithm::Flash2),
        expect![[r#"
            Backward with flash2 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 8, 128] causal scale 0.088388346 Deterministic
              launch    backward_preprocess_sm80_bf16_d128 plain grid 4096 threads 256 shared 0
                        tiles 32 heads 16 heads_per_group 4
              launch    backward_sm80_bf16_d128 right_bound grid 132 threads 256 shared 164912
                        tiles 32 heads 16 heads_per_group 4
              launch    backward_postprocess_sm80_bf16_d128 right_bound grid 4096 threads 256 shared 16384
                        tiles 32 heads 16 heads_per_group 4
              workspace 136593920 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 134217728 bytes
                          dq_semaphore  at    136577280, 16384 bytes
                          tile_counters at    136593664, 8 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    could run; another was asked for by name
              candidate flash2    chosen
              candidate flash1    could run; another was asked for by name
              candidate standard  could run; another was asked for by name
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn backward_above_head_dim_128() {
    check(
        llama_like().head_dim(136),
        Pass::Backward,
        None,
        expect![[r#"
            Backward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 136] k [2, 4096, 8, 136] causal scale 0.08574929 Deterministic
              launch    backward_preprocess_sm90a_bf16_d192 plain grid 4096 threads 256 shared 0
                        tiles 64 heads 16 heads_per_group 2
              launch    backward_sm90a_bf16_d192 right_bound grid 132 threads 384 shared 181696
                        tiles 64 heads 16 heads_per_group 2
              workspace 203702784 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 201326592 bytes
                          dq_semaphore  at    203686144, 16384 bytes
                          tile_counters at    203702528, 8 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    chosen
              candidate flash2    could run; a faster one can too
              candidate flash1    could run; it does only when asked for by name
              candidate standard  could run; a faster one can too
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn standard_forward_with_weights() {
    let problem = Problem::builder(Dtype::F16)
        .seqlen_q(130)
        .seqlen_k(77)
        .heads(3)
        .head_dim(40);
    check(
        problem,
        Pass::ForwardWithWeights,
        None,
        expect![[r#"
            ForwardWithWeights with standard on cuda
              problem   f16 q [1, 130, 3, 40] k [1, 77, 3, 40] full scale 0.15811388 Deterministic
              launch    standard_scores_sm80_f16 plain grid 6 threads 256 shared 49152
              launch    standard_softmax_sm80_f16 plain grid 99 threads 128 shared 0
              launch    standard_output_sm80_f16 plain grid 6 threads 256 shared 49152
              workspace 387328 bytes
                          scores        at       262400, 124800 bytes
              standard attention would need 187200 bytes
              candidate flash3    cannot run: it never holds the weights, which were asked for
              candidate flash2    cannot run: it never holds the weights, which were asked for
              candidate flash1    cannot run: it never holds the weights, which were asked for
              candidate standard  chosen
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn standard_backward() {
    let problem = Problem::builder(Dtype::F16)
        .seqlen_q(130)
        .seqlen_k(77)
        .heads_q(6)
        .heads_k(3)
        .head_dim(64);
    check(
        problem,
        Pass::Backward,
        Some(Algorithm::Standard),
        expect![[r#"
            Backward with standard on cuda
              problem   f16 q [1, 130, 6, 64] k [1, 77, 3, 64] full scale 0.125 Deterministic
              launch    standard_scores_sm80_f16 plain grid 12 threads 256 shared 49152
              launch    standard_softmax_sm80_f16 plain grid 198 threads 128 shared 0
              launch    standard_delta_sm80_f16 plain grid 198 threads 128 shared 0
              launch    standard_d_v_sm80_f16 plain grid 3 threads 256 shared 49152
              launch    standard_d_weights_sm80_f16 plain grid 12 threads 256 shared 49152
              launch    standard_d_scores_sm80_f16 plain grid 198 threads 128 shared 0
              launch    standard_d_q_sm80_f16 plain grid 12 threads 256 shared 49152
              launch    standard_d_k_sm80_f16 plain grid 3 threads 256 shared 49152
              workspace 643584 bytes
                          scores        at       262400, 249600 bytes
                          weights       at       512000, 124800 bytes
                          lse           at       636928, 3120 bytes
                          delta         at       640256, 3120 bytes
              standard attention would need 374400 bytes
              candidate flash3    could run; another was asked for by name
              candidate flash2    could run; another was asked for by name
              candidate flash1    could run; another was asked for by name
              candidate standard  chosen
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn f32_is_multiplied_as_tf32() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(200)
        .heads(1)
        .head_dim(60);
    check(
        problem,
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash2 on cuda
              problem   f32 (tf32) q [1, 200, 1, 60] k [1, 200, 1, 60] full scale 0.12909944 Deterministic
              launch    forward_sm80_f32_d64 pad_columns grid 2 threads 128 shared 65536
                        tiles 2 heads 1 heads_per_group 1
              workspace 0 bytes
              standard attention would need 320000 bytes
              candidate flash3    cannot run: no kernel of it takes f32
              candidate flash2    chosen
              candidate flash1    cannot run: no kernel of it takes f32
              candidate standard  cannot run: no kernel of it takes f32
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn f32_is_multiplied_as_f32_where_it_is_asked_for() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(200)
        .heads(1)
        .head_dim(64)
        .precision(Precision::Full);
    check(
        problem,
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash2 on cuda
              problem   f32 (3xTF32) q [1, 200, 1, 64] k [1, 200, 1, 64] full scale 0.125 Deterministic
              launch    forward_sm80_f32_d64 full_precision grid 2 threads 128 shared 65536
                        tiles 2 heads 1 heads_per_group 1
              workspace 0 bytes
              standard attention would need 320000 bytes
              candidate flash3    cannot run: no kernel of it takes f32
              candidate flash2    chosen
              candidate flash1    cannot run: no kernel of it takes f32
              candidate standard  cannot run: no kernel of it takes f32
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn f32_has_kernels_up_to_head_dim_128() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(64)
        .heads(1)
        .head_dim(136);
    check(
        problem,
        Pass::Backward,
        None,
        expect![[r#"
            cuda cannot serve this problem:
              flash3    cannot run: no kernel of it takes f32
              flash2    cannot run: head_dim is 136; its kernels take multiples of 4 up to 128
              flash1    cannot run: no kernel of it takes f32
              standard  cannot run: no kernel of it takes f32
              tiled     cannot run: it does not run on cuda"#]],
    );
}

#[test]
fn an_algorithm_by_name_is_not_replaced() {
    let problem = Problem::builder(Dtype::F16)
        .seqlen(64)
        .heads(1)
        .head_dim(520);
    check(
        problem,
        Pass::Forward,
        Some(Algorithm::Flash2),
        expect![[r#"
            cuda cannot serve this problem with flash2:
              flash3    cannot run: head_dim is 520; its kernels take multiples of 8 up to 512
              flash2    cannot run: head_dim is 520; its kernels take multiples of 8 up to 512
              flash1    cannot run: head_dim is 520; its kernels take multiples of 8 up to 256
              standard  could run; another was asked for by name
              tiled     cannot run: it does not run on cuda"#]],
    );
}
