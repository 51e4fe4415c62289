//! Which launches a plan has where a size is 0 or beyond all memory, and where the workspace's pieces lie.

use ferroflash::Layout;
use ferroflash::plan::Addresses;
use ferroflash::tensor::{Description, LseDescription};
use ferroflash::validate::{Checked, ForwardTensors, GradientTensors, backward, forward};
use ferroflash_kernels::params::Params;

use super::*;

#[test]
fn the_cpu_plans_no_launch() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(64)
        .heads(1)
        .head_dim(3)
        .build()
        .unwrap();
    let checked = without_tensors(&problem, Pass::Forward, Place::Host).unwrap();
    let plan = plan(&checked, &DeviceInfo::cpu(), Backend::Cpu, None).unwrap();
    assert_eq!(plan.algorithm, Algorithm::Tiled);
    assert!(plan.launches.is_empty());
}

#[test]
fn lengths_that_no_memory_holds_are_planned_without_overflow() {
    let mut problem = llama_like().build().unwrap();
    problem.seqlen_k = usize::MAX >> 15;
    let described = |shape: [usize; 4]| {
        let layout = Layout {
            batch: shape[0],
            seqlen: shape[1],
            ..Layout::bshd([1, 1, shape[2], shape[3]]).unwrap()
        };
        // One row, repeated.
        let layout = Layout {
            batch_stride: 0,
            row_stride: 0,
            ..layout
        };
        Description {
            layout,
            dtype: problem.dtype,
            place: Place::Host,
            address: 0,
        }
    };
    let k = described(problem.shape_k());
    let q = Description::contiguous(problem.shape_q(), problem.dtype, Place::Host).unwrap();
    let lse = LseDescription::contiguous(2 * 32 * 4096, Place::Host);
    let checked = forward(
        &problem,
        ForwardTensors {
            q,
            k,
            v: k,
            o: q,
            lse,
        },
    )
    .unwrap();
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
    let plan = plan_of(llama_like().seqlen_k(0), Pass::Backward, None).unwrap();
    let kernels: Vec<_> = plan.kernels().collect();
    assert_eq!(
        kernels,
        [
            "backward_delta_sm80_bf16_d128",
            "backward_dq_sm80_bf16_d128"
        ]
    );
}

#[test]
fn without_queries_the_ticket_is_still_cleared() {
    let plan = plan_of(llama_like().seqlen_q(0), Pass::Backward, None).unwrap();
    let kernels: Vec<_> = plan.kernels().collect();
    assert_eq!(
        kernels[..2],
        [
            "backward_delta_sm80_bf16_d128",
            "backward_sm80_bf16_d128_causal"
        ]
    );
}

/// A backward pass with a gradient of lse, and the same without.
fn with_and_without_d_lse() -> [Checked; 2] {
    let problem = llama_like().build().unwrap();
    let without = without_tensors(&problem, Pass::Backward, Place::Cuda(0)).unwrap();
    let with = GradientTensors {
        d_lse: Some(without.forward().lse),
        ..*without.gradients().unwrap()
    };
    [
        backward(&problem, *without.forward(), with).unwrap(),
        without,
    ]
}

#[test]
fn a_gradient_of_lse_takes_no_launch_and_no_memory() {
    for asked in [Algorithm::Flash2, Algorithm::Standard] {
        let [with, without] = with_and_without_d_lse().map(|checked| {
            plan(&checked, &DeviceInfo::h200(), Backend::Cuda, Some(asked)).unwrap()
        });
        assert!(!with.launches.is_empty());
        assert_eq!(with, without);
    }
}

#[test]
fn every_backward_kernel_is_told_where_the_gradient_of_lse_lies() {
    let at = Addresses {
        d_lse: 3 << 20,
        workspace: 1 << 40,
        ..Addresses::default()
    };
    for asked in [Algorithm::Flash2, Algorithm::Standard] {
        let plan = plan_of(llama_like(), Pass::Backward, Some(asked)).unwrap();
        for (at, expected) in [(at, 3 << 20), (Addresses { d_lse: 0, ..at }, 0)] {
            for launch in &plan.launches {
                let given = match plan.params(launch, &at) {
                    Params::Backward(params) => params.d_lse,
                    Params::Standard(params) => params.d_lse,
                    _ => panic!("{} is no backward kernel", launch.variant.name),
                };
                assert_eq!(given, expected, "{}", launch.variant.name);
            }
        }
    }
}

#[test]
fn workspace_pieces_are_bound_after_one_another() {
    let plan = plan_of(llama_like(), Pass::Backward, None).unwrap();
    let at = Addresses {
        q: 1 << 20,
        lse: 2 << 20,
        workspace: 1 << 40,
        ..Addresses::default()
    };
    let Params::Backward(params) = plan.params(&plan.launches[0], &at) else {
        panic!()
    };
    assert_eq!((params.q.base, params.lse), (at.q, at.lse));
    let bound = [
        params.lse_log2,
        params.delta,
        params.d_q_accum,
        params.turns,
        params.ticket,
    ];
    let offsets: Vec<u64> = plan
        .workspace
        .pieces()
        .iter()
        .map(|piece| at.workspace + piece.offset_bytes)
        .collect();
    assert_eq!(bound.to_vec(), offsets);
}
