//! Which pages each sequence has: handed out, shared, copied before they are written to, and given back.

use super::bug::Bug;
use crate::cases::serving::ServingCase;

/// The pages of a pool and who has them.
#[derive(Clone, Debug)]
pub struct Allocator {
    page_size: usize,
    bug: Bug,
    free: Vec<usize>,
    n_users: Vec<usize>,
    sequences: Vec<Option<Held>>,
}

/// What a sequence has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its pages.
    pub pages: Vec<usize>,
    /// Its rows.
    pub len: usize,
}

/// The first rows of a page, to be copied to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub from: usize,
    pub to: usize,
    pub n_rows: usize,
}

impl Allocator {
    pub fn new(case: &ServingCase, bug: Bug) -> Allocator {
        Allocator {
            page_size: case.page_size,
            bug,
            free: (0..case.n_pages).collect(),
            n_users: vec![0; case.n_pages],
            sequences: vec![None; case.n_slots],
        }
    }

    /// The sequence of a slot.
    pub fn sequence(&self, slot: usize) -> Option<&Held> {
        self.sequences[slot].as_ref()
    }

    /// Slots with a sequence, and slots without.
    pub fn slots(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.sequences.len()).partition(|&slot| self.sequences[slot].is_some())
    }

    /// Rows of the sequence of a slot.
    pub fn len(&self, slot: usize) -> usize {
        self.sequence(slot).map_or(0, |held| held.len)
    }

    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Whether the last page of a sequence has room, and others have the page.
    fn shares_an_open_page(&self, held: &Held) -> bool {
        let is_open = !held.len.is_multiple_of(self.page_size);
        is_open
            && held
                .pages
                .last()
                .is_some_and(|&page| self.n_users[page] > 1)
    }

    /// How many free pages it takes to give a sequence so many new rows.
    pub fn n_needed(&self, slot: usize, n_rows: usize) -> usize {
        let Some(held) = self.sequence(slot).filter(|_| n_rows > 0) else {
            return 0;
        };
        let more = (held.len + n_rows).div_ceil(self.page_size) - held.pages.len();
        more + usize::from(self.shares_an_open_page(held))
    }

    pub fn admit(&mut self, slot: usize) {
        self.sequences[slot] = Some(Held::default());
    }

    /// A slot takes the first rows of a sequence, in the same pages.
    pub fn fork(&mut self, from: usize, slot: usize, len: usize) {
        let mut held = self.sequences[from].clone().unwrap_or_default();
        held.pages.truncate(len.div_ceil(self.page_size));
        held.len = len;
        let counted = match self.bug {
            Bug::Uncounted => held.pages.len().saturating_sub(1),
            _ => held.pages.len(),
        };
        for &page in &held.pages[..counted] {
            self.n_users[page] += 1;
        }
        self.sequences[slot] = Some(held);
    }

    /// Makes room for new rows; a page that others have is to be copied first. An error says what there is not.
    pub fn grow(&mut self, slot: usize, n_rows: usize) -> Result<Option<Copy>, String> {
        let mut held = self.sequences[slot].take().ok_or("no sequence grows")?;
        let mut copy = None;
        if n_rows > 0 && self.shares_an_open_page(&held) && self.bug != Bug::NoCopy {
            let (last, to) = (held.pages.len() - 1, self.take()?);
            let from = std::mem::replace(&mut held.pages[last], to);
            self.n_users[from] -= 1;
            let n_rows = held.len - last * self.page_size;
            copy = Some(Copy {
                from,
                to,
                n_rows: n_rows - usize::from(self.bug == Bug::ShortCopy),
            });
        }
        held.len += n_rows;
        while held.pages.len() * self.page_size < held.len {
            held.pages.push(self.take()?);
        }
        self.sequences[slot] = Some(held);
        Ok(copy)
    }

    fn take(&mut self) -> Result<usize, String> {
        let page = self.free.pop().ok_or("no page is free")?;
        self.n_users[page] = 1;
        Ok(page)
    }

    /// A sequence keeps its first rows only.
    pub fn cut(&mut self, slot: usize, len: usize) {
        let Some(mut held) = self.sequences[slot].take() else {
            return;
        };
        for page in held.pages.drain(len.div_ceil(self.page_size)..) {
            self.n_users[page] = self.n_users[page].saturating_sub(1);
            if self.n_users[page] == 0 {
                self.free.push(page);
            }
        }
        held.len = len;
        self.sequences[slot] = Some(held);
    }

    /// A sequence ends.
    pub fn finish(&mut self, slot: usize) {
        let kept = usize::from(self.bug == Bug::Leak).min(self.len(slot));
        self.cut(slot, kept);
        self.sequences[slot] = None;
    }

    /// Whether each row of the pool is some sequence's.
    pub fn owned(&self) -> Vec<bool> {
        let mut owned = vec![false; self.n_users.len() * self.page_size];
        for held in self.sequences.iter().flatten() {
            for row in 0..held.len {
                let page = held.pages[row / self.page_size];
                owned[page * self.page_size + row % self.page_size] = true;
            }
        }
        owned
    }

    /// Every page is free, once, or some sequence's, and counted as often as it has users.
    pub fn check(&self) -> Result<(), String> {
        let (mut n_free, mut n_users) = (vec![0; self.n_users.len()], vec![0; self.n_users.len()]);
        self.free.iter().for_each(|&page| n_free[page] += 1);
        for held in self.sequences.iter().flatten() {
            if held.pages.len() != held.len.div_ceil(self.page_size) {
                return Err(format!("{held:?} has not as many pages as it needs"));
            }
            held.pages.iter().for_each(|&page| n_users[page] += 1);
        }
        for (page, (free, users)) in n_free.into_iter().zip(n_users).enumerate() {
            let counted = self.n_users[page];
            match (free, users) {
                (0, 0) => return Err(format!("page {page} is lost")),
                (0, _) | (1, 0) if counted == users => {}
                (0, _) | (1, 0) => {
                    return Err(format!(
                        "page {page} has {users} users, and {counted} are counted"
                    ));
                }
                _ => {
                    return Err(format!(
                        "page {page} is free {free} times, and has {users} users"
                    ));
                }
            }
        }
        Ok(())
    }
}
