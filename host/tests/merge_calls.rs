//! Merges on the backends that every machine has: what comes out, and that a refusal leaves outputs as they were.

use ferroflash::arguments::Argument;
#[cfg(feature = "emulator")]
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::error::{PlanError, ProblemError};
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Backend, Device, Dtype, Error, Inputs, Merge, MergeInputs, MergeProblem, Outputs,
    Problem, Tensor, TensorMut, VectorMut,
};
use half::bf16;

/// Packed: five rows of two heads.
const SHAPE: [usize; 3] = [5, 2, 8];

fn merge(device: &Device) -> Merge {
    Merge::new(device, MergeProblem::packed(Dtype::Bf16, SHAPE)).unwrap()
}

#[cfg(feature = "emulator")]
fn emulator() -> Device {
    Device::emulated(EmulatorOptions::seeded(3))
}

fn devices() -> Vec<Device> {
    vec![
        Device::cpu(),
        #[cfg(feature = "emulator")]
        emulator(),
    ]
}

#[test]
fn packed_rows_merge_by_their_sums() {
    let (o_1, o_2) = (vec![bf16::from_f32(1.0); 80], vec![bf16::from_f32(5.0); 80]);
    // Heads one behind the other: the first weighs a quarter in the first half of the rows, nothing in the second.
    let lse_1 = [[0f32; 5], [f32::NEG_INFINITY; 5]].concat();
    let lse_2 = [3f32.ln(); 10];
    for device in devices() {
        let kernel = (device.backend() != Backend::Cpu).then_some("merge_sm80_bf16");
        let merge = merge(&device);
        let (mut o, mut lse) = (vec![bf16::NAN; 80], vec![f32::NAN; 10]);
        let inputs = MergeInputs::new(
            &Tensor::thd(&o_1, SHAPE).unwrap(),
            &lse_1,
            &Tensor::thd(&o_2, SHAPE).unwrap(),
            &lse_2,
        );
        let mut outputs = Outputs::new(TensorMut::thd(&mut o, SHAPE).unwrap(), &mut lse);
        let merged = merge.run(&inputs, &mut outputs).unwrap();
        assert_eq!(merged.backend, device.backend());
        assert_eq!(merged.kernel.map(|kernel| kernel.name), kernel);
        assert!(merged.to_string().contains("merge on"), "{merged}");
        for (row, o) in o.chunks(16).enumerate() {
            assert!(o[..8].iter().all(|&x| x == bf16::from_f32(4.0)), "{row}");
            assert!(o[8..].iter().all(|&x| x == bf16::from_f32(5.0)), "{row}");
        }
        assert!(lse[..5].iter().all(|x| (x - 4f32.ln()).abs() < 1e-6));
        assert_eq!(lse[5..], lse_2[5..]);
    }
}

#[test]
fn a_refused_call_touches_nothing() {
    let o = vec![bf16::ONE; 80];
    let lse = [0f32; 10];
    let tensor = Tensor::thd(&o, SHAPE).unwrap();
    let weights_taken = ProblemError::NotTaken {
        argument: Argument::Weights,
    };
    let short = ProblemError::ElementCount {
        argument: Argument::Lse2,
        given: 9,
        needed: 10,
    };
    for device in devices() {
        let merge = merge(&device);
        let (mut out, mut out_lse, mut weights) = ([bf16::PI; 80], [7f32; 10], [bf16::PI; 80]);
        let inputs = MergeInputs::new(&tensor, &lse, &tensor, &lse);
        let mut outputs = Outputs::new(TensorMut::thd(&mut out, SHAPE).unwrap(), &mut out_lse)
            .weights(TensorMut::thd(&mut weights, SHAPE).unwrap());
        let refused = merge.run(&inputs, &mut outputs);
        assert_eq!(refused, Err(weights_taken.clone().into()));
        let inputs = MergeInputs::new(&tensor, &lse, &tensor, &lse[..9]);
        let mut outputs = Outputs::new(TensorMut::thd(&mut out, SHAPE).unwrap(), &mut out_lse);
        assert_eq!(merge.run(&inputs, &mut outputs), Err(short.clone().into()));
        assert_eq!(
            (out, out_lse, weights),
            ([bf16::PI; 80], [7.0; 10], [bf16::PI; 80])
        );
    }
}

