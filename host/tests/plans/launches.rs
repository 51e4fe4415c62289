//! Which launches a plan has where a size is 0 or beyond all memory, and where the workspace's pieces lie.

use ferroflash::Layout;
use ferroflash::arguments::Argument;
use ferroflash::plan::kinds;
use ferroflash::tensor::Description;
use ferroflash::validate::{Checked, check};
use ferroflash_kernels::params::{BackwardParams, FASTEST, ORDERED, Params, SHIFTED, Schedule};
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::Kind;

use super::*;

/// Those whose backward pass clears gradients first, where no query sees a key.
const FLASH: [Algorithm; 3] = [Algorithm::Flash3, Algorithm::Flash2, Algorithm::Flash1];

#[test]
fn the_cpu_plans_no_launch() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(64)
        .heads(1)
        .head_dim(3)
        .build()
        .unwrap();
    let checked = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
    let plan = plan(&checked, &DeviceInfo::cpu(), Backend::Cpu, None).unwrap();
    assert_eq!(plan.algorithm, Algorithm::Tiled);
    assert!(plan.launches.is_empty());
}

#[test]
fn lengths_that_no_memory_holds_are_planned_without_overflow() {
    let problem = llama_like().seqlen_k(usize::MAX >> 15).build().unwrap();
    let [batch, seqlen, heads, head_dim] = problem.shape_k();
    // One row, repeated.
    let layout = Layout {
        batch,
        seqlen,
        batch_stride: 0,
        row_stride: 0,
        ..Layout::bshd([1, 1, heads, head_dim]).unwrap()
    };
    let k = Description {
        layout,
        dtype: problem.dtype().into(),
        location: Location::Host,
        address: 0,
    };
    let short = llama_like().build().unwrap();
    let arguments = *without_tensors(&short, Pass::Forward, Location::Host)
        .unwrap()
        .arguments();
    let arguments = arguments.with(Argument::K, k).with(Argument::V, k);
    let checked = check(&problem, Pass::Forward, arguments).unwrap();
    for backend in [Backend::Cpu, Backend::Cuda] {
        match plan(&checked, &DeviceInfo::h200(), backend, None) {
            Ok(plan) => {
                assert_eq!(plan.standard_bytes, u64::MAX);
                assert!(!plan.to_string().is_empty());
            }
            Err(error) => assert!(error.to_string().contains("seqlen_k"), "{error}"),
        }
    }
}

#[test]
fn nothing_to_compute_launches_nothing() {
    for problem in [
        llama_like().batch(0),
        llama_like().seqlen_q(0),
        llama_like().heads(0),
    ] {
        assert!(
            plan_of(problem, Pass::Forward, None)
                .unwrap()
                .launches
                .is_empty()
        );
    }
    for problem in [llama_like().batch(0), llama_like().heads(0)] {
        assert!(
            plan_of(problem, Pass::Backward, None)
                .unwrap()
                .launches
                .is_empty()
        );
    }
}

#[test]
fn without_keys_o_is_still_written() {
    let plan = plan_of(llama_like().seqlen_k(0), Pass::Forward, None).unwrap();
    assert_eq!(plan.launches.len(), 1);
}

/// The kinds of kernels that a backward pass of an algorithm launches.
fn backward_kinds(problem: ProblemBuilder, algorithm: Algorithm) -> Vec<Kind> {
    let plan = plan_of(problem, Pass::Backward, Some(algorithm)).unwrap();
    let kinds = plan.launches.iter().map(|launch| launch.variant.kind);
    kinds.collect()
}

#[test]
fn without_keys_d_q_is_still_written() {
    let launched = |algorithm| backward_kinds(llama_like().seqlen_k(0), algorithm);
    assert_eq!(
        launched(Algorithm::Flash2),
        [Kind::BackwardPreprocess, Kind::BackwardPostprocess]
    );
    assert_eq!(
        launched(Algorithm::Flash3),
        kinds(Algorithm::Flash3, Pass::Backward)
    );
}

#[test]
fn keys_that_no_query_sees_have_their_gradients_cleared_first() {
    for algorithm in FLASH {
        let windowed = llama_like().seqlen_q(64).mask(Mask::Window {
            left: Some(8),
            right: Some(0),
        });
        let plan = plan_of(windowed, Pass::Backward, Some(algorithm)).unwrap();
        let clear = &plan.launches[0];
        assert_eq!(clear.variant.kind, Kind::Clear);
        let blocks = plan.problem.seqlen_k().div_ceil(64) * plan.problem.batch();
        assert_eq!(clear.grid as usize, blocks);
        let address = |argument| (argument as u64 + 1) << 20;
        let Params::Clear(params) = plan.params(clear, WORKSPACE, address) else {
            panic!("{clear:?}")
        };
        let cleared = [params.d_k.base, params.d_v.base];
        assert_eq!(cleared, [Argument::DK, Argument::DV].map(address));
    }
}

