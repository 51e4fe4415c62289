//! q, k and v out of one packed `[batch, seqlen, 3, heads, head_dim]`: the same bits as from three tensors.

use conformance::cases::Case;
use conformance::inputs::Values;
use conformance::subject::{CPU, CUDA, EMULATED, EMULATED_HOPPER, Subject};
use ferroflash::{Algorithm, Attention, Dtype, Inputs, Mask, Outputs, Tensor, TensorMut};
use half::bf16;

const CASE: [usize; 4] = [2, 130, 2, 64];

/// o and lse, as bits.
fn forward(
    subject: &Subject,
    algorithm: Algorithm,
    case: &Case,
    [q, k, v]: [Tensor; 3],
) -> (Vec<u16>, Vec<u32>) {
    let mut o = vec![bf16::NAN; case.sizes.query_elems()];
    let mut lse = vec![f32::NAN; case.sizes.row_elems()];
    let device = (subject.open)(0).unwrap();
    let attention = Attention::new(&device, case.problem().unwrap())
        .unwrap()
        .with_algorithm(algorithm);
    let o_view = TensorMut::bshd(&mut o, CASE).unwrap();
    attention
        .forward(
            &Inputs::new(&q, &k, &v),
            &mut Outputs::new(o_view, &mut lse),
        )
        .unwrap();
    (
        o.iter().map(|x| x.to_bits()).collect(),
        lse.iter().map(|x| x.to_bits()).collect(),
    )
}

fn check(subject: &Subject, algorithm: Algorithm) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let [batch, seqlen, heads, head_dim] = CASE;
    let case =
        Case::new(Dtype::Bf16, Mask::Causal, head_dim, seqlen, seqlen).heads(batch, heads, heads);
    let values = Values::new(case.fill, case.sizes, case.dtype, case.seed);
    let parts = [&values.q, &values.k, &values.v].map(|part| {
        part.iter()
            .map(|&x| bf16::from_f32(x as f32))
            .collect::<Vec<_>>()
    });
    let row_elems = heads * head_dim;
    let packed: Vec<bf16> = (0..batch * seqlen)
        .flat_map(|row| {
            parts
                .iter()
                .flat_map(move |part| &part[row * row_elems..][..row_elems])
        })
        .copied()
        .collect();
    let apart = [0, 1, 2].map(|part| Tensor::bshd(&parts[part], CASE).unwrap());
    let together = Tensor::packed_qkv(&packed, [batch, seqlen, 3, heads, head_dim]).unwrap();
    let bits = forward(subject, algorithm, &case, apart);
    assert!(
        bits.0
            .iter()
            .all(|&x| bf16::from_bits(x).to_f32().is_finite())
    );
    assert_eq!(forward(subject, algorithm, &case, together), bits);
}

#[test]
fn cpu() {
    check(&CPU, Algorithm::Tiled);
}

#[test]
fn emulated() {
    check(&EMULATED, Algorithm::Flash2);
    check(&EMULATED_HOPPER, Algorithm::Flash3);
}

#[test]
fn cuda() {
    check(&CUDA, Algorithm::Flash2);
    check(&CUDA, Algorithm::Flash3);
}
