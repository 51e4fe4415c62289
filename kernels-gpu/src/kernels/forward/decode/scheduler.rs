//! Which tile a block works on, and on which of its keys.

use super::{KEYS, ROWS};
use crate::attention::divisor::Divisor;
use crate::attention::mask::{Band, Rows};
use crate::attention::split_kv::{blocks_of_known_part, n_splits};
use crate::attention::{batch_and_head, divide};
use crate::kernels::varlen;
use crate::params::ForwardParams;
use crate::ptx::{shuffle, spec, special};

/// A block's tile, and the split of its keys.
#[derive(Clone, Copy)]
pub struct Tile {
    pub(super) sequence: u32,
    pub(super) kv_head_idx: u32,
    /// Its number among the tiles that share a sequence and a KV head.
    pub(super) idx: u32,
    /// How many of these there are.
    pub(super) n: u32,
    pub(super) split: u32,
    /// How many splits the sequence has, and the keys of each.
    pub(super) n_splits: u32,
    split_keys: u32,
    pub(super) rows_q: Rows,
    pub(super) rows_k: Rows,
}

/// Where one of a tile's rows stands.
#[derive(Clone, Copy)]
pub(super) struct PackedRow {
    /// The head, among all heads of q.
    pub(super) head_idx: u32,
    /// The query of the sequence.
    pub(super) query: u32,
}

/// Quotient and remainder of a division by `n`, for which there is a divisor where sequences have different lengths.
#[inline(always)]
fn divide_by(idx: u32, n: u32, divisor: Divisor) -> (u32, u32) {
    if spec::lengths() {
        divisor.divide(idx)
    } else {
        batch_and_head(idx, n)
    }
}

impl Tile {
    /// The block's split; `None` if there are fewer.
    ///
    /// # Safety
    /// All lanes of the warp come here; the lengths are as the parameters say.
    #[inline(always)]
    pub(super) unsafe fn of_block(p: &ForwardParams) -> Option<Tile> {
        let shape = &p.shape;
        let n = divide(shape.seqlen_q * shape.group_size + ROWS - 1, ROWS);
        // Blocks of neighbouring KV heads follow one another: together they read whole rows of memory.
        let (kv_head_idx, idx, share, rows_q) = if spec::lengths() {
            let (rest, kv_head_idx) = p.divisors.heads_k.divide(special::block_idx_x());
            let (rest, idx) = p.divisors.tiles.divide(rest);
            // SAFETY: the caller's contract; the sequence exists.
            unsafe {
                let share = if spec::split_kv() && p.split.parts > 0 {
                    WorkTile::find(p, shape.heads_k * n, rest)?
                } else {
                    let (split, sequence) = batch_and_head(rest, shape.batch);
                    let rows_k = varlen::rows_k(&p.lengths, shape, sequence);
                    WorkTile::of_equal_splits(p, sequence, split, rows_k)
                };
                let rows_q = varlen::rows_q(&p.lengths, shape, share.sequence);
                (kv_head_idx, idx, share, rows_q)
            }
        } else {
            let (rest, kv_head_idx) = batch_and_head(special::block_idx_x(), shape.heads_k);
            let (rest, idx) = batch_and_head(rest, n);
            let (split, sequence) = batch_and_head(rest, shape.batch);
            let all = |len| Rows { first: 0, len };
            let share = WorkTile::of_equal_splits(p, sequence, split, all(shape.seqlen_k));
            (kv_head_idx, idx, share, all(shape.seqlen_q))
        };
        let WorkTile {
            sequence,
            split,
            n_splits,
            split_keys,
            rows_k,
        } = share;
        (split < n_splits).then_some(Tile {
            sequence,
            kv_head_idx,
            idx,
            n,
            split,
            n_splits,
            split_keys,
            rows_q,
            rows_k,
        })
    }

    /// Of one of the tile's rows; its query may be one that the sequence does not have.
    #[inline(always)]
    pub(super) fn place(&self, p: &ForwardParams, row: u32) -> PackedRow {
        let (query, in_group) = divide_by(
            self.idx * ROWS + row,
            p.shape.group_size,
            p.divisors.group_size,
        );
        PackedRow {
            head_idx: self.kv_head_idx * p.shape.group_size + in_group,
            query,
        }
    }

    /// Chunks of keys that the tile's queries see in its split: the first, and one past the last.
    #[inline(always)]
    pub(super) fn chunks(&self, p: &ForwardParams, band: &Band) -> (u32, u32) {
        let last = band.seqlen_q() - 1;
        let (first, end) = (self.place(p, 0).query, self.place(p, ROWS - 1).query);
        let end = if end < last { end } else { last };
        let (mut first, mut end) = (band.first_key(first), band.end_key(end));
        if spec::split_kv() {
            let begin = self.split * self.split_keys;
            // Whatever the length of a split, the sequence's end comes first.
            let behind = begin.saturating_add(self.split_keys);
            first = if first > begin { first } else { begin };
            end = if end < behind { end } else { behind };
        }
        let (first, end) = (first / ROWS, end.div_ceil(ROWS));
        (first, if end > first { end } else { first })
    }
}

