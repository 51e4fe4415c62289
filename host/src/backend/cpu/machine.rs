//! The vector unit of this processor and the two matrix products that attention is made of.
//!
//! Tiles ([`Tile`]) are row-major; panels ([`Panel`]) hold one vector lane per row of attention's other side, so that
//! softmax statistics are vectors and nothing is ever reduced across lanes. With queries in the lanes, `S = K·Qᵀ` is
//! [`Machine::multiply_rows`] and `Oᵀ += Vᵀ·P` is [`Machine::add_columns`]; with keys in the lanes the same two give
//! the backward pass.
//!
//! Both keep a block of the result in registers and stream through the depth: per step one vector load for each vector
//! of lanes and one broadcast for each row. A library's product would pack the operands once more, for every tile of a few thousand elements, and
//! has an unsafe interface. Loops over vectors go by index: in a build of the profile `edit`
//! an iterator of an array is a call for each vector. Measured on one core of an AMD EPYC with AVX-512, 32 lanes,
//! tiles of 64 to 128 rows and columns: 250 to 270 GFLOP/s here, 200 to 225 with `gemm` 0.19.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::buffer::{Panel, Tile};

/// Rows of a result that one pass keeps in registers, with 32 vector registers; half as many with 16. Tiles and panels
/// are padded to a multiple of it.
pub(super) const ROW_STEP: usize = 8;

/// Vectors per row of a wide panel. With [`ROW_STEP`] rows this makes 16 accumulators (8 of 16 registers): enough
/// to hide the latency of fused multiply-add on two pipes.
const WIDE_VECTORS: usize = 2;

/// The vector unit of this processor, found once at run time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    arch: Arch,
    vector_lanes: usize,
}

impl Machine {
    /// The widest vector unit that the processor has.
    pub(super) fn detect() -> Machine {
        Machine::of(Arch::new())
    }

    /// This vector unit.
    pub(super) fn of(arch: Arch) -> Machine {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        Machine {
            arch,
            vector_lanes: arch.dispatch(Lanes),
        }
    }

    /// Every vector unit that this processor has, the one without vectors included.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Machine> {
        let mut machines = vec![Machine::of(Arch::Scalar), Machine::detect()];
        #[cfg(target_arch = "x86_64")]
        machines.extend(pulp::x86::V3::try_new().map(|v3| Machine::of(Arch::V3(v3))));
        machines
    }

    /// Lanes of a wide panel.
    pub(super) fn wide_lanes(&self) -> usize {
        self.vector_lanes * WIDE_VECTORS
    }

    /// Lanes of the panel that serves so many rows best: wide, or narrow where one vector holds them.
    pub(super) fn lanes_for(&self, n_rows: usize) -> usize {
        if n_rows <= self.vector_lanes {
            self.vector_lanes
        } else {
            self.wide_lanes()
        }
    }

    /// Runs a vectorised operation.
    pub(super) fn run<Op: WithSimd>(&self, op: Op) -> Op::Output {
        self.arch.dispatch(op)
    }

    /// `out[r][lane] = Σ_c tile[rows][r][c] · panel[c][lane]`.
    ///
    /// Rows of `out` up to the next multiple of [`ROW_STEP`] are overwritten with meaningless values.
    pub(super) fn multiply_rows(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        panel: &Panel,
        out: &mut Panel,
    ) {
        out.set_lanes(panel.lanes());
        self.run(MultiplyRows {
            tile: tile.rows_from(rows.start),
            stride: tile.stride(),
            n_rows: rows.len(),
            depth: tile.depth(),
            lanes: panel.lanes(),
            panel: panel.all(),
            out: out.all_mut(),
        });
    }

    /// `out[c][lane] = out[c][lane] · decay[lane] + Σ_r tile[rows][r][c] · weights[r][lane]`; no decay: 1.
    pub(super) fn add_columns(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        weights: &Panel,
        decay: Option<&[f32]>,
        out: &mut Panel,
    ) {
        let lanes = weights.lanes();
        self.run(AddColumns {
            tile: tile.rows_from(rows.start),
            stride: tile.stride(),
            weights: &weights.all()[..rows.len() * lanes],
            lanes,
            decay: decay.map(|decay| &decay[..lanes]),
            out: out.all_mut(),
        });
    }
}

