//! Calls of appends and rotations, on the CPU and on the emulator: lengths of the host that are refused, and what is touched then: nothing.

#[cfg(feature = "emulator")]
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::error::{Argument, Error, PlanError, ProblemError, RotaryError};
use ferroflash::prepared::Layouts;
use ferroflash::rotary::{Direction, Pairs, Positions, Rotary, RotaryTable};
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Attention, Backend, Device, Dtype, Inputs,
    Outputs, Problem, Rotate, RotateInputs, RotateProblem, Tensor, TensorMut,
};
use half::bf16;

fn devices() -> Vec<Device> {
    vec![
        Device::cpu(),
        #[cfg(feature = "emulator")]
        Device::emulated(EmulatorOptions::seeded(3)),
    ]
}

/// Packed rows of two sequences, one head, in a cache of six rows each; tables of five positions.
fn problem() -> AppendProblem {
    AppendProblem::builder(Dtype::Bf16)
        .batch(2)
        .packed_new(4)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(6)
        .rotary(Pairs::Halves, 8, 5)
        .build()
        .unwrap()
}

fn table() -> RotaryTable {
    Rotary::new(8).table(5).unwrap()
}

/// Elements that begin where kernels take them: at a multiple of 16 bytes.
#[repr(align(16))]
struct Aligned<const N: usize>([bf16; N]);

/// Appends rows of ones to caches of π.
fn append(
    device: &Device,
    cu_seqlens: &[i32],
    seqused: &[i32],
) -> (Result<Backend, Error>, [Vec<bf16>; 2], [i32; 2]) {
    let (problem, table) = (problem(), table());
    let rows = Aligned([bf16::ONE; 32]);
    let new = Tensor::thd(&rows.0, [4, 1, 8]).unwrap();
    let [mut k, mut v] = [(); 2].map(|()| Aligned([bf16::PI; 96]));
    let mut after = [-1; 2];
    let inputs = AppendInputs::new(&new, &new, seqused)
        .rotary(table.cos(), table.sin())
        .cu_seqlens_new(cu_seqlens);
    let shape = problem.shape_cache();
    let mut outputs = AppendOutputs::new(
        TensorMut::bshd(&mut k.0, shape).unwrap(),
        TensorMut::bshd(&mut v.0, shape).unwrap(),
    )
    .seqused_out(&mut after);
    let done = Append::new(device, problem).and_then(|append| append.run(&inputs, &mut outputs));
    if let Ok(done) = &done {
        assert!(done.to_string().contains("append on"), "{done}");
    }
    let caches = [k, v].map(|cache| cache.0.to_vec());
    (done.map(|done| done.backend), caches, after)
}

#[test]
fn rows_go_where_the_lengths_say() {
    for device in devices() {
        let (done, [k, v], after) = append(&device, &[0, 3, 4], &[2, 0]);
        assert_eq!(done, Ok(device.backend()));
        assert_eq!(after, [5, 1]);
        for row in 0..12 {
            let is_new = (2..5).contains(&row) || row == 6;
            let own = |cache: &[bf16]| cache[row * 8..][..8].to_vec();
            let expected = if is_new { bf16::ONE } else { bf16::PI };
            assert_eq!(own(&v), [expected; 8], "{row}");
            assert_eq!(own(&k) == [bf16::PI; 8], !is_new, "{row}");
        }
    }
}

#[test]
fn lengths_of_the_host_that_contradict_each_other_are_refused() {
    let length = |argument, sequence, given, min, max| ProblemError::Length {
        argument,
        sequence,
        given,
        min,
        max,
    };
    let (ends, used) = (Argument::CuSeqlensNew, Argument::SeqUsedK);
    for (cu_seqlens, seqused, expected) in [
        // Five positions, though the cache has six rows.
        ([0, 3, 4], [3, 0], length(used, 0, 3, 0, 2)),
        ([0, 3, 4], [0, -1], length(used, 1, -1, 0, 4)),
        ([0, 3, 5], [0, 0], length(ends, 1, 5, 3, 4)),
        ([2, 1, 4], [0, 0], length(ends, 0, 1, 2, 4)),
        ([-1, 1, 4], [0, 0], length(ends, 0, -1, 0, 4)),
    ] {
        for device in devices() {
            let (done, caches, after) = append(&device, &cu_seqlens, &seqused);
            assert_eq!(done, Err(expected.clone().into()));
            assert_eq!(caches, [(); 2].map(|()| vec![bf16::PI; 96]));
            assert_eq!(after, [-1; 2]);
        }
    }
}