// A block's share of the work, where sequences have lengths of their own: each block finds it by itself, from all lengths.
//
// The keys of all sequences, for each of the heads and tiles, are divided into parts, as many as blocks run at once; of few keys there are
// fewer parts, with as many keys as a split has at least. A sequence that is longer than a part by more than a quarter, of few keys by
// anything, is divided into equal splits. The blocks of divided sequences come first, as theirs are long; those of the others fill the
// gaps.
//
// Until a block has its share it copies nothing, so what counts is how many instructions wait for one another:
//
// ```text
// all lengths → their sum, and the longest → the most blocks of a split
// nothing is longer: the share is the sequence of the block's number
// else: the lanes' counts of splits → their sums up to each lane → the lane that has the share → its sequence
// ```

/// One split of a sequence.
#[derive(Clone, Copy)]
pub(super) struct WorkTile {
    pub(super) sequence: u32,
    pub(super) split: u32,
    /// Splits of the sequence. The last ones may be left without keys, as all before them are equally long.
    pub(super) n_splits: u32,
    /// Keys of each of them.
    pub(super) split_keys: u32,
    /// The sequence's.
    pub(super) rows_k: Rows,
}

/// More blocks than a lane has: the sum over all lanes then fits a word.
const MOST_OF_LANE: u32 = u32::MAX / 32;

/// Sequences whose lengths a lane reads at once, where there are more than lanes.
const AT_ONCE: u32 = 4;

impl WorkTile {
    /// A split of a sequence, where all splits have as many keys, or none is divided.
    #[inline(always)]
    fn of_equal_splits(p: &ForwardParams, sequence: u32, split: u32, rows_k: Rows) -> WorkTile {
        let n_splits = if spec::split_kv() {
            n_splits(rows_k.len, p.split.keys)
        } else {
            1
        };
        WorkTile {
            sequence,
            split,
            n_splits,
            split_keys: p.split.keys,
            rows_k,
        }
    }

    /// The `idx`-th split; `None` if there are fewer. The work is that of this many heads and tiles.
    ///
    /// # Safety
    /// All lanes of the warp come here with the same numbers; the lengths are as the parameters say.
    #[inline(always)]
    pub(super) unsafe fn find(p: &ForwardParams, heads: u32, idx: u32) -> Option<WorkTile> {
        let (lane, batch) = (special::lane_idx(), p.shape.batch);
        // SAFETY: the caller's contract.
        unsafe {
            // The first two are on their way together.
            let own = rows_of(p, lane);
            let undivided = rows_of(p, idx);
            let (mut sum, mut longest) = (0u32, 0);
            let mut first = 32;
            while first < batch {
                let several = blocks_of_several(p, first + lane, 32);
                for blocks in &several {
                    sum = sum.saturating_add(*blocks);
                    longest = greater(longest, *blocks);
                }
                first += 32 * AT_ONCE;
            }
            let blocks = blocks_of(own);
            sum = sum.saturating_add(blocks);
            longest = shuffle::redux_max_u32(greater(longest, blocks));
            let sum = shuffle::redux_add_u32(smaller(sum, MOST_OF_LANE));
            let most = most_blocks(p, sum, heads);
            if longest <= most {
                return (idx < batch).then_some(WorkTile {
                    sequence: idx,
                    split: 0,
                    n_splits: 1,
                    split_keys: greater(blocks_of(undivided), 1) * KEYS,
                    rows_k: undivided,
                });
            }
            Search::new(p, most, own, idx).find(p)
        }
    }
}

/// The most blocks of keys of a split, if all sequences have this many.
#[inline(always)]
fn most_blocks(p: &ForwardParams, blocks: u32, heads: u32) -> u32 {
    let least = p.split.keys / KEYS;
    let part = blocks_of_known_part(blocks, heads, p.divisors.parts, least);
    if part > least {
        part.saturating_add(part / 4)
    } else {
        part
    }
}

/// A share, looked for among splits that are counted in groups: whole sequences and splits of divided ones apart.
struct Search {
    /// The most blocks of a split.
    most: u32,
    /// The rows of the lane's sequence, of 32 from `first` on, and its splits.
    own: Rows,
    n: u32,
    /// Whether it is a split of a divided sequence.
    is_divided: bool,
    /// Its number among such splits, from the first of a sequence on.
    idx: u32,
    /// A sequence that does not come behind it.
    first: u32,
}

