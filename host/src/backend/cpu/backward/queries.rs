//! dQ = dS·K · scale: a task is a run of rows of one group, in the lanes, and goes through the keys.

use std::ops::Range;

use super::differentiate::{Statistics, differentiate};
use super::{BLOCK, Inputs, MAX_PANELS, RowStatistics, Scores};
use crate::backend::cpu::buffer::{Panel, Tile};
use crate::backend::cpu::dropout;
use crate::backend::cpu::edit::{Editor, Lanes, multiply_by_derivatives};
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::pool;
use crate::backend::cpu::rows::store_lanes;
use crate::backend::cpu::sequences::Sequences;
use crate::backend::cpu::sizes::{Location, Sizes};
use crate::dtype::Element;

/// A run of rows of one group.
struct Task<'a, 'o, 's, T> {
    at: Location<'s>,
    first_row: usize,
    d_q: &'o mut [&'a mut [T]],
}

/// Writes d_q.
pub(super) fn d_q<T: Element>(
    machine: Machine,
    sequences: &Sequences,
    inputs: &Inputs<T>,
    rows: &RowStatistics,
    d_q: &mut [&mut [T]],
) {
    let sizes = &sequences.longest;
    let n_panels = panels_per_task(machine, sizes, sequences.len());
    let rows_per_task = n_panels * machine.wide_lanes();
    let mut tasks: Vec<Task<T>> = Vec::new();
    for d_q in sequences.cut_q(d_q, |row| row.fill(T::default())) {
        let at = sequences.location(d_q.sequence_idx, d_q.group_idx);
        let runs = d_q.rows.chunks_mut(rows_per_task).enumerate();
        tasks.extend(runs.map(|(run, d_q)| Task {
            at,
            first_row: run * rows_per_task,
            d_q,
        }));
    }
    let workspace = || Workspace::new(machine, sizes, n_panels, sequences.editor());
    pool::each(&mut tasks, workspace, |workspace, task| {
        workspace.run(inputs, rows, task);
    });
}

fn panels_per_task(machine: Machine, sizes: &Sizes, n_sequences: usize) -> usize {
    let per_group = sizes.rows_per_group().div_ceil(machine.wide_lanes());
    Sizes::panels_per_task(n_sequences * sizes.heads_k * per_group, MAX_PANELS)
}

/// Bytes of one thread's working memory.
pub(super) fn bytes_per_thread(machine: Machine, sizes: &Sizes, n_sequences: usize) -> u64 {
    bytes_of_panels(machine, sizes, panels_per_task(machine, sizes, n_sequences))
}

/// The same with this many panels.
pub(super) fn bytes_of_panels(machine: Machine, sizes: &Sizes, n_panels: usize) -> u64 {
    let (depth, depth_v) = (sizes.head_dim, sizes.head_dim_v);
    let lanes = machine.wide_lanes();
    let block = BLOCK.max(lanes);
    let panel = 2 * Panel::n_bytes(depth, lanes)
        + Panel::n_bytes(depth_v, lanes)
        + 2 * Panel::n_bytes(1, lanes);
    Tile::n_bytes(block, depth)
        + Tile::n_bytes(block, depth_v)
        + Scores::n_bytes(sizes, block, lanes)
        + n_panels as u64 * panel
}

#[cfg(test)]
pub(super) fn make_workspace(machine: Machine, sizes: &Sizes, n_sequences: usize) {
    let n_panels = panels_per_task(machine, sizes, n_sequences);
    Workspace::new(machine, sizes, n_panels, None);
}

/// One thread's working memory.
pub(super) struct Workspace<'e> {
    machine: Machine,
    editor: Option<Editor<'e>>,
    k: Tile,
    v: Tile,
    scores: Scores,
    panels: Vec<QueryPanel>,
    row: Vec<f32>,
}

/// One panel of queries.
struct QueryPanel {
    first_row: usize,
    n_rows: usize,
    q: Panel,
    d_o: Panel,
    d_q: Panel,
    lse_log2: Panel,
    delta: Panel,
}

