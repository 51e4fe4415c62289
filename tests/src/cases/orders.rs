//! Problems for the orders in which flash3's backward pass takes tiles of keys, on a device of [`N_SMS`] SMs.

use ferroflash::Mask;

use super::{Case, lengths, window};

/// SMs of the device that the sets are for: few, so that blocks take several tiles of small problems.
pub const N_SMS: u32 = 4;

/// `(head_dim, seqlen_q, seqlen_k, (batch, heads_q, heads_k))`.
type Sizes = (usize, usize, usize, (usize, usize, usize));

/// Shifted order: all tiles of a head, or of two, run at once, and more heads follow. Two, three and four tiles share an order,
/// and divide its steps or do not. The last group of heads is smaller than the others; the order goes through the blocks of
/// several query heads; there is one round only. Where a block has more than half as many queries as a tile has keys, at head_dim
/// 64 and above 128, an even number of tiles makes two orders (a stride of 2); at 128 long sequences do.
const SHIFTED: [Sizes; 15] = [
    (64, 300, 200, (1, 3, 3)),
    (64, 513, 300, (1, 2, 2)),
    (64, 300, 500, (1, 4, 2)),
    (64, 400, 900, (1, 1, 1)),
    (128, 190, 180, (3, 1, 1)),
    (128, 300, 300, (2, 1, 1)),
    (128, 257, 512, (1, 2, 2)),
    (96, 130, 385, (1, 6, 2)),
    (72, 330, 129, (1, 2, 2)),
    (192, 260, 250, (1, 2, 2)),
    (192, 300, 460, (1, 2, 1)),
    (256, 200, 100, (1, 6, 3)),
    (128, 1024, 500, (1, 2, 2)),
    (120, 1030, 260, (1, 3, 3)),
    (128, 1100, 700, (1, 2, 1)),
];

/// No shifted order: there are more tiles than SMs, or it would leave SMs idle, or there are fewer steps than tiles; one tile; no
/// query.
const LISTS: [Sizes; 10] = [
    (64, 140, 600, (1, 2, 2)),
    (64, 130, 300, (1, 4, 4)),
    (128, 70, 300, (1, 2, 2)),
    (128, 130, 700, (2, 2, 1)),
    (128, 300, 100, (2, 3, 3)),
    (40, 0, 300, (1, 2, 2)),
    (96, 1, 513, (1, 2, 1)),
    (192, 100, 600, (1, 2, 1)),
    (256, 65, 300, (1, 1, 1)),
    (128, 1025, 600, (1, 1, 1)),
];

/// Under a causal mask: groups of one head and of several, every second group from the other end; more keys than queries, and
/// fewer.
const CAUSAL: [Sizes; 10] = [
    (64, 250, 250, (1, 5, 5)),
    (64, 600, 600, (1, 2, 2)),
    (64, 300, 100, (2, 3, 3)),
    (128, 200, 256, (1, 5, 5)),
    (128, 300, 520, (1, 3, 3)),
    (128, 390, 260, (1, 6, 3)),
    (96, 100, 385, (1, 4, 2)),
    (72, 0, 300, (1, 3, 3)),
    (192, 150, 200, (1, 4, 2)),
    (256, 130, 130, (1, 3, 3)),
];

/// The same with a prefix of [`PREFIX`] keys.
const PREFIXED: [Sizes; 3] = [
    (64, 250, 350, (1, 5, 5)),
    (128, 390, 260, (1, 6, 3)),
    (192, 150, 200, (1, 4, 2)),
];

const PREFIX: usize = 140;

/// With a window: groups are of long and of short tiles, from either end.
const WINDOWS: [(Mask, Sizes); 5] = [
    (window(Some(100), Some(0)), (64, 250, 250, (1, 5, 5))),
    (window(Some(60), Some(70)), (128, 300, 520, (1, 3, 3))),
    (window(Some(150), None), (128, 390, 260, (1, 6, 3))),
    (window(None, Some(30)), (96, 200, 385, (1, 4, 2))),
    (window(Some(90), Some(0)), (192, 300, 200, (1, 4, 2))),
];

/// Those whose tiles take the shifted order.
pub fn shifted() -> Vec<Case> {
    with(SHIFTED.map(|sizes| (Mask::Full, sizes)))
}

/// Those without a mask whose tiles are claimed from the tile counter.
pub fn lists() -> Vec<Case> {
    with(LISTS.map(|sizes| (Mask::Full, sizes)))
}

/// Those under a causal mask, with a prefix and without, claimed as well.
pub fn causal() -> Vec<Case> {
    let mut cases = with(CAUSAL.map(|sizes| (Mask::Causal, sizes)));
    let prefix = Mask::PrefixLm { prefix: PREFIX };
    cases.extend(with(PREFIXED.map(|sizes| (prefix, sizes))));
    cases
}

/// Those with a window.
pub fn windows() -> Vec<Case> {
    with(WINDOWS)
}

/// Some of all these as sequences of lengths of their own, whose tiles are always claimed.
pub fn lengths() -> Vec<Case> {
    let all = [shifted(), causal(), windows()].concat();
    lengths::of_their_own(all.into_iter().step_by(3).collect())
}

/// As [`super::nth`]; at head_dim 192, whose tiles are others where values have 128 columns, with values of so many, too.
fn with<const N: usize>(sizes: [(Mask, Sizes); N]) -> Vec<Case> {
    let cases = |(at, (mask, sizes)): (usize, (Mask, Sizes))| {
        let (head_dim, seqlen_q, seqlen_k, (batch, heads_q, heads_k)) = sizes;
        let case = super::nth(at, mask, head_dim, (seqlen_q, seqlen_k));
        let case = case.heads(batch, heads_q, heads_k);
        let of_short_values = (head_dim == 192).then_some(case.columns(192, 128));
        [case].into_iter().chain(of_short_values)
    };
    super::with_lse_gradients(sizes.into_iter().enumerate().flat_map(cases).collect())
}
