//! Views of memory: what they refuse, where they lie.

use ferroflash::error::ProblemError;
use ferroflash::tensor::{Description, Location, Vector, VectorMut};
use ferroflash::{Layout, Tensor, TensorMut};

#[test]
fn a_view_stays_inside_its_memory() {
    let data = [0f32; 24];
    let exact = ProblemError::LengthMismatch {
        shape: [1, 3, 2, 5],
        needed: 30,
        given: 24,
    };
    assert_eq!(Tensor::bshd(&data, [1, 3, 2, 5]).err(), Some(exact.clone()));
    assert_eq!(Tensor::bhsd(&data, [1, 2, 3, 5]).err(), Some(exact));
    assert!(Tensor::bshd(&data, [1, 3, 2, 4]).is_ok());

    let layout = Layout {
        row_stride: 9,
        ..Layout::bshd([1, 3, 2, 4]).unwrap()
    };
    let refusal = ProblemError::OutOfBounds {
        layout,
        needed: 26,
        given: 24,
    };
    assert_eq!(Tensor::strided(&data, layout).err(), Some(refusal.clone()));
    let mut data = data;
    assert_eq!(TensorMut::strided(&mut data, layout).err(), Some(refusal));
}

#[test]
fn packed_q_k_v_are_three_views() {
    let data: Vec<f32> = (0..2 * 3 * 3 * 2 * 4).map(|index| index as f32).collect();
    let [q, k, v] = Tensor::packed_qkv(&data, [2, 3, 3, 2, 4]).unwrap();
    for (part, tensor) in [q, k, v].iter().enumerate() {
        assert_eq!(tensor.layout().shape(), [2, 3, 2, 4]);
        assert_eq!(tensor.host::<f32>().unwrap()[0], (part * 8) as f32);
        assert_eq!(tensor.layout().row_stride, 24);
    }
    assert!(Tensor::packed_qkv::<f32>(&[], [0, 3, 3, 2, 4]).is_ok());
    let refusal = ProblemError::PackedParts { given: 2 };
    assert_eq!(
        Tensor::packed_qkv(&data, [2, 3, 2, 3, 4]).err(),
        Some(refusal)
    );
    assert!(Tensor::packed_qkv(&data, [2, 3, 3, usize::MAX, 4]).is_err());
}

#[test]
fn a_tensor_gives_only_the_type_it_holds() {
    let data = [half::f16::ONE; 4];
    let tensor = Tensor::bshd(&data, [1, 1, 1, 4]).unwrap();
    assert!(tensor.host::<half::f16>().is_some());
    assert!(tensor.host::<half::bf16>().is_none());
    assert!(tensor.host::<f32>().is_none());
}

/// A description of memory elsewhere keeps the strides, and nothing of where the memory was.
#[test]
fn what_is_moved_has_no_address() {
    let data = [0f32; 24];
    let layout = Layout::bhsd([1, 2, 3, 4]).unwrap();
    let tensor = Tensor::strided(&data, layout).unwrap().describe();
    assert_ne!(tensor.address, 0);
    let moved = Description {
        location: Location::Cuda(1),
        address: 0,
        ..tensor
    };
    assert_eq!(tensor.moved_to(Location::Cuda(1)), moved);
    let vector = Vector::from(data.as_slice()).describe();
    assert_ne!(vector.address, 0);
    let moved = vector.moved_to(Location::Cuda(1));
    assert_eq!((moved.location, moved.address), (Location::Cuda(1), 0));
    assert_eq!((moved.n_elems, moved.dtype), (24, vector.dtype));
}

#[test]
fn views_are_shown_as_what_they_describe() {
    let mut data = [0f32; 24];
    let of = |name: &str, described: &dyn std::fmt::Debug| format!("{name}({described:?})");
    let tensor = Tensor::bshd(&data, [1, 3, 2, 4]).unwrap();
    assert_eq!(format!("{tensor:?}"), of("Tensor", &tensor.describe()));
    let vector = Vector::from(data.as_slice());
    assert_eq!(format!("{vector:?}"), of("Vector", &vector.describe()));
    let tensor = TensorMut::bshd(&mut data, [1, 3, 2, 4]).unwrap();
    assert_eq!(format!("{tensor:?}"), of("TensorMut", &tensor.describe()));
    let vector = VectorMut::from(data.as_mut_slice());
    assert_eq!(format!("{vector:?}"), of("VectorMut", &vector.describe()));
}
