//! Modules, functions, launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use super::{
    Beginning, Call, INVALID_HANDLE, INVALID_VALUE, Kind, LAUNCH_TIMEOUT, Launch, N_SMS, NOT_FOUND,
    OUT_OF_RESOURCES, State, TOO_LARGE_TOGETHER, destroy, in_context, on_stream, state, write,
};

/// Dynamic shared memory that every function may have.
const SHARED_BYTES: i32 = 48 * 1024;
/// Dynamic shared memory that a function may be allowed.
const MAX_SHARED_BYTES: i32 = 227 * 1024;
/// Blocks of any function that an SM holds at once.
const BLOCKS_PER_SM: u32 = 2;
/// How long compiling takes.
const COMPILE_TIME: Duration = Duration::from_millis(10);
/// How long threads wait for others to compile at the same time.
const MEETING_TIME: Duration = Duration::from_secs(20);
/// Threads that are waiting in this way.
static COMPILING: Condvar = Condvar::new();
/// The first bytes of cubins.
pub(super) const CUBIN: &[u8] = b"\x7fELF";
/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: [c_int; 2] = [5, 6];

pub(super) extern "C" fn load(
    to: *mut usize,
    image: *const c_char,
    n_options: c_uint,
    options: *const c_int,
    values: *const *mut c_char,
) -> u32 {
    in_context(|context| {
        // SAFETY: PTX ends in a null byte, and so do the cubins of `link`; there are as many options and values as the caller says.
        let (image, logs) =
            unsafe { (CStr::from_ptr(image), Logs::of(n_options, options, values)) };
        let is_cubin = image.to_bytes().starts_with(CUBIN);
        if !is_cubin && let Err(code) = compile(image) {
            logs.write(state().load_answer.1);
            return code;
        }
        let mut state = state();
        state.record(Call::Load);
        match state.cubin_answer {
            code if is_cubin && code != 0 => code,
            _ => write(to, state.create(Kind::Module { context })),
        }
    })
}

/// The driver's compiler on a text: it takes time, as in the real driver, and refuses what is not PTX.
pub(super) fn compile(ptx: &CStr) -> Result<(), u32> {
    // Threads that want one kernel meet here.
    std::thread::sleep(COMPILE_TIME);
    let mut state = state();
    state.compiling += 1;
    COMPILING.notify_all();
    let alone = |state: &mut State| state.compiling < state.compile_together;
    let (state, waited) = COMPILING
        .wait_timeout_while(state, MEETING_TIME, alone)
        .unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        return Err(LAUNCH_TIMEOUT);
    }
    if !ptx.to_bytes().windows(8).any(|bytes| bytes == b".version") {
        return Err(INVALID_VALUE);
    }
    match state.load_answer.0 {
        0 => Ok(()),
        code => Err(code),
    }
}

/// The caller's buffer for the compiler's errors: its address, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logs(Option<(usize, usize)>);

impl Logs {
    /// # Safety
    /// There are `n_options` options and values.
    pub(super) unsafe fn of(
        n_options: c_uint,
        options: *const c_int,
        values: *const *mut c_char,
    ) -> Logs {
        // SAFETY: the caller's contract.
        let (options, values) = unsafe {
            (
                std::slice::from_raw_parts(options, n_options as usize),
                std::slice::from_raw_parts(values, n_options as usize),
            )
        };
        let value = |wanted| Some(values[options.iter().position(|option| *option == wanted)?]);
        let [buffer, n_bytes] = ERROR_LOG.map(value);
        let pair = buffer.zip(n_bytes);
        Logs(pair.map(|(buffer, n_bytes)| (buffer as usize, n_bytes as usize)))
    }

    /// Writes the compiler's errors.
    pub(super) fn write(self, log: &CStr) {
        if let Some((buffer, n_bytes)) = self.0 {
            let log = log.to_bytes_with_nul();
            // SAFETY: the buffer is as long as the caller says, and the log is cut to that.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    log.as_ptr(),
                    buffer as *mut u8,
                    log.len().min(n_bytes),
                )
            };
        }
    }
}

