//! The bytes that `standard` moves: its kernels one by one, as in `kernels-gpu/src/kernels/standard`.

use ferroflash::Pass;
use ferroflash::plan::COLUMN_MULTIPLE;

use super::sizes::{F32_BYTES, Sizes};
use super::{Counts, Gpu, Launch};

/// Rows and columns of a block of a product.
const BLOCK: u64 = ferroflash_kernels::config::product().block_q as u64;
/// The step of a product's inner dimension.
const DEPTH: u64 = ferroflash_kernels::config::PRODUCT_DEPTH as u64;
/// Warps that an SM holds, each with a row of the softmax: compute capability 8.0 and 9.0.
const WARPS: u64 = 64;

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
    /// A product of `rows` × `columns` over `depth`, of every query head. Bytes of memory are those of its operands and of
    /// its result, each once.
    fn product(
        &self,
        name: &'static str,
        [rows, columns, depth]: [u64; 3],
        operands: u64,
        result: u64,
    ) -> Launch {
        let sizes = self.sizes;
        // Blocks read rows once for each block of columns, and the other way round.
        let of_left = columns.div_ceil(BLOCK) * rows;
        let of_right = rows.div_ceil(BLOCK) * columns;
        Launch {
            name,
            // Whole blocks are multiplied.
            flops: 2
                * sizes.heads_q
                * sizes.products
                * rows.next_multiple_of(BLOCK)
                * columns.next_multiple_of(BLOCK)
                * depth.next_multiple_of(DEPTH),
            exponentials: 0,
            hbm_bytes: operands + result,
            l2_bytes: sizes.heads_q * (of_left + of_right) * depth * sizes.element + result,
        }
    }

    /// S = Q Kᵀ.
    fn scores(&self) -> Launch {
        let sizes = self.sizes;
        let shape = [sizes.seqlen_q, sizes.seqlen_k, sizes.head_dim];
        self.product("scores", shape, sizes.q() + sizes.k(), self.s)
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
        let shape = [sizes.seqlen_q, sizes.head_dim_v, sizes.seqlen_k];
        self.product("output", shape, self.p + sizes.v(), sizes.o())
    }

    /// S and P once more, then Δ, dV, dP over S, dS over P, dQ and dK; those of keys are summed over the group.
    fn backward(&self) -> Vec<Launch> {
        let (sizes, p) = (self.sizes, self.p);
        let (q, k, v, o) = (sizes.q(), sizes.k(), sizes.v(), sizes.o());
        let (n_q, n_k) = (sizes.seqlen_q, sizes.seqlen_k);
        let (d, d_v) = (sizes.head_dim, sizes.head_dim_v);
        vec![
            self.scores(),
            self.softmax(),
            Launch::of_rows("delta", 2 * o + sizes.row_values()),
            self.product("d_v", [n_k, d_v, n_q], p + o, v),
            self.product("d_weights", [n_q, n_k, d_v], o + v, self.s),
            // Reads dP, P and Δ, writes dS.
            Launch::of_rows("d_scores", self.s + 2 * p + sizes.row_values()),
            self.product("d_q", [n_q, d, n_k], p + k, q),
            self.product("d_k", [n_k, d, n_q], p + q, k),
        ]
    }
}
