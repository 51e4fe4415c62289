//! The tiles of sequences that have lengths of their own: listed on the device, as only the device knows the lengths.
//!
//! One plan, and one captured graph, serve all lengths up to the largest. So this kernel runs before the others of a pass:
//!
//! - its first block lists the tiles, those of the longest sequences first, so that the last tiles to run are short, and in the
//!   backward pass the query blocks in the sequences' order;
//! - the others make tensor maps for each sequence, and clear results of rows that no sequence has.
//!
//! A sequence's own tensor maps fence it: elements beyond its last row are read as 0 and never written, whichever sequence they belong to. The
//! other kernels then need no test for it.
//!
//! Lengths are data of the caller's. Each sequence's are cut to what the tensors have (`attention/lengths.rs`). Where packed sequences do not
//! follow one another, the list is empty and all rows are cleared, as if no sequence had any. So no row is of two sequences, which is what
//! kernels count on that wait for each other: those that merge splits find each row's tile, and every tile that they wait for is listed.

mod clear;
mod scan;

use clear::clear;
use scan::{Scratch, before, count, find, read_rows, sum, write_rows};

use super::{entry, rows_k, rows_q, write_listed};
use crate::attention::divide;
use crate::attention::lengths::ListedTile;
use crate::attention::mask::{Rows, Work};
use crate::attention::pages::rows_of_last;
use crate::attention::split_kv::{blocks_of_part, even_blocks, n_splits};
use crate::config;
use crate::kernels::bounds;
use crate::params::{TensorMap, TensorView, TileListParams};
use crate::ptx::{barrier, global, shared, special, tensor_map};
use crate::tile;

/// Threads of a block.
const THREADS: u32 = config::tile_list().threads;
/// Rows of a block that clears.
const ROWS: u32 = config::tile_list().block_q;
/// Rows of a warp of it: consecutive ones.
const WARP_ROWS: u32 = ROWS / (THREADS / 32);
/// Of as many sequences the rows lie in shared memory.
const KEPT: u32 = config::KEPT_SEQUENCES;
/// As many sequences are sorted; more are taken as they come.
const SORTED: u32 = config::SORTED_SEQUENCES;

/// The block's part: see the module's documentation.
///
/// # Safety
/// The launch is as the variant's tile config says, with a block for the list and one for every `ROWS` rows of q and, in the backward
/// pass, of k; tensors are as [`TileListParams`] says. `maps` is the address of the first tensor map.
#[inline(always)]
pub unsafe fn tile_list<const MAPS: bool>(p: &TileListParams, maps: u64) {
    let block_idx = special::block_idx_x();
    // SAFETY: the caller's contract.
    unsafe {
        let in_order = are_in_order(p);
        if block_idx == 0 {
            list(p, in_order);
            return;
        }
        if MAPS {
            make_maps(p, maps, block_idx - 1);
        }
        clear(p, block_idx - 1, in_order);
    }
}

/// Whether packed sequences follow one another: none ends before it begins. All threads of the block find it together.
#[inline(always)]
unsafe fn are_in_order(p: &TileListParams) -> bool {
    let (of_q, of_k) = (p.lengths.cu_seqlens_q, p.lengths.cu_seqlens_k);
    if of_q == 0 && of_k == 0 {
        return true;
    }
    let (mut rotated, mut at) = (0, special::thread_idx_x());
    // SAFETY: all threads of the block come here; the sequences exist.
    unsafe {
        while at < p.shape.batch {
            let is_turned = |vector| entry(vector, at, 0) > entry(vector, at + 1, 0);
            rotated += (is_turned(of_q) | is_turned(of_k)) as u32;
            at += THREADS;
        }
        let (_, all) = sum(rotated);
        all == 0
    }
}

/// A sequence's rows of q, and of k and v, by the caller's lengths: long code, so the block that lists keeps them ([`read_rows`]).
#[inline(always)]
unsafe fn rows(p: &TileListParams, sequence: u32) -> [Rows; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        [
            rows_q(&p.lengths, &p.shape, sequence),
            rows_k(&p.lengths, &p.shape, sequence),
        ]
    }
}

/// How many blocks of `len` rows there are.
#[inline(always)]
fn blocks(rows: Rows, len: u32) -> u32 {
    divide(rows.len + len - 1, len)
}

/// How many tiles a sequence has, every split of its keys counted. Without queries no key has a gradient but 0, which is written elsewhere.
#[inline(always)]
fn n_tiles(p: &TileListParams, split_keys: u32, [q, k]: [Rows; 2]) -> u32 {
    if !p.is_backward() {
        let splits = match split_keys {
            0 => 1,
            keys => n_splits(k.len, keys),
        };
        blocks(q, p.tile_rows) * splits
    } else if q.len == 0 {
        0
    } else {
        blocks(k, p.tile_rows)
    }
}

