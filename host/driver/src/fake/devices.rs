//! Start, errors, devices, contexts.

use std::ffi::{c_char, c_int, c_uint};

use super::{
    CAPTURE_UNSUPPORTED, CONTEXTS, Call, INIT_ANSWER, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_VALUE, N_DEVICES, N_SMS, OTHER_CONTEXT, STACK, TOTAL_BYTES, current, in_context, state,
    write,
};

pub(super) extern "C" fn init(_flags: c_uint) -> u32 {
    INIT_ANSWER.get()
}

pub(super) extern "C" fn driver_version(to: *mut c_int) -> u32 {
    write(to, state().version)
}

pub(super) extern "C" fn error_name(code: u32, to: *mut *const c_char) -> u32 {
    let name = match code {
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        701 => c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        912 => c"CUDA_ERROR_CONTAINED",
        _ => return INVALID_VALUE,
    };
    write(to, name.as_ptr())
}

pub(super) extern "C" fn error_string(code: u32, to: *mut *const c_char) -> u32 {
    let text = match code {
        2 => c"out of memory",
        222 => c"the provided PTX was compiled with an unsupported toolchain.",
        400 => c"invalid resource handle",
        701 => c"too many resources requested for launch",
        900 => c"operation not permitted when stream is capturing",
        901 => c"operation failed due to a previous error during capture",
        912 => c"invalidating exception, contained",
        _ => return INVALID_VALUE,
    };
    write(to, text.as_ptr())
}

pub(super) extern "C" fn device_count(to: *mut c_int) -> u32 {
    write(to, N_DEVICES as c_int)
}

pub(super) extern "C" fn device_get(to: *mut c_int, ordinal: c_int) -> u32 {
    if (0..N_DEVICES as c_int).contains(&ordinal) {
        write(to, ordinal)
    } else {
        INVALID_DEVICE
    }
}

pub(super) extern "C" fn device_name(to: *mut c_char, n_bytes: c_int, _device: c_int) -> u32 {
    let name = c"Fake GPU".to_bytes_with_nul();
    if (n_bytes as usize) < name.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the buffer is as long as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr().cast(), to, name.len()) };
    0
}

pub(super) extern "C" fn device_attribute(to: *mut c_int, attribute: c_int, _device: c_int) -> u32 {
    let value = match attribute {
        16 => N_SMS as c_int,
        75 => state().compute_capability.0,
        76 => state().compute_capability.1,
        97 => 227 * 1024,
        _ => return INVALID_VALUE,
    };
    write(to, value)
}

pub(super) extern "C" fn device_memory(to: *mut usize, _device: c_int) -> u32 {
    write(to, TOTAL_BYTES)
}

pub(super) extern "C" fn device_uuid(to: *mut [u8; 16], device: c_int) -> u32 {
    write(to, [device as u8 + 1; 16])
}

pub(super) extern "C" fn retain(to: *mut usize, device: c_int) -> u32 {
    state().retained[device as usize] += 1;
    write(to, CONTEXTS[device as usize])
}

pub(super) extern "C" fn release(device: c_int) -> u32 {
    state().retained[device as usize] -= 1;
    0
}

pub(super) extern "C" fn get_current(to: *mut usize) -> u32 {
    write(to, current())
}

pub(super) extern "C" fn of_current(to: *mut c_int) -> u32 {
    in_context(|context| {
        let primary = CONTEXTS.iter().position(|of_device| *of_device == context);
        // The other one belongs to the first device.
        write(to, primary.unwrap_or(0) as c_int)
    })
}

pub(super) extern "C" fn set_current(context: usize) -> u32 {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend((context != 0).then_some(context));
    });
    0
}

pub(super) extern "C" fn push(context: usize) -> u32 {
    if !CONTEXTS.contains(&context) && context != OTHER_CONTEXT {
        return INVALID_CONTEXT;
    }
    STACK.with_borrow_mut(|stack| stack.push(context));
    0
}

pub(super) extern "C" fn pop(to: *mut usize) -> u32 {
    match STACK.with_borrow_mut(Vec::pop) {
        Some(context) => write(to, context),
        None => INVALID_CONTEXT,
    }
}

pub(super) extern "C" fn synchronize() -> u32 {
    in_context(|context| {
        let mut state = state();
        if state.spoils(|_, capture| capture.context == context) {
            return CAPTURE_UNSUPPORTED;
        }
        state.record(Call::Synchronize);
        state.synchronize_answer
    })
}
