//! Which types memory of a call may hold: slices of them as enums, and what converts them to f32 and back.

use half::slice::HalfFloatSliceExt;

use super::{F8E4M3, Scalar, ScalarType, bf16, f16};

/// The types that memory of a call may hold, as enums of slices of them.
macro_rules! memory {
    ($($variant:ident($type:ty),)*) => {
        /// A shared slice of host memory, of one of the types that calls take.
        #[derive(Clone, Copy)]
        pub enum HostData<'a> {
            $($variant(&'a [$type]),)*
        }

        /// An exclusive slice, likewise.
        pub enum HostDataMut<'a> {
            $($variant(&'a mut [$type]),)*
        }

        $(
            impl Sealed for $type {
                fn wrap(data: &[Self]) -> HostData<'_> {
                    HostData::$variant(data)
                }

                fn wrap_mut(data: &mut [Self]) -> HostDataMut<'_> {
                    HostDataMut::$variant(data)
                }

                fn unwrap<'a>(data: &HostData<'a>) -> Option<&'a [Self]> {
                    match data {
                        HostData::$variant(data) => Some(data),
                        _ => None,
                    }
                }

                fn unwrap_mut<'a>(data: &'a mut HostDataMut<'_>) -> Option<&'a mut [Self]> {
                    match data {
                        HostDataMut::$variant(data) => Some(data),
                        _ => None,
                    }
                }
            }
        )*
    };
}
memory! {
    Bf16(bf16),
    F16(f16),
    F32(f32),
    E4m3(F8E4M3),
    I32(i32),
    U8(u8),
    U64(u64),
}

/// An expression of the slice in a [`HostData`] or [`HostDataMut`], whatever the type of its elements is.
macro_rules! of_any_type {
    ($kind:ident, $data:expr, $elements:ident => $value:expr) => {
        match $data {
            $kind::Bf16($elements) => $value,
            $kind::F16($elements) => $value,
            $kind::F32($elements) => $value,
            $kind::E4m3($elements) => $value,
            $kind::I32($elements) => $value,
            $kind::U8($elements) => $value,
            $kind::U64($elements) => $value,
        }
    };
}

/// An expression of a type, `$T`, that a [`ScalarType`] names.
macro_rules! of_named_type {
    ($named:expr, $T:ident => $value:expr) => {
        match $named {
            $crate::dtype::ScalarType::Float($crate::dtype::Dtype::Bf16) => {
                type $T = half::bf16;
                $value
            }
            $crate::dtype::ScalarType::Float($crate::dtype::Dtype::F16) => {
                type $T = half::f16;
                $value
            }
            $crate::dtype::ScalarType::Float($crate::dtype::Dtype::F32) => {
                type $T = f32;
                $value
            }
            $crate::dtype::ScalarType::E4m3 => {
                type $T = float8::F8E4M3;
                $value
            }
            $crate::dtype::ScalarType::I32 => {
                type $T = i32;
                $value
            }
            $crate::dtype::ScalarType::U8 => {
                type $T = u8;
                $value
            }
            $crate::dtype::ScalarType::U64 => {
                type $T = u64;
                $value
            }
        }
    };
}
pub(crate) use {of_any_type, of_named_type};

fn scalar_of<T: Scalar>(_: &[T]) -> ScalarType {
    T::TYPE
}

impl HostData<'_> {
    pub fn scalar(&self) -> ScalarType {
        of_any_type!(HostData, self, data => scalar_of(data))
    }

    pub fn address(&self) -> u64 {
        of_any_type!(HostData, self, data => data.as_ptr() as u64)
    }

    pub fn len(&self) -> usize {
        of_any_type!(HostData, self, data => data.len())
    }
}

impl HostDataMut<'_> {
    pub fn scalar(&self) -> ScalarType {
        of_any_type!(HostDataMut, self, data => scalar_of(data))
    }

    pub fn address(&self) -> u64 {
        of_any_type!(HostDataMut, self, data => data.as_ptr() as u64)
    }

    /// The address through which the slice may be written.
    pub fn address_mut(&mut self) -> u64 {
        of_any_type!(HostDataMut, self, data => data.as_mut_ptr() as u64)
    }

    pub fn len(&self) -> usize {
        of_any_type!(HostDataMut, self, data => data.len())
    }

    /// The same slice for a shorter while.
    pub fn reborrow(&mut self) -> HostDataMut<'_> {
        of_any_type!(HostDataMut, self, data => Sealed::wrap_mut(data))
    }
}

/// Keeps [`super::Scalar`] closed and gives tensors and vectors their way from a slice to an enum and back.
pub trait Sealed: Sized {
    fn wrap(data: &[Self]) -> HostData<'_>;
    fn wrap_mut(data: &mut [Self]) -> HostDataMut<'_>;
    fn unwrap<'a>(data: &HostData<'a>) -> Option<&'a [Self]>;
    fn unwrap_mut<'a>(data: &'a mut HostDataMut<'_>) -> Option<&'a mut [Self]>;
}

/// To f32, a slice at a time; both have one length.
pub trait Widen: Sized + Copy + Sync + 'static {
    /// The values, exactly.
    fn widen(from: &[Self], to: &mut [f32]);
}

/// The other way.
pub trait Convert: Widen {
    /// The nearest values, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Widen for bf16 {
    fn widen(from: &[bf16], to: &mut [f32]) {
        // The upper half of an f32: simpler than what `half` does, and the compiler makes vectors of it.
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

impl Convert for bf16 {
    fn narrow(from: &[f32], to: &mut [bf16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Widen for f16 {
    fn widen(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Convert for f16 {
    fn narrow(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Widen for f32 {
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Convert for f32 {
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Widen for F8E4M3 {
    fn widen(from: &[F8E4M3], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = E4M3_VALUES[usize::from(from.to_bits())];
        }
    }
}

/// What each number in 8 bits stands for.
const E4M3_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut bits = 0;
    while bits < values.len() {
        values[bits] = F8E4M3::from_bits(bits as u8).to_f32();
        bits += 1;
    }
    values
};
