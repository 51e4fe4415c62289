//! The engine's loop: take requests up as they come, run a step, hand bytes out.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::Device;

use crate::forward::{Forward, Rows};
use crate::model::Model;
use crate::pages::Pages;
use crate::scheduler::{Limits, Scheduler};
use crate::sequence::Sequence;
use crate::workload::Request;

/// How large an engine is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Pages of the pool of each layer.
    pub n_pages: usize,
    /// Rows of a page.
    pub page_size: usize,
    pub limits: Limits,
}

/// What has come of the requests.
pub struct Served {
    /// All of them, in the order in which they were done.
    pub sequences: Vec<Sequence>,
    pub steps: Vec<StepRecord>,
    /// From the start to the last byte.
    pub elapsed: Duration,
    pub preemptions: usize,
    /// The most pages that were in use.
    pub peak_pages: usize,
    /// Pages that are in use when all is done: none.
    pub pages_left: usize,
    /// Bytes of the pools.
    pub cache_bytes: usize,
}

/// A step, as far as the report asks.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord {
    pub sequences: usize,
    /// Of these, those that decode.
    pub decoding: usize,
    pub tokens: usize,
    pub pages: usize,
    /// Rows of these pages that hold keys and values behind the step.
    pub rows: usize,
}

/// Serves requests, which are in the order of their arrival.
pub fn serve(
    model: &Model,
    requests: &[Request],
    sizes: &Sizes,
    device: &Device,
) -> Result<Served> {
    let Sizes {
        n_pages,
        page_size,
        limits,
    } = *sizes;
    check_sizes(model, requests, sizes)?;
    let pages = Pages::new(n_pages, page_size);
    let forward = Forward::new(model, n_pages, &pages, device)?;
    let mut scheduler = Scheduler::new(limits, pages);
    let mut coming = requests.iter().peekable();
    let (mut sequences, mut steps) = (Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        while let Some(request) = coming.next_if(|next| next.arrival <= start.elapsed()) {
            scheduler.submit(Sequence::new(request.clone()));
        }
        if scheduler.is_idle() {
            match coming.peek() {
                Some(next) => thread::sleep(next.arrival.saturating_sub(start.elapsed())),
                None => break,
            }
            continue;
        }
        steps.push(step(&mut scheduler, &forward, start)?);
        sequences.extend(scheduler.retire());
    }
    Ok(Served {
        sequences,
        steps,
        elapsed: start.elapsed(),
        preemptions: scheduler.preemptions,
        peak_pages: scheduler.pages.peak(),
        pages_left: scheduler.pages.in_use(),
        cache_bytes: forward.n_bytes(),
    })
}

/// One batch: some sequences decode, some prefill. A sequence whose tokens are all in the cache then has a new byte.
fn step(scheduler: &mut Scheduler, forward: &Forward, start: Instant) -> Result<StepRecord> {
    let chunks = scheduler.step();
    let batch: Vec<Rows> = chunks
        .iter()
        .map(|chunk| {
            let sequence = &scheduler.running[chunk.sequence];
            let first = sequence.cached;
            Rows {
                tokens: &sequence.tokens[first..first + chunk.tokens],
                cached: first,
                pages: &sequence.pages,
            }
        })
        .collect();
    let decoding = chunks
        .iter()
        .filter(|chunk| scheduler.running[chunk.sequence].pending() == 1)
        .count();
    let bytes = forward.step(&batch)?;
    let now = start.elapsed();
    for (chunk, byte) in chunks.iter().zip(bytes) {
        let sequence = &mut scheduler.running[chunk.sequence];
        sequence.cached += chunk.tokens;
        if sequence.pending() == 0 {
            sequence.tokens.push(byte);
            sequence.times.push(now);
        }
    }
    Ok(StepRecord {
        sequences: chunks.len(),
        decoding,
        tokens: chunks.iter().map(|chunk| chunk.tokens).sum(),
        pages: scheduler.pages.in_use(),
        rows: scheduler.running.iter().map(|running| running.cached).sum(),
    })
}

/// Whether every request can be served.
fn check_sizes(model: &Model, requests: &[Request], sizes: &Sizes) -> Result<()> {
    let Sizes {
        n_pages,
        page_size,
        limits,
    } = *sizes;
    let room = n_pages.saturating_mul(page_size);
    let positions = model.config().positions;
    for Request {
        id, prompt, count, ..
    } in requests
    {
        ensure!(
            !prompt.is_empty() && *count > 0,
            "request {id} has a prompt of {} bytes and wants {count}; allowed: 1 or more of each",
            prompt.len()
        );
        let rows = prompt.len() + count - 1;
        ensure!(
            rows <= room.min(positions),
            "request {id} needs {rows} rows; allowed: {room}, those of {n_pages} pages of {page_size}, and {positions}, the \
             positions of the model"
        );
    }
    ensure!(
        limits.batch > 0 && limits.tokens >= limits.batch,
        "a step has at most {} tokens of {} sequences; allowed: at least a token for each of 1 or more",
        limits.tokens,
        limits.batch
    );
    Ok(())
}