pub(super) extern "C" fn unload(module: usize) -> u32 {
    let answer = destroy(module);
    state().record(Call::Unload);
    answer
}

pub(super) extern "C" fn get_function(to: *mut usize, module: usize, name: *const c_char) -> u32 {
    let mut state = state();
    let Some(Kind::Module { context }) = state.alive.get(&module).cloned() else {
        return INVALID_HANDLE;
    };
    // SAFETY: names end in a null byte.
    let name = unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned();
    match (state.params_bytes)(&name) {
        Some(_) => write(
            to,
            state.create(Kind::Function {
                context,
                name,
                shared_bytes: SHARED_BYTES,
            }),
        ),
        None => NOT_FOUND,
    }
}

pub(super) extern "C" fn set_attribute(function: usize, attribute: c_int, value: c_int) -> u32 {
    match (attribute, state().alive.get_mut(&function)) {
        (8, Some(Kind::Function { shared_bytes, .. })) if value <= MAX_SHARED_BYTES => {
            *shared_bytes = value.max(SHARED_BYTES);
            0
        }
        _ => INVALID_VALUE,
    }
}

pub(super) extern "C" fn attribute(to: *mut c_int, attribute: c_int, function: usize) -> u32 {
    let state = state();
    match (attribute, state.alive.get(&function)) {
        (3, Some(Kind::Function { .. })) => write(to, 0),
        (4, Some(Kind::Function { name, .. })) => write(to, (state.registers)(name)),
        _ => INVALID_VALUE,
    }
}

pub(super) extern "C" fn occupancy(
    to: *mut c_int,
    _function: usize,
    _threads: c_int,
    _shared: usize,
) -> u32 {
    write(to, BLOCKS_PER_SM as c_int)
}

pub(super) extern "C" fn launch(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    if !extra.is_null() {
        return INVALID_VALUE;
    }
    let beginning = Beginning::Single;
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    enqueue(
        function,
        (grid, block, shared_bytes),
        (stream, params),
        beginning,
    )
}

pub(super) extern "C" fn launch_together(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    params: *const *const c_void,
) -> u32 {
    if grid_x > N_SMS * BLOCKS_PER_SM {
        return TOO_LARGE_TOGETHER;
    }
    let beginning = Beginning::Together;
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    enqueue(
        function,
        (grid, block, shared_bytes),
        (stream, params),
        beginning,
    )
}

fn enqueue(
    function: usize,
    (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
    (stream, params): (usize, *const *const c_void),
    beginning: Beginning,
) -> u32 {
    let enqueue = |current| {
        let mut state = state();
        match &mut state.launches_left {
            Some(0) => return OUT_OF_RESOURCES,
            Some(left) => *left -= 1,
            None => {}
        }
        let Some(Kind::Function {
            context,
            name,
            shared_bytes: allowed,
        }) = state.alive.get(&function)
        else {
            return INVALID_HANDLE;
        };
        if *context != current {
            return INVALID_HANDLE;
        }
        if *allowed < shared_bytes as i32 || grid[0] == 0 {
            return INVALID_VALUE;
        }
        if state.calls.is_some() || state.captures.contains_key(&stream) {
            let kernel = name.clone();
            let n_bytes = (state.params_bytes)(&kernel).unwrap_or(0);
            // SAFETY: the kernel takes one parameter of this size.
            let params =
                unsafe { std::slice::from_raw_parts((*params).cast::<u8>(), n_bytes) }.to_vec();
            let launch = Launch {
                kernel,
                grid,
                block,
                shared_bytes,
                beginning,
                stream,
                params,
            };
            match state.captures.get_mut(&stream) {
                Some(capture) => capture.launches.push(launch),
                None => state.record(Call::Launch(launch)),
            }
        }
        0
    };
    in_context(|context| on_stream(stream, || enqueue(context)))
}
