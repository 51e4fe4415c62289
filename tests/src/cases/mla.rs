//! Values that are the first columns of the keys: decode of multi-head latent attention, and small problems of other sizes.

use ferroflash::error::ProblemError;
use ferroflash::{Dtype, Mask, Problem, SplitKv};

use super::pages::PagedCase;
use super::{Case, HALVES, MASKS, window};
use crate::buffer::ALIGNED;
use crate::inputs::{Fill, Values};
use crate::lengths::{Lengths, Rows};

/// A case whose values are in its keys, which lie in pages.
#[derive(Clone, Copy, Debug)]
pub struct MlaCase {
    /// The case, and its pages.
    pub paged: PagedCase,
    /// How the forward pass divides keys.
    pub split_kv: SplitKv,
}

/// Columns of keys and of values in DeepSeek-V2's and V3's absorbed form.
pub const COLUMNS: (usize, usize) = (576, 512);

/// Query heads over one KV head: all of DeepSeek-V3's, those of some GPUs of several, and a number that no tile divides.
const HEADS: [usize; 4] = [128, 64, 16, 20];

/// Rows of a page.
const PAGE_SIZES: [usize; 2] = [16, 64];

const SEQLENS_Q: [usize; 3] = [1, 2, 3];

/// Around blocks of 64 keys, and some of them.
const SEQLENS_K: [usize; 6] = [1, 63, 64, 65, 200, 500];

/// The same lengths and none, in one call.
const USED: Lengths = Lengths {
    n: 7,
    q: Rows::padded(1),
    k: Rows::padded(500).used(&[500, 1, 63, 64, 65, 0, 200]),
};

/// Two sequences, all of whose keys are used, of each length; the rest goes round.
pub fn all() -> Vec<MlaCase> {
    let mut cases = Vec::new();
    for (of_k, seqlen_k) in SEQLENS_K.into_iter().enumerate() {
        for (of_q, seqlen_q) in SEQLENS_Q.into_iter().enumerate() {
            let lengths = Lengths {
                n: 2,
                q: Rows::padded(seqlen_q),
                k: Rows::padded(seqlen_k),
            };
            cases.push(nth(of_k + 2 * of_q, lengths, SplitKv::Auto));
        }
    }
    cases
}

/// Sequences of different lengths.
pub fn lengths() -> Vec<MlaCase> {
    let of = |at: usize| nth(at, used(SEQLENS_Q[at % 3]), SplitKv::Auto);
    (0..6).map(of).collect()
}

/// Keys divided into splits of so many, and not at all.
pub fn splits() -> Vec<MlaCase> {
    let long = |seqlen_q: usize| Lengths {
        n: 2,
        q: Rows::padded(seqlen_q),
        k: Rows::padded(500),
    };
    let kinds = [SplitKv::Keys(64), SplitKv::Keys(192), SplitKv::Never];
    let cases = (0..8).map(|at| {
        let seqlen_q = SEQLENS_Q[at / 2 % 3];
        let lengths = match at % 2 {
            0 => used(seqlen_q),
            _ => long(seqlen_q),
        };
        nth(at, lengths, kinds[at % kinds.len()])
    });
    cases.collect()
}

/// Scores that rise and fall along many blocks of keys: a consumer's own block outgrows those before it, and so does the other's.
pub fn outgrown() -> Vec<MlaCase> {
    let fills = [Fill::Steps { keys: 64 }, Fill::Falling, Fill::Rising];
    let lengths = Lengths {
        n: 1,
        q: Rows::padded(1),
        k: Rows::padded(330),
    };
    let cases = fills.into_iter().enumerate().map(|(at, fill)| {
        let mut latent = nth(at, lengths, SplitKv::Never);
        latent.paged.case.fill = fill;
        latent.paged.case.sizes.heads_q = 16;
        latent
    });
    cases.collect()
}

/// Small problems of other sizes, with several KV heads, prompts and f32: what the CPU takes.
pub fn small() -> Vec<MlaCase> {
    let columns = [(64, 48), (64, 64), (40, 8), (7, 3), (129, 128), (24, 1)];
    let heads = [(16, 1), (4, 2), (3, 3), (20, 1)];
    let masks = [
        MASKS[0],
        MASKS[1],
        window(Some(30), Some(0)),
        Mask::PrefixLm { prefix: 70 },
    ];
    let rows = [
        used(3),
        Lengths {
            n: 3,
            q: Rows::packed(&[1, 40, 17]),
            k: Rows::padded(200).used(&[130, 40, 200]),
        },
    ];
    let cases = (0..12).map(|at| {
        let (head_dim, head_dim_v) = columns[at % columns.len()];
        let (heads_q, heads_k) = heads[at % heads.len()];
        let mut latent = nth(at, rows[at % rows.len()], SplitKv::Auto);
        let dtype = [Dtype::F32, HALVES[0], HALVES[1]][at % 3];
        latent.paged.case = Case {
            dtype,
            mask: masks[at / 2 % masks.len()],
            ..latent.paged.case
        }
        .columns(head_dim, head_dim_v)
        .heads(latent.paged.case.sizes.batch, heads_q, heads_k);
        latent.paged.page_size = [16, 64, 3][at / 2 % 3];
        latent
    });
    cases.collect()
}

const fn used(seqlen_q: usize) -> Lengths {
    Lengths {
        q: Rows::padded(seqlen_q),
        ..USED
    }
}

fn nth(round: usize, lengths: Lengths, split_kv: SplitKv) -> MlaCase {
    let (head_dim, head_dim_v) = COLUMNS;
    let mask = MASKS[round / 2 % MASKS.len()];
    let case = Case::new(HALVES[round % HALVES.len()], mask, head_dim, 0, 0)
        .columns(head_dim, head_dim_v)
        .heads(1, HEADS[round % HEADS.len()], 1);
    MlaCase {
        paged: PagedCase {
            case: Case {
                arrangement: ALIGNED[round / 2 % ALIGNED.len()],
                seed: round as u64,
                ..case.of_rows(lengths)
            },
            page_size: PAGE_SIZES[round / 3 % PAGE_SIZES.len()],
            more_columns: round % 3,
            prefix: 0,
        },
        split_kv,
    }
}

impl MlaCase {
    /// The problem, its keys in pages.
    pub fn problem_in_pages(&self) -> Result<Problem, ProblemError> {
        self.of(&self.paged.problem()?)
    }

    /// The problem, its keys side by side.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        self.of(&self.paged.case.problem()?)
    }

    fn of(&self, problem: &Problem) -> Result<Problem, ProblemError> {
        let problem = problem.to_builder().values_in_keys();
        problem.split_kv(self.split_kv).build()
    }

    /// Its numbers: values are the first columns of keys.
    pub fn values(&self) -> Values {
        let mut values = self.paged.values();
        let sizes = self.paged.case.sizes;
        let keys = values.k.chunks_exact(sizes.head_dim);
        let columns = keys.flat_map(|key| &key[..sizes.head_dim_v]);
        values.v = columns.copied().collect();
        values
    }
}
