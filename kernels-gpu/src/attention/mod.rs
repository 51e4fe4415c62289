//! The hardware-independent parts of the algorithm: masks, and the order of tiles.
//!
//! Everything here is plain arithmetic, compiled into both the kernels and the host's tests.

pub mod mask;

pub mod block_mask;

pub mod lengths;

pub mod pages;

pub mod schedule;

pub mod score;

pub mod dropout;

pub mod block_order;

pub mod split_kv;

pub mod append;

pub mod divisor;

/// The batch entry and the head of the `idx`-th of all (batch, head) pairs, `batch_idx · heads + head_idx`.
#[inline(always)]
pub fn batch_and_head(idx: u32, heads: u32) -> (u32, u32) {
    let batch_idx = divide(idx, heads);
    (batch_idx, idx - batch_idx * heads)
}

/// `a / b`, and 0 where `b` is 0: kernels must not contain a call to the panic handler.
#[inline(always)]
pub fn divide(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::batch_and_head;

    #[test]
    fn heads_of_an_entry_follow_one_another() {
        for (batch_idx, head_idx) in (0..4).flat_map(|batch| (0..5).map(move |head| (batch, head)))
        {
            assert_eq!(
                batch_and_head(batch_idx * 5 + head_idx, 5),
                (batch_idx, head_idx)
            );
        }
    }
}
