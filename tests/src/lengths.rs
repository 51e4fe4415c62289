//! Sequences of different lengths: where each one's rows lie in the tensors of a case, said a second time.

use ferroflash::arguments::Argument;

/// The rows of one side's sequences: of q and o, or of k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Which rows each sequence may use.
    pub room: Room,
    /// How many of them each uses, from the first on; `None`: all.
    pub used: Option<&'static [usize]>,
    /// At which of them each begins; `None`: at the first. Of k and v alone.
    pub leftpad: Option<&'static [usize]>,
}

/// Where the rows of the sequences lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// In a batch entry each, of so many rows.
    Padded(usize),
    /// One behind the other.
    Packed {
        /// Rows in front of the first sequence.
        front: usize,
        /// Rows of each sequence.
        lens: &'static [usize],
        /// Rows behind the last.
        behind: usize,
    },
}

/// The lengths of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Number of sequences.
    pub n: usize,
    /// Of q and o.
    pub q: Rows,
    /// Of k and v.
    pub k: Rows,
}

impl Lengths {
    /// What says it to a call.
    pub fn vectors(&self) -> Vec<(Argument, Vec<i32>)> {
        let Lengths { q, k, .. } = self;
        let all = [
            (Argument::CuSeqlensQ, q.cu_seqlens()),
            (Argument::CuSeqlensK, k.cu_seqlens()),
            (Argument::SeqUsedQ, q.seqused()),
            (Argument::SeqUsedK, k.seqused()),
            (Argument::LeftpadK, k.leftpad_rows()),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(argument, vector)| Some((argument, vector?)))
            .collect()
    }
}

/// The rows of a sequence, counted through all batch entries of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub first: usize,
    /// How many.
    pub len: usize,
}

impl Rows {
    /// All rows of a padded tensor.
    pub const fn padded(seqlen: usize) -> Rows {
        Rows {
            room: Room::Padded(seqlen),
            used: None,
            leftpad: None,
        }
    }

    /// Packed without gaps.
    pub const fn packed(lens: &'static [usize]) -> Rows {
        Rows::packed_between(0, lens, 0)
    }

    /// Packed, with rows of no sequence on both sides.
    pub const fn packed_between(front: usize, lens: &'static [usize], behind: usize) -> Rows {
        Rows {
            room: Room::Packed {
                front,
                lens,
                behind,
            },
            used: None,
            leftpad: None,
        }
    }

    /// With so many rows of each sequence in use.
    pub const fn used(self, used: &'static [usize]) -> Rows {
        Rows {
            used: Some(used),
            ..self
        }
    }

    /// With each sequence beginning behind so many of its rows.
    pub const fn leftpad(self, leftpad: &'static [usize]) -> Rows {
        Rows {
            leftpad: Some(leftpad),
            ..self
        }
    }

    /// Rows of all batch entries of the tensor.
    pub fn total(&self, n: usize) -> usize {
        match self.room {
            Room::Padded(seqlen) => n * seqlen,
            Room::Packed {
                front,
                lens,
                behind,
            } => front + lens.iter().sum::<usize>() + behind,
        }
    }

    /// Rows of all sequences, where they are packed.
    pub fn packed_total(&self) -> Option<usize> {
        match self.room {
            Room::Padded(_) => None,
            Room::Packed { .. } => Some(self.total(0)),
        }
    }

    /// The most rows that a sequence may use.
    pub fn longest(&self) -> usize {
        match self.room {
            Room::Padded(seqlen) => seqlen,
            Room::Packed { lens, .. } => lens.iter().copied().max().unwrap_or(0),
        }
    }

    /// The rows that each sequence uses.
    pub fn spans(&self, n: usize) -> Vec<Span> {
        let room = |at: usize| match self.room {
            Room::Padded(seqlen) => Span {
                first: at * seqlen,
                len: seqlen,
            },
            Room::Packed { front, lens, .. } => Span {
                first: front + lens[..at].iter().sum::<usize>(),
                len: lens[at],
            },
        };
        let used = |at: usize| {
            let room = room(at);
            let used = self.used.map_or(room.len, |used| used[at]);
            let padding = self.leftpad.map_or(0, |leftpad| leftpad[at]);
            Span {
                first: room.first + padding,
                len: used - padding,
            }
        };
        (0..n).map(used).collect()
    }

    /// Where packed sequences begin, and where the last one ends.
    pub fn cu_seqlens(&self) -> Option<Vec<i32>> {
        let Room::Packed { front, lens, .. } = self.room else {
            return None;
        };
        let ends = (0..=lens.len()).map(|n| front + lens[..n].iter().sum::<usize>());
        Some(ends.map(|end| end as i32).collect())
    }

    /// How many rows each sequence uses, where that is said.
    pub fn seqused(&self) -> Option<Vec<i32>> {
        let used = self.used?;
        Some(used.iter().map(|&n| n as i32).collect())
    }

    /// At which of its rows each sequence begins, where that is said.
    pub fn leftpad_rows(&self) -> Option<Vec<i32>> {
        let leftpad = self.leftpad?;
        Some(leftpad.iter().map(|&n| n as i32).collect())
    }

    /// Whether each row of the tensor belongs to a sequence.
    pub fn owned(&self, n: usize) -> Vec<bool> {
        let mut owned = vec![false; self.total(n)];
        for Span { first, len } in self.spans(n) {
            owned[first..first + len].fill(true);
        }
        owned
    }
}
