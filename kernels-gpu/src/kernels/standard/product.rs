//! The matrix product of six kernels: a block computes 128 × 128 of `C = Σ A · B`, summed over the product's
//! inner dimension (the *depth*) and over the heads of a group.
//!
//! ```text
//! for each head of the group, for each 64 bytes of the depth:  three stages of A and B in shared memory
//!     wait for this stage's copies;  begin those of the stage after the next
//!     C ← C + A B                                              eight warps, 64 × 32 of C each
//! ```
//!
//! Operands need not fill their tiles: elements beyond a matrix's rows or columns are 0.

use crate::attention::divide;
use crate::config::{self, HALF_BYTES};
use crate::ptx::{barrier, cp_async, global, spec, special};
use crate::tile::copy::{self, Team};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::global::GlobalMatrix;
use crate::tile::matmul::{
    LeftOperand, PositivePart, RightOperand, Stored, Transposed, left, left_transposed, right,
    right_transposed,
};
use crate::tile::products::Products;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;

/// Rows and columns of a block's part of the result.
const BLOCK: u32 = config::product().block_q;
/// Threads of a block.
const THREADS: u32 = config::product().threads;
/// Bytes of a row along the depth in a stage.
const DEPTH_BYTES: u32 = config::PRODUCT_DEPTH * HALF_BYTES;
const STAGES: u32 = config::PRODUCT_STAGES;
/// Bytes of one operand in a stage.
const OPERAND_BYTES: u32 = BLOCK * DEPTH_BYTES;

/// Rows of the result of a warp; two warps below each other.
const WARP_ROWS: u32 = 64;
/// Columns of a warp's part of the result; four warps are next to each other.
const WARP_COLS: u32 = 32;

const _: () = assert!(config::product().block_k == BLOCK);
const _: () = assert!(BLOCK / WARP_ROWS * (BLOCK / WARP_COLS) * 32 == THREADS);
const _: () = assert!(STAGES * 2 * OPERAND_BYTES <= config::product().shared_bytes);
const _: () = assert!(BLOCK * BLOCK * 2 <= config::product().shared_bytes);

/// A warp's part of the result.
pub type Product = RegisterTile<{ WARP_ROWS as usize / 16 }, { WARP_COLS as usize / 8 }>;

/// A stage's part of the depth.
const fn depth_of_stage<E: Products>() -> u32 {
    DEPTH_BYTES / E::BYTES
}

/// How an operand's rows of elements `E` run in memory: along the depth, or across it.
pub trait Layout<E: Products> {
    /// Rows of the operand in a stage.
    const ROWS: u32;
    /// The operand's tile, as fragments of a left operand are read from it.
    type Left: LeftOperand;
    /// As those of a right operand.
    type Right: RightOperand;

    /// Row and 16-byte chunk of the matrix where the stage at this depth begins, for the block's part from `first` on.
    fn corner(first: u32, depth: u32) -> (u32, u32);

    /// As left operand, from row `first` of the block's part on.
    fn left(tile: SharedTile, first: u32) -> Self::Left;

    /// As right operand, from column `first` of the block's part on.
    fn right(tile: SharedTile, first: u32) -> Self::Right;
}

/// `A[m][k]` lies in row `m`; `B[k][n]` in row `n`.
pub struct AlongDepth;

/// `A[m][k]`, or `B[k][n]`, lies in row `k`: of elements that `ldmatrix` can transpose.
pub struct AcrossDepth;

/// A layout whose elements below 0 count as 0, as left operand: P without the weights that are dropped.
pub struct Positive<L>(core::marker::PhantomData<L>);

impl<E: Products> Layout<E> for AlongDepth {
    const ROWS: u32 = BLOCK;
    type Left = Stored;
    type Right = Stored;

    #[inline(always)]
    fn corner(first: u32, depth: u32) -> (u32, u32) {
        (first, depth / E::PER_CHUNK)
    }

    #[inline(always)]
    fn left(tile: SharedTile, first: u32) -> Stored {
        left(tile, first)
    }

    #[inline(always)]
    fn right(tile: SharedTile, first: u32) -> Stored {
        right_transposed(tile, first)
    }
}

impl<E: Element> Layout<E> for AcrossDepth {
    const ROWS: u32 = depth_of_stage::<E>();
    type Left = Transposed;
    type Right = Transposed;

    #[inline(always)]
    fn corner(first: u32, depth: u32) -> (u32, u32) {
        (depth, first / 8)
    }

    #[inline(always)]
    fn left(tile: SharedTile, first: u32) -> Transposed {
        left_transposed(tile, first / 16)
    }

