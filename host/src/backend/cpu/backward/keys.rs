//! dV = Pᵀ·dO and dK = dSᵀ·Q · scale: a task is a run of keys of one head, in the lanes, and goes through the rows that
//! see them, every query head of the group included.

use rayon::prelude::*;

use super::differentiate::{Statistics, differentiate};
use super::{BLOCK, Inputs, MAX_PANELS, RowStatistics};
use crate::backend::cpu::buffer::{Panel, Tile};
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::mask::hide_lanes_from_rows;
use crate::backend::cpu::rows::store_lanes;
use crate::backend::cpu::sizes::{Location, Sizes};
use crate::dtype::Element;

/// A run of keys of one head.
struct Task<'k, 'v, 'o, T> {
    at: Location,
    first_key: usize,
    d_k: &'o mut [&'k mut [T]],
    d_v: &'o mut [&'v mut [T]],
}

/// Writes d_k and d_v.
pub(super) fn d_k_and_d_v<T: Element>(
    machine: Machine,
    sizes: &Sizes,
    inputs: &Inputs<T>,
    rows: &RowStatistics,
    d_k: &mut [&mut [T]],
    d_v: &mut [&mut [T]],
) {
    if d_k.is_empty() {
        return;
    }
    let (seqlen_k, lanes) = (sizes.seqlen_k, machine.wide_lanes());
    let n_panels = Sizes::panels_per_task(sizes.n_groups() * seqlen_k.div_ceil(lanes), MAX_PANELS);
    let keys_per_task = n_panels * lanes;
    let mut tasks: Vec<Task<T>> = Vec::new();
    for (group, (d_k, d_v)) in d_k
        .chunks_mut(seqlen_k)
        .zip(d_v.chunks_mut(seqlen_k))
        .enumerate()
    {
        let at = sizes.location(group);
        let runs = d_k
            .chunks_mut(keys_per_task)
            .zip(d_v.chunks_mut(keys_per_task))
            .enumerate();
        tasks.extend(runs.map(|(run, (d_k, d_v))| Task {
            at,
            first_key: run * keys_per_task,
            d_k,
            d_v,
        }));
    }
    let workspace = || Workspace::new(machine, sizes, n_panels);
    tasks
        .par_iter_mut()
        .for_each_init(workspace, |workspace, task| {
            workspace.run(sizes, inputs, rows, task)
        });
}

/// What one thread works in.
struct Workspace {
    machine: Machine,
    q: Tile,
    d_o: Tile,
    s: Panel,
    d_p: Panel,
    panels: Vec<KeyPanel>,
    row: Vec<f32>,
}

/// One panel of keys.
struct KeyPanel {
    first_key: usize,
    k: Panel,
    v: Panel,
    d_k: Panel,
    d_v: Panel,
}

impl Workspace {
    fn new(machine: Machine, sizes: &Sizes, n_panels: usize) -> Workspace {
        let (depth, lanes) = (sizes.head_dim, machine.wide_lanes());
        let block = BLOCK.max(lanes);
        let panel = || KeyPanel {
            first_key: 0,
            k: Panel::new(depth, lanes),
            v: Panel::new(depth, lanes),
            d_k: Panel::new(depth, lanes),
            d_v: Panel::new(depth, lanes),
        };
        Workspace {
            machine,
            q: Tile::new(block, depth),
            d_o: Tile::new(block, depth),
            s: Panel::new(block, lanes),
            d_p: Panel::new(block, lanes),
            panels: std::iter::repeat_with(panel).take(n_panels).collect(),
            row: Vec::with_capacity(depth),
        }
    }

