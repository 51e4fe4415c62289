//! The requests: when they come, what they say, how much they want.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};

/// What prompts are cut from.
const TEXT: &[u8] = include_bytes!("../../README.md");

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: usize,
    /// When it comes, from the start.
    pub arrival: Duration,
    pub prompt: Vec<u8>,
    /// Bytes that it wants, at least 1.
    pub count: usize,
}

/// What requests are like.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub requests: usize,
    /// Requests a second, in the mean.
    pub rate: f64,
    pub longest_prompt: usize,
    pub longest_answer: usize,
    pub seed: u64,
}

impl Workload {
    /// Rows of keys and values that the longest request can have: its last byte is not attended to any more.
    pub fn most_rows(&self) -> usize {
        self.longest_prompt + self.longest_answer - 1
    }

    /// The requests, in the order in which they come. One seed gives the same ones each time.
    pub fn requests(&self) -> Vec<Request> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut arrival = Duration::ZERO;
        (0..self.requests)
            .map(|id| {
                let length = rng.random_range(1..=self.longest_prompt.min(TEXT.len()));
                let start = rng.random_range(0..=TEXT.len() - length);
                let request = Request {
                    id,
                    arrival,
                    prompt: TEXT[start..start + length].to_vec(),
                    count: rng.random_range(1..=self.longest_answer),
                };
                // Independent arrivals: times between them are exponential.
                let wait = -f64::ln(1.0 - rng.random_range(0.0..1.0)) / self.rate;
                arrival += Duration::from_secs_f64(wait);
                request
            })
            .collect()
    }
}
