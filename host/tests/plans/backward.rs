//! Whole plans of backward passes with flash3, as `ferroflash plan` prints them.

use super::*;

#[test]
fn backward_causal() {
    check(
        llama_like().order(Order::Fastest),
        Pass::Backward,
        None,
        expect![[r#"
            Backward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 8, 128] causal scale 0.088388346 Fastest
              launch    backward_preprocess_sm90a_bf16_d128 plain grid 4096 threads 256 shared 0
                        tiles 32 heads 32 heads_per_group 4, 2 head splits
              launch    backward_sm90a_bf16_d128 right_bound+head_splits grid 132 threads 384 shared 230848
                        tiles 32 heads 32 heads_per_group 4, 2 head splits
              workspace 203735552 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 134217728 bytes
                          dq_semaphore  at    136577280, 16384 bytes
                          tile_counters at    136593664, 8 bytes
                          dkv_accum     at    136593920, 67108864 bytes
                          dkv_semaphore at    203702784, 32768 bytes
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
fn backward_head_splits() {
    check(
        llama_like().heads_k(1),
        Pass::Backward,
        None,
        expect![[r#"
            Backward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 1, 128] causal scale 0.088388346 Deterministic
              launch    backward_preprocess_sm90a_bf16_d128 plain grid 4096 threads 256 shared 0
                        tiles 32 heads 32 heads_per_group 4, 16 head splits
              launch    backward_sm90a_bf16_d128 right_bound+head_splits grid 132 threads 384 shared 230848
                        tiles 32 heads 32 heads_per_group 4, 16 head splits
              workspace 144986624 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 134217728 bytes
                          dq_semaphore  at    136577280, 16384 bytes
                          tile_counters at    136593664, 8 bytes
                          dkv_accum     at    136593920, 8388608 bytes
                          dkv_semaphore at    144982528, 4096 bytes
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
fn backward_in_shifted_order() {
    let problem = llama_like().mask(Mask::Full).head_dim(72);
    check(
        problem,
        Pass::Backward,
        None,
        expect![[r#"
            Backward with flash3 on cuda
              problem   bf16 q [2, 4096, 32, 72] k [2, 4096, 8, 72] full scale 0.11785113 Deterministic
              launch    backward_preprocess_sm90a_bf16_d96 plain grid 4096 threads 256 shared 0
                        tiles 32 heads 16 heads_per_group 4, shifted order
              launch    backward_sm90a_bf16_d96 plain grid 132 threads 384 shared 230848
                        tiles 32 heads 16 heads_per_group 4, shifted order
              workspace 136593920 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 134217728 bytes
                          dq_semaphore  at    136577280, 16384 bytes
                          tile_counters at    136593664, 8 bytes
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
fn backward_of_flash1() {
    check(
        llama_like(),
        Pass::Backward,
        Some(Algorithm::Flash1),
        expect![[r#"
            Backward with flash1 on cuda
              problem   bf16 q [2, 4096, 32, 128] k [2, 4096, 8, 128] causal scale 0.088388346 Deterministic
              launch    backward_preprocess_sm80_bf16_d128 plain grid 4096 threads 256 shared 0
                        tiles 32 heads 16 heads_per_group 1
              launch    backward_flash1_sm80_bf16_d128 right_bound grid 16 threads 256 shared 164912
                        tiles 32 heads 16 heads_per_group 1
              launch    backward_postprocess_sm80_bf16_d128 right_bound grid 4096 threads 256 shared 16384
                        tiles 32 heads 16 heads_per_group 1
              workspace 136593920 bytes
                          lse_log2      at       262400, 1048576 bytes
                          delta         at      1310976, 1048576 bytes
                          d_q_accum     at      2359552, 134217728 bytes
                          dq_semaphore  at    136577280, 16384 bytes
                          tile_counters at    136593664, 8 bytes
              standard attention would need 6442450944 bytes
              candidate flash3    could run; another was asked for by name
              candidate flash2    could run; another was asked for by name
              candidate flash1    chosen
              candidate standard  could run; another was asked for by name
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

/// The gradient of a bias of f32, behind flash2's backward pass: Δ once more, and a block for each 128 × 128 elements of each head.
#[test]
fn f32_with_the_gradient_of_a_bias() {
    let score = Score::new(|s, at| s + at.tensor_f32("bias", [at.head, at.q, at.k])).unwrap();
    let problem = Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen(300)
        .heads(4)
        .head_dim(64)
        .precision(Precision::Full)
        .score(score)
        .build()
        .unwrap();
    let checked = without_tensors(&problem, Pass::Backward, Location::Cuda(0)).unwrap();
    let d_bias = VectorDescription::unplaced(4 * 300 * 300, Dtype::F32, Location::Cuda(0));
    let arguments = (*checked.arguments()).with(Argument::DScoreTensor0, d_bias);
    let checked = validate::check(&problem, Pass::Backward, arguments).unwrap();
    let plan = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
    expect![[r#"
        Backward with flash2 on cuda
          problem   f32 (3xTF32) q [2, 300, 4, 64] k [2, 300, 4, 64] full, score score + bias[head, q, k] scale 0.125 Deterministic
          launch    backward_preprocess_sm80_f32_d64 plain grid 80 threads 256 shared 0
                    tiles 5 heads 8 heads_per_group 8
          launch    backward_sm80_f32_d64 score+full_precision grid 40 threads 128 shared 82480
                    tiles 5 heads 8 heads_per_group 8
          launch    backward_postprocess_sm80_f32_d64 plain grid 80 threads 128 shared 8192
                    tiles 5 heads 8 heads_per_group 8
          launch    standard_delta_sm80_f32 plain grid 600 threads 128 shared 0
          launch    tensor_gradient_sm80_f32 full_precision grid 36 threads 256 shared 49152
          workspace 948736 bytes
                      lse_log2      at       262400, 10240 bytes
                      delta         at       272640, 10240 bytes
                      d_q_accum     at       282880, 655360 bytes
                      dq_semaphore  at       938240, 320 bytes
                      tile_counters at       938752, 8 bytes
                      tensor_delta  at       939008, 9600 bytes
          standard attention would need 5836800 bytes
          candidate flash3    cannot run: no kernel of it takes f32
          candidate flash2    chosen
          candidate flash1    cannot run: no kernel of it takes f32
          candidate standard  cannot run: no kernel of it takes f32
          candidate tiled     cannot run: it does not run on cuda
    "#]].assert_eq(&plan.to_string());
}