/// Operands of [`Machine::multiply_rows`].
struct MultiplyRows<'a> {
    tile: &'a [f32],
    stride: usize,
    n_rows: usize,
    depth: usize,
    lanes: usize,
    panel: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for MultiplyRows<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.lanes == S::F32_LANES, S::REGISTER_COUNT >= 32) {
            (true, _) => self.sweep::<S, ROW_STEP, 1>(simd),
            (false, true) => self.sweep::<S, ROW_STEP, WIDE_VECTORS>(simd),
            (false, false) => self.sweep::<S, { ROW_STEP / 2 }, WIDE_VECTORS>(simd),
        }
    }
}

impl MultiplyRows<'_> {
    /// Goes down the tile, `ROWS` rows at a time.
    #[inline(always)]
    fn sweep<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) {
        let lanes = VECTORS * S::F32_LANES;
        let panel = &self.panel[..self.depth * lanes];
        let steps = self
            .tile
            .chunks_exact(ROWS * self.stride)
            .zip(self.out.chunks_exact_mut(ROWS * lanes));
        for (tile, out) in steps.take(self.n_rows.div_ceil(ROWS)) {
            let mut rows = [tile; ROWS];
            for (index, row) in rows.iter_mut().enumerate() {
                *row = &tile[index * self.stride..][..self.depth];
            }
            let mut acc = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
            for (c, b) in panel.chunks_exact(lanes).enumerate() {
                let b = vectors::<S, VECTORS>(b);
                for index in 0..ROWS {
                    let a = simd.splat_f32s(rows[index][c]);
                    multiply_add(simd, &mut acc[index], a, b);
                }
            }
            store::<S, ROWS, VECTORS>(&acc, out);
        }
    }
}

/// Operands of [`Machine::add_columns`].
struct AddColumns<'a> {
    tile: &'a [f32],
    stride: usize,
    weights: &'a [f32],
    lanes: usize,
    decay: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl WithSimd for AddColumns<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.lanes == S::F32_LANES, S::REGISTER_COUNT >= 32) {
            (true, _) => self.sweep::<S, ROW_STEP, 1>(simd),
            (false, true) => self.sweep::<S, ROW_STEP, WIDE_VECTORS>(simd),
            (false, false) => self.sweep::<S, { ROW_STEP / 2 }, WIDE_VECTORS>(simd),
        }
    }
}

impl AddColumns<'_> {
    /// Goes across the tile, `COLUMNS` columns at a time; column `c` of the tile makes row `c` of the result.
    #[inline(always)]
    fn sweep<S: Simd, const COLUMNS: usize, const VECTORS: usize>(self, simd: S) {
        let lanes = VECTORS * S::F32_LANES;
        let out = self
            .out
            .chunks_exact_mut(COLUMNS * lanes)
            .take(self.stride / COLUMNS);
        for (step, out) in out.enumerate() {
            let first = step * COLUMNS;
            let mut acc = [[simd.splat_f32s(0.0); VECTORS]; COLUMNS];
            for (acc, out) in acc.iter_mut().zip(out.chunks_exact(lanes)) {
                *acc = vectors::<S, VECTORS>(out);
            }
            if let Some(decay) = self.decay {
                let decay = vectors::<S, VECTORS>(decay);
                for acc in &mut acc {
                    for index in 0..VECTORS {
                        acc[index] = simd.mul_f32s(acc[index], decay[index]);
                    }
                }
            }
            let rows = self
                .tile
                .chunks_exact(self.stride)
                .zip(self.weights.chunks_exact(lanes));
            for (row, b) in rows {
                let b = vectors::<S, VECTORS>(b);
                let a = &row[first..][..COLUMNS];
                for index in 0..COLUMNS {
                    multiply_add(simd, &mut acc[index], simd.splat_f32s(a[index]), b);
                }
            }
            store::<S, COLUMNS, VECTORS>(&acc, out);
        }
    }
}