    #[inline(always)]
    fn right(tile: SharedTile, first: u32) -> Transposed {
        right(tile, first / 16)
    }
}

impl<E: Element, L: Layout<E>> Layout<E> for Positive<L> {
    const ROWS: u32 = L::ROWS;
    type Left = PositivePart<L::Left>;
    type Right = L::Right;

    #[inline(always)]
    fn corner(first: u32, depth: u32) -> (u32, u32) {
        L::corner(first, depth)
    }

    #[inline(always)]
    fn left(tile: SharedTile, first: u32) -> Self::Left {
        PositivePart(L::left(tile, first))
    }

    #[inline(always)]
    fn right(tile: SharedTile, first: u32) -> L::Right {
        L::right(tile, first)
    }
}

/// One operand: a matrix for each head that is summed over.
#[derive(Clone, Copy)]
pub struct Operand {
    /// That of the first head.
    pub matrix: GlobalMatrix,
    /// Bytes from one head's matrix to the next one's; may be negative, as a stride may.
    pub head_bytes: u64,
}

impl Operand {
    /// The operand of a single head.
    #[inline(always)]
    pub fn single(matrix: GlobalMatrix) -> Self {
        Operand {
            matrix,
            head_bytes: 0,
        }
    }
}

/// Which part of which result a block computes.
#[derive(Clone, Copy)]
pub struct Part {
    /// Which head, counted through the batch.
    pub head: u32,
    /// The block's first row.
    pub row: u32,
    /// The block's first column.
    pub col: u32,
    thread: u32,
}

impl Part {
    /// This block's: parts of a row of the result follow each other, so that they find its operand in the L2 cache.
    #[inline(always)]
    pub fn of_block(rows: u32, cols: u32) -> Self {
        let (down, across) = (rows.div_ceil(BLOCK), cols.div_ceil(BLOCK));
        let idx = special::block_idx_x();
        let strip = divide(idx, across);
        let head = divide(strip, down);
        Part {
            head,
            row: (strip - head * down) * BLOCK,
            col: (idx - strip * across) * BLOCK,
            thread: special::thread_idx_x(),
        }
    }

    /// Whether nothing of it lies in a sequence's result of these rows and columns. Without lengths of its own a sequence has some of
    /// every part.
    #[inline(always)]
    pub fn is_outside(self, rows: u32, cols: u32) -> bool {
        spec::lengths() && (self.row >= rows || self.col >= cols)
    }

    /// The warp's first row in the block's part.
    #[inline(always)]
    fn warp_row(self) -> u32 {
        self.thread / 32 / (BLOCK / WARP_COLS) * WARP_ROWS
    }

    /// The warp's first column in the block's part.
    #[inline(always)]
    fn warp_col(self) -> u32 {
        self.thread / 32 % (BLOCK / WARP_COLS) * WARP_COLS
    }

    /// First row and column of the warp's part.
    #[inline(always)]
    pub fn of_warp(self) -> (u32, u32) {
        (self.row + self.warp_row(), self.col + self.warp_col())
    }

    /// Row and column of the thread's first value.
    #[inline(always)]
    pub fn of_thread(self) -> (u32, u32) {
        let place = fragment::accumulator(special::lane_idx(), 0);
        let (row, col) = self.of_warp();
        (row + place.row, col + place.col)
    }

    #[inline(always)]
    fn team(self) -> Team {
        Team {
            thread: self.thread,
            threads: THREADS,
        }
    }
}

/// The place among heads and depth of the next copy.
struct Position {
    left: Operand,
    right: Operand,
    depth: u32,
    /// Its place among the stages.
    stage: u32,
}

/// The block's part of `Σ A · B` over `depth` and over `heads`, but for those stages of the depth that `skip` names by where they begin:
/// what lies there is not even multiplied by 0.
///
/// # Safety
/// The launch is as [`config::product`] says. The operands' matrices lie in memory, their rows 16-byte aligned; all
/// threads call with the same arguments. Where something is skipped there is one head.
#[inline(always)]
pub unsafe fn product<E: Products, A: Layout<E>, B: Layout<E>>(
    part: Part,
    left: Operand,
    right: Operand,
    depth: u32,
    heads: u32,
    skip: impl Fn(u32) -> bool,
) -> Product {
    let mut c = Product::zero();
    let steps = depth.div_ceil(depth_of_stage::<E>()) * heads;
    let mut next = Position {
        left,
        right,
        depth: 0,
        stage: 0,
    };
    let mut stage = 0;
    // SAFETY: the barrier stands between the arrival of a stage in all threads and its use, and between its last use,
    // a step earlier, and its refill.
    unsafe {
        for i in 0..STAGES - 1 {
            if i < steps {
                load::<E, A, B>(part, &mut next, depth);
            }
            cp_async::cp_async_commit_group();
        }
        let mut i = 0;
        while i < steps {
            cp_async::cp_async_wait_group::<{ STAGES - 2 }>();
            barrier::barrier_sync_all();
            if i + STAGES - 1 < steps {
                load::<E, A, B>(part, &mut next, depth);
            }
            cp_async::cp_async_commit_group();
            if !skip(i * depth_of_stage::<E>()) {
                let (a, b) = tiles::<E, A, B>(stage);
                let (a, b) = (A::left(a, part.warp_row()), B::right(b, part.warp_col()));
                E::gemm_ss(&mut c, a, b, depth_of_stage::<E>());
            }
            stage = next_stage(stage);
            i += 1;
        }
        cp_async::cp_async_wait_group::<0>();
    }
    c
}