/// Lists the tiles, and the query blocks, of sequences that are in order.
#[inline(always)]
unsafe fn list(p: &TileListParams, in_order: bool) {
    // SAFETY: all threads of the block come here; the workspace is as the plan laid it out.
    unsafe {
        let mut sequence = special::thread_idx_x();
        while sequence < p.shape.batch {
            write_rows(p, sequence, rows(p, sequence));
            sequence += THREADS;
        }
        sort(p);
        let split_keys = split_keys(p);
        // What a thread has written, the others see behind the barrier.
        barrier::barrier_sync_all();
        let tiles = count(p, Scratch::Tiles, |at| {
            let sequence = Scratch::Order.read(p, at);
            n_tiles(p, split_keys, read_rows(p, sequence))
        });
        let q_blocks = if p.is_backward() {
            count(p, Scratch::QBlocks, |at| {
                blocks(read_rows(p, at)[0], p.block_q)
            })
        } else {
            0
        };
        barrier::barrier_sync_all();
        // Of sequences in order a plan has room for all.
        let room = tiles <= p.max_tiles && q_blocks <= p.max_q_blocks;
        let (tiles, q_blocks) = if in_order && room {
            (tiles, q_blocks)
        } else {
            (0, 0)
        };
        if special::thread_idx_x() == 0 {
            global::st_global_u32(p.list.tiles, tiles);
            global::st_global_u32(p.list.tiles + 4, split_keys);
            if p.is_backward() {
                global::st_global_u32(p.list.q_blocks, q_blocks);
            }
        }
        write_tiles(p, tiles);
        write_q_blocks(p, q_blocks);
    }
}

/// Keys of a split; 0 where keys are not divided. All threads of the block have the same.
#[inline(always)]
unsafe fn split_keys(p: &TileListParams) -> u32 {
    if p.split_parts == 0 {
        return p.split_keys;
    }
    let mut own = 0u32;
    let mut at = special::thread_idx_x();
    // SAFETY: all threads of the block come here; the sequences exist.
    unsafe {
        while at < p.shape.batch {
            let [q, k] = read_rows(p, at);
            own = own.saturating_add(blocks(q, p.tile_rows).saturating_mul(blocks(k, p.block_k)));
            at += THREADS;
        }
        let (_, all) = sum(own);
        let least = divide(p.split_keys, p.block_k);
        let part = blocks_of_part(all, p.split_heads, p.split_parts, least);
        let part = if p.whole_tiles == 1 && p.shape.batch <= SORTED {
            // The sum's barriers came behind the sort.
            let [_, k] = read_rows(p, Scratch::Order.read(p, 0));
            even_blocks(blocks(k, p.block_k), part)
        } else {
            part
        };
        part.saturating_mul(p.block_k)
    }
}

/// Sequences by the length of the other side, on which a tile's work depends, the longest first; equal ones as they come.
#[inline(always)]
unsafe fn sort(p: &TileListParams) {
    let (n, thread) = (p.shape.batch, special::thread_idx_x());
    let key = |at: u32| Scratch::Order.shared(at);
    // SAFETY: all threads of the block come here; shared memory has room for the keys.
    unsafe {
        if n > SORTED {
            let mut at = thread;
            while at < n {
                Scratch::Order.write(p, at, at);
                at += THREADS;
            }
            return;
        }
        let padded = n.next_power_of_two();
        let mut at = thread;
        while at < padded {
            let own = if at < n { sort_key(p, at) } else { 0 };
            shared::st_shared_u32(key(at), own);
            at += THREADS;
        }
        barrier::barrier_sync_all();
        // Bitonic sort, descending.
        let mut size = 2;
        while size <= padded {
            let mut distance = size / 2;
            while distance > 0 {
                let mut pair = thread;
                while pair < padded / 2 {
                    // The pair's number with a bit put in where `distance` has its own.
                    let below = pair & (distance - 1);
                    let low = 2 * pair - below;
                    let (a, b) = (key(low), key(low + distance));
                    let (x, y) = (shared::ld_shared_u32(a), shared::ld_shared_u32(b));
                    let descending = low & size == 0;
                    if (x < y) == descending {
                        shared::st_shared_u32(a, y);
                        shared::st_shared_u32(b, x);
                    }
                    pair += THREADS;
                }
                barrier::barrier_sync_all();
                distance /= 2;
            }
            size *= 2;
        }
        let mut at = thread;
        while at < n {
            let sequence = SORTED - 1 - (shared::ld_shared_u32(key(at)) & (SORTED - 1));
            Scratch::Order.write(p, at, sequence);
            at += THREADS;
        }
    }
}

/// A sequence's work and, below, its number such that of equal ones the first is greater.
#[inline(always)]
unsafe fn sort_key(p: &TileListParams, sequence: u32) -> u32 {
    // SAFETY: the caller's contract.
    let [q, k] = unsafe { read_rows(p, sequence) };
    let work = if p.is_backward() { q.len } else { k.len } / 16;
    let most = u32::MAX / SORTED;
    let work = if work < most { work } else { most };
    work * SORTED + (SORTED - 1 - sequence)
}

