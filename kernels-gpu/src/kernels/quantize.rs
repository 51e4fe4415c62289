//! A tensor to 8 bits: `e4m3(x / descale)`, with scales of its own amax, or given ones.
//!
//! ```text
//! amax    ← max |x|                           of each tile, of each sequence and head of keys, or of the tensor
//! descale ← amax / 448                        or a power of 2 not below it
//! rounded ← e4m3(x · (1 / descale))
//! ```
//!
//! A block takes a tile: some rows of one sequence, of the heads that share a head of keys. A launch of [`amax`] leaves the greatest magnitude of each tile, and one
//! of [`quantize`] makes the maximum of them. With given scales it is the other way round: [`quantize`] leaves the greatest magnitudes on its way, and [`amax`] makes
//! the maximum of them. So a maximum does not depend on the order of blocks. A thread takes eight columns, and its neighbours the adjacent ones.
//!
//! A Hadamard transform (FlashAttention-3, section 3.3) happens on the way, in both launches: the lanes that have a row exchange its columns.

use crate::attention::divide;
use crate::attention::mask::Rows;
use crate::config;
use crate::kernels::varlen::packed_rows;
use crate::params::{QuantizeParams, TensorView};
use crate::ptx::barrier::barrier_sync_all;
use crate::ptx::convert::cvt_e4m3x4;
use crate::ptx::math::fma;
use crate::ptx::{global, shared, shuffle, special};
use crate::tile::products::Products;

const THREADS: u32 = config::quantize().threads;
const WARPS: u32 = THREADS / 32;
/// Rows of a tile.
const ROWS: u32 = config::quantize().block_q;
/// Columns that a thread takes at a time.
const COLUMNS: usize = 8;
/// Pieces of so many columns that a thread has on their way.
const IN_FLIGHT: usize = 4;

/// The greatest number of e4m3.
const E4M3_MAX: f32 = 448.0;
/// The least scale: the product of two is a number of f32.
const LEAST_DESCALE: f32 = f32::from_bits((127 - 60) << 23);
/// The bits of infinity: those of what is no finite number are not below them.
const INFINITY: u32 = 0x7f80_0000;

/// A block's tile.
struct Tile {
    sequence: u32,
    head_k: u32,
    /// Among those of its sequence.
    idx: u32,
    /// Of each sequence.
    n: u32,
    batch_idx: u32,
    /// Its first row in the tensor.
    first: u32,
    /// How many it has.
    len: u32,
}

impl Tile {
    /// # Safety
    /// As [`amax`].
    #[inline(always)]
    unsafe fn of_block(p: &QuantizeParams) -> Tile {
        let n = p.seqlen.div_ceil(ROWS).max(1);
        // The heads of a row are neighbours in memory.
        let rest = divide(special::block_idx_x(), p.heads_k);
        let head_k = special::block_idx_x() - rest * p.heads_k;
        let sequence = divide(rest, n);
        let idx = rest - sequence * n;
        let (batch_idx, sequence_rows) = if p.cu_seqlens == 0 || p.batch == 0 {
            let len = if p.batch == 0 { 0 } else { p.rows };
            (sequence, Rows { first: 0, len })
        } else {
            // SAFETY: the caller's contract: the sequence exists.
            (0, unsafe { packed_rows(p.cu_seqlens, p.rows, sequence) })
        };
        let before = idx * ROWS;
        Tile {
            sequence,
            head_k,
            idx,
            n,
            batch_idx,
            first: sequence_rows.first + before,
            len: sequence_rows.len.saturating_sub(before).min(ROWS),
        }
    }

    /// The place of its maximum.
    #[inline(always)]
    fn place(&self, p: &QuantizeParams) -> u32 {
        (self.sequence * p.heads_k + self.head_k) * self.n + self.idx
    }

    /// Calls `f` with every piece of the tile that is this thread's, all threads as often. A piece beyond the tile has the numbers of its last row.
    ///
    /// # Safety
    /// The tile has rows; tensors are as [`QuantizeParams`] says.
    #[inline(always)]
    unsafe fn each_piece<E: Products>(
        &self,
        p: &QuantizeParams,
        mut f: impl FnMut([f32; COLUMNS], Piece),
    ) {
        let per_row = p.head_dim / COLUMNS as u32;
        // Rows of a head that the block's threads take at once. Threads that are left have none.
        let at_once = divide(THREADS, per_row);
        let line = divide(special::thread_idx_x(), per_row);
        let chunk = special::thread_idx_x() - line * per_row;
        let first = if line < at_once { line } else { ROWS };
        let signs = signs(p, chunk);
        let mut head = 0;
        while head < p.group_size {
            let mut begun = 0;
            while begun < self.len {
                let piece = |i| Piece {
                    row: first + begun + i as u32 * at_once,
                    head: self.head_k * p.group_size + head,
                    chunk,
                };
                let mut x = [[0.0; COLUMNS]; IN_FLIGHT];
                for i in 0..IN_FLIGHT {
                    // SAFETY: the caller's contract: the row exists.
                    x[i] = unsafe { load::<E>(&p.x, self, piece(i)) };
                }
                for i in 0..IN_FLIGHT {
                    if p.hadamard > 0 {
                        // SAFETY: all threads come here as often.
                        unsafe { transform(p, signs, &mut x[i]) };
                    }
                    f(x[i], piece(i));
                }
                begun += IN_FLIGHT as u32 * at_once;
            }
            head += 1;
        }
    }
}

