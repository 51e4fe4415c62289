//! Captures and graphs: kernels are kept in order, and recorded again when the graph is launched.

use std::ffi::c_int;
use std::thread::{self, ThreadId};

use super::{
    CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, Call,
    ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, Kind, Launch, State, in_context, on_stream,
    state, write,
};

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: c_int = 1;

/// The capture of a stream.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) context: usize,
    pub(super) launches: Vec<Launch>,
    thread: ThreadId,
    health: Health,
}

/// Whether a capture can still become a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Valid,
    Spoiled,
}

impl Capture {
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread == thread::current().id()
    }
}

impl State {
    /// Invalidates the captures during which a call is forbidden; returns whether there are any.
    pub(super) fn spoils(&mut self, meets: impl Fn(usize, &Capture) -> bool) -> bool {
        let mut spoiled = false;
        for (stream, capture) in &mut self.captures {
            if meets(*stream, capture) {
                capture.health = Health::Spoiled;
                spoiled = true;
            }
        }
        spoiled
    }
}

pub(super) extern "C" fn begin(stream: usize, mode: c_int) -> u32 {
    let begin = |context| {
        let mut state = state();
        if stream == 0 {
            return CAPTURE_UNSUPPORTED;
        }
        if state.captures.contains_key(&stream) {
            return ILLEGAL_STATE;
        }
        let capture = Capture {
            context,
            launches: Vec::new(),
            thread: thread::current().id(),
            health: Health::Valid,
        };
        state.captures.insert(stream, capture);
        0
    };
    if mode != THREAD_LOCAL {
        return INVALID_VALUE;
    }
    in_context(|context| on_stream(stream, || begin(context)))
}

pub(super) extern "C" fn end(stream: usize, to: *mut usize) -> u32 {
    on_stream(stream, || {
        let mut state = state();
        match state.captures.get(&stream) {
            None => return CAPTURE_UNMATCHED,
            Some(capture) if !capture.is_of_this_thread() => return CAPTURE_WRONG_THREAD,
            Some(_) => {}
        }
        match state.captures.remove(&stream) {
            Some(Capture {
                health: Health::Valid,
                launches,
                ..
            }) => write(to, state.create(Kind::Graph { launches })),
            _ => CAPTURE_INVALIDATED,
        }
    })
}

pub(super) extern "C" fn instantiate(to: *mut usize, graph: usize, _flags: u64) -> u32 {
    in_context(|context| {
        let mut state = state();
        match state.alive.get(&graph).cloned() {
            Some(Kind::Graph { launches }) => {
                write(to, state.create(Kind::ReadyGraph { context, launches }))
            }
            _ => INVALID_HANDLE,
        }
    })
}

pub(super) extern "C" fn launch(graph: usize, stream: usize) -> u32 {
    let launch = |current| {
        let mut state = state();
        match state.alive.get(&graph) {
            Some(Kind::ReadyGraph { context, launches }) if *context == current => {
                if state.calls.is_some() {
                    let launches = launches.clone();
                    state.record(Call::LaunchGraph { launches, stream });
                }
                0
            }
            _ => INVALID_HANDLE,
        }
    };
    in_context(|context| on_stream(stream, || launch(context)))
}

/// Destroying graphs needs no context.
pub(super) extern "C" fn remove(graph: usize) -> u32 {
    match state().alive.remove(&graph) {
        Some(Kind::Graph { .. } | Kind::ReadyGraph { .. }) => 0,
        _ => INVALID_HANDLE,
    }
}