/// By offsets, packed, forth and back in place: the rows of a rotation are those that the table turns.
#[test]
fn a_rotation_is_that_of_the_table() {
    let (table, shape) = (Rotary::new(6).table(9).unwrap(), [2, 3, 2, 8]);
    let rows: Vec<bf16> = (0..96).map(|at| bf16::from_f32(at as f32 / 7.0)).collect();
    let offsets = [4, 6];
    let mut expected = vec![bf16::ZERO; 96];
    let x = Tensor::bshd(&rows, shape).unwrap();
    let mut to = TensorMut::bshd(&mut expected, shape).unwrap();
    let positions = Positions::FromEach(&offsets);
    table.rotate(Pairs::Halves, positions, &x, &mut to).unwrap();
    let padded = RotateProblem::new(Dtype::Bf16, shape, table.turns(Pairs::Halves));
    let packed = RotateProblem::packed(Dtype::Bf16, 2, [6, 2, 8], table.turns(Pairs::Halves));
    for device in devices() {
        for problem in [padded, packed] {
            let mut y = vec![bf16::NAN; 96];
            let x = Tensor::bshd(&rows, problem.shape()).unwrap();
            let ends = [0, 3, 6];
            let mut inputs =
                RotateInputs::new(&x, table.cos(), table.sin()).seqlen_offsets(&offsets);
            if problem == packed {
                inputs = inputs.cu_seqlens(&ends);
            }
            let rotate = Rotate::new(&device, problem).unwrap();
            let mut to = TensorMut::bshd(&mut y, problem.shape()).unwrap();
            let done = rotate.forward(&inputs, &mut to).unwrap();
            assert_eq!(done.backend, device.backend());
            assert_eq!(y, expected);
            // Back, in place: what it was, but for two roundings.
            inputs.x = None;
            let mut to = TensorMut::bshd(&mut y, problem.shape()).unwrap();
            rotate.backward(&inputs, &mut to).unwrap();
            let far = |(x, y): (&bf16, &bf16)| (x.to_f32() - y.to_f32()).abs() > 0.2;
            assert!(!rows.iter().zip(&y).any(far));
            let beyond = ProblemError::Length {
                argument: Argument::SeqlenOffsets,
                sequence: 1,
                given: 7,
                min: 0,
                max: 6,
            };
            let inputs = inputs.seqlen_offsets(&[0, 7]);
            let before = y.clone();
            let mut to = TensorMut::bshd(&mut y, problem.shape()).unwrap();
            let refused = rotate.forward(&inputs, &mut to);
            assert_eq!(refused, Err(beyond.into()));
            assert_eq!(y, before);
        }
    }
}

#[cfg(feature = "emulator")]
#[test]
fn kernels_turn_f32_as_the_processor_does() {
    /// Kernels read 16 bytes at a time.
    #[repr(align(16))]
    struct Aligned([f32; 8]);

    let table = table();
    let problem = RotateProblem::new(Dtype::F32, [1, 1, 1, 8], table.turns(Pairs::Halves));
    let rotated = |device: &Device| {
        let mut y = Aligned([1., 2., 3., 4., 5., 6., 7., 8.]);
        let inputs = RotateInputs::in_place(table.cos(), table.sin()).seqlen_offsets(&[2]);
        let mut to = TensorMut::bshd(&mut y.0, [1, 1, 1, 8]).unwrap();
        let rotate = Rotate::new(device, problem).unwrap();
        let done = rotate.forward(&inputs, &mut to).unwrap();
        assert_eq!(done.backend, device.backend());
        y.0
    };
    let expected = rotated(&Device::cpu());
    assert_ne!(expected, [1., 2., 3., 4., 5., 6., 7., 8.]);
    let emulated = rotated(&Device::emulated(EmulatorOptions::seeded(3)));
    for (ours, theirs) in emulated.into_iter().zip(expected) {
        assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
    }
}

#[test]
fn only_a_gpu_has_queues() {
    for device in devices() {
        let backend = device.backend();
        let expected: Error = PlanError::NotAsynchronous { backend }.into();
        let append = Append::new(&device, problem()).unwrap();
        let refused = append.prepare(&Layouts::contiguous()).unwrap_err();
        assert_eq!(refused, expected);
        let turns = table().turns(Pairs::Halves);
        let rotation = RotateProblem::new(Dtype::Bf16, [1, 2, 1, 8], turns);
        let rotate = Rotate::new(&device, rotation).unwrap();
        let refused = rotate.prepare(Direction::Back, &Layouts::contiguous());
        assert_eq!(refused.unwrap_err(), expected);
    }
}

