//! What `standard` moves: its kernels one by one, as `kernels-gpu/src/kernels/standard` has them.

use ferroflash::Pass;
use ferroflash::plan::COLUMN_MULTIPLE;

use super::sizes::{F32_BYTES, Sizes};
use super::{Counts, Gpu, Launch};

/// Rows and columns of a block of a product.
const BLOCK: u64 = ferroflash_kernels::config::product().block_q as u64;
/// What a product's inner dimension comes in.
const DEPTH: u64 = ferroflash_kernels::config::PRODUCT_DEPTH as u64;
/// Warps that an SM holds, each with a row of the softmax: compute capability 8.0 and 9.0.
const WARPS: u64 = 64;

/// A product of `rows` × `columns` over `depth`, of every query head.
struct Product {
    rows: u64,
    columns: u64,
    depth: u64,
}

impl Product {
    /// Whole blocks are multiplied.
    fn flops(&self, sizes: &Sizes) -> u64 {
        let (rows, columns) = (self.rows, self.columns);
        2 * sizes.heads_q
            * sizes.products
            * rows.next_multiple_of(BLOCK)
            * columns.next_multiple_of(BLOCK)
            * self.depth.next_multiple_of(DEPTH)
    }

    /// Bytes of both operands as blocks read them: rows once for each block of columns, and the other way round.
    fn operands(&self, sizes: &Sizes) -> u64 {
        let (rows, columns) = (self.rows, self.columns);
        let of_left = columns.div_ceil(BLOCK) * rows;
        let of_right = rows.div_ceil(BLOCK) * columns;
        sizes.heads_q * (of_left + of_right) * self.depth * sizes.element
    }
}

/// The pass, whose scores and weights take this many bytes.
struct Standard<'a> {
    sizes: &'a Sizes,
    /// Bytes of S, f32, and of dP over it.
    s: u64,
    /// Bytes of P, in the problem's type, and of dS over it.
    p: u64,
    /// How often the softmax reads S from memory: twice, unless the L2 cache keeps the rows of all warps.
    softmax_reads: u64,
}

/// The kernels of a pass, with the bytes of its workspace.
pub(super) fn counts(sizes: &Sizes, pass: Pass, gpu: &Gpu) -> Counts {
    let columns = sizes.seqlen_k.next_multiple_of(COLUMN_MULTIPLE);
    let scores = sizes.heads_q * sizes.seqlen_q * columns;
    let rows_at_work = u64::from(gpu.n_sms) * WARPS * columns * F32_BYTES;
    let standard = Standard {
        sizes,
        s: scores * F32_BYTES,
        p: sizes.weights(),
        softmax_reads: match gpu.l2_bytes {
            Some(l2_bytes) if rows_at_work > l2_bytes => 2,
            _ => 1,
        },
    };
    let (s, p) = (standard.s, standard.p);
    match pass {
        Pass::Backward => Counts {
            launches: standard.backward(),
            extra_bytes: s + p + 2 * sizes.row_values(),
            tiles: None,
        },
        _ => Counts {
            launches: vec![standard.scores(), standard.softmax(), standard.output()],
            extra_bytes: s + p,
            tiles: None,
        },
    }
}

impl Standard<'_> {
    /// S = Q Kᵀ.
    fn scores(&self) -> Launch {
        let sizes = self.sizes;
        self.over_columns("scores", sizes.head_dim, sizes.q() + sizes.k(), self.s)
    }

    /// A product whose inner dimension is head_dim or head_dim_v: its result is as large as S.
    fn over_columns(&self, name: &'static str, depth: u64, tensors: u64, result: u64) -> Launch {
        let sizes = self.sizes;
        let product = Product {
            rows: sizes.seqlen_q,
            columns: sizes.seqlen_k,
            depth,
        };
        Launch {
            name,
            flops: product.flops(sizes),
            exponentials: 0,
            hbm_bytes: tensors + result,
            l2_bytes: product.operands(sizes) + result,
        }
    }

    /// P = softmax(S): a pass for maximum and sum, one for the weights; an exponential for each score in both.
    fn softmax(&self) -> Launch {
        let written = self.p + self.sizes.row_values();
        Launch {
            name: "softmax",
            flops: 0,
            exponentials: 2 * (self.s / F32_BYTES),
            hbm_bytes: self.softmax_reads * self.s + written,
            l2_bytes: 2 * self.s + written,
        }
    }

    /// O = P V.
    fn output(&self) -> Launch {
        let sizes = self.sizes;
        self.of_queries("output", sizes.head_dim_v, sizes.v(), sizes.o())
    }

    /// P or dS times a tensor of keys: as many rows as q.
    fn of_queries(&self, name: &'static str, columns: u64, tensor: u64, result: u64) -> Launch {
        let product = Product {
            rows: self.sizes.seqlen_q,
            columns,
            depth: self.sizes.seqlen_k,
        };
        self.with_weights(name, product, tensor, result)
    }

    /// The transpose of P or dS times a tensor of queries: as many rows as k, summed over the group.
    fn of_keys(&self, name: &'static str, columns: u64, tensor: u64, result: u64) -> Launch {
        let product = Product {
            rows: self.sizes.seqlen_k,
            columns,
            depth: self.sizes.seqlen_q,
        };
        self.with_weights(name, product, tensor, result)
    }

    fn with_weights(
        &self,
        name: &'static str,
        product: Product,
        tensor: u64,
        result: u64,
    ) -> Launch {
        let sizes = self.sizes;
        Launch {
            name,
            flops: product.flops(sizes),
            exponentials: 0,
            hbm_bytes: self.p + tensor + result,
            l2_bytes: product.operands(sizes) + result,
        }
    }

    /// S and P once more, then Δ, dV, dP over S, dS over P, dQ and dK.
    fn backward(&self) -> Vec<Launch> {
        let sizes = self.sizes;
        let (q, k, v, o) = (sizes.q(), sizes.k(), sizes.v(), sizes.o());
        vec![
            self.scores(),
            self.softmax(),
            Launch::of_rows("delta", 2 * o + sizes.row_values()),
            self.of_keys("d_v", sizes.head_dim_v, o, v),
            self.over_columns("d_weights", sizes.head_dim_v, o + v, self.s),
            // Reads dP, P and Δ, writes dS.
            Launch::of_rows("d_scores", self.s + 2 * self.p + sizes.row_values()),
            self.of_queries("d_q", sizes.head_dim, k, q),
            self.of_keys("d_k", sizes.head_dim, q, k),
        ]
    }
}