impl<'e> Workspace<'e> {
    pub(super) fn new(
        machine: Machine,
        sizes: &Sizes,
        n_panels: usize,
        editor: Option<Editor<'e>>,
    ) -> Workspace<'e> {
        let (depth, depth_v) = (sizes.head_dim, sizes.head_dim_v);
        let lanes = machine.wide_lanes();
        let block = BLOCK.max(lanes);
        let panel = || QueryPanel {
            first_row: 0,
            n_rows: 0,
            q: Panel::new(depth, lanes),
            d_o: Panel::new(depth_v, lanes),
            d_q: Panel::new(depth, lanes),
            lse_log2: Panel::new(1, lanes),
            delta: Panel::new(1, lanes),
        };
        Workspace {
            machine,
            editor,
            k: Tile::new(block, depth),
            v: Tile::new(block, depth_v),
            scores: Scores::new(sizes, block, lanes),
            panels: std::iter::repeat_with(panel).take(n_panels).collect(),
            row: Vec::with_capacity(depth),
        }
    }

    /// The most rows that it takes at a time.
    pub(super) fn most_rows(&self) -> usize {
        self.panels.len() * self.machine.wide_lanes()
    }

    fn run<T: Element>(&mut self, inputs: &Inputs<T>, rows: &RowStatistics, task: &mut Task<T>) {
        let at = task.at;
        let task_rows = task.first_row..task.first_row + task.d_q.len();
        self.each_step(
            inputs,
            rows,
            at,
            task_rows,
            |machine, k, panel, keys, scores| {
                // dQ ← dQ + Kᵀ dS
                machine.add_columns(k, 0..keys.len(), &scores.d_p, None, &mut panel.d_q);
            },
        );
        let per_panel = self.machine.wide_lanes();
        let scale = at.sequence.sizes.softmax_scale;
        let q = inputs
            .q
            .head_rows(at.sequence.q, at.head_k, at.sequence.sizes.group_size);
        for (panel, d_q) in self.panels.iter_mut().zip(task.d_q.chunks_mut(per_panel)) {
            let factor = |lane| scale * q.scale(panel.first_row + lane).unwrap_or(1.0);
            store_lanes(&panel.d_q, factor, &mut self.row, d_q);
        }
    }

    /// P and dS of some rows of a group and each run of keys that they see; queries are in the lanes, keys in the panels' rows.
    pub(super) fn visit<T: Element>(
        &mut self,
        inputs: &Inputs<T>,
        rows: &RowStatistics,
        at: Location,
        task_rows: Range<usize>,
        mut f: impl FnMut(Range<usize>, Range<usize>, (&Panel, &Panel)),
    ) {
        self.each_step(inputs, rows, at, task_rows, |_, _, panel, keys, scores| {
            f(panel.rows(), keys, (&scores.s, &scores.d_p));
        });
    }

    /// Calls `f` with each panel and run of keys that it sees, which are rows 0.. of the tile, when their P and dS are ready.
    fn each_step<T: Element>(
        &mut self,
        inputs: &Inputs<T>,
        rows: &RowStatistics,
        at: Location,
        task_rows: Range<usize>,
        mut f: impl FnMut(&Machine, &Tile, &mut QueryPanel, Range<usize>, &Scores),
    ) {
        let Location {
            sequence, head_k, ..
        } = at;
        let n_panels = task_rows.len().div_ceil(self.machine.wide_lanes());
        self.load_queries(inputs, rows, at, &task_rows);
        let keys = at.keys(&task_rows, BLOCK);
        for first_key in keys.clone().step_by(BLOCK) {
            let block = first_key..keys.end.min(first_key + BLOCK);
            if at.keys_of_step(&task_rows, &block).is_empty() {
                continue;
            }
            inputs
                .k
                .head_rows(sequence.k, head_k, 1)
                .load(block.clone(), &mut self.k);
            inputs
                .v
                .head_rows(sequence.k, head_k, 1)
                .load(block.clone(), &mut self.v);
            for panel in &mut self.panels[..n_panels] {
                let keys = at.keys_of_step(&panel.rows(), &block);
                if !keys.is_empty() {
                    let scores = (&mut self.scores, self.editor.as_mut());
                    let tiles = (&self.k, &self.v);
                    panel.step(&self.machine, at, keys.clone(), tiles, scores);
                    f(&self.machine, &self.k, panel, keys, &self.scores);
                }
            }
        }
    }

    /// Puts a run of rows into panels and clears their results.
    fn load_queries<T: Element>(
        &mut self,
        inputs: &Inputs<T>,
        rows: &RowStatistics,
        at: Location,
        task_rows: &Range<usize>,
    ) {
        let Location {
            sequence, head_k, ..
        } = at;
        let sizes = &sequence.sizes;
        let per_panel = self.machine.wide_lanes();
        let q = inputs.q.head_rows(sequence.q, head_k, sizes.group_size);
        let d_o = inputs.d_o.head_rows(sequence.q, head_k, sizes.group_size);
        let firsts = task_rows.clone().step_by(per_panel);
        for (panel, first_row) in self.panels.iter_mut().zip(firsts) {
            let range = first_row..task_rows.end.min(first_row + per_panel);
            let run = range.clone();
            (panel.first_row, panel.n_rows) = (first_row, run.len());
            let lanes = self.machine.lanes_for(run.len());
            q.load(range.clone(), &mut self.k);
            panel.q.transpose(&self.k, 0..run.len(), lanes);
            d_o.load(range.clone(), &mut self.v);
            panel.d_o.transpose(&self.v, 0..run.len(), lanes);
            panel.d_q.clear(lanes);
            let first = rows.first(at);
            let range = first + range.start..first + range.end;
            panel.lse_log2.clear(lanes);
            panel.lse_log2.row_mut(0)[..run.len()].copy_from_slice(&rows.lse_log2[range.clone()]);
            panel.delta.clear(lanes);
            panel.delta.row_mut(0)[..run.len()].copy_from_slice(&rows.delta[range]);
        }
    }
}

impl QueryPanel {
    fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.n_rows
    }

    /// P and dS of one block of keys, which are rows 0.. of the tiles.
    fn step(
        &mut self,
        machine: &Machine,
        at: Location,
        keys: Range<usize>,
        (k, v): (&Tile, &Tile),
        (scores, editor): (&mut Scores, Option<&mut Editor>),
    ) {
        let Scores { s, d_p, gradient } = scores;
        let n_keys = keys.len();
        machine.multiply_rows(k, 0..n_keys, &self.q, s); // S = K Qᵀ
        if let Some(editor) = editor {
            let pairs = (&self.rows(), &keys);
            editor.edit(&at, Lanes::Queries, pairs, s, gradient.as_mut());
        }
        at.hide_keys(s, &self.rows(), keys.clone());
        machine.multiply_rows(v, 0..n_keys, &self.d_o, d_p); // dP = V dOᵀ
        dropout::clear_and_scale(&at, Lanes::Queries, (&self.rows(), &keys), d_p);
        let statistics = Statistics::PerLane {
            lse_log2: self.lse_log2.row(0),
            delta: self.delta.row(0),
        };
        let scale = at.sequence.sizes.exponent_scale;
        differentiate(machine, scale, statistics, s, d_p, n_keys); // S ← P, dP ← dS
        if let Some(gradient) = gradient {
            multiply_by_derivatives(s, gradient, d_p, n_keys);
        }
    }
}