/// A block of a sequence.
#[inline(always)]
unsafe fn listed(p: &TileListParams, sequence: u32, block: u32) -> ListedTile {
    // SAFETY: the caller's contract.
    unsafe {
        let [q, k] = read_rows(p, sequence);
        ListedTile {
            block,
            sequence,
            seqlen_q: q.len,
            seqlen_k: k.len,
            q_first: q.first,
            k_first: k.first,
            q_blocks_before: if p.is_backward() {
                before(p, Scratch::QBlocks, sequence)
            } else {
                0
            },
            new_maps: 0,
        }
    }
}

/// Lists the tiles. Those of a sequence begin with the longest in the forward pass; in the backward pass they ascend, which is the
/// order in which they add to dQ.
#[inline(always)]
unsafe fn write_tiles(p: &TileListParams, n: u32) {
    let last_first = !p.is_backward() && bounds().work() == Work::Growing;
    let mut idx = special::thread_idx_x();
    while idx < n {
        // SAFETY: the list has room, and the scratch has been written.
        unsafe {
            let (at, before) = find(p, Scratch::Tiles, idx);
            let sequence = Scratch::Order.read(p, at);
            let block = if last_first {
                Scratch::Tiles.read(p, at) - 1 - idx
            } else {
                idx - before
            };
            write_listed(p.list.tiles, idx, listed(p, sequence, block));
        }
        idx += THREADS;
    }
}

/// Lists the query blocks, in the backward pass.
#[inline(always)]
unsafe fn write_q_blocks(p: &TileListParams, n: u32) {
    let mut idx = special::thread_idx_x();
    while idx < n {
        // SAFETY: as `write_tiles`.
        unsafe {
            let (sequence, before) = find(p, Scratch::QBlocks, idx);
            write_listed(p.list.q_blocks, idx, listed(p, sequence, idx - before));
        }
        idx += THREADS;
    }
}

/// Makes the tensor maps of each sequence: those of its tensors, from its first row on, and with its rows.
#[inline(always)]
unsafe fn make_maps(p: &TileListParams, maps: u64, block_idx: u32) {
    let size = const { size_of::<TensorMap>() as u64 };
    let all = p.shape.batch * p.n_maps;
    let mut idx = block_idx * THREADS + special::thread_idx_x();
    // SAFETY: the workspace has room for the maps; each is made by one thread.
    unsafe {
        while idx < all {
            let sequence = divide(idx, p.n_maps);
            let which = idx - sequence * p.n_maps;
            let [q, k] = rows(p, sequence);
            // q and o or dO: the maps 0 and 3.
            let of_q = which == 0 || which == 3;
            let rows = if of_q { q } else { k };
            let batch_idx = if of_q {
                p.list.batch_q(sequence)
            } else {
                p.list.batch_k(sequence)
            };
            let to = p.list.map_of_sequence(sequence, p.n_maps, which);
            tile::tensor_map::copy(maps + u64::from(which) * size, to);
            if p.page_size > 0 && !of_q {
                // Of the pool, with the rows of the sequence's last page.
                end_in_last_page(p, to, rows);
                idx += (special::grid_dim_x() - 1) * THREADS;
                continue;
            }
            let tensor = mapped(p, which);
            let first = i64::from(batch_idx) * tensor.batch_stride
                + i64::from(rows.first) * tensor.row_stride;
            // A map has a row at least, in memory that is there. That of a sequence without rows, whose first row may lie behind
            // the tensor, is used for rows of zeros only.
            let (first, n_rows) = if rows.len == 0 {
                (0, 1)
            } else {
                (first, rows.len)
            };
            tensor_map::replace_address(to, tensor.base.wrapping_add((first * 2) as u64));
            tensor_map::replace_rows(to, n_rows);
            tensor_map::fence_tensor_map_release();
            idx += (special::grid_dim_x() - 1) * THREADS;
        }
    }
}

/// Makes the copy at `to` of the map of a pool of pages one that ends behind the rows of a sequence's last page. Rows of a page are counted
/// from its first one, wherever the sequence begins.
#[inline(always)]
unsafe fn end_in_last_page(p: &TileListParams, to: u64, rows: Rows) {
    let n_rows = rows_of_last(rows.first + rows.len, p.page_size);
    // SAFETY: the caller's contract: the thread alone makes the map.
    unsafe {
        // A map has a row at least, in memory that is there; nobody uses that of a sequence without rows.
        tensor_map::replace_rows(to, if n_rows == 0 { 1 } else { n_rows });
        tensor_map::fence_tensor_map_release();
    }
}

/// The tensor of a map; not by an index that only the device knows, for which parameters would be copied to local memory.
#[inline(always)]
fn mapped(p: &TileListParams, which: u32) -> TensorView {
    let [q, k, v, o_or_d_o, d_k, d_v] = p.mapped;
    match which {
        0 => q,
        1 => k,
        2 => v,
        3 => o_or_d_o,
        4 => d_k,
        _ => d_v,
    }
}
