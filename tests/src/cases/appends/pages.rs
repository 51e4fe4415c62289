//! Caches in pages: where each row lies.

use ferroflash::Pages;
use ferroflash::problem::append::AppendBuilder;
use rand::Rng;
use rand::seq::SliceRandom;

use super::AppendCase;

impl AppendCase {
    /// Pages that hold any sequence of the cache.
    fn columns(&self, page_size: usize) -> usize {
        self.seqlen_cache.div_ceil(page_size)
    }

    /// Pages of the pool: two are nobody's.
    pub(super) fn n_pages(&self, page_size: usize) -> usize {
        self.batch * self.columns(page_size) + 2
    }

    /// The problem with the case's pages.
    pub(super) fn in_pages(&self, builder: AppendBuilder) -> AppendBuilder {
        match self.page_size {
            Some(page_size) => builder.pages(Pages::new(self.n_pages(page_size), page_size)),
            None => builder,
        }
    }

    /// Where the pages of each sequence are.
    fn pages(&self, page_size: usize) -> Vec<i32> {
        let mut pages: Vec<i32> = (0..self.n_pages(page_size) as i32).collect();
        pages.shuffle(&mut self.rng(7));
        pages.truncate(self.batch * self.columns(page_size));
        pages
    }

    /// The page of a row of a sequence.
    pub(super) fn page_of(&self, page_size: usize, sequence: usize, row: usize) -> usize {
        self.pages(page_size)[sequence * self.columns(page_size) + row / page_size] as usize
    }

    /// The table that a call is given: of pages to which nothing is appended it says what no page is.
    pub fn page_table(&self) -> Option<Vec<i32>> {
        let page_size = self.page_size?;
        let (mut table, columns) = (self.pages(page_size), self.columns(page_size));
        let mut rng = self.rng(8);
        for (sequence, own) in self.sequences().iter().enumerate() {
            for slot in 0..columns {
                let rows = slot * page_size..(slot + 1) * page_size;
                let is_used =
                    own.len > 0 && own.before < rows.end && rows.start < own.before + own.len;
                if !is_used {
                    let wrong = [i32::MIN, -1, self.n_pages(page_size) as i32, i32::MAX];
                    table[sequence * columns + slot] = wrong[rng.random_range(0..wrong.len())];
                }
            }
        }
        Some(table)
    }

    /// The pool of the rows of a cache `[batch, seqlen_cache, heads_k, head_dim]`, with NaN in all else; of a cache without pages, itself.
    pub fn pool(&self, cache: &[f64]) -> Vec<f64> {
        let Some(page_size) = self.page_size else {
            return cache.to_vec();
        };
        let elems = self.heads_k * self.head_dim;
        let mut pool = vec![f64::NAN; self.n_pages(page_size) * page_size * elems];
        for (from, to) in self.places(page_size).into_iter().enumerate() {
            pool[to * elems..][..elems].copy_from_slice(&cache[from * elems..][..elems]);
        }
        pool
    }

    /// The rows of a cache out of a pool; `None` where a row of nobody was written to.
    pub fn out_of_pool(&self, pool: &[f64]) -> Option<Vec<f64>> {
        let Some(page_size) = self.page_size else {
            return Some(pool.to_vec());
        };
        let elems = self.heads_k * self.head_dim;
        let mut is_owned = vec![false; self.n_pages(page_size) * page_size];
        let mut cache = Vec::new();
        for at in self.places(page_size) {
            is_owned[at] = true;
            cache.extend_from_slice(&pool[at * elems..][..elems]);
        }
        let rows = pool.chunks(elems.max(1)).zip(is_owned);
        let is_whole = rows
            .into_iter()
            .all(|(row, owned)| owned || row.iter().all(|x| x.is_nan()));
        is_whole.then_some(cache)
    }

    /// Where in the pool, counted in rows, each row of each sequence lies.
    fn places(&self, page_size: usize) -> Vec<usize> {
        let (pages, columns) = (self.pages(page_size), self.columns(page_size));
        let of = |sequence: usize, row: usize| {
            let page = pages[sequence * columns + row / page_size] as usize;
            page * page_size + row % page_size
        };
        let sequences = 0..self.batch;
        sequences
            .flat_map(|sequence| (0..self.seqlen_cache).map(move |row| (sequence, row)))
            .map(|(sequence, row)| of(sequence, row))
            .collect()
    }
}
