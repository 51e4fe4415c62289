//! dV = Pᵀ·dO and dK = dSᵀ·Q · scale: a task is a run of keys of one head, in the lanes, and goes through the rows that
//! see them, every query head of the group included.

use std::ops::Range;

use super::differentiate::{Statistics, differentiate};
use super::{BLOCK, Inputs, MAX_PANELS, RowStatistics, Scores};
use crate::backend::cpu::blocks;
use crate::backend::cpu::buffer::{Panel, Tile};
use crate::backend::cpu::dropout;
use crate::backend::cpu::edit::{Editor, Lanes, multiply_by_derivatives};
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::mask::hide_lanes_from_rows;
use crate::backend::cpu::pool;
use crate::backend::cpu::rows::store_lanes;
use crate::backend::cpu::sequences::Sequences;
use crate::backend::cpu::sizes::{Location, Sizes};
use crate::dtype::Element;

/// A run of keys of one head.
struct Task<'k, 'v, 'o, 's, T> {
    at: Location<'s>,
    first_key: usize,
    d_k: &'o mut [&'k mut [T]],
    d_v: &'o mut [&'v mut [T]],
}

/// Writes d_k and d_v.
pub(super) fn d_k_and_d_v<T: Element>(
    machine: Machine,
    sequences: &Sequences,
    inputs: &Inputs<T>,
    rows: &RowStatistics,
    d_k: &mut [&mut [T]],
    d_v: &mut [&mut [T]],
) {
    let sizes = &sequences.longest;
    let n_panels = panels_per_task(machine, sizes, sequences.len());
    let keys_per_task = n_panels * machine.wide_lanes();
    let mut tasks: Vec<Task<T>> = Vec::new();
    let d_k = sequences.cut_k(d_k, |row| row.fill(T::default()));
    let d_v = sequences.cut_k(d_v, |row| row.fill(T::default()));
    for (d_k, d_v) in d_k.into_iter().zip(d_v) {
        let at = sequences.location(d_k.sequence_idx, d_k.group_idx);
        let runs = d_k
            .rows
            .chunks_mut(keys_per_task)
            .zip(d_v.rows.chunks_mut(keys_per_task))
            .enumerate();
        tasks.extend(runs.map(|(run, (d_k, d_v))| Task {
            at,
            first_key: run * keys_per_task,
            d_k,
            d_v,
        }));
    }
    let workspace = || Workspace::new(machine, sizes, n_panels, sequences.editor());
    pool::each(&mut tasks, workspace, |workspace, task| {
        workspace.run(inputs, rows, task);
    });
}

fn panels_per_task(machine: Machine, sizes: &Sizes, n_sequences: usize) -> usize {
    let per_group = sizes.seqlen_k.div_ceil(machine.wide_lanes());
    Sizes::panels_per_task(n_sequences * sizes.heads_k * per_group, MAX_PANELS)
}

/// Bytes of one thread's working memory.
pub(super) fn bytes_per_thread(machine: Machine, sizes: &Sizes, n_sequences: usize) -> u64 {
    let (depth, depth_v) = (sizes.head_dim, sizes.head_dim_v);
    let lanes = machine.wide_lanes();
    let block = BLOCK.max(lanes);
    let panel = 2 * (Panel::n_bytes(depth, lanes) + Panel::n_bytes(depth_v, lanes));
    Tile::n_bytes(block, depth)
        + Tile::n_bytes(block, depth_v)
        + Scores::n_bytes(sizes, block, lanes)
        + panels_per_task(machine, sizes, n_sequences) as u64 * panel
}

#[cfg(test)]
pub(super) fn make_workspace(machine: Machine, sizes: &Sizes, n_sequences: usize) {
    let n_panels = panels_per_task(machine, sizes, n_sequences);
    Workspace::new(machine, sizes, n_panels, None);
}

/// One thread's working memory.
struct Workspace<'e> {
    machine: Machine,
    editor: Option<Editor<'e>>,
    block: Block,
    scores: Scores,
    panels: Vec<KeyPanel>,
    row: Vec<f32>,
}

/// Some rows of q and dO, from `first_row` on.
struct Block {
    first_row: usize,
    q: Tile,
    d_o: Tile,
}

/// One panel of keys.
struct KeyPanel {
    first_key: usize,
    n_keys: usize,
    k: Panel,
    v: Panel,
    d_k: Panel,
    d_v: Panel,
}

