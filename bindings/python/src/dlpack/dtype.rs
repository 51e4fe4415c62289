//! Names of element types, as numpy spells them.

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use pyo3::PyResult;
use pyo3::exceptions::PyTypeError;

/// The types of results and workspaces.
const OURS: [(&str, DLDataType); 4] = [
    ("float32", DLDataType::F32),
    ("float16", DLDataType::F16),
    ("bfloat16", DLDataType::BF16),
    ("uint8", DLDataType::U8),
];

/// One of the types that an [`Array`](super::Array) may have.
pub(super) fn named(name: &str) -> PyResult<DLDataType> {
    match OURS.into_iter().find(|(known, _)| *known == name) {
        Some((_, dtype)) => Ok(dtype),
        None => {
            let allowed = OURS.map(|(known, _)| known).join(", ");
            let text = format!("dtype is {name}; allowed: {allowed}");
            Err(PyTypeError::new_err(text))
        }
    }
}

/// The type in numpy's array interface, in this machine's byte order; `None` if numpy has none.
pub(super) fn typestr(dtype: DLDataType) -> Option<String> {
    let kind = match dtype.code {
        DLDataTypeCode::FLOAT => 'f',
        DLDataTypeCode::UINT => 'u',
        DLDataTypeCode::BOOL => 'b',
        _ => return None,
    };
    let order = if cfg!(target_endian = "big") {
        '>'
    } else {
        '<'
    };
    Some(format!("{order}{kind}{}", dtype.element_size()))
}

/// `float32`, `int64`; for a type without a name in numpy, DLPack's description.
pub(super) fn name(dtype: DLDataType) -> String {
    let DLDataType { code, bits, lanes } = dtype;
    let name = match code {
        DLDataTypeCode::INT => format!("int{bits}"),
        DLDataTypeCode::UINT => format!("uint{bits}"),
        DLDataTypeCode::FLOAT => format!("float{bits}"),
        DLDataTypeCode::BFLOAT => format!("bfloat{bits}"),
        DLDataTypeCode::COMPLEX => format!("complex{bits}"),
        DLDataTypeCode::BOOL => "bool".to_owned(),
        DLDataTypeCode(code) => format!("DLPack's type {code} of {bits} bits"),
    };
    match lanes {
        1 => name,
        _ => format!("{name}x{lanes}"),
    }
}
