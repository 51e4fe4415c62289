//! Working memory of one thread: row-major tiles and panels of vector lanes, in f32.

use std::ops::Range;

use super::machine::ROW_STEP;

/// Vectors are aligned to this: a cache line, and the widest vector.
const ALIGNMENT_BYTES: usize = 64;

/// Zeroed f32 memory that starts on a cache line.
#[derive(Debug)]
struct Aligned {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn zeroed(len: usize) -> Aligned {
        let slack = ALIGNMENT_BYTES / size_of::<f32>();
        let memory = vec![0.0; len + slack];
        #[cfg(test)]
        tests::TAKEN_BYTES
            .with(|taken| taken.set(taken.get() + (memory.len() * size_of::<f32>()) as u64));
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES).min(slack);
        Aligned { memory, start, len }
    }

    /// Bytes of this many elements.
    fn n_bytes(len: usize) -> u64 {
        (len * size_of::<f32>() + ALIGNMENT_BYTES) as u64
    }

    fn get(&self) -> &[f32] {
        &self.memory[self.start..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// Rows of a tensor as f32, row-major. Each row is padded with zeros to a multiple of [`ROW_STEP`] columns.
#[derive(Debug)]
pub(super) struct Tile {
    data: Aligned,
    depth: usize,
    stride: usize,
}

impl Tile {
    /// A tile for up to `n_rows` rows of `depth` columns.
    pub(super) fn new(n_rows: usize, depth: usize) -> Tile {
        Tile {
            data: Aligned::zeroed(Tile::n_elems(n_rows, depth)),
            depth,
            stride: depth.next_multiple_of(ROW_STEP),
        }
    }

    /// Bytes of such a tile.
    pub(super) fn n_bytes(n_rows: usize, depth: usize) -> u64 {
        Aligned::n_bytes(Tile::n_elems(n_rows, depth))
    }

    fn n_elems(n_rows: usize, depth: usize) -> usize {
        // A product may begin at any row and runs over up to ROW_STEP − 1 rows too many.
        (n_rows + ROW_STEP) * depth.next_multiple_of(ROW_STEP)
    }

    /// Columns that hold data.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Elements from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// One row, without its padding.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data.get()[row * self.stride..][..self.depth]
    }

    /// One row, without its padding.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data.get_mut()[row * self.stride..][..self.depth]
    }

    /// Everything from this row on, padding included.
    pub(super) fn rows_from(&self, row: usize) -> &[f32] {
        &self.data.get()[row * self.stride..]
    }
}

/// Rows of vector lanes: element `[row][lane]`. How many lanes a row has may change from use to use.
#[derive(Debug)]
pub(super) struct Panel {
    data: Aligned,
    lanes: usize,
}

impl Panel {
    /// A panel for up to `n_rows` rows of up to `lanes` lanes.
    pub(super) fn new(n_rows: usize, lanes: usize) -> Panel {
        Panel {
            data: Aligned::zeroed(Panel::n_elems(n_rows, lanes)),
            lanes,
        }
    }

    /// Bytes of such a panel.
    pub(super) fn n_bytes(n_rows: usize, lanes: usize) -> u64 {
        Aligned::n_bytes(Panel::n_elems(n_rows, lanes))
    }

    fn n_elems(n_rows: usize, lanes: usize) -> usize {
        n_rows.next_multiple_of(ROW_STEP) * lanes
    }

    /// Lanes of a row.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Changes the number of lanes of a row; what the panel holds becomes meaningless.
    pub(super) fn set_lanes(&mut self, lanes: usize) {
        self.lanes = lanes;
    }

    /// Every row, padding included.
    pub(super) fn all(&self) -> &[f32] {
        self.data.get()
    }

    /// Every row, padding included.
    pub(super) fn all_mut(&mut self) -> &mut [f32] {
        self.data.get_mut()
    }

    /// One row.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data.get()[row * self.lanes..][..self.lanes]
    }

    /// One row.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data.get_mut()[row * self.lanes..][..self.lanes]
    }

    /// Fills it with zeros and sets the number of lanes of a row.
    pub(super) fn clear(&mut self, lanes: usize) {
        self.lanes = lanes;
        self.data.get_mut().fill(0.0);
    }

    /// Puts row `rows.start + i` of the tile into lane `i` of `lanes`; other lanes are undefined.
    pub(super) fn transpose(&mut self, tile: &Tile, rows: Range<usize>, lanes: usize) {
        self.lanes = lanes;
        for (lane, row) in rows.enumerate() {
            for (column, &value) in self
                .data
                .get_mut()
                .chunks_exact_mut(lanes)
                .zip(tile.row(row))
            {
                column[lane] = value;
            }
        }
    }

    /// The values of one lane, row after row.
    pub(super) fn lane(&self, lane: usize) -> impl Iterator<Item = f32> {
        self.data
            .get()
            .chunks_exact(self.lanes)
            .map(move |row| row[lane])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Bytes that tiles and panels of this thread have taken so far.
        pub(in crate::backend::cpu) static TAKEN_BYTES: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn working_memory_is_aligned() {
        for len in [1, 7, 1000] {
            let memory = Aligned::zeroed(len);
            assert_eq!(memory.get().as_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert_eq!(memory.get().len(), len);
        }
    }

    #[test]
    fn transposing_puts_rows_into_lanes() {
        let mut tile = Tile::new(5, 3);
        for row in 0..5 {
            for (column, value) in tile.row_mut(row).iter_mut().enumerate() {
                *value = (10 * row + column) as f32;
            }
        }
        let mut panel = Panel::new(3, 4);
        panel.transpose(&tile, 2..5, 4);
        assert_eq!(panel.row(1)[..3], [21.0, 31.0, 41.0]);
        assert_eq!(
            panel.lane(2).take(3).collect::<Vec<_>>(),
            [40.0, 41.0, 42.0]
        );
    }
}