impl<'e> Workspace<'e> {
    fn new(
        machine: Machine,
        sizes: &Sizes,
        n_panels: usize,
        editor: Option<Editor<'e>>,
    ) -> Workspace<'e> {
        let (depth, depth_v) = (sizes.head_dim, sizes.head_dim_v);
        let lanes = machine.wide_lanes();
        let n_rows = BLOCK.max(lanes);
        let panel = || KeyPanel {
            first_key: 0,
            n_keys: 0,
            k: Panel::new(depth, lanes),
            v: Panel::new(depth_v, lanes),
            d_k: Panel::new(depth, lanes),
            d_v: Panel::new(depth_v, lanes),
        };
        Workspace {
            machine,
            editor,
            block: Block {
                first_row: 0,
                q: Tile::new(n_rows, depth),
                d_o: Tile::new(n_rows, depth_v),
            },
            scores: Scores::new(sizes, n_rows, lanes),
            panels: std::iter::repeat_with(panel).take(n_panels).collect(),
            row: Vec::with_capacity(depth.max(depth_v)),
        }
    }

    fn run<T: Element>(&mut self, inputs: &Inputs<T>, rows: &RowStatistics, task: &mut Task<T>) {
        let at = task.at;
        let Location {
            sequence, head_k, ..
        } = at;
        let sizes = &sequence.sizes;
        let n_panels = task.d_k.len().div_ceil(self.machine.wide_lanes());
        self.load_keys(inputs, task);
        let q = inputs.q.head_rows(sequence.q, head_k, sizes.group_size);
        let d_o = inputs.d_o.head_rows(sequence.q, head_k, sizes.group_size);
        let of_task = at.rows(&(task.first_key..task.first_key + task.d_k.len()));
        for first_row in of_task.clone().step_by(BLOCK) {
            self.block.first_row = first_row;
            let block = first_row..of_task.end.min(first_row + BLOCK);
            let panels = &mut self.panels[..n_panels];
            let meets = |panel: &KeyPanel| at.rows_of_step(&mut block.clone(), &panel.keys());
            if panels.iter().all(|panel| meets(panel).is_none()) {
                continue;
            }
            q.load(block.clone(), &mut self.block.q);
            d_o.load(block.clone(), &mut self.block.d_o);
            for panel in panels {
                let mut rest = block.clone();
                while let Some((seeing, kind)) = at.rows_of_step(&mut rest, &panel.keys()) {
                    let scores = (&mut self.scores, self.editor.as_mut());
                    let statistics = rows.of(at, seeing.clone());
                    let step = Step {
                        at,
                        kind,
                        rows: seeing,
                        statistics,
                    };
                    panel.step(&self.machine, &self.block, step, scores);
                }
            }
        }
        let per_panel = self.machine.wide_lanes();
        let results = task
            .d_k
            .chunks_mut(per_panel)
            .zip(task.d_v.chunks_mut(per_panel));
        for (panel, (d_k, d_v)) in self.panels.iter_mut().zip(results) {
            store_lanes(&panel.d_k, |_| sizes.softmax_scale, &mut self.row, d_k);
            let scale = dropout::inverse_keep(&at);
            store_lanes(&panel.d_v, |_| scale, &mut self.row, d_v);
        }
    }

    /// Puts a run of keys into panels and clears their results.
    fn load_keys<T: Element>(&mut self, inputs: &Inputs<T>, task: &Task<T>) {
        let Location {
            sequence, head_k, ..
        } = task.at;
        let per_panel = self.machine.wide_lanes();
        let runs = task.d_k.chunks(per_panel).enumerate();
        for (panel, (index, run)) in self.panels.iter_mut().zip(runs) {
            panel.first_key = task.first_key + index * per_panel;
            panel.n_keys = run.len();
            let lanes = self.machine.lanes_for(run.len());
            let range = panel.first_key..panel.first_key + run.len();
            inputs
                .k
                .head_rows(sequence.k, head_k, 1)
                .load(range.clone(), &mut self.block.q);
            panel.k.transpose(&self.block.q, 0..run.len(), lanes);
            inputs
                .v
                .head_rows(sequence.k, head_k, 1)
                .load(range, &mut self.block.d_o);
            panel.v.transpose(&self.block.d_o, 0..run.len(), lanes);
            panel.d_k.clear(lanes);
            panel.d_v.clear(lanes);
        }
    }
}

/// Some rows of a block that a panel visits.
struct Step<'a> {
    at: Location<'a>,
    /// The block mask for them and the panel's keys.
    kind: blocks::Block,
    rows: Range<usize>,
    statistics: Statistics<'a>,
}

impl KeyPanel {
    fn keys(&self) -> Range<usize> {
        self.first_key..self.first_key + self.n_keys
    }

    /// Some rows of a block.
    fn step(
        &mut self,
        machine: &Machine,
        block: &Block,
        step: Step,
        (scores, editor): (&mut Scores, Option<&mut Editor>),
    ) {
        let Step {
            at,
            kind,
            rows,
            statistics,
        } = step;
        let Scores { s, d_p, gradient } = scores;
        let sizes = &at.sequence.sizes;
        let n_rows = rows.len();
        let in_tile = || rows.start - block.first_row..rows.end - block.first_row;
        machine.multiply_rows(&block.q, in_tile(), &self.k, s); // S = Q Kᵀ
        if let Some(editor) = editor {
            let pairs = (&rows, &self.keys());
            editor.edit(&at, Lanes::Keys, pairs, s, gradient.as_mut());
        }
        if kind == blocks::Block::ByMask {
            hide_lanes_from_rows(sizes, s, self.first_key, rows.clone());
        }
        machine.multiply_rows(&block.d_o, in_tile(), &self.v, d_p); // dP = dO Vᵀ
        dropout::clear_and_scale(&at, Lanes::Keys, (&rows, &self.keys()), d_p);
        differentiate(machine, sizes.exponent_scale, statistics, s, d_p, n_rows); // S ← P, dP ← dS
        if let Some(gradient) = gradient {
            multiply_by_derivatives(s, gradient, d_p, n_rows);
        }
        dropout::clear(&at, Lanes::Keys, (&rows, &self.keys()), s);
        machine.add_columns(&block.d_o, in_tile(), s, None, &mut self.d_v); // dV ← dV + dOᵀ P
        machine.add_columns(&block.q, in_tile(), d_p, None, &mut self.d_k); // dK ← dK + Qᵀ dS
    }
}
