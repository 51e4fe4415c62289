//! Common numbers of all schedules: sizes of tensors, and the number of blocks of scores that a mask leaves.

use std::ops::Range;

use ferroflash::plan::COLUMN_MULTIPLE;
use ferroflash::{Precision, Problem};
use ferroflash_kernels::attention::mask::{Band, Blocks, Rows};
use ferroflash_kernels::params::MAX_ROWS;

use super::EstimateError;

/// Bytes of an f32.
pub(super) const F32_BYTES: u64 = ferroflash_kernels::config::F32_BYTES as u64;

/// A problem in numbers of 64 bits, which hold every product of them: [`Sizes::new`] has checked it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// (batch, head) pairs of queries.
    pub heads_q: u64,
    /// (batch, head) pairs of keys.
    pub heads_k: u64,
    /// Query heads that share keys.
    pub group: u64,
    pub seqlen_q: u64,
    pub seqlen_k: u64,
    /// Columns of q and k.
    pub head_dim: u64,
    /// Columns of v and o.
    pub head_dim_v: u64,
    /// Bytes of an element of o and of gradients.
    pub element: u64,
    /// The same of q, k and v: fewer, where they are in 8 bits.
    pub input: u64,
    /// [`products`]: three if f32 is to be exact.
    pub products: u64,
    band: Band,
}

/// Blocks of scores that the tiles of a schedule visit, of one head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    /// Tiles that are resident, one after the other.
    pub tiles: u64,
    /// Blocks that are streamed past them, all tiles together.
    pub blocks: u64,
    /// Existing rows of these blocks: the last block may have fewer.
    pub rows: u64,
    /// Blocks of the tile that visits most, and of that which visits fewest.
    pub longest: u64,
    pub shortest: u64,
}

impl Sizes {
    /// The sizes of a problem whose work follows from its sizes and its mask.
    pub fn new(problem: &Problem) -> Result<Sizes, EstimateError> {
        let not_counted = [
            (problem.total_q().is_some(), "packed queries"),
            (problem.total_k().is_some(), "packed keys"),
            (problem.pages().is_some(), "pages"),
            (problem.fp8_kv().is_some(), "keys and values in 8 bits"),
            (problem.values_in_keys(), "values in the keys"),
            (problem.block_mask().is_some(), "a block mask"),
            (problem.score().is_some(), "an expression of scores"),
            (problem.mask_expression().is_some(), "a mask expression"),
            (problem.dropout().is_some(), "dropout"),
        ];
        if let Some(&(_, given)) = not_counted.iter().find(|(has, _)| *has) {
            return Err(EstimateError::NotCounted { given });
        }
        let (seqlen_q, seqlen_k) = (problem.seqlen_q() as u64, problem.seqlen_k() as u64);
        at_most("seqlen", seqlen_q.max(seqlen_k).into(), MAX_ROWS.into())?;
        // More than any schedule counts: sums of these fit 64 bits.
        let columns = (problem.head_dim() + problem.head_dim_v() + 256) as u128;
        let heads = (problem.batch() as u128).saturating_mul(problem.heads_q() as u128);
        let rows = u128::from(seqlen_q + 512) * u128::from(seqlen_k + 512);
        let amount = heads.saturating_mul(rows).saturating_mul(128 * columns);
        at_most(
            "batch * heads * seqlen_q * seqlen_k * head_dim",
            amount,
            u64::MAX.into(),
        )?;
        Ok(Sizes {
            heads_q: heads as u64,
            heads_k: (problem.batch() * problem.heads_k()) as u64,
            group: problem.group_size() as u64,
            seqlen_q,
            seqlen_k,
            head_dim: problem.head_dim() as u64,
            head_dim_v: problem.head_dim_v() as u64,
            element: problem.dtype().size_bytes() as u64,
            input: match problem.fp8() {
                Some(_) => 1,
                None => problem.dtype().size_bytes() as u64,
            },
            products: products(problem),
            band: problem.band(),
        })
    }

    /// The same with q, k and v out of 8 bits.
    pub fn dequantized(self) -> Sizes {
        Sizes {
            input: self.element,
            ..self
        }
    }

    /// Bytes of q, k and v.
    pub fn inputs(&self) -> u64 {
        self.q() + self.k() + self.v()
    }

    /// Bytes of q; of dQ, where q is not in 8 bits.
    pub fn q(&self) -> u64 {
        self.heads_q * self.seqlen_q * self.head_dim * self.input
    }

    /// Bytes of o, and of dO.
    pub fn o(&self) -> u64 {
        self.heads_q * self.seqlen_q * self.head_dim_v * self.element
    }

    /// Bytes of k, and of dK likewise.
    pub fn k(&self) -> u64 {
        self.heads_k * self.seqlen_k * self.head_dim * self.input
    }

    /// Bytes of v, and of dV likewise.
    pub fn v(&self) -> u64 {
        self.heads_k * self.seqlen_k * self.head_dim_v * self.input
    }

    /// Bytes of P in the problem's type, its rows padded as `standard` has them.
    pub fn weights(&self) -> u64 {
        let columns = self.seqlen_k.next_multiple_of(COLUMN_MULTIPLE);
        self.heads_q * self.seqlen_q * columns * self.element
    }

    /// Bytes of an f32 for each row of q: lse, Δ, l, m.
    pub fn row_values(&self) -> u64 {
        self.heads_q * self.seqlen_q * F32_BYTES
    }

    /// Tiles of `block_q` queries, past which blocks of `block_k` keys are streamed.
    pub fn of_query_tiles(&self, block_q: u32, block_k: u32) -> Visits {
        let seqlen = self.seqlen_q as u32;
        visits(seqlen, block_q, block_k, self.seqlen_k, |first| {
            let queries = Rows::of_sequence(first, block_q, seqlen);
            self.band.kv_blocks(queries, block_k)
        })
    }

    /// Tiles of `block_k` keys, past which blocks of `block_q` queries are streamed.
    pub fn of_key_tiles(&self, block_q: u32, block_k: u32) -> Visits {
        visits(
            self.seqlen_k as u32,
            block_k,
            block_q,
            self.seqlen_q,
            |first| {
                let keys = Rows {
                    first,
                    len: block_k,
                };
                self.band.q_blocks(keys, block_q)
            },
        )
    }
}

/// Products that tensor cores make of one.
pub(super) fn products(problem: &Problem) -> u64 {
    match problem.precision() {
        Precision::Tensor => 1,
        Precision::Full => 3,
    }
}

/// The blocks that tiles of this many rows visit, by the kernels' own cursors.
fn visits(
    seqlen: u32,
    tile: u32,
    block: u32,
    streamed: u64,
    blocks: impl Fn(u32) -> Blocks,
) -> Visits {
    let mut visits = Visits {
        shortest: u64::MAX,
        ..Visits::default()
    };
    for first in (0..seqlen).step_by(tile as usize) {
        let Range { start, end } = {
            let blocks = blocks(first);
            u64::from(blocks.first)..u64::from(blocks.end)
        };
        visits.tiles += 1;
        visits.blocks += end - start;
        visits.longest = visits.longest.max(end - start);
        visits.shortest = visits.shortest.min(end - start);
        let block = u64::from(block);
        visits.rows += (end * block).min(streamed) - (start * block).min(streamed);
    }
    visits
}

fn at_most(argument: &'static str, given: u128, most: u128) -> Result<(), EstimateError> {
    match given <= most {
        true => Ok(()),
        false => Err(EstimateError::TooLarge {
            argument,
            given,
            most,
        }),
    }
}