#[test]
fn an_odd_rotary_dim_is_refused_by_name() {
    let problem = AppendProblem::builder(Dtype::Bf16)
        .seqlen_new(1)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(4)
        .rotary(Pairs::Halves, 5, 4)
        .build()
        .unwrap();
    let refused = Append::new(&Device::cpu(), problem).unwrap_err();
    assert_eq!(refused, RotaryError::RotaryDim { given: 5 }.into());
}

/// Steps of decoding: append, then attention with the lengths that the append gave. The last query's output is that of attention over all rotated
/// keys at once.
#[test]
fn attention_takes_the_lengths_that_an_append_gives() -> Result<(), Error> {
    let (device, n, table) = (Device::cpu(), 6, Rotary::new(8).table(8)?);
    let number = |at: usize| ((at * 29 % 31) as f32 - 15.0) / 8.0;
    // A row of one head for each of two sequences and six steps: `[step, sequence, 8]`.
    let rows = |of: usize| -> Vec<f32> { (0..n * 16).map(|at| number(at + of)).collect() };
    let (q, k, v) = (rows(0), rows(7), rows(13));
    let (mut k_cache, mut v_cache) = (vec![f32::NAN; 2 * 8 * 8], vec![f32::NAN; 2 * 8 * 8]);
    let (cache, new) = ([2, 8, 1, 8], [2, 1, 1, 8]);
    let step = AppendProblem::builder(Dtype::F32)
        .batch(2)
        .seqlen_new(1)
        .heads_q(1)
        .heads_k(1)
        .head_dim(8)
        .seqlen_cache(8)
        .rotary(Pairs::Interleaved, 8, 8)
        .build()?;
    let attention = Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen_q(1)
        .seqlen_k(8)
        .heads(1)
        .head_dim(8)
        .build()?;
    let (mut seqused, mut o) = ([0i32; 2], [0f32; 16]);
    for at in 0..n {
        let own = |rows: &[f32]| rows[at * 16..][..16].to_vec();
        let (mut q, k, v) = (own(&q), own(&k), own(&v));
        let mut after = [0; 2];
        Append::new(&device, step)?.run(
            &AppendInputs::new(&Tensor::bshd(&k, new)?, &Tensor::bshd(&v, new)?, &seqused)
                .rotary(table.cos(), table.sin()),
            &mut AppendOutputs::new(
                TensorMut::bshd(&mut k_cache, cache)?,
                TensorMut::bshd(&mut v_cache, cache)?,
            )
            .q_out(TensorMut::bshd(&mut q, new)?)
            .seqused_out(&mut after),
        )?;
        seqused = after;
        let inputs = Inputs::new(
            &Tensor::bshd(&q, new)?,
            &Tensor::bshd(&k_cache, cache)?,
            &Tensor::bshd(&v_cache, cache)?,
        )
        .seqused_k(&seqused);
        let mut outputs = Outputs::without_lse(TensorMut::bshd(&mut o, new)?);
        Attention::new(&device, attention)?.forward(&inputs, &mut outputs)?;
    }
    // The same from the definition, in f64.
    let rotated = |rows: &[f32], at: usize, sequence: usize| -> Vec<f64> {
        let row = &rows[at * 16 + sequence * 8..][..8];
        let pair = |i: usize| {
            let (sin, cos) = (at as f64 * 10_000f64.powf(-(i as f64) / 4.0)).sin_cos();
            let (a, b) = (f64::from(row[2 * i]), f64::from(row[2 * i + 1]));
            [a * cos - b * sin, a * sin + b * cos]
        };
        (0..4).flat_map(pair).collect()
    };
    for sequence in 0..2 {
        let last = rotated(&q, n - 1, sequence);
        let score = |at: usize| {
            let key = rotated(&k, at, sequence);
            let dot: f64 = last.iter().zip(&key).map(|(q, k)| q * k).sum();
            (dot / 8f64.sqrt()).exp()
        };
        let scores: Vec<f64> = (0..n).map(score).collect();
        for column in 0..8 {
            let value = |at: usize| f64::from(v[at * 16 + sequence * 8 + column]);
            let sum: f64 = (0..n).map(|at| scores[at] * value(at)).sum();
            let expected = sum / scores.iter().sum::<f64>();
            let given = f64::from(o[sequence * 8 + column]);
            assert!((given - expected).abs() < 1e-5, "{given}, {expected}");
        }
    }
    Ok(())
}