/// No kernel is compiled for a prefix that makes no difference.
#[test]
fn a_prefix_of_no_key_is_causal_and_one_of_all_keys_is_full() {
    for algorithm in [
        Algorithm::Flash1,
        Algorithm::Flash2,
        Algorithm::Flash3,
        Algorithm::Standard,
    ] {
        let spec = |mask| {
            let plan = plan_of(llama_like().mask(mask), Pass::Forward, Some(algorithm)).unwrap();
            plan.launches[0].spec
        };
        let seqlen_k = llama_like().build().unwrap().seqlen_k();
        let with = |prefix| spec(Mask::PrefixLm { prefix });
        assert_eq!(with(0), spec(Mask::Causal));
        assert_eq!(with(1), spec(Mask::Causal).with(Constant::Prefix));
        assert_eq!(with(seqlen_k - 1), with(1));
        assert_eq!(with(seqlen_k), Spec::PLAIN);
        assert_eq!(with(usize::MAX), Spec::PLAIN);
    }
}

#[test]
fn without_queries_gradients_of_keys_are_cleared() {
    for algorithm in FLASH {
        let launched = backward_kinds(llama_like().seqlen_q(0), algorithm);
        assert_eq!(launched, [Kind::Clear]);
    }
}

/// A backward pass with a gradient of lse, and the same without.
fn with_and_without_d_lse() -> [Checked; 2] {
    let problem = llama_like().build().unwrap();
    let without = without_tensors(&problem, Pass::Backward, Location::Cuda(0)).unwrap();
    let lse = *without.arguments().get(Argument::Lse).unwrap();
    let arguments = without.arguments().with(Argument::DLse, lse);
    [check(&problem, Pass::Backward, arguments).unwrap(), without]
}

#[test]
fn a_gradient_of_lse_takes_no_launch_and_no_memory() {
    for asked in [
        Algorithm::Flash3,
        Algorithm::Flash2,
        Algorithm::Flash1,
        Algorithm::Standard,
    ] {
        let [with, without] = with_and_without_d_lse().map(|checked| {
            plan(&checked, &DeviceInfo::h200(), Backend::Cuda, Some(asked)).unwrap()
        });
        assert!(!with.launches.is_empty());
        assert_eq!(with, without);
    }
}

#[test]
fn every_backward_kernel_is_told_where_the_gradient_of_lse_lies() {
    for asked in [
        Algorithm::Flash3,
        Algorithm::Flash2,
        Algorithm::Flash1,
        Algorithm::Standard,
    ] {
        let plan = plan_of(llama_like(), Pass::Backward, Some(asked)).unwrap();
        for d_lse in [3 << 20, 0] {
            let address = |argument| match argument {
                Argument::DLse => d_lse,
                _ => 0,
            };
            for launch in &plan.launches {
                let params = plan.params(launch, WORKSPACE, address);
                let given = match params {
                    Params::Standard(params) => params.d_lse,
                    _ => params.backward().unwrap().d_lse,
                };
                assert_eq!(given, d_lse, "{}", launch.variant.name);
            }
        }
    }
}

/// Where the workspace lies, in these tests.
const WORKSPACE: u64 = 1 << 40;

/// What a backward kernel of flash2 or flash3 is given of the pass.
fn pass_params(plan: &Plan, address: impl Fn(Argument) -> u64) -> Vec<BackwardParams> {
    let given = |launch| *plan.params(launch, WORKSPACE, &address).backward().unwrap();
    plan.launches.iter().map(given).collect()
}

#[test]
fn workspace_pieces_are_bound_after_one_another() {
    let shared_keys = || llama_like().heads_k(1);
    for (algorithm, problem, in_head_splits) in [
        (Algorithm::Flash3, llama_like().heads_k(32), false),
        (Algorithm::Flash2, llama_like(), false),
        (Algorithm::Flash3, shared_keys(), true),
        (Algorithm::Flash2, shared_keys(), false),
    ] {
        let plan = plan_of(problem, Pass::Backward, Some(algorithm)).unwrap();
        let address = |argument| (argument as u64 + 1) << 20;
        let params = pass_params(&plan, address);
        assert!(
            params.windows(2).all(|pair| pair[0] == pair[1]),
            "{algorithm}: the kernels of a pass are told the same"
        );
        let params = params[0];
        assert_eq!(params.q.base, address(Argument::Q));
        assert_eq!(params.lse, address(Argument::Lse));
        assert_eq!(params.d_q.base, address(Argument::DQ));
        let mut bound = vec![
            params.lse_log2,
            params.delta,
            params.d_q_accum,
            params.dq_semaphore,
            params.tile_counters,
        ];
        assert_eq!(params.n_head_splits > 1, in_head_splits);
        if in_head_splits {
            bound.extend([params.dkv_accum, params.dkv_semaphore]);
            let main = plan.launches.last().unwrap();
            assert!(main.spec.has(Constant::HeadSplits), "{plan}");
        }
        let offsets: Vec<u64> = plan
            .workspace
            .pieces()
            .iter()
            .map(|piece| WORKSPACE + piece.offset_bytes)
            .collect();
        assert_eq!(bound, offsets);
    }
}