/// Eight columns of a row of a head.
#[derive(Clone, Copy)]
struct Piece {
    /// In the tile.
    row: u32,
    head: u32,
    /// Which eight columns.
    chunk: u32,
}

/// The greatest magnitude of a block's tile; with given scales, that of a scale's tiles.
///
/// # Safety
/// The launch is as [`config::quantize`] says, with a block for every `ROWS` rows, at least one, of every sequence and head of keys, and one where there is
/// none; tensors are as [`QuantizeParams`] says. With given scales there is a block for each of them, and the maxima of tiles have been written.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn amax<E: Products>(p: &QuantizeParams) {
    // SAFETY: this function's contract.
    unsafe {
        if p.descale != 0 {
            let scale = special::block_idx_x();
            let most = most_of_tiles(p, p.of_tiles, scale);
            let address = p.amax + u64::from(scale) * 4;
            global::st_global_u32_if(address, most, special::thread_idx_x() == 0);
            return;
        }
        let tile = Tile::of_block(p);
        let mut most = 0;
        if tile.len > 0 {
            tile.each_piece::<E>(p, |x, _| {
                most = most.max(most_of_piece(x));
            });
        }
        let most = most_of_block(most);
        let address = p.of_tiles + u64::from(tile.place(p)) * 4;
        global::st_global_u32_if(address, most, special::thread_idx_x() == 0);
    }
}

/// A block's tile, rounded; the scales and their amax by the first block of each scale. With given scales it leaves the greatest magnitude of the tile instead, if
/// amax is wanted.
///
/// # Safety
/// The launch is that of [`amax`] without given scales. If scales follow from amax, the maxima of all tiles have been written.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn quantize<E: Products>(p: &QuantizeParams) {
    // SAFETY: this function's contract.
    unsafe {
        let tile = Tile::of_block(p);
        let place = tile.place(p);
        let scale = divide(place, p.tiles_per_scale);
        let is_given = p.descale != 0;
        let amax = match is_given {
            true => 0,
            false => most_of_tiles(p, p.of_tiles, scale),
        };
        let at = u64::from(scale) * 4;
        let descale = match is_given {
            true => global::ld_global_f32(p.descale + at),
            false => descale_of(amax, p.power_of_2 == 1),
        };
        let is_first = place == scale * p.tiles_per_scale;
        let writes = is_first & (special::thread_idx_x() == 0);
        global::st_global_f32_if(p.descale_out + at, descale, writes & !is_given);
        global::st_global_u32_if(p.amax + at, amax, writes & !is_given & (p.amax != 0));
        // With a number of its own that is not finite, a scale has no meaning.
        let has_meaning = is_given | (amax < INFINITY);
        let factor = if has_meaning { 1.0 / descale } else { f32::NAN };
        let leaves_amax = is_given & (p.amax != 0);
        let mut most = 0;
        if tile.len > 0 {
            tile.each_piece::<E>(p, |x, piece| {
                if leaves_amax {
                    most = most.max(most_of_piece(x));
                }
                let code = |at: usize| cvt_e4m3x4([0, 1, 2, 3].map(|i| x[at + i] * factor));
                let address = address(&p.rounded, 1, &tile, piece);
                global::st_global_x2_if(address, [code(0), code(4)], piece.row < tile.len);
            });
        }
        if leaves_amax {
            let most = most_of_block(most);
            // A tile with a scale of its own has amax itself.
            let places = if p.of_tiles == 0 { p.amax } else { p.of_tiles };
            let address = places + u64::from(place) * 4;
            global::st_global_u32_if(address, most, special::thread_idx_x() == 0);
        }
    }
}

/// The scale of numbers up to so many bits of magnitude; 1 where all are 0 or one is not finite.
#[inline(always)]
fn descale_of(amax: u32, to_power_of_2: bool) -> f32 {
    if amax == 0 || amax >= INFINITY {
        return 1.0;
    }
    let descale = f32::from_bits(amax) / E4M3_MAX;
    let descale = if descale < LEAST_DESCALE {
        LEAST_DESCALE
    } else {
        descale
    };
    match to_power_of_2 {
        // A power of 2 has no mantissa.
        true => f32::from_bits((descale.to_bits() + 0x7f_ffff) & INFINITY),
        false => descale,
    }
}

/// The bits of |x|: of greater magnitudes they are greater, of infinity and NaN the greatest.
#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The greatest magnitude of a piece.
#[inline(always)]
fn most_of_piece(x: [f32; COLUMNS]) -> u32 {
    let mut most = 0;
    for i in 0..COLUMNS {
        most = most.max(magnitude(x[i]));
    }
    most
}

