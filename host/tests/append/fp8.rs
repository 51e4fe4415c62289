//! Caches in 8 bits: which arguments belong to them, what is refused, and what is planned.

use ferroflash::error::PlanError;
use ferroflash::plan::{DeviceInfo, Reason, plan_append};
use ferroflash::{AppendInputs, AppendOutputs, Backend, Fp8Kv, Pages, Tensor, TensorMut};
use ferroflash_kernels::params::Params;
use float8::F8E4M3;

use super::*;

/// Two sequences, in pages.
fn in_pages() -> AppendBuilder {
    builder().pages(Pages::new(7, 5)).fp8_kv(Fp8Kv::PerPage)
}

/// What fits such a problem, with so many scales of k and of v.
fn with_scales(problem: &AppendProblem, n: usize, location: Location) -> Arguments {
    let vector = |n, dtype: ScalarType| VectorDescription::unplaced(n, dtype, location);
    let scales = vector(n as u64, Dtype::F32.into());
    let fits = fitting_of(problem, location)
        .with(Argument::KDescale, scales)
        .with(Argument::VDescale, scales);
    match problem.pages() {
        Some(_) => fits.with(Argument::PageTable, vector(4, ScalarType::I32)),
        None => fits,
    }
}

#[test]
fn scales_belong_to_a_cache_in_8_bits() {
    let plain = fitting(Location::Host);
    let scales = VectorDescription::unplaced(4, Dtype::F32, Location::Host);
    for argument in [Argument::KDescale, Argument::VDescale] {
        assert_refused(
            plain.with(argument, scales),
            ProblemError::NotTaken { argument },
        );
    }
    let of_sequences = builder().fp8_kv(Fp8Kv::PerSequence).build().unwrap();
    let of_pages = in_pages().build().unwrap();
    for (problem, n) in [(of_sequences, 4), (of_pages, 14)] {
        let check = |arguments| check_append(&problem, arguments).map(drop);
        assert_eq!(check(with_scales(&problem, n, Location::Host)), Ok(()));
        let missing = with_scales(&problem, n, Location::Host).without(Argument::VDescale);
        let argument = Argument::VDescale;
        assert_eq!(
            check(missing),
            Err(ProblemError::Missing { argument }.into())
        );
        let fewer = ProblemError::ElementCount {
            argument: Argument::KDescale,
            given: 3,
            needed: n as u64,
        };
        assert_eq!(
            check(with_scales(&problem, 3, Location::Host)),
            Err(fewer.into())
        );
        // The cache in the type of the new rows.
        let other = tensor(problem.shape_cache(), Dtype::F16, Location::Host);
        let other = with_scales(&problem, n, Location::Host).with(Argument::KCache, other);
        let error = check(other).unwrap_err().to_string();
        assert!(error.starts_with("k_cache is f16"), "{error}");
    }
}

#[test]
fn scales_of_pages_want_pages() {
    let problem = builder().fp8_kv(Fp8Kv::PerPage).build().unwrap();
    let error = Append::new(&Device::cpu(), problem).unwrap_err();
    assert_eq!(
        error.to_string(),
        "keys and values in e4m3 and a scale for each page, without pages, do not go together; leave out one of them"
    );
}