impl Search {
    /// Of more than 32 sequences each lane counts the splits of some that follow one another.
    #[inline(always)]
    unsafe fn new(p: &ForwardParams, most: u32, own: Rows, idx: u32) -> Search {
        let (lane, batch) = (special::lane_idx(), p.shape.batch);
        // SAFETY: the caller's contract.
        unsafe {
            if batch <= 32 {
                let n = splits(blocks_of(own), most);
                let n_divided = shuffle::redux_add_u32(if n > 1 { n } else { 0 });
                let is_divided = idx < n_divided;
                return Search {
                    most,
                    own,
                    n,
                    is_divided,
                    idx: if is_divided { idx } else { idx - n_divided },
                    first: 0,
                };
            }
            let of_lane = batch.div_ceil(32);
            let (mut divided, mut whole) = (0, 0);
            let mut i = 0;
            while i < of_lane {
                let sequence = lane * of_lane + i;
                let several = blocks_of_several(p, sequence, 1);
                for k in 0..AT_ONCE {
                    let is_own = (i + k < of_lane) & (sequence + k < batch);
                    let n = splits(several[k as usize], most);
                    divided += if is_own & (n > 1) { n } else { 0 };
                    whole += (is_own & (n == 1)) as u32;
                }
                i += AT_ONCE;
            }
            let n_divided = shuffle::redux_add_u32(divided);
            let is_divided = idx < n_divided;
            let idx = if is_divided { idx } else { idx - n_divided };
            let counted = if is_divided { divided } else { whole };
            let up_to = sum_up_to(counted);
            // The first lane that has it or more; the last one where none has.
            let holder = shuffle::vote_ballot(idx < up_to).trailing_zeros();
            let holder = smaller(holder, 31);
            let first = holder * of_lane;
            let own = rows_of(p, first + lane);
            Search {
                most,
                own,
                n: splits(blocks_of(own), most),
                is_divided,
                idx: idx - shuffle::shuffle_idx_u32(up_to - counted, holder),
                first,
            }
        }
    }

    /// The target of the search, among 32 sequences at a time.
    #[inline(always)]
    unsafe fn find(mut self, p: &ForwardParams) -> Option<WorkTile> {
        let (lane, batch) = (special::lane_idx(), p.shape.batch);
        // SAFETY: the caller's contract; what is kept is the same in all lanes.
        unsafe {
            while self.first < batch {
                let (blocks, n) = (blocks_of(self.own), self.n);
                let is_counted = (self.first + lane < batch) & ((n > 1) == self.is_divided);
                let counted = if is_counted { n } else { 0 };
                let up_to = sum_up_to(counted);
                // Of each lane's own sequence, while the sums are on their way, and not of the one that is found, when it has been.
                let each = special::opaque(greater(blocks.div_ceil(n), 1));
                let holders = shuffle::vote_ballot(self.idx < up_to);
                if holders != 0 {
                    let holder = holders.trailing_zeros();
                    let of_holder = |x: u32| shuffle::shuffle_idx_u32(x, holder);
                    return Some(WorkTile {
                        sequence: self.first + holder,
                        split: self.idx - of_holder(up_to - counted),
                        n_splits: of_holder(n),
                        split_keys: of_holder(each) * KEYS,
                        rows_k: Rows {
                            first: of_holder(self.own.first),
                            len: of_holder(self.own.len),
                        },
                    });
                }
                self.idx -= shuffle::shuffle_idx_u32(up_to, 31);
                self.first += 32;
                self.own = rows_of(p, self.first + lane);
                self.n = splits(blocks_of(self.own), self.most);
            }
        }
        None
    }
}

/// The rows of a sequence; none of one that there is not.
///
/// There is no branch here that the compiler could find: behind one, loads of several sequences would wait for one another.
#[inline(always)]
unsafe fn rows_of(p: &ForwardParams, sequence: u32) -> Rows {
    let last = p.shape.batch - 1;
    let exists = special::opaque((sequence <= last) as u32);
    // SAFETY: the sequence read exists.
    let Rows { first, len } =
        unsafe { varlen::rows_k(&p.lengths, &p.shape, smaller(sequence, last)) };
    Rows {
        first,
        len: len * exists,
    }
}

/// Blocks of keys of some sequences, so many from one to the next.
#[inline(always)]
unsafe fn blocks_of_several(p: &ForwardParams, first: u32, apart: u32) -> [u32; AT_ONCE as usize] {
    // SAFETY: the caller's contract.
    [0, 1, 2, 3]
        .map(|i| unsafe { rows_of(p, first + i * apart) })
        .map(blocks_of)
}

/// Blocks of keys of a sequence.
#[inline(always)]
fn blocks_of(rows: Rows) -> u32 {
    rows.len.div_ceil(KEYS)
}

/// The number of splits of at most this many blocks: at least one.
#[inline(always)]
fn splits(blocks: u32, most: u32) -> u32 {
    let most = greater(most, 1);
    greater(divide(blocks.saturating_add(most - 1), most), 1)
}

#[inline(always)]
fn greater(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn smaller(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

/// The sum over the lanes up to the lane's own.
#[inline(always)]
unsafe fn sum_up_to(x: u32) -> u32 {
    let lane = special::lane_idx();
    let mut sum = x;
    for distance in [1, 2, 4, 8, 16] {
        // SAFETY: all lanes of the warp come here.
        let before = unsafe { shuffle::shuffle_idx_u32(sum, lane.wrapping_sub(distance) % 32) };
        sum += if lane >= distance { before } else { 0 };
    }
    sum
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
