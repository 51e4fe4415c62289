//! Tables of cosines and sines, at even and at odd places.

use ferroflash::rotary::{Rotary, Turns};

use super::RotaryCase;

/// Cosines and sines.
pub struct Tables {
    /// How rows are rotated by them.
    pub turns: Turns,
    /// Cosines.
    pub cos: Table,
    /// Sines.
    pub sin: Table,
}

impl Tables {
    /// Of so many positions, from an odd place on if they are to lie there.
    pub fn new(rotary: RotaryCase, n_positions: usize) -> Option<Tables> {
        let embedding = Rotary::new(rotary.rotary_dim).base(100.0);
        let table = embedding.table(n_positions).ok()?;
        Some(Tables {
            turns: table.turns(rotary.pairs),
            cos: Table::new(table.cos(), rotary.odd_tables),
            sin: Table::new(table.sin(), rotary.odd_tables),
        })
    }
}

/// A table in memory of its own.
pub struct Table {
    memory: Vec<f32>,
    first: usize,
}

impl Table {
    fn new(numbers: &[f32], odd: bool) -> Table {
        let mut memory = vec![f32::NAN; numbers.len() + 8];
        let first = memory.as_ptr().align_offset(16) + usize::from(odd);
        memory.truncate(first + numbers.len());
        memory[first..].copy_from_slice(numbers);
        Table { memory, first }
    }

    /// Its numbers.
    pub fn slice(&self) -> &[f32] {
        &self.memory[self.first..]
    }

    /// Those of a position.
    pub fn at(&self, position: usize, n_pairs: usize) -> Vec<f64> {
        let own = &self.slice()[position * n_pairs..][..n_pairs];
        own.iter().copied().map(f64::from).collect()
    }
}
