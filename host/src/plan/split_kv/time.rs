//! A model of the time of a forward pass of few queries, with which planning chooses the number of splits. The test compares it with a simulator;
//! `tests/benches/notes/2026-11-24-decode.md` has the measurements.

/// A block of keys of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Bytes that are read for it.
    pub bytes: u64,
    /// SMs of the device.
    pub n_sms: u64,
    /// How blocks of threads run.
    pub blocks: Blocks,
}

/// How blocks of threads run.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// How many an SM needs to read as fast as it can.
    pub per_sm: u64,
    /// Bytes that each reads in a nanosecond, if the memory has them.
    pub bytes_per_ns: u64,
}

/// One block: the memory's latency is the bound (H200).
pub const READING: Blocks = Blocks {
    per_sm: 1,
    bytes_per_ns: 50,
};
/// Keys and values in 8 bits: their conversion is the bound (H200).
pub const CONVERTING: Blocks = Blocks {
    per_sm: 2,
    bytes_per_ns: 18,
};
/// An SM's share of what the memory gives in a nanosecond (H200).
const SHARE_PER_NS: u64 = 33;
/// What it costs to merge splits: once, and for each of a row's (H200).
const MERGE_NS: u64 = 2000;
const MERGE_SPLIT_NS: u64 = 30;
/// What it costs a block of threads to write a split, and to begin another (H200).
const SPLIT_NS: u64 = 600;

impl Step {
    /// Blocks that run at once.
    fn at_once(self) -> u64 {
        self.n_sms * self.blocks.per_sm
    }

    /// Nanoseconds of a step, while this many blocks are busy.
    fn ns(self, busy: u64) -> u64 {
        (self.bytes / self.blocks.bytes_per_ns).max(self.bytes * busy / (SHARE_PER_NS * self.n_sms))
    }
}

/// Nanoseconds to merge this many splits.
fn merge_ns(n: u64) -> u64 {
    match n {
        0 | 1 => 0,
        n => MERGE_NS + n * MERGE_SPLIT_NS,
    }
}

/// Nanoseconds from a tile's last step to the next one's first.
fn switch_ns(n: u64) -> u64 {
    if n > 1 { SPLIT_NS } else { 0 }
}

/// Nanoseconds of this many tiles of this many steps, each divided into `n` splits of equal length. A block does one split at a time.
fn time(step: Step, tiles: u64, steps: u64, n: u64) -> u64 {
    let all = tiles * n;
    let (rounds, rest) = (all / step.at_once(), all % step.at_once());
    let rest = if rest > 0 { step.ns(rest) } else { 0 };
    let of_step = rounds.saturating_mul(step.ns(step.at_once())) + rest;
    let switches = rounds.saturating_mul(switch_ns(n));
    let of_steps = steps.div_ceil(n).saturating_mul(of_step);
    of_steps
        .saturating_add(switches)
        .saturating_add(merge_ns(n))
}

/// The best number of splits for this many tiles of this many steps: not more than give each SM eight tiles.
pub fn fastest(step: Step, tiles: u64, steps: u64) -> u64 {
    let most = (8 * step.n_sms / tiles.max(1)).min(steps);
    let all = 1..=most;
    all.min_by_key(|&n| time(step, tiles, steps, n))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Step = Step {
        bytes: 32 << 10,
        n_sms: 132,
        blocks: READING,
    };

    /// The same in 8 bits.
    const H200_E4M3: Step = Step {
        bytes: 16 << 10,
        blocks: CONVERTING,
        ..H200
    };

    /// Nanoseconds until the last tile ends: each block claims the next tile when it has done one, and all that are busy share the memory.
    fn simulated(step: Step, tiles: u64, steps: u64, n: u64) -> f64 {
        let each = steps.div_ceil(n);
        let switch = switch_ns(n) as f64 / step.ns(step.at_once()) as f64;
        let of_split = |idx: u64| match each.min(steps.saturating_sub(idx * each)) {
            0 => 0.0,
            steps => steps as f64 + switch,
        };
        let mut waiting = (0..tiles * n)
            .map(|idx| of_split(idx % n))
            .filter(|&left| left > 0.0);
        let mut busy: Vec<f64> = waiting.by_ref().take(step.at_once() as usize).collect();
        let mut now = 0.0;
        while !busy.is_empty() {
            let of_step = step.ns(busy.len() as u64) as f64;
            let first = busy.iter().copied().fold(f64::INFINITY, f64::min);
            now += first * of_step;
            busy.iter_mut().for_each(|left| *left -= first);
            busy.retain(|&left| left > 1e-9);
            let free = step.at_once() as usize - busy.len();
            busy.extend(waiting.by_ref().take(free));
        }
        now + merge_ns(n) as f64
    }

    #[test]
    fn a_simulator_finds_nothing_much_faster() {
        for tiles in [1, 2, 3, 8, 24, 32, 64, 67, 71, 100, 132, 133, 200, 256, 512] {
            for steps in [1, 2, 16, 17, 128, 512, 2048] {
                for step in [H200, H200_E4M3] {
                    let chosen = simulated(step, tiles, steps, fastest(step, tiles, steps));
                    let all = (1..=steps.min(64)).map(|n| simulated(step, tiles, steps, n));
                    let best = all.fold(f64::INFINITY, f64::min);
                    assert!(
                        chosen <= 1.2 * best,
                        "{tiles} tiles of {steps} steps: {chosen:.0} ns, {best:.0} are possible"
                    );
                }
            }
        }
    }

    /// What was measured to be the fastest (H200, 8 heads of k and v, head_dim 128): sequences, steps, splits.
    #[test]
    fn it_chooses_what_was_measured_to_be_fastest() {
        for (batch, steps, n) in [
            (1, 16, 16),
            (1, 128, 16),
            (1, 512, 16),
            (1, 2048, 16),
            (4, 16, 4),
            (4, 128, 4),
            (8, 128, 2),
            (64, 16, 1),
            (64, 128, 1),
        ] {
            assert_eq!(fastest(H200, 8 * batch, steps), n, "{batch} · {steps}");
        }
    }

    #[test]
    fn no_size_overflows() {
        assert_eq!(fastest(H200, u64::MAX / 1024, u64::MAX), 1);
        assert_eq!(fastest(H200, 0, 0), 1);
    }
}
