//! When each step of flash3's consumers runs.

use std::fmt::Write;

/// How the steps of a consumer follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// O of a block before S of the next one, as in flash2.
    One,
    /// S of a block before O of the one before, as in flash3.
    Two,
}

/// A step: `S`, `P` or `O` of a block, whose it is, and from when to when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whose it is.
    pub consumer: usize,
    /// Which of the three.
    pub name: char,
    /// Of which block of keys.
    pub block: usize,
    /// When it begins.
    pub from: usize,
    /// When it ends.
    pub to: usize,
}

// ANCHOR: program
/// When each step of `n` blocks of keys runs. A product takes one unit of time, the
/// exponentials of a block take `softmax`. The tensor cores do one product at a time,
/// the special-function unit one block of exponentials, in the order in which they are
/// begun.
pub fn overlap(consumers: usize, stages: Stages, n: usize, softmax: usize) -> Vec<Ran> {
    let mut ran: Vec<Ran> = Vec::new();
    for j in 0..=n {
        for consumer in 0..consumers {
            let order = match stages {
                Stages::One => [('O', j.wrapping_sub(1)), ('S', j), ('P', j)],
                Stages::Two => [('S', j), ('O', j.wrapping_sub(1)), ('P', j)],
            };
            for (name, block) in order.into_iter().filter(|(_, block)| *block < n) {
                let needs = match name {
                    'S' => ('P', block.wrapping_sub(1)), // the consumer is busy with it
                    'P' => ('S', block),
                    _ => ('P', block),
                };
                let waits_for = |r: &&Ran| {
                    let same_unit = (r.name == 'P') == (name == 'P');
                    same_unit || r.consumer == consumer && (r.name, r.block) == needs
                };
                let ends = ran.iter().filter(waits_for).map(|r| r.to);
                let from = ends.max().unwrap_or(0);
                let to = from + if name == 'P' { softmax } else { 1 };
                ran.push(Ran {
                    consumer,
                    name,
                    block,
                    from,
                    to,
                });
            }
        }
    }
    ran
}
// ANCHOR_END: program

/// The share of the time in which the tensor cores multiply, from the first step to the
/// last one.
pub fn share_of_tensor_cores(ran: &[Ran]) -> f64 {
    let end = ran.iter().map(|ran| ran.to).max().unwrap_or(0);
    ran.iter().filter(|ran| ran.name != 'P').count() as f64 / end as f64
}

/// Two lines, a cell for each unit of time: what the tensor cores do, and the special-
/// function unit. Consumers are `a` and `b`.
pub fn drawn(ran: &[Ran], until: usize) -> String {
    let mut text = String::new();
    for (unit, is_softmax) in [("tensor cores", false), ("exponentials", true)] {
        let _ = write!(text, "{unit}");
        for time in 0..until {
            let now =
                |ran: &&Ran| (ran.name == 'P') == is_softmax && ran.from <= time && time < ran.to;
            let cell = ran.iter().find(now).map(|ran| {
                let consumer = ["a", "b"][ran.consumer];
                format!("{}{}{consumer}", ran.name, ran.block)
            });
            let _ = write!(text, " {:3}", cell.as_deref().unwrap_or(" · "));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