/// The maximum of a scale's tiles.
///
/// # Safety
/// All threads of the block come here; the maxima of tiles have been written.
#[inline(always)]
unsafe fn most_of_tiles(p: &QuantizeParams, of_tiles: u64, scale: u32) -> u32 {
    let n = p.tiles_per_scale;
    let first = of_tiles + u64::from(scale) * u64::from(n) * 4;
    let mut most = 0;
    let mut idx = special::thread_idx_x();
    // SAFETY: the caller's contract.
    unsafe {
        while idx < n {
            most = most.max(global::ld_global_u32(first + u64::from(idx) * 4));
            idx += THREADS;
        }
        most_of_block(most)
    }
}

/// The maximum over the block, in all its threads.
///
/// # Safety
/// All threads of the block come here, once in a launch for each: the block's shared memory holds a word for each warp.
#[inline(always)]
unsafe fn most_of_block(own: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        let of_warp = most_of_warp(own);
        let warp = special::thread_idx_x() / 32;
        if special::lane_idx() == 0 {
            shared::st_shared_u32(special::shared_base() + warp * 4, of_warp);
        }
        barrier_sync_all();
        let lane = special::lane_idx() % WARPS;
        most_of_warp(shared::ld_shared_u32(special::shared_base() + lane * 4))
    }
}

/// The maximum over the warp, in all its lanes.
///
/// # Safety
/// All lanes of the warp come here.
#[inline(always)]
unsafe fn most_of_warp(own: u32) -> u32 {
    let mut most = own;
    for mask in [16, 8, 4, 2, 1] {
        // SAFETY: the caller's contract.
        most = most.max(unsafe { shuffle::shuffle_bfly_u32(most, mask) });
    }
    most
}

/// A piece, or the one of the tile's last row.
///
/// # Safety
/// The tile has a row.
#[inline(always)]
unsafe fn load<E: Products>(x: &TensorView, tile: &Tile, piece: Piece) -> [f32; COLUMNS] {
    let address = address(x, E::BYTES, tile, piece);
    let per_chunk = E::PER_CHUNK as usize;
    let mut numbers = [0.0; COLUMNS];
    for n in 0..COLUMNS / per_chunk {
        // SAFETY: the caller's contract.
        let chunk = E::unpack_chunk(unsafe { global::ld_global_x4(address + n as u64 * 16) });
        for i in 0..per_chunk {
            numbers[n * per_chunk + i] = chunk[i];
        }
    }
    numbers
}

/// The address of a piece, or of the one of the tile's last row, in a tensor of elements of so many bytes.
#[inline(always)]
fn address(tensor: &TensorView, bytes: u32, tile: &Tile, piece: Piece) -> u64 {
    let row = tile.first + piece.row.min(tile.len - 1);
    let offset = i64::from(tile.batch_idx) * tensor.batch_stride
        + i64::from(row) * tensor.row_stride
        + i64::from(piece.head) * tensor.head_stride
        + i64::from(piece.chunk * COLUMNS as u32);
    tensor.base.wrapping_add_signed(offset * i64::from(bytes))
}

/// The Hadamard transform of the columns that neighbouring lanes have, of which a lane has eight; signs before it, the factor behind it.
///
/// # Safety
/// All lanes of the warp come here, with the pieces that follow each other.
#[inline(always)]
unsafe fn transform(p: &QuantizeParams, signs: u32, x: &mut [f32; COLUMNS]) {
    for i in 0..COLUMNS {
        x[i] = f32::from_bits(x[i].to_bits() ^ (signs >> i & 1) << 31);
    }
    butterfly::<1>(p, x);
    butterfly::<2>(p, x);
    butterfly::<4>(p, x);
    let mut half = COLUMNS as u32;
    while half < p.hadamard {
        let mask = half / COLUMNS as u32;
        // The lower one of two lanes has their sum, the upper one their difference.
        let own = if special::lane_idx() & mask == 0 {
            1.0
        } else {
            -1.0
        };
        for i in 0..COLUMNS {
            // SAFETY: the caller's contract.
            let other = unsafe { shuffle::shuffle_bfly_f32(x[i], mask) };
            x[i] = fma(x[i], own, other);
        }
        half *= 2;
    }
    for i in 0..COLUMNS {
        x[i] *= p.unit;
    }
}

/// Sums and differences of a lane's columns that are `HALF` apart, if the transform is as wide.
#[inline(always)]
fn butterfly<const HALF: usize>(p: &QuantizeParams, x: &mut [f32; COLUMNS]) {
    if HALF as u32 >= p.hadamard {
        return;
    }
    for i in 0..COLUMNS {
        if i & HALF == 0 {
            (x[i], x[i + HALF]) = (x[i] + x[i + HALF], x[i] - x[i + HALF]);
        }
    }
}

/// The signs of eight columns, the first in the lowest bit. Not by an index: parameters in an array would be copied to local memory.
#[inline(always)]
fn signs(p: &QuantizeParams, chunk: u32) -> u32 {
    let mut word = 0;
    for i in 0..4 {
        if chunk / 8 == i as u32 {
            word = p.signs[i];
        }
    }
    (word >> (chunk % 8 * 8)) as u32 & 0xff
}
