//! How many heads' tiles form a group, if tiles are claimed from a list.

use ferroflash_kernels::params::Schedule;

/// How many heads' tiles form a group in a list.
///
/// As many as fill the device once, if these leave no more than a sixteenth of it idle. Otherwise tiles of a group cannot all run at the same time,
/// and it is better to have several times as many as blocks: a block that has done a short tile then finds a long one. Groups alternate between
/// ascending and descending order, so there are an even number of them, of
/// one size.
/// `tests/tests/schedule` compares this with other choices.
///
/// But not more than `most`, if these fill the device once. Under a causal mask the tiles that run are spread over all queries of
/// their heads, so that is what the L2 cache keeps: eight heads of 70 tiles, more than that, have run at 0.86 of the speed of two
/// heads of 66 (H200). Without a mask tiles follow one another closely, however many heads there are.
pub fn heads_of_a_list(side_by_side: &Schedule, resident: u32, most: u64) -> u32 {
    /// Tiles of a group relative to the blocks that the device holds, if they do not fit it.
    const ROUNDS: u64 = 3;
    let (tiles, heads) = (
        u64::from(side_by_side.tiles.max(1)),
        u64::from(side_by_side.heads),
    );
    let (fitting, resident) = (u64::from(side_by_side.heads_per_group), u64::from(resident));
    let over = (fitting * tiles) % resident;
    let fits = 16 * over.min(resident - over) <= resident;
    if fits {
        return in_even_groups(heads, fitting);
    }
    let wanted = (ROUNDS * resident).div_ceil(tiles);
    if wanted <= most || most < fitting {
        return in_even_groups(heads, wanted);
    }
    // As many as nearly fill the device, in groups of one size if that can be.
    let fills = |n: &u64| 8 * n * tiles >= 7 * resident && heads.is_multiple_of(2 * n);
    match (1..=most).rev().find(fills) {
        Some(n) => n as u32,
        None => in_even_groups(heads, most),
    }
}

/// About this many heads of a group, such that groups have one size and an even number.
pub fn in_even_groups(heads: u64, wanted: u64) -> u32 {
    let pairs = ((heads + wanted) / (2 * wanted)).max(1);
    heads.div_ceil(2 * pairs).max(1) as u32
}

/// About this many heads of a group, such that an even number of groups lacks few heads, or none: a small last group would leave much of the device
/// idle. From three quarters of the wanted number up to twice as many; of equally good numbers the
/// one whose ratio to it is the least.
pub fn in_full_groups(heads: u64, wanted: u64) -> u32 {
    let wanted = wanted.clamp(1, heads.div_ceil(2).max(1));
    let sizes = (3 * wanted).div_ceil(4)..2 * wanted;
    // Larger over smaller, in 64ths.
    let ratio = |n: u64| 64 * n.max(wanted) / n.min(wanted);
    let best = sizes.min_by_key(|&n| (lacking(heads, n), ratio(n)));
    best.unwrap_or(wanted) as u32
}

/// How many heads more an even number of groups would have. Blocks are idle that long: of two groups one ascends and one descends, so
/// that a block does a long tile and a short one.
pub fn lacking(heads: u64, of_group: u64) -> u64 {
    heads.next_multiple_of(2 * of_group) - heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_list_are_full_where_they_can_be() {
        for (heads, wanted, expected) in [
            // Measured: head_dim 128 and 64, under a causal mask and without one.
            (16, 3, 4),
            (16, 8, 8),
            (32, 7, 8),
            (32, 8, 8),
            (28, 8, 7),
            (30, 8, 15),
            (12, 8, 6),
            (12, 3, 3),
            (71, 8, 9),
            (71, 3, 3),
            (5, 8, 3),
            (3, 8, 2),
            (3, 1, 1),
            (1, 8, 1),
            (0, 8, 1),
        ] {
            assert_eq!(
                in_full_groups(heads, wanted),
                expected,
                "{wanted} of {heads}"
            );
        }
    }
}
