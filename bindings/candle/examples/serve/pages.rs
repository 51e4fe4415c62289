//! The page allocator: which pages of the pool are free.

/// Numbers of the pages of a pool. A page is one sequence's, or free.
pub struct Pages {
    page_size: usize,
    n_pages: usize,
    free: Vec<u32>,
    peak: usize,
}

impl Pages {
    /// All free.
    pub fn new(n_pages: usize, page_size: usize) -> Pages {
        Pages {
            page_size,
            n_pages,
            // The page freed last is taken first: its memory is warm.
            free: (0..n_pages as u32).rev().collect(),
            peak: 0,
        }
    }

    pub fn page_size(&self) -> usize {
        self.page_size
    }

    pub fn in_use(&self) -> usize {
        self.n_pages - self.free.len()
    }

    /// The most that were ever in use.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Gives a sequence the pages that it lacks for so many rows: all of them, or none, where not as many are free.
    pub fn grow(&mut self, held: &mut Vec<u32>, rows: usize) -> bool {
        let lacking = rows.div_ceil(self.page_size).saturating_sub(held.len());
        let Some(rest) = self.free.len().checked_sub(lacking) else {
            return false;
        };
        held.extend(self.free.drain(rest..).rev());
        self.peak = self.peak.max(self.in_use());
        true
    }

    /// Takes the pages of a sequence back.
    pub fn free(&mut self, held: &mut Vec<u32>) {
        self.free.append(held);
    }
}