/// The first `VECTORS` vectors of a row of a panel.
#[inline(always)]
pub(super) fn vectors<S: Simd, const VECTORS: usize>(row: &[f32]) -> [S::f32s; VECTORS] {
    let (row, _) = S::as_simd_f32s(row);
    let Some(vectors) = row.first_chunk() else {
        unreachable!("a row of a panel has the vectors that its width says")
    };
    *vectors
}

/// `acc += a · b`, vector by vector.
#[inline(always)]
fn multiply_add<S: Simd, const VECTORS: usize>(
    simd: S,
    acc: &mut [S::f32s; VECTORS],
    a: S::f32s,
    b: [S::f32s; VECTORS],
) {
    for index in 0..VECTORS {
        acc[index] = simd.mul_add_e_f32s(a, b[index], acc[index]);
    }
}

/// Writes accumulators to consecutive rows of a panel.
#[inline(always)]
fn store<S: Simd, const ROWS: usize, const VECTORS: usize>(
    acc: &[[S::f32s; VECTORS]; ROWS],
    out: &mut [f32],
) {
    for (acc, out) in acc.iter().zip(out.chunks_exact_mut(VECTORS * S::F32_LANES)) {
        let (out, _) = S::as_mut_simd_f32s(out);
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = *acc;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small whole number, so that every sum is exact.
    fn value(row: usize, column: usize) -> f32 {
        ((row * 7 + column * 13) % 11) as f32 - 5.0
    }

    fn tile(n_rows: usize, depth: usize) -> Tile {
        let mut tile = Tile::new(n_rows, depth);
        for row in 0..n_rows {
            for (column, x) in tile.row_mut(row).iter_mut().enumerate() {
                *x = value(row, column);
            }
        }
        tile
    }

    fn panel(n_rows: usize, lanes: usize) -> Panel {
        let mut panel = Panel::new(n_rows, lanes);
        for row in 0..n_rows {
            for (lane, x) in panel.row_mut(row).iter_mut().enumerate() {
                *x = value(lane + 3, row + 1);
            }
        }
        panel
    }

    #[test]
    fn products_are_exact_on_whole_numbers() {
        for machine in Machine::all() {
            for lanes in [machine.vector_lanes, machine.wide_lanes()] {
                for (rows, depth) in [(0..1, 1), (0..8, 8), (3..20, 13), (5..37, 64)] {
                    let tile = tile(rows.end, depth);
                    let q = panel(depth, lanes);
                    let mut s = Panel::new(rows.len(), lanes);
                    machine.multiply_rows(&tile, rows.clone(), &q, &mut s);
                    for (r, row) in rows.clone().enumerate() {
                        for lane in 0..lanes {
                            let sum: f32 =
                                (0..depth).map(|c| tile.row(row)[c] * q.row(c)[lane]).sum();
                            assert_eq!(s.row(r)[lane], sum, "{machine:?} {rows:?} {depth} {lane}");
                        }
                    }
                    let weights = panel(rows.len(), lanes);
                    let decay: Vec<f32> = (0..lanes).map(|lane| lane as f32 * 0.5).collect();
                    for decay in [None, Some(&decay[..])] {
                        let mut o = panel(depth, lanes);
                        machine.add_columns(&tile, rows.clone(), &weights, decay, &mut o);
                        for (c, before) in (0..depth).map(|c| (c, panel(depth, lanes))) {
                            for lane in 0..lanes {
                                let terms = rows.clone().enumerate();
                                let sum: f32 = terms
                                    .map(|(r, row)| tile.row(row)[c] * weights.row(r)[lane])
                                    .sum();
                                let kept =
                                    before.row(c)[lane] * decay.map_or(1.0, |decay| decay[lane]);
                                assert_eq!(
                                    o.row(c)[lane],
                                    kept + sum,
                                    "{machine:?} {rows:?} {c} {lane}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