    fn run<T: Element>(
        &mut self,
        sizes: &Sizes,
        inputs: &Inputs<T>,
        rows: &RowStatistics,
        task: &mut Task<T>,
    ) {
        let n_panels = task.d_k.len().div_ceil(self.machine.wide_lanes());
        self.load_keys(inputs, task);
        let n_rows = sizes.rows_per_group();
        for first_row in (sizes.first_row_that_sees(task.first_key)..n_rows).step_by(BLOCK) {
            let block = first_row..n_rows.min(first_row + BLOCK);
            inputs
                .q
                .head_rows(task.at, sizes.group_size)
                .load(block.clone(), &mut self.q);
            inputs
                .d_o
                .head_rows(task.at, sizes.group_size)
                .load(block.clone(), &mut self.d_o);
            let offset = sizes.first_row_of(task.at);
            let (lse_log2, delta) = (&rows.lse_log2[offset..], &rows.delta[offset..]);
            for panel in &mut self.panels[..n_panels] {
                let from = sizes.first_row_that_sees(panel.first_key).max(first_row);
                if from < block.end {
                    let seeing = from..block.end;
                    let statistics = Statistics::PerRow {
                        lse_log2: &lse_log2[seeing.clone()],
                        delta: &delta[seeing.clone()],
                    };
                    let tiles = (&self.q, &self.d_o);
                    let scores = (&mut self.s, &mut self.d_p);
                    panel.step(
                        &self.machine,
                        sizes,
                        first_row,
                        seeing,
                        statistics,
                        tiles,
                        scores,
                    );
                }
            }
        }
        let per_panel = self.machine.wide_lanes();
        let results = task
            .d_k
            .chunks_mut(per_panel)
            .zip(task.d_v.chunks_mut(per_panel));
        for (panel, (d_k, d_v)) in self.panels.iter_mut().zip(results) {
            store_lanes(&panel.d_k, sizes.softmax_scale, &mut self.row, d_k);
            store_lanes(&panel.d_v, 1.0, &mut self.row, d_v);
        }
    }

    /// Puts a run of keys into panels and clears their results.
    fn load_keys<T: Element>(&mut self, inputs: &Inputs<T>, task: &Task<T>) {
        let per_panel = self.machine.wide_lanes();
        let runs = task.d_k.chunks(per_panel).enumerate();
        for (panel, (index, run)) in self.panels.iter_mut().zip(runs) {
            panel.first_key = task.first_key + index * per_panel;
            let lanes = self.machine.lanes_for(run.len());
            let range = panel.first_key..panel.first_key + run.len();
            inputs
                .k
                .head_rows(task.at, 1)
                .load(range.clone(), &mut self.q);
            panel.k.transpose(&self.q, 0..run.len(), lanes);
            inputs.v.head_rows(task.at, 1).load(range, &mut self.q);
            panel.v.transpose(&self.q, 0..run.len(), lanes);
            panel.d_k.clear(lanes);
            panel.d_v.clear(lanes);
        }
    }
}

impl KeyPanel {
    /// The rows `seeing`, of a block whose `first_row` is row 0 of the tiles.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, and each is a thing of its own"
    )]
    fn step(
        &mut self,
        machine: &Machine,
        sizes: &Sizes,
        first_row: usize,
        seeing: std::ops::Range<usize>,
        statistics: Statistics,
        (q, d_o): (&Tile, &Tile),
        (s, d_p): (&mut Panel, &mut Panel),
    ) {
        let in_tile = seeing.start - first_row..seeing.end - first_row;
        machine.multiply_rows(q, in_tile.clone(), &self.k, s); // S = Q Kᵀ
        hide_lanes_from_rows(sizes, s, self.first_key, seeing.clone());
        machine.multiply_rows(d_o, in_tile.clone(), &self.v, d_p); // dP = dO Vᵀ
        differentiate(
            machine,
            sizes.softmax_scale,
            statistics,
            s,
            d_p,
            seeing.len(),
        ); // S ← P, dP ← dS
        machine.add_columns(d_o, in_tile.clone(), s, None, &mut self.d_v); // dV ← dV + dOᵀ P
        machine.add_columns(q, in_tile, d_p, None, &mut self.d_k); // dK ← dK + Qᵀ dS
    }
}