/// The accumulator of dQ has the columns that the kernels have: flash3's are padded.
#[test]
fn the_accumulator_of_d_q_is_as_wide_as_the_kernels() {
    for (head_dim, columns) in [
        (8, 64),
        (64, 64),
        (72, 128),
        (128, 128),
        (136, 192),
        (256, 256),
    ] {
        let problem = llama_like().head_dim(head_dim);
        let plan = plan_of(problem, Pass::Backward, Some(Algorithm::Flash3)).unwrap();
        let pieces = plan.workspace.pieces();
        let accumulator = pieces.iter().find(|piece| piece.name == "d_q_accum");
        let rows = 2 * 32 * 4096;
        assert_eq!(accumulator.unwrap().n_bytes, rows * columns * 4);
    }
}

/// Who has no tile rounds dQ.
#[test]
fn blocks_without_a_tile_are_launched_where_dq_has_rows_for_them() {
    let grid = |problem: ProblemBuilder, algorithm| {
        let plan = plan_of(problem.heads(2), Pass::Backward, Some(algorithm)).unwrap();
        plan.launches[1].grid
    };
    let of = |seqlen_q: usize, seqlen_k: usize| {
        let problem = Problem::builder(Dtype::Bf16).head_dim(128);
        problem.seqlen_q(seqlen_q).seqlen_k(seqlen_k)
    };
    let few_keys = || of(4096, 200);
    assert_eq!(grid(few_keys(), Algorithm::Flash3), 128);
    assert_eq!(grid(few_keys(), Algorithm::Flash2), 4);
    // 132 SMs.
    assert_eq!(grid(of(65536, 200), Algorithm::Flash3), 132);
    assert_eq!(grid(of(4096, 0), Algorithm::Flash3), 128);
    assert_eq!(grid(of(64, 1024), Algorithm::Flash3), 16);
}

/// Which order tiles have, and how many blocks there are.
fn order(problem: ProblemBuilder, n_sms: u32) -> (u32, u32, u32) {
    let checked =
        without_tensors(&problem.build().unwrap(), Pass::Backward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo {
        n_sms,
        ..DeviceInfo::h200()
    };
    let plan = plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash3)).unwrap();
    let Schedule {
        order,
        heads_per_group,
        ..
    } = pass_params(&plan, |_| 0)[0].schedule;
    (order, heads_per_group, plan.launches[1].grid)
}

#[test]
fn the_shifted_order_is_taken_where_all_tiles_of_a_head_run_at_once_and_few_blocks_are_left_over() {
    let of = |head_dim: usize, seqlen: usize, heads: usize| {
        let problem = Problem::builder(Dtype::Bf16).seqlen(seqlen);
        problem.heads(heads).head_dim(head_dim)
    };
    // 64 tiles: two heads in 128 of 132 blocks.
    assert_eq!(order(of(96, 8192, 32), 132), (SHIFTED, 2, 132));
    // 128 tiles: one head in 128.
    assert_eq!(order(of(96, 16384, 16), 132), (SHIFTED, 1, 132));
    // Wide tiles of that many keys: a stride of 2, so tiles of twice as many heads.
    assert_eq!(order(of(128, 8192, 32), 132), (SHIFTED, 4, 132));
    assert_eq!(order(of(128, 16384, 16), 132), (SHIFTED, 2, 132));
    // 70 tiles: a head at a time would leave 62 of 132 blocks idle. In a list several times as many lie side by side.
    assert_eq!(order(of(96, 8960, 16), 132), (ORDERED, 8, 132));
    // 140 tiles: more than there are blocks.
    assert_eq!(order(of(96, 17920, 8), 132), (ORDERED, 1, 132));
    // A tile has fewer steps than there are tiles: they would begin at the same block.
    assert_eq!(order(of(96, 8192, 32).seqlen_q(64), 132), (ORDERED, 2, 132));
    // All that is asked for fits the device at once.
    assert_eq!(order(of(96, 1024, 3), 132), (SHIFTED, 3, 48));
    // Under a causal mask tiles differ in length.
    assert_eq!(
        order(of(96, 8192, 32).mask(Mask::Causal), 132),
        (ORDERED, 2, 132)
    );
    // By name.
    let fastest = of(96, 8192, 32).order(Order::Fastest);
    assert_eq!(order(fastest, 132), (FASTEST, 2, 132));
}
