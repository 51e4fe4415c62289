//! A block mask as the kernels' parameters spell it.

use ferroflash_kernels::params::{BlockMap, MAX_ROWS};

use crate::problem::Problem;

/// The map of a problem that is eligible; the address is filled in at launch. Empty without a block mask.
pub fn block_map(problem: &Problem) -> BlockMap {
    let (Some(blocks), Some([batch, heads, q_blocks, k_blocks])) =
        (problem.block_mask(), problem.block_mask_shape())
    else {
        return BlockMap::default();
    };
    // A block that is longer than any sequence makes one row or column all the same.
    let rows = |block: usize| block.min(MAX_ROWS as usize) as u32;
    let of_head = q_blocks.saturating_mul(k_blocks);
    // Where there is one map for all, or one entry, nothing is stepped over.
    let stride = |n: usize, elems: usize| if n > 1 { elems as u32 } else { 0 };
    BlockMap {
        map: 0,
        batch_stride: stride(batch, heads.saturating_mul(of_head)),
        head_stride: stride(heads, of_head),
        q_blocks: q_blocks as u32,
        k_blocks: k_blocks as u32,
        block_q: rows(blocks.block_q()),
        block_k: rows(blocks.block_k()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::problem::BlockMask;

    #[test]
    fn strides_are_those_of_the_maps_that_there_are() {
        let blocks = BlockMask::new(128, 256);
        let of = |blocks| {
            let builder = Problem::builder(Dtype::Bf16).batch(3).heads_q(4).heads_k(2);
            let sized = builder.seqlen_q(300).seqlen_k(1025).head_dim(64);
            block_map(&sized.block_mask(blocks).build().unwrap())
        };
        let shared = BlockMap {
            map: 0,
            batch_stride: 0,
            head_stride: 0,
            q_blocks: 3,
            k_blocks: 5,
            block_q: 128,
            block_k: 256,
        };
        assert_eq!(of(blocks), shared);
        let per_batch = BlockMap {
            batch_stride: 15,
            ..shared
        };
        assert_eq!(of(blocks.per_batch()), per_batch);
        let per_head = BlockMap {
            head_stride: 15,
            ..shared
        };
        assert_eq!(of(blocks.per_head()), per_head);
        let both = BlockMap {
            batch_stride: 60,
            ..per_head
        };
        assert_eq!(of(blocks.per_batch().per_head()), both);
        let long = of(BlockMask::new(usize::MAX - 127, 1 << 40));
        assert_eq!((long.q_blocks, long.k_blocks), (1, 1));
        assert_eq!((long.block_q, long.block_k), (MAX_ROWS, MAX_ROWS));
    }
}
