//! What flash3 refuses of a forward pass, and who serves then. Of a backward pass: [`super::flash3_backward`].

use super::*;

/// The reason why flash3 refuses; flash2 serves in its place.
pub fn replaced_by_flash2(checked: &Checked, device: &DeviceInfo) -> Reason {
    let served = plan(checked, device, Backend::Cuda, None).unwrap();
    assert_eq!(served.algorithm, Algorithm::Flash2);
    refusal(Algorithm::Flash3, checked, device)
}

/// The small problem of three sequences with `change` done to its k.
fn with_k(change: impl FnOnce(&mut Description)) -> Checked {
    let problem = with(|p| p.batch(3));
    with_changed(&problem, Pass::Forward, Argument::K, change)
}

#[test]
fn it_serves_first_on_hopper_and_on_no_other_device() {
    let checked = without_tensors(&small(), Pass::Forward, Location::Cuda(0)).unwrap();
    let served = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
    assert_eq!(served.algorithm, Algorithm::Flash3);
    for (given, older) in [
        ((8, 0), true),
        ((8, 9), true),
        ((10, 0), false),
        ((12, 0), false),
    ] {
        let device = DeviceInfo {
            compute_capability: given,
            ..DeviceInfo::h200()
        };
        let needed = (9, 0);
        let expected = match older {
            true => Reason::ComputeCapability { given, needed },
            false => Reason::OtherArchitecture { given, needed },
        };
        assert_eq!(replaced_by_flash2(&checked, &device), expected);
    }
}

#[test]
fn every_multiple_of_8_goes_to_the_smallest_kernel_that_holds_it() {
    for head_dim in (8..=256).step_by(8) {
        let holds = |compiled: &&usize| head_dim <= **compiled;
        let compact = [64, 96, 128, 192, 256].iter().find(holds).unwrap();
        let default = [64, 96, 128, 160, 192, 256].iter().find(holds).unwrap();
        for (batch, seqlen, compiled, tiles) in
            [(1, 64, compact, "_compact"), (100, 512, default, "")]
        {
            let problem = Problem::builder(Dtype::F16)
                .batch(batch)
                .seqlen(seqlen)
                .heads(2)
                .head_dim(head_dim);
            let plan = plan_of(problem, Pass::Forward, Some(Algorithm::Flash3)).unwrap();
            let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
            let expected = format!("forward_sm90a_f16_d{compiled}{tiles}");
            assert_eq!(kernels, [expected]);
        }
    }
}

#[test]
fn values_of_other_columns_go_to_the_kernel_of_the_fewest_columns_that_holds_them() {
    for (head_dim, head_dim_v, kernel) in [
        (64, 64, "d64"),
        (64, 128, "d128"),
        (64, 136, "d64_v256"),
        (40, 256, "d64_v256"),
        (72, 256, "d256"),
        (64, 264, "d64_v512"),
        (8, 512, "d64_v512"),
        (72, 512, "d512"),
        (128, 8, "d128"),
        (136, 64, "d192_v128"),
        (136, 136, "d160"),
        (192, 128, "d192_v128"),
        (192, 136, "d192"),
    ] {
        let problem = Problem::builder(Dtype::Bf16)
            .batch(100)
            .seqlen(512)
            .heads(2)
            .head_dim(head_dim)
            .head_dim_v(head_dim_v);
        let plan = plan_of(problem, Pass::Forward, Some(Algorithm::Flash3)).unwrap();
        let kernels: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
        assert_eq!(kernels, [format!("forward_sm90a_bf16_{kernel}")]);
    }
}

#[test]
fn other_head_dims_are_refused() {
    for head_dim in [1, 60, 250, 255] {
        let problem = with(|p| p.head_dim(head_dim));
        let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
        let reason = Reason::HeadDimMultiple {
            given: head_dim as u32,
            multiple: 8,
            most: 512,
        };
        let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
        assert_eq!(refused, reason);
    }
}

#[test]
fn f32_is_refused() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen(64)
        .heads(2)
        .head_dim(64);
    let problem = problem.build().unwrap();
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let reason = Reason::Dtype { given: Dtype::F32 };
    let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
    assert_eq!(refused, reason);
}

#[test]
fn what_no_16_bytes_divide_is_refused() {
    let checked = with_k(|k| k.layout.row_stride = 132);
    let reason = Reason::StrideAlignment {
        argument: Argument::K,
        stride: 132,
    };
    let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
    assert_eq!(refused, reason);
    let checked = with_k(|k| k.address = 0x1008);
    let reason = Reason::BaseAlignment {
        argument: Argument::K,
        address: 0x1008,
    };
    let refused = refusal(Algorithm::Flash3, &checked, &DeviceInfo::h200());
    assert_eq!(refused, reason);
}

#[test]
fn repeated_entries_go_to_flash2() {
    let checked = with_k(|k| k.layout.batch_stride = 0);
    let reason = Reason::RepeatedEntries {
        argument: Argument::K,
        n: 3,
    };
    assert_eq!(replaced_by_flash2(&checked, &DeviceInfo::h200()), reason);
}

#[test]
fn strides_beyond_40_bits_go_to_flash2() {
    let checked = with_k(|k| k.layout.batch_stride = 1 << 39);
    let reason = Reason::StrideTooLong {
        argument: Argument::K,
        n_bytes: 1 << 40,
        limit: 1 << 40,
    };
    assert_eq!(replaced_by_flash2(&checked, &DeviceInfo::h200()), reason);
    let checked = with_k(|k| k.layout.batch_stride = (1 << 39) - 8);
    let served = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap();
    assert_eq!(served.algorithm, Algorithm::Flash3);
}

#[test]
fn more_rows_than_kernels_count_are_refused() {
    let most = 1 << 29;
    let of_length = |seqlen_k| {
        let problem = with(|p| p.heads_q(1).heads_k(1).seqlen_k(seqlen_k));
        without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap()
    };
    let reason = Reason::TooLarge {
        what: "seqlen_k",
        given: most as u64 + 1,
        limit: most as u64,
    };
    let device = DeviceInfo::h200();
    let too_many = refusal(Algorithm::Flash3, &of_length(most + 1), &device);
    assert_eq!(too_many, reason);
    let served = plan(&of_length(most), &device, Backend::Cuda, None).unwrap();
    assert_eq!(served.algorithm, Algorithm::Flash3);
}
