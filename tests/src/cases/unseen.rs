//! Calls whose lengths and tables of pages are any numbers, which nobody looks at before the kernels do: they lie in a device's memory.
//!
//! Numbers of each call are drawn anew: lengths that do not ascend, that overlap, that are negative or larger than anything. What they mean is
//! said here a second time ([`UnseenCase::tamed`]): the same rows as lengths that contradict nothing.

use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::{Algorithm, Dtype, Mask, Pages, Problem, SplitKv};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::MASKS;
use super::mla::COLUMNS;

/// Sequences of a call.
const BATCH: usize = 5;

/// Pages of a pool. All rows of page 0 are zeros, as are those of a page that there is not.
pub const N_PAGES: usize = 9;

/// A call, but for its numbers.
#[derive(Clone, Copy, Debug)]
pub struct UnseenCase {
    /// Of the forward pass, and of the backward pass if there is one.
    pub algorithm: Algorithm,
    /// Whether there is a backward pass.
    pub backward: bool,
    /// `(heads_q, heads_k)`.
    pub heads: (usize, usize),
    /// Columns.
    pub head_dim: usize,
    /// The longest sequences that there may be: of q, and of k.
    pub seqlens: [usize; 2],
    /// Rows of all sequences, where they are packed.
    pub packed: [Option<usize>; 2],
    /// Whether each sequence says how many rows of q, and of k, it uses.
    pub used: [bool; 2],
    /// Whether each sequence says where its keys begin.
    pub leftpad: bool,
    /// Rows of a page.
    pub page_size: Option<usize>,
    /// How keys are divided.
    pub split_kv: SplitKv,
    /// Mask.
    pub mask: Mask,
    /// Whether values are columns of the keys.
    pub latent: bool,
}

/// The numbers of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Of q, and of k.
    pub cu_seqlens: [Option<Vec<i32>>; 2],
    /// Of q, and of k.
    pub seqused: [Option<Vec<i32>>; 2],
    /// Of k.
    pub leftpad: Option<Vec<i32>>,
    /// Of k and v.
    pub page_table: Option<Vec<i32>>,
}

impl Numbers {
    /// Those that there are, by name.
    pub fn given(&self) -> impl Iterator<Item = (Argument, &Vec<i32>)> {
        let all = [
            (Argument::CuSeqlensQ, &self.cu_seqlens[0]),
            (Argument::CuSeqlensK, &self.cu_seqlens[1]),
            (Argument::SeqUsedQ, &self.seqused[0]),
            (Argument::SeqUsedK, &self.seqused[1]),
            (Argument::LeftpadK, &self.leftpad),
            (Argument::PageTable, &self.page_table),
        ];
        let given = all.into_iter();
        given.filter_map(|(argument, numbers)| Some((argument, numbers.as_ref()?)))
    }
}

/// What is wrong with the numbers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Every second sequence ends before it begins, so that the others overlap: of q, or of k.
    Overlap(usize),
    /// One entry of each `cu_seqlens`.
    OneEntry,
    /// All but the order of `cu_seqlens`.
    Ascending,
    /// Anything.
    Anything,
}

/// Of a run of draws, each comes up.
const WRONGS: [Wrong; 6] = [
    Wrong::Overlap(0),
    Wrong::Ascending,
    Wrong::Anything,
    Wrong::Overlap(1),
    Wrong::OneEntry,
    Wrong::Ascending,
];

impl UnseenCase {
    /// Padded, forward and backward.
    fn new(algorithm: Algorithm, heads: (usize, usize), seqlens: [usize; 2]) -> UnseenCase {
        UnseenCase {
            algorithm,
            backward: true,
            heads,
            head_dim: 64,
            seqlens,
            packed: [None; 2],
            used: [true; 2],
            leftpad: false,
            page_size: None,
            split_kv: SplitKv::Never,
            mask: Mask::Causal,
            latent: false,
        }
    }

    /// Packed on both sides: rows of all sequences are fewer than if each were of the longest.
    fn packed(self) -> UnseenCase {
        UnseenCase {
            packed: self.seqlens.map(|seqlen| Some(seqlen * (BATCH - 2) + 3)),
            used: [false; 2],
            ..self
        }
    }

    /// The forward pass alone, of few queries, with keys divided so.
    fn split(self, split_kv: impl Into<SplitKv>) -> UnseenCase {
        UnseenCase {
            split_kv: split_kv.into(),
            backward: false,
            ..self
        }
    }

    /// The same in pages of so many rows.
    fn pages(self, page_size: usize) -> UnseenCase {
        UnseenCase {
            packed: [self.packed[0], None],
            used: [self.used[0], true],
            page_size: Some(page_size),
            backward: false,
            ..self
        }
    }

