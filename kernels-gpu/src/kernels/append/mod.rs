//! Appends rows to a cache of keys and values, and turns rows of q and k by their positions (RoPE; Su et al. 2021).
//!
//! ```text
//! p          ← first of the sequence + i                      row i stands at position p
//! K_cache[p] ← turn(K_new[i], p),  V_cache[p] ← V_new[i]
//! Q_out[i]   ← turn(Q[i], p)
//! turn(x, p): y_1 = x_1 cos(p θ) − x_2 sin(p θ),  y_2 = x_1 sin(p θ) + x_2 cos(p θ)    of each pair
//! ```
//!
//! A cache in 8 bits keeps e4m3(x · (1 / descale)) of what it would keep, with the scale of the row's sequence or page and of its head. A row is turned in f32, and
//! rounded only then.
//!
//! The kernel does little but read and write memory. A *line* is a row of one head; lines of a row follow one another: its heads of q, of
//! k, of v. A lane takes 32 bytes of a line as two chunks, such that it has both elements of every pair that it turns. So it may
//! write where it has read: q may be rotated in place. Where elements i and i + n_pairs form pairs and n_pairs is no multiple of a chunk's elements, pairs lie across
//! chunks, and a lane goes through its line element by element.
//!
//! Without a cache, the same kernel turns a tensor alone: its rows are those of q. Products are rounded before they are added, as on
//! the CPU.

mod angles;
mod store;

use crate::attention::append::{Piece, len_after, n_pieces, piece, row_at};
use crate::attention::divide;
use crate::attention::pages::PageRow;
use crate::config;
use crate::kernels::varlen::{entry, packed_rows};
use crate::params::{AppendParams, HALVES, NewRows, Pages, TensorView};
use crate::ptx::{global, special};
use crate::tile::global::GlobalRows;
use crate::tile::products::Products;
use angles::Angles;
use store::{AsIs, Rounded, Store};

const THREADS: u32 = config::append().threads;
/// Lines of a block.
const LINES: u32 = config::append().block_q;

/// A block's lines, and the lengths of some sequences. `ROUNDS`: the cache is in 8 bits.
///
/// # Safety
/// The launch is as [`config::append`] says, with a block for every `LINES` lines and a thread for every sequence; tensors are as
/// [`AppendParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn append<E: Products, const ROUNDS: bool>(p: &AppendParams) {
    let (block_idx, thread) = (special::block_idx_x(), special::thread_idx_x());
    // SAFETY: this function's contract.
    unsafe { write_length(p, block_idx * THREADS + thread) };
    let n_lines = p.rows.n_rows * p.heads();
    let pieces = n_pieces(p.head_dim / E::PER_CHUNK);
    let first = block_idx * LINES;
    let mut idx = thread;
    while idx < LINES * pieces {
        let in_block = divide(idx, pieces);
        let line = first + in_block;
        if line < n_lines {
            // SAFETY: this function's contract: the line exists, and no other thread takes the piece.
            unsafe {
                if let Some(line) = Line::find::<E, ROUNDS>(p, line) {
                    let piece = idx - in_block * pieces;
                    match line.factor {
                        Some(factor) => line.write::<E, _>(p, piece, Rounded { factor }),
                        None => line.write::<E, _>(p, piece, AsIs),
                    }
                }
            }
        }
        idx += THREADS;
    }
}

/// The length of a sequence when its rows have been appended, if the caller wants it.
///
/// # Safety
/// The vectors have an entry for every sequence.
#[inline(always)]
unsafe fn write_length(p: &AppendParams, sequence: u32) {
    if p.seqused_out == 0 || sequence >= p.rows.batch {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let first = entry(p.rows.first, sequence, 0);
        let n_new = if p.rows.cu_seqlens == 0 {
            p.rows.seqlen
        } else {
            packed_rows(p.rows.cu_seqlens, p.rows.n_rows, sequence).len
        };
        let len = len_after(first, n_new, room(p));
        global::st_global_u32(p.seqused_out + u64::from(sequence) * 4, len);
    }
}

/// How many rows of the cache there may be: where k is rotated, only those at positions of the tables are written.
#[inline(always)]
fn room(p: &AppendParams) -> u32 {
    let (rows, positions) = (p.cache.seqlen, p.rotary.n_positions);
    if p.rotary.n_pairs > 0 && positions < rows {
        positions
    } else {
        rows
    }
}

/// A new row.
#[derive(Clone, Copy)]
struct NewRow {
    sequence: u32,
    /// Which one of its sequence.
    in_sequence: u32,
    /// At which position the sequence's first row stands.
    first: i32,
    /// Where it lies in tensors of new rows.
    batch_idx: u32,
    row: u32,
}

