//! The linker, which compiles PTX to cubins. A cubin is the text after the first bytes of cubins.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::kernels::{CUBIN, Logs, compile};
use super::{Call, INVALID_HANDLE, INVALID_VALUE, Kind, destroy, in_context, state, write};

/// `CU_JIT_INPUT_PTX`.
const INPUT_PTX: c_int = 1;

pub(super) extern "C" fn create(
    n_options: c_uint,
    options: *const c_int,
    values: *const *mut c_char,
    to: *mut usize,
) -> u32 {
    in_context(|context| {
        // SAFETY: there are as many options and values as the caller says.
        let logs = unsafe { Logs::of(n_options, options, values) };
        let mut state = state();
        let cubin = Vec::new();
        let linker = state.create(Kind::Linker { context, cubin });
        state.logs.insert(linker, logs);
        write(to, linker)
    })
}

pub(super) extern "C" fn add(
    linker: usize,
    kind: c_int,
    data: *const c_void,
    n_bytes: usize,
    _name: *const c_char,
    _n_options: c_uint,
    _options: *const c_int,
    _values: *const *mut c_void,
) -> u32 {
    in_context(|_| {
        // SAFETY: the data are as long as the caller says.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), n_bytes) };
        let Ok(ptx) = CStr::from_bytes_with_nul(data) else {
            return INVALID_VALUE;
        };
        if kind != INPUT_PTX {
            return INVALID_VALUE;
        }
        state().record(Call::Compile);
        let compiled = compile(ptx);
        let mut state = state();
        let (logs, said) = (state.logs.get(&linker).copied(), state.load_answer.1);
        match (compiled, state.alive.get_mut(&linker)) {
            (Ok(()), Some(Kind::Linker { cubin, .. })) => {
                *cubin = [CUBIN, data].concat();
                0
            }
            (Err(code), Some(Kind::Linker { .. })) => {
                if let Some(logs) = logs {
                    logs.write(said);
                }
                code
            }
            _ => INVALID_HANDLE,
        }
    })
}

pub(super) extern "C" fn complete(linker: usize, to: *mut *const u8, n_bytes: *mut usize) -> u32 {
    in_context(|_| match state().alive.get(&linker) {
        Some(Kind::Linker { cubin, .. }) if !cubin.is_empty() => {
            write(to, cubin.as_ptr());
            write(n_bytes, cubin.len())
        }
        _ => INVALID_HANDLE,
    })
}

pub(super) extern "C" fn destroy_linker(linker: usize) -> u32 {
    state().logs.remove(&linker);
    destroy(linker)
}