    /// How many sequences there are.
    pub fn batch(&self) -> usize {
        BATCH
    }

    /// What the library is asked for.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let mut builder = Problem::builder(Dtype::Bf16)
            .batch(BATCH)
            .seqlen_q(self.seqlens[0])
            .seqlen_k(self.seqlens[1])
            .heads_q(self.heads.0)
            .heads_k(self.heads.1)
            .head_dim(self.head_dim)
            .mask(self.mask)
            .split_kv(self.split_kv);
        if let Some(total) = self.packed[0] {
            builder = builder.packed_q(total);
        }
        if let Some(total) = self.packed[1] {
            builder = builder.packed_k(total);
        }
        if let Some(page_size) = self.page_size {
            builder = builder.pages(Pages::new(N_PAGES, page_size));
        }
        if self.latent {
            builder = builder.head_dim_v(COLUMNS.1).values_in_keys();
        }
        builder.build()
    }

    /// Rows of a side: of a batch entry, or of all sequences.
    fn rows(&self, side: usize) -> usize {
        self.packed[side].unwrap_or(self.seqlens[side])
    }

    /// Numbers that are wrong in some way, by a seed.
    pub fn draw(&self, seed: u64) -> Numbers {
        let wrong = WRONGS[seed as usize % WRONGS.len()];
        let mut rng = StdRng::seed_from_u64(seed);
        let cu_seqlens = [0, 1].map(|side| {
            let total = self.packed[side]?;
            Some(cu_seqlens(&mut rng, wrong, side, total, self.seqlens[side]))
        });
        let seqused = [0, 1].map(|side| {
            let used = (0..BATCH).map(|_| some_number(&mut rng, self.seqlens[side]));
            self.used[side].then(|| used.collect())
        });
        let padding = (0..BATCH).map(|_| some_number(&mut rng, self.seqlens[1] / 4));
        let leftpad = self.leftpad.then(|| padding.collect());
        let page_table = self.page_size.map(|page_size| {
            let n = BATCH * self.seqlens[1].div_ceil(page_size);
            (0..n).map(|_| some_number(&mut rng, N_PAGES)).collect()
        });
        Numbers {
            cu_seqlens,
            seqused,
            leftpad,
            page_table,
        }
    }

    /// The same rows by numbers that contradict nothing; `None` where sequences do not follow one another.
    pub fn tamed(&self, numbers: &Numbers) -> Option<Numbers> {
        let ascends =
            |cu_seqlens: &Option<Vec<i32>>| cu_seqlens.iter().all(|entries| entries.is_sorted());
        if !numbers.cu_seqlens.iter().all(ascends) {
            return None;
        }
        let mut tamed = numbers.clone();
        for side in 0..2 {
            let rows = self.rows(side) as i32;
            let entries = tamed.cu_seqlens[side].as_mut();
            if let Some(entries) = entries {
                entries
                    .iter_mut()
                    .for_each(|entry| *entry = (*entry).clamp(0, rows));
            }
            let room = |sequence: usize| match &tamed.cu_seqlens[side] {
                Some(entries) => entries[sequence + 1] - entries[sequence],
                None => rows,
            };
            let most = |sequence: usize| room(sequence).min(self.seqlens[side] as i32);
            let used = |sequence: usize| match &numbers.seqused[side] {
                Some(used) => used[sequence].clamp(0, most(sequence)),
                None => most(sequence),
            };
            let used: Vec<i32> = (0..BATCH).map(used).collect();
            if let (1, Some(leftpad)) = (side, &mut tamed.leftpad) {
                for (padding, &used) in leftpad.iter_mut().zip(&used) {
                    *padding = (*padding).clamp(0, used);
                }
            }
            tamed.seqused[side] = Some(used);
        }
        for page in tamed.page_table.iter_mut().flatten() {
            if !(0..N_PAGES as i32).contains(page) {
                *page = 0;
            }
        }
        Some(tamed)
    }
}

/// Numbers that are small, at the edge of what there is, or absurd.
pub(crate) fn some_number(rng: &mut StdRng, most: usize) -> i32 {
    let most = most as i32;
    let edges = [0, 1, most - 1, most, most + 1];
    let absurd = [i32::MIN, i32::MIN + 1, -1, 1 << 20, i32::MAX - 1, i32::MAX];
    match rng.random_range(0..6) {
        0 => edges[rng.random_range(0..edges.len())],
        1 => absurd[rng.random_range(0..absurd.len())],
        _ => rng.random_range(0..=most),
    }
}

/// Where packed sequences begin and end, so many of so many rows: they follow one another, or they do not.
pub(crate) fn packed_ends(rng: &mut StdRng, seed: u64, n: usize, rows: usize) -> Vec<i32> {
    let mut ends: Vec<i32> = (0..=n).map(|_| some_number(rng, rows)).collect();
    if !seed.is_multiple_of(3) {
        ends.sort_unstable();
    }
    ends
}

