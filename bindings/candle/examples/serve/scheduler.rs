//! The scheduler: which sequences run in a step, with how many tokens, and who gets the pages.
//!
//! Sequences wait in the order of their arrival and run in the order of their admission. One is admitted when there are pages for
//! all tokens that it has. Decoding, it grows by a page now and then. Where none is free, the sequence admitted last is
//! preempted: it gives its pages back, waits in front of all others, and computes its keys and values again. So the first one
//! always gets what it needs, and everybody comes to be the first.

use std::collections::VecDeque;

use crate::pages::Pages;
use crate::sequence::Sequence;

/// What a step may have at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences.
    pub batch: usize,
    /// Tokens, at least as many as sequences: each that decodes gets its one, those that prefill share the rest.
    pub tokens: usize,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which of the running sequences.
    pub sequence: usize,
    /// How many of its pending tokens, at least 1.
    pub tokens: usize,
}

/// Sequences that wait and that run, and the pages among which they share the pool.
pub struct Scheduler {
    limits: Limits,
    pub pages: Pages,
    waiting: VecDeque<Sequence>,
    pub running: Vec<Sequence>,
    pub preemptions: usize,
}

impl Scheduler {
    /// The pool has pages for the longest sequence, or it waits for ever.
    pub fn new(limits: Limits, pages: Pages) -> Scheduler {
        Scheduler {
            limits,
            pages,
            waiting: VecDeque::new(),
            running: Vec::new(),
            preemptions: 0,
        }
    }

    pub fn submit(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// What runs in the next step: nothing only where nobody waits or runs.
    pub fn step(&mut self) -> Vec<Chunk> {
        self.grow();
        self.admit();
        self.chunks()
    }

    /// Takes the sequences that are done out, and their pages back.
    pub fn retire(&mut self) -> Vec<Sequence> {
        let (mut done, running) = self.running.drain(..).partition(Sequence::is_done);
        self.running = running;
        for sequence in &mut done {
            self.pages.free(&mut sequence.pages);
        }
        done
    }

    /// Gives each running sequence a page for its last token, the oldest first.
    fn grow(&mut self) {
        let mut index = 0;
        while let Some(sequence) = self.running.get_mut(index) {
            let rows = sequence.tokens.len();
            if self.pages.grow(&mut sequence.pages, rows) {
                index += 1;
            } else {
                self.preempt();
            }
        }
    }

    /// Sends the youngest back, which may be the one that asks for a page.
    fn preempt(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            self.pages.free(&mut youngest.pages);
            youngest.cached = 0;
            self.waiting.push_front(youngest);
            self.preemptions += 1;
        }
    }

    fn admit(&mut self) {
        while self.running.len() < self.limits.batch {
            let Some(mut first) = self.waiting.pop_front() else {
                return;
            };
            let rows = first.tokens.len();
            if !self.pages.grow(&mut first.pages, rows) {
                self.waiting.push_front(first);
                return;
            }
            self.running.push(first);
        }
    }

    /// A token for each sequence that decodes, then chunks of prompts as long as there is room.
    fn chunks(&self) -> Vec<Chunk> {
        let decodes = |sequence: &&Sequence| sequence.pending() == 1;
        let mut room = self.limits.tokens - self.running.iter().filter(decodes).count();
        let mut chunks = Vec::with_capacity(self.running.len());
        for (index, sequence) in self.running.iter().enumerate() {
            let tokens = match sequence.pending() {
                1 => 1,
                pending => {
                    let tokens = pending.min(room);
                    room -= tokens;
                    tokens
                }
            };
            if tokens > 0 {
                let sequence = index;
                chunks.push(Chunk { sequence, tokens });
            }
        }
        chunks
    }
}
