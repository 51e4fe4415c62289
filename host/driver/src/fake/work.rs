//! Streams, events, memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint};

use super::{
    CAPTURE_UNSUPPORTED, Call, INVALID_HANDLE, INVALID_VALUE, Kind, OUT_OF_MEMORY, TOTAL_BYTES,
    in_context, on_stream, state, write,
};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

pub(super) extern "C" fn create_stream(to: *mut usize, flags: c_uint) -> u32 {
    if flags != NON_BLOCKING {
        return INVALID_VALUE;
    }
    in_context(|context| write(to, state().create(Kind::Stream { context })))
}

pub(super) extern "C" fn create_stream_of_cust(
    to: *mut usize,
    _flags: c_uint,
    _priority: c_int,
) -> u32 {
    in_context(|context| write(to, state().create(Kind::Stream { context })))
}

pub(super) extern "C" fn synchronize_stream(stream: usize) -> u32 {
    on_stream(stream, || {
        let mut state = state();
        if state.spoils(|captured, _| captured == stream) {
            return CAPTURE_UNSUPPORTED;
        }
        state.record(Call::Synchronize);
        state.synchronize_answer
    })
}

pub(super) extern "C" fn context_of_stream(stream: usize, to: *mut usize) -> u32 {
    in_context(|current| match state().alive.get(&stream) {
        Some(Kind::Stream { context }) => write(to, *context),
        _ if stream == 0 => write(to, current),
        _ => INVALID_HANDLE,
    })
}

pub(super) extern "C" fn wait_for_event(stream: usize, event: usize, _flags: c_uint) -> u32 {
    on_stream(stream, || {
        if state().alive.contains_key(&event) {
            0
        } else {
            INVALID_HANDLE
        }
    })
}

pub(super) extern "C" fn create_event(to: *mut usize, _flags: c_uint) -> u32 {
    in_context(|context| write(to, state().create(Kind::Event { context })))
}

pub(super) extern "C" fn record_event(event: usize, stream: usize) -> u32 {
    in_context(|context| {
        let alive = state().alive.get(&event) == Some(&Kind::Event { context });
        if alive {
            on_stream(stream, || {
                state().record(Call::RecordEvent { stream });
                0
            })
        } else {
            INVALID_HANDLE
        }
    })
}

pub(super) extern "C" fn synchronize_event(_event: usize) -> u32 {
    state().record(Call::Synchronize);
    0
}

pub(super) extern "C" fn elapsed(to: *mut f32, _start: usize, _end: usize) -> u32 {
    write(to, 1.5)
}

/// Device memory is aligned to 256 bytes; `None` for a size that no allocator supports.
fn layout(n_bytes: usize) -> Option<Layout> {
    Layout::from_size_align(n_bytes, 256)
        .ok()
        .filter(|layout| layout.size() != 0)
}

pub(super) extern "C" fn allocate(to: *mut usize, n_bytes: usize) -> u32 {
    in_context(|_| {
        let mut state = state();
        if state.spoils(|_, capture| capture.is_of_this_thread()) {
            return CAPTURE_UNSUPPORTED;
        }
        let Some(layout) = layout(n_bytes).filter(|layout| layout.size() <= state.free_bytes)
        else {
            return OUT_OF_MEMORY;
        };
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(layout) } as usize;
        state.alive.insert(address, Kind::Memory { n_bytes });
        state.free_bytes -= n_bytes;
        state.record(Call::Allocate { n_bytes });
        write(to, address)
    })
}

pub(super) extern "C" fn free(address: usize) -> u32 {
    in_context(|_| {
        let mut state = state();
        if state.spoils(|_, capture| capture.is_of_this_thread()) {
            return CAPTURE_UNSUPPORTED;
        }
        let Some(Kind::Memory { n_bytes }) = state.alive.remove(&address) else {
            return INVALID_VALUE;
        };
        if let Some(layout) = layout(n_bytes) {
            // SAFETY: it was allocated with this layout, and was alive until now.
            unsafe { dealloc(address as *mut u8, layout) };
        }
        state.free_bytes += n_bytes;
        state.record(Call::Free);
        0
    })
}

pub(super) extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> u32 {
    in_context(|_| {
        write(total, TOTAL_BYTES);
        write(free, state().free_bytes)
    })
}

pub(super) extern "C" fn copy(to: *mut u8, from: *const u8, n_bytes: usize, stream: usize) -> u32 {
    on_stream(stream, || {
        // SAFETY: callers of a driver give ranges of this length.
        unsafe { std::ptr::copy_nonoverlapping(from, to, n_bytes) };
        state().record(Call::Copy { stream });
        0
    })
}

pub(super) extern "C" fn fill(to: usize, value: u8, n_bytes: usize, stream: usize) -> u32 {
    on_stream(stream, || {
        let answer = state().fill_answer;
        if answer != 0 {
            return answer;
        }
        // SAFETY: callers of a driver give ranges of this length.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, n_bytes) };
        state().record(Call::Fill {
            address: to,
            value,
            n_bytes,
            stream,
        });
        0
    })
}