#[cfg(feature = "emulator")]
#[test]
fn kernels_refuse_a_head_dim_and_say_so() {
    let o = [1f32; 12];
    let shape = [1, 1, 2, 6];
    let merge = Merge::new(&emulator(), MergeProblem::new(Dtype::F32, shape)).unwrap();
    let (mut out, lse) = ([0f32; 12], [0f32; 2]);
    let tensor = Tensor::bshd(&o, shape).unwrap();
    let refused = merge
        .run(
            &MergeInputs::new(&tensor, &lse, &tensor, &lse),
            &mut Outputs::without_lse(TensorMut::bshd(&mut out, shape).unwrap()),
        )
        .unwrap_err();
    let reason = ferroflash::plan::Reason::HeadDimMultiple {
        given: 6,
        multiple: 4,
        most: 256,
    };
    let backend = Backend::Emulated;
    assert_eq!(
        refused,
        PlanError::Operation {
            backend,
            verb: "merge",
            reason
        }
        .into()
    );
    assert_eq!(
        refused.to_string(),
        "emulated cannot merge: head_dim is 6; its kernels take multiples of 4 up to 256"
    );
}

#[test]
fn only_a_gpu_has_queues() {
    for device in devices() {
        let refused = merge(&device).prepare(&Layouts::contiguous()).unwrap_err();
        let backend = device.backend();
        assert_eq!(refused, PlanError::NotAsynchronous { backend }.into());
    }
}

/// A cascade: attention to a prefix that all sequences share, then to each one's own keys, merged.
#[test]
fn a_shared_prefix_merges_with_each_sequences_own_keys() -> Result<(), Error> {
    let device = Device::cpu();
    let number = |at: usize| ((at * 29 % 31) as f32 - 15.0) / 8.0;
    let q: Vec<f32> = (0..3 * 8).map(number).collect();
    let prefix: Vec<f32> = (0..6 * 8).map(|at| number(at + 3)).collect();
    let own: Vec<f32> = (0..3 * 4 * 8).map(|at| number(at + 11)).collect();
    // Sequences are batch entries of one query each; to the prefix they are rows of one.
    let attend = |batch: usize, seqlen_q, keys: &[f32]| -> Result<_, Error> {
        let seqlen_k = keys.len() / 8 / batch;
        let problem = Problem::builder(Dtype::F32)
            .batch(batch)
            .seqlen_q(seqlen_q)
            .seqlen_k(seqlen_k)
            .heads(1)
            .head_dim(8)
            .build()?;
        let (mut o, mut lse) = (vec![0f32; q.len()], vec![0f32; 3]);
        let keys = Tensor::bshd(keys, problem.shape_k())?;
        let inputs = Inputs::new(&Tensor::bshd(&q, problem.shape_q())?, &keys, &keys);
        let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_q())?, &mut lse);
        Attention::new(&device, problem)?.forward(&inputs, &mut outputs)?;
        Ok((o, lse))
    };
    let (o_1, lse_1) = attend(1, 3, &prefix)?;
    let (o_2, lse_2) = attend(3, 1, &own)?;
    let all: Vec<f32> = own
        .chunks(4 * 8)
        .flat_map(|own| [&prefix, own].concat())
        .collect();
    let (whole, whole_lse) = attend(3, 1, &all)?;
    let shape = [3, 1, 1, 8];
    let (mut o, mut lse) = (vec![0f32; q.len()], vec![0f32; 3]);
    let lse_mut: VectorMut = (&mut lse).into();
    Merge::new(&device, MergeProblem::new(Dtype::F32, shape))?.run(
        &MergeInputs::new(
            &Tensor::bshd(&o_1, shape)?,
            &lse_1,
            &Tensor::bshd(&o_2, shape)?,
            &lse_2,
        ),
        &mut Outputs::new(TensorMut::bshd(&mut o, shape)?, lse_mut),
    )?;
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(
        near(&o, &whole) && near(&lse, &whole_lse),
        "{o:?} {whole:?}"
    );
    Ok(())
}