impl NewRow {
    /// The `idx`-th of all new rows; none if it is of no sequence.
    ///
    /// # Safety
    /// The vectors have an entry for every sequence.
    #[inline(always)]
    unsafe fn find(rows: &NewRows, idx: u32) -> Option<NewRow> {
        // SAFETY: the caller's contract.
        unsafe {
            if rows.cu_seqlens == 0 {
                let sequence = divide(idx, rows.seqlen);
                let row = idx - sequence * rows.seqlen;
                return Some(NewRow {
                    sequence,
                    in_sequence: row,
                    first: entry(rows.first, sequence, 0),
                    batch_idx: sequence,
                    row,
                });
            }
            let sequence = sequence_of(rows, idx);
            let own = packed_rows(rows.cu_seqlens, rows.n_rows, sequence);
            if idx < own.first || idx - own.first >= own.len {
                return None;
            }
            Some(NewRow {
                sequence,
                in_sequence: idx - own.first,
                first: entry(rows.first, sequence, 0),
                batch_idx: 0,
                row: idx,
            })
        }
    }
}

/// The last sequence that begins at a row or before it: of ascending beginnings, the one that has it if any has.
///
/// # Safety
/// As [`NewRow::find`], of packed rows.
#[inline(always)]
unsafe fn sequence_of(rows: &NewRows, row: u32) -> u32 {
    let (mut low, mut high) = (0, rows.batch);
    while low + 1 < high {
        let middle = (low + high) / 2;
        // SAFETY: the caller's contract.
        let begin = unsafe { entry(rows.cu_seqlens, middle, 0) };
        if begin <= row as i32 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Where a row of a sequence lies in a cache.
#[derive(Clone, Copy)]
struct Place {
    /// The page, or the sequence.
    batch_idx: u32,
    row: u32,
}

impl Place {
    /// The one place that knows where a sequence's rows lie. None where the pool does not have the page.
    ///
    /// # Safety
    /// A table of pages has an entry for every page of a sequence.
    #[inline(always)]
    unsafe fn find(pages: &Pages, sequence: u32, row: u32) -> Option<Place> {
        if pages.page_size == 0 {
            return Some(Place {
                batch_idx: sequence,
                row,
            });
        }
        let place = PageRow::of_row(row, pages.page_size);
        let idx = u64::from(sequence) * u64::from(pages.columns) + u64::from(place.slot);
        // SAFETY: the caller's contract.
        let page = unsafe { global::ld_global_u32(pages.table + idx * 4) };
        if page < pages.n_pages {
            Some(Place {
                batch_idx: page,
                row: place.row,
            })
        } else {
            None
        }
    }
}

/// The address of a row of a tensor whose elements have so many bytes.
#[inline(always)]
fn row_of(tensor: &TensorView, bytes: u32, batch_idx: u32, head_idx: u32, row: u32) -> u64 {
    GlobalRows::of_elements(tensor, batch_idx, head_idx, row + 1, bytes).chunk(row, 0)
}

/// A row of one head: where it is read, where and how it is written, and by which position it is rotated.
#[derive(Clone, Copy)]
struct Line {
    from: u64,
    to: u64,
    /// None: it is not rotated.
    position: Option<u32>,
    /// It is written in 8 bits, times this. None: as it is.
    factor: Option<f32>,
}

impl Line {
    /// The `idx`-th of all lines; none if it is not to be written.
    ///
    /// # Safety
    /// As [`append`].
    #[inline(always)]
    unsafe fn find<E: Products, const ROUNDS: bool>(p: &AppendParams, idx: u32) -> Option<Line> {
        let row = divide(idx, p.heads());
        let head = idx - row * p.heads();
        // SAFETY: the caller's contract.
        let new = unsafe { NewRow::find(&p.rows, row)? };
        if head < p.heads_q {
            let i = if p.rows.q_at_first == 1 {
                0
            } else {
                new.in_sequence
            };
            let position = row_at(new.first, i, p.rotary.n_positions)?;
            // Copies, not references: a choice of addresses would put the parameters into local memory.
            let from = if p.q.base == 0 { p.q_out } else { p.q };
            return Some(Line {
                from: row_of(&from, E::BYTES, new.batch_idx, head, new.row),
                to: row_of(&p.q_out, E::BYTES, new.batch_idx, head, new.row),
                position: Some(position),
                factor: None,
            });
        }
        let row = row_at(new.first, new.in_sequence, room(p))?;
        let of_k = head - p.heads_q < p.heads_k;
        let (head_idx, from, to, descale) = if of_k {
            (head - p.heads_q, p.k_new, p.cache.k, p.cache.k_descale)
        } else {
            let head_idx = head - p.heads_q - p.heads_k;
            (head_idx, p.v_new, p.cache.v, p.cache.v_descale)
        };
        // SAFETY: the caller's contract.
        let place = unsafe { Place::find(&p.cache.pages, new.sequence, row)? };
        let factor = if ROUNDS {
            let of_page = p.cache.scales_per_page == 1;
            let entry = if of_page {
                place.batch_idx
            } else {
                new.sequence
            };
            let idx = u64::from(entry) * u64::from(p.heads_k) + u64::from(head_idx);
            // SAFETY: the caller's contract: there is a scale for every page, or every sequence, and head.
            Some(1.0 / unsafe { global::ld_global_f32(descale + idx * 4) })
        } else {
            None
        };
        let bytes = if ROUNDS { 1 } else { E::BYTES };
        Some(Line {
            from: row_of(&from, E::BYTES, new.batch_idx, head_idx, new.row),
            to: row_of(&to, bytes, place.batch_idx, head_idx, place.row),
            position: if of_k && p.rotary.n_pairs > 0 {
                Some(row)
            } else {
                None
            },
            factor,
        })
    }

    /// Writes a piece.
    ///
    /// # Safety
    /// The line and the piece exist; no other thread uses this piece of what is written.
    #[inline(always)]
    unsafe fn write<E: Products, S: Store<E>>(self, p: &AppendParams, idx: u32, store: S) {
        let chunks = p.head_dim / E::PER_CHUNK;
        // SAFETY: the caller's contract.
        unsafe {
            let Some(position) = self.position else {
                let piece = piece(idx, chunks, 0);
                return self.each_chunk::<E, S>(store, piece, |_, x| store.copied(x));
            };
            let angles = Angles::new(&p.rotary, position);
            if p.rotary.pairs != HALVES {
                let piece = piece(idx, chunks, 0);
                return self.each_chunk::<E, S>(store, piece, |chunk, x| {
                    angles.turn_neighbours::<E, S>(store, chunk, x)
                });
            }
            if !p.rotary.n_pairs.is_multiple_of(E::PER_CHUNK) {
                return self.each_pair::<E, S>(store, angles, p.head_dim, idx);
            }
            match piece(idx, chunks, p.rotary.n_pairs / E::PER_CHUNK) {
                Piece::Pair(first, second) => {
                    let x = [self.load(first), self.load(second)];
                    let [a, b] = angles.turn_halves::<E, S>(store, first, x);
                    store.store(self.to, first, a);
                    store.store(self.to, second, b);
                }
                alone => self.each_chunk::<E, S>(store, alone, |_, x| store.copied(x)),
            }
        }
    }

    /// Writes the result of `f` for each chunk of a piece. Both are read before one is written: loads need not wait for each other.
    ///
    /// # Safety
    /// As [`Line::write`].
    #[inline(always)]
    unsafe fn each_chunk<E: Products, S: Store<E>>(
        self,
        store: S,
        piece: Piece,
        f: impl Fn(u32, [u32; 4]) -> S::Chunk,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            match piece {
                Piece::One(chunk) => store.store(self.to, chunk, f(chunk, self.load(chunk))),
                Piece::Two(first, second) | Piece::Pair(first, second) => {
                    let (a, b) = (self.load(first), self.load(second));
                    store.store(self.to, first, f(first, a));
                    store.store(self.to, second, f(second, b));
                }
            }
        }
    }

    /// Pairs that lie across chunks: the elements i and i + n_pairs of every i that is this thread's, and the elements behind all pairs.
    ///
    /// # Safety
    /// As [`Line::write`].
    #[inline(always)]
    unsafe fn each_pair<E: Products, S: Store<E>>(
        self,
        store: S,
        angles: Angles,
        head_dim: u32,
        idx: u32,
    ) {
        let (n_pairs, stride) = (angles.n_pairs, n_pieces(head_dim / E::PER_CHUNK));
        let element = |i: u32| self.from + u64::from(i) * u64::from(E::BYTES);
        let mut i = idx;
        // SAFETY: the caller's contract.
        unsafe {
            while i < head_dim - n_pairs {
                let second = i + n_pairs;
                let x_2 = E::load_bits(element(second));
                if i < n_pairs {
                    let x_1 = E::load_bits(element(i));
                    let [y_1, y_2] = angles.one(i).turn([x_1, x_2].map(E::of_bits));
                    store.store_number(self.to, i, y_1);
                    store.store_number(self.to, second, y_2);
                } else {
                    store.store_bits(self.to, second, x_2);
                }
                i += stride;
            }
        }
    }

    #[inline(always)]
    unsafe fn load(self, chunk: u32) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_x4(self.from + u64::from(chunk) * 16) }
    }
}