/// Where packed sequences of at most so many rows begin and end.
fn cu_seqlens(
    rng: &mut StdRng,
    wrong: Wrong,
    side: usize,
    total: usize,
    seqlen: usize,
) -> Vec<i32> {
    let mut entries: Vec<i32> = (0..=BATCH)
        .map(|_| rng.random_range(0..=total as i32))
        .collect();
    entries.sort_unstable();
    match wrong {
        Wrong::Overlap(of) if of == side => {
            let first = rng.random_range(0..3);
            let end = first + seqlen as i32;
            (0..=BATCH as i32)
                .map(|at| if at % 2 == 0 { first } else { end - at % 3 })
                .collect()
        }
        Wrong::Overlap(_) => entries,
        Wrong::OneEntry => {
            let at = rng.random_range(0..=BATCH);
            entries[at] = some_number(rng, total);
            entries
        }
        Wrong::Ascending | Wrong::Anything => {
            entries
                .iter_mut()
                .for_each(|entry| *entry = some_number(rng, total));
            if wrong == Wrong::Ascending {
                entries.sort_unstable();
            }
            entries
        }
    }
}

/// Calls of flash3.
pub fn flash3() -> Vec<UnseenCase> {
    use Algorithm::Flash3;
    let few = UnseenCase::new(Flash3, (4, 2), [4, 300]);
    let many = UnseenCase::new(Flash3, (2, 1), [70, 150]);
    let latent = UnseenCase {
        head_dim: COLUMNS.0,
        latent: true,
        ..UnseenCase::new(Flash3, (16, 1), [2, 200])
    };
    vec![
        few.packed().split(64),
        few.packed().split(SplitKv::Auto),
        few.packed().split(64).pages(32),
        UnseenCase {
            leftpad: true,
            ..few.split(64).pages(16)
        },
        UnseenCase {
            mask: Mask::Full,
            ..many.packed()
        },
        UnseenCase {
            head_dim: 128,
            ..many.packed()
        },
        UnseenCase {
            leftpad: true,
            packed: [None; 2],
            ..many
        },
        latent.split(SplitKv::Auto).pages(16),
        latent.packed().split(64).pages(64),
        latent.packed().split(SplitKv::Never),
    ]
}

/// Calls of flash2.
pub fn flash2() -> Vec<UnseenCase> {
    use Algorithm::Flash2;
    let few = UnseenCase::new(Flash2, (4, 2), [3, 300]);
    let many = UnseenCase::new(Flash2, (2, 1), [70, 150]);
    let packed_k = UnseenCase {
        packed: [None, few.packed().packed[1]],
        ..few
    };
    vec![
        few.split(SplitKv::Auto),
        packed_k.split(64),
        UnseenCase {
            leftpad: true,
            ..few.split(SplitKv::Auto).pages(16)
        },
        few.split(64).pages(48),
        UnseenCase {
            mask: Mask::Full,
            ..many.packed()
        },
        UnseenCase {
            leftpad: true,
            used: [true; 2],
            ..many.packed()
        },
        UnseenCase {
            leftpad: true,
            ..many.split(SplitKv::Never).pages(16)
        },
    ]
}

/// Calls of `standard`.
pub fn standard() -> Vec<UnseenCase> {
    let few = UnseenCase::new(Algorithm::Standard, (2, 1), [30, 70]);
    let of = |mask| UnseenCase {
        mask,
        used: [true; 2],
        leftpad: true,
        ..few.packed()
    };
    MASKS
        .map(of)
        .into_iter()
        .chain([UnseenCase {
            leftpad: true,
            ..few
        }])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_wrong_numbers_comes_up_and_tamed_ones_contradict_nothing() {
        let all = [flash3(), flash2(), standard()].concat();
        let (mut n_tamed, mut n_wild) = (0, 0);
        for (case, seed) in all
            .iter()
            .flat_map(|case| (0..60).map(move |seed| (case, seed)))
        {
            case.problem().unwrap();
            let numbers = case.draw(seed);
            let Some(tamed) = case.tamed(&numbers) else {
                n_wild += 1;
                continue;
            };
            n_tamed += 1;
            assert_eq!(case.tamed(&tamed), Some(tamed.clone()), "{case:?}");
            for side in 0..2 {
                let used = tamed.seqused[side].as_ref().unwrap();
                assert!(
                    used.iter()
                        .all(|&n| (0..=case.seqlens[side] as i32).contains(&n))
                );
            }
        }
        assert!(n_tamed > 100 && n_wild > 100, "{n_tamed} {n_wild}");
    }
}