/// Begins the copies of the next stage.
#[inline(always)]
unsafe fn load<E: Products, A: Layout<E>, B: Layout<E>>(
    part: Part,
    next: &mut Position,
    depth: u32,
) {
    let (a, b) = tiles::<E, A, B>(next.stage);
    let (a_row, a_chunk) = A::corner(part.row, next.depth);
    let (b_row, b_chunk) = B::corner(part.col, next.depth);
    // SAFETY: the caller knows that nobody reads this stage.
    unsafe {
        copy::load_part(a, next.left.matrix, a_row, a_chunk, A::ROWS, part.team());
        copy::load_part(b, next.right.matrix, b_row, b_chunk, B::ROWS, part.team());
    }
    next.stage = next_stage(next.stage);
    next.depth += depth_of_stage::<E>();
    if next.depth >= depth {
        next.depth = 0;
        for operand in [&mut next.left, &mut next.right] {
            let base = &mut operand.matrix.rows.base;
            *base = base.wrapping_add(operand.head_bytes);
        }
    }
}

/// The tiles of A and B in a stage.
#[inline(always)]
fn tiles<E: Products, A: Layout<E>, B: Layout<E>>(stage: u32) -> (SharedTile, SharedTile) {
    let base = special::shared_base() + stage * 2 * OPERAND_BYTES;
    let a = SharedTile {
        base,
        row_bytes: OPERAND_BYTES / A::ROWS,
    };
    let b = SharedTile {
        base: base + OPERAND_BYTES,
        row_bytes: OPERAND_BYTES / B::ROWS,
    };
    (a, b)
}

#[inline(always)]
fn next_stage(stage: u32) -> u32 {
    if stage + 1 == STAGES { 0 } else { stage + 1 }
}

/// Writes the block's part of a result, rounded to `E`.
///
/// # Safety
/// As [`product`], which came before; `target` lies in memory and no other block writes this part.
#[inline(always)]
pub unsafe fn store<E: Element>(part: Part, target: GlobalMatrix, c: &Product) {
    let tile = SharedTile {
        base: special::shared_base(),
        row_bytes: BLOCK * 2,
    };
    // SAFETY: the first barrier stands behind the stages' last use, the second between writing and reading the tile.
    unsafe {
        barrier::barrier_sync_all();
        copy::store_shared::<E, _>(tile, part.warp_row(), part.warp_col(), c);
        barrier::barrier_sync_all();
        copy::store_part(target, part.row, part.col / 8, tile, BLOCK, part.team());
    }
}

/// Writes `value` of row, column and element for the block's part of a result `f32 [rows, row_bytes / 4]`, whose
/// width is a multiple of 8.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_f32(
    part: Part,
    base: u64,
    rows: u32,
    row_bytes: u64,
    c: &Product,
    value: impl Fn(u32, u32, f32) -> f32,
) {
    let (first_row, first_col) = part.of_thread();
    for m in 0..Product::M {
        for half in 0..2 {
            let row = first_row + m as u32 * 16 + half as u32 * 8;
            let address = base + u64::from(row) * row_bytes;
            for n in 0..Product::N {
                let col = first_col + n as u32 * 8;
                let x = c.fragment(m, n);
                let pair = [
                    value(row, col, x[2 * half]).to_bits(),
                    value(row, col + 1, x[2 * half + 1]).to_bits(),
                ];
                let col_bytes = u64::from(col) * 4;
                // SAFETY: the pair lies in the result, or nothing is written.
                unsafe {
                    let inside = row < rows && col_bytes < row_bytes;
                    global::st_global_x2_if(address + col_bytes, pair, inside);
                }
            }
        }
    }
}