/// A scale of a row that is written has to be one; others are not looked at.
#[test]
fn scales_of_new_rows_are_scales() {
    let problem = AppendProblem::builder(Dtype::F32)
        .batch(2)
        .seqlen_new(1)
        .heads_k(2)
        .head_dim(1)
        .seqlen_cache(2)
        .pages(Pages::new(3, 1))
        .fp8_kv(Fp8Kv::PerPage)
        .build()
        .unwrap();
    let rows = [1f32, 2.0, 3.0, 4.0];
    let run = |k_descale: [f32; 6], v_descale: [f32; 6]| {
        let new = Tensor::bshd(&rows, problem.shape_new())?;
        let (mut k, mut v) = ([F8E4M3::NAN; 6], [F8E4M3::NAN; 6]);
        // The rows go to pages 2 and 0.
        let inputs = AppendInputs::new(&new, &new, &[1, 0]).page_table(&[1, 2, 0, 1]);
        Append::new(&Device::cpu(), problem)?.run(
            &inputs.descale(&k_descale, &v_descale),
            &mut AppendOutputs::new(
                TensorMut::bshd(&mut k, problem.shape_cache())?,
                TensorMut::bshd(&mut v, problem.shape_cache())?,
            ),
        )?;
        Ok::<_, Error>([k, v].map(|cache| cache.map(|x| x.to_f32())))
    };
    let nan = f32::NAN;
    let [k, v] = run(
        [0.5, 2.0, nan, 0.0, 1.0, 4.0],
        [1.0, 1.0, nan, nan, 1.0, 1.0],
    )
    .unwrap();
    assert_eq!(
        (k[..2].to_vec(), k[4..].to_vec()),
        (vec![6.0, 2.0], vec![1.0, 0.5])
    );
    assert_eq!(
        (v[..2].to_vec(), v[4..].to_vec()),
        (vec![3.0, 4.0], vec![1.0, 2.0])
    );
    assert!(k[2].is_nan() && v[3].is_nan());
    for (wrong, given) in [(1, 0.0), (4, -1.0), (5, f32::INFINITY)] {
        let mut scales = [1.0; 6];
        scales[wrong] = given;
        let refused = |argument| {
            let at = wrong;
            Err(ProblemError::Descale {
                argument,
                at,
                given,
            }
            .into())
        };
        assert_eq!(run(scales, [1.0; 6]), refused(Argument::KDescale));
        assert_eq!(run([1.0; 6], scales), refused(Argument::VDescale));
    }
}

#[test]
fn a_kernel_of_its_own_writes_8_bits() {
    let place = Location::Cuda(0);
    let plan = |problem: &AppendProblem, n, device: &DeviceInfo| {
        let checked = check_append(problem, with_scales(problem, n, place)).unwrap();
        plan_append(&checked, device, Backend::Cuda)
    };
    let reason = |problem: &AppendProblem, device: &DeviceInfo| match plan(problem, 4, device) {
        Err(PlanError::Operation { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let of_sequences = builder().fp8_kv(Fp8Kv::PerSequence);
    let problem = of_sequences.build().unwrap();
    let too_old = Reason::ComputeCapability {
        given: (8, 0),
        needed: (8, 9),
    };
    assert_eq!(reason(&problem, &DeviceInfo::a100()), too_old);
    let multiple = Reason::HeadDimMultiple {
        given: 24,
        multiple: 16,
        most: 256,
    };
    let narrow = of_sequences.head_dim(24).build().unwrap();
    assert_eq!(reason(&narrow, &DeviceInfo::h200()), multiple);

    let planned = plan(&problem, 4, &DeviceInfo::h200()).unwrap();
    assert_eq!(
        planned.to_string(),
        "append on cuda\n  problem   f16 k [2, 3, 2, 16] to [2, 10, 2, 16] in e4m3 with a scale per sequence, q [2, 3, 4, 16], interleaved 12 of 9 positions\n  \
         launch    append_e4m3_sm89_f16 plain grid 3 threads 128\n"
    );
    let of_pages = plan(&in_pages().build().unwrap(), 14, &DeviceInfo::h200()).unwrap();
    for (planned, scales_per_page) in [(planned, 0), (of_pages, 1)] {
        let [Params::Append(params)] = planned.params(0, |argument| argument as u64 * 256)[..]
        else {
            panic!("{planned}");
        };
        let cache = params.cache;
        assert_eq!(cache.scales_per_page, scales_per_page);
        assert_eq!(cache.k_descale, Argument::KDescale as u64 * 256);
        assert_eq!(cache.v_descale, Argument::VDescale as u64 * 256);
        assert_eq!((cache.v.row_stride, cache.v.head_stride), (32, 16));
    }
}
