//! Algorithm 1 of FlashAttention-2 with queries in the lanes: o and lse.
//!
//! A task is a run of rows of one group of heads, a few panels of lanes. It goes through the keys once, block by block;
//! each block is widened to f32 once for all its panels. What a row computes, and in which order, does not depend on the
//! panel or the task it falls into, so results are bit-equal for any number of threads.

use std::ops::Range;

use super::buffer::{Panel, Tile};
use super::dropout;
use super::edit::{Editor, Lanes};
use super::machine::Machine;
use super::pool;
use super::rows::{BlockScales, HeadRows, View, store_lanes};
use super::sequences::Sequences;
use super::sizes::{Location, Sizes};
use super::softmax::OnlineSoftmax;
use crate::dtype::{Element, Widen};
use crate::problem::ScaleLayout;

/// Keys of a block: as many as fit the caches nearest to the core, with a panel of scores (16 kB with 32 lanes) and the block's k and v.
const BLOCK_K: usize = 128;

/// Panels of a task at most: enough that widening k and v costs little, few enough that q and o stay in the second
/// level of the cache.
const MAX_PANELS: usize = 8;

/// The inputs: queries of type `Q`, keys and values of type `K`.
pub(super) struct Inputs<'a, Q, K> {
    pub(super) q: View<'a, Q>,
    pub(super) k: View<'a, K>,
    pub(super) v: View<'a, K>,
    /// Scales of q, k and v, if all have 8 bits.
    pub(super) descales: Option<[Descales<'a>; 3]>,
    /// A sink for each head of q, if there are some.
    pub(super) sinks: Option<&'a [f32]>,
}

/// Scales of q, of k or of v.
#[derive(Clone, Copy)]
pub(super) struct Descales<'a> {
    pub(super) values: &'a [f32],
    pub(super) layout: ScaleLayout,
}

impl<'a> Descales<'a> {
    /// Those of a sequence and a head of keys from its first row on.
    fn of_head(self, at: &Location) -> BlockScales<'a> {
        let first = self.layout.place(at.sequence_idx, at.head_k, 0);
        BlockScales {
            values: &self.values[first..],
            rows: self.layout.rows(),
        }
    }
}

/// A run of rows of one group, and its outputs.
struct Task<'a, 'o, 's, T> {
    at: Location<'s>,
    first_row: usize,
    o: &'o mut [&'a mut [T]],
    lse: &'o mut [f32],
}

/// Writes o and lse, both as rows in the order (batch entry, group, position, head within the group).
pub(super) fn forward<Q: Widen, K: Widen, T: Element>(
    machine: Machine,
    sequences: &Sequences,
    inputs: &Inputs<Q, K>,
    o: &mut [&mut [T]],
    lse: &mut [f32],
) {
    let sizes = &sequences.longest;
    let panels = panels_per_task(machine, sizes, sequences.len());
    let rows_per_task = panels * machine.wide_lanes();
    let o = sequences.cut_q(o, |row| row.fill(T::default()));
    let lse = sequences.cut_q(lse, |lse| *lse = f32::NEG_INFINITY);
    let mut tasks: Vec<Task<T>> = o
        .into_iter()
        .zip(lse)
        .flat_map(|(o, lse)| {
            let at = sequences.location(o.sequence_idx, o.group_idx);
            let runs = o
                .rows
                .chunks_mut(rows_per_task)
                .zip(lse.rows.chunks_mut(rows_per_task))
                .enumerate();
            runs.map(move |(run, (o, lse))| Task {
                at,
                first_row: run * rows_per_task,
                o,
                lse,
            })
        })
        .collect();
    let workspace = || Workspace::new(machine, sizes, panels, sequences.editor());
    pool::each(&mut tasks, workspace, |workspace, task| {
        workspace.run(inputs, task);
    });
}

fn panels_per_task(machine: Machine, sizes: &Sizes, n_sequences: usize) -> usize {
    let per_group = sizes.rows_per_group().div_ceil(machine.wide_lanes());
    Sizes::panels_per_task(n_sequences * sizes.heads_k * per_group, MAX_PANELS)
}

/// Bytes of one thread's working memory.
pub(super) fn bytes_per_thread(machine: Machine, sizes: &Sizes, n_sequences: usize) -> u64 {
    let (depth, depth_v) = (sizes.head_dim, sizes.head_dim_v);
    let lanes = machine.wide_lanes();
    let block_k = BLOCK_K.max(lanes);
    let panel = Panel::n_bytes(depth, lanes)
        + Panel::n_bytes(depth_v, lanes)
        + OnlineSoftmax::n_bytes(lanes);
    Tile::n_bytes(block_k, depth)
        + Tile::n_bytes(block_k, depth_v)
        + Panel::n_bytes(block_k, lanes)
        + panels_per_task(machine, sizes, n_sequences) as u64 * panel
}

/// One thread's working memory.
struct Workspace<'e> {
    machine: Machine,
    editor: Option<Editor<'e>>,
    k: Tile,
    v: Tile,
    s: Panel,
    panels: Vec<QueryPanel>,
    row: Vec<f32>,
}

/// The state of one panel of queries.
struct QueryPanel {
    first_row: usize,
    n_rows: usize,
    q: Panel,
    o: Panel,
    softmax: OnlineSoftmax,
}

impl<'e> Workspace<'e> {
    fn new(
        machine: Machine,
        sizes: &Sizes,
        n_panels: usize,
        editor: Option<Editor<'e>>,
    ) -> Workspace<'e> {
        let lanes = machine.wide_lanes();
        let block_k = BLOCK_K.max(lanes);
        let panel = || QueryPanel {
            first_row: 0,
            n_rows: 0,
            q: Panel::new(sizes.head_dim, lanes),
            o: Panel::new(sizes.head_dim_v, lanes),
            softmax: OnlineSoftmax::new(sizes.exponent_scale, lanes),
        };
        Workspace {
            machine,
            editor,
            k: Tile::new(block_k, sizes.head_dim),
            v: Tile::new(block_k, sizes.head_dim_v),
            s: Panel::new(block_k, lanes),
            panels: std::iter::repeat_with(panel).take(n_panels).collect(),
            row: Vec::with_capacity(sizes.head_dim_v),
        }
    }

    fn run<Q: Widen, K: Widen, T: Element>(&mut self, inputs: &Inputs<Q, K>, task: &mut Task<T>) {
        let at = task.at;
        let Location {
            sequence, head_k, ..
        } = at;
        let sizes = &sequence.sizes;
        let of_8_bits = inputs.descales.map(|of| of.map(|of| of.of_head(&at)));
        let q = inputs.q.head_rows(sequence.q, head_k, sizes.group_size);
        let q = q.scaled(of_8_bits.map(|[q, ..]| q));
        let n_panels = self.load_queries(&q, task.first_row, task.o.len());
        let rows = task.first_row..task.first_row + task.o.len();
        let keys = at.keys(&rows, BLOCK_K);
        if !keys.is_empty() {
            let k = inputs.k.head_rows(sequence.k, head_k, 1);
            let k = k.scaled(of_8_bits.map(|[_, k, _]| k));
            let v = inputs.v.head_rows(sequence.k, head_k, 1);
            let v = v.scaled(of_8_bits.map(|[.., v]| v));
            for first_key in keys.clone().step_by(BLOCK_K) {
                let block = first_key..keys.end.min(first_key + BLOCK_K);
                if at.keys_of_step(&rows, &block).is_empty() {
                    continue;
                }
                k.load(block.clone(), &mut self.k);
                v.load(block.clone(), &mut self.v);
                for panel in &mut self.panels[..n_panels] {
                    let keys = at.keys_of_step(&panel.rows(), &block);
                    if !keys.is_empty() {
                        let editor = self.editor.as_mut();
                        let tiles = (&self.k, &self.v);
                        panel.step(&self.machine, at, keys, tiles, (&mut self.s, editor));
                    }
                }
            }
        }
        let per_panel = self.machine.wide_lanes();
        let results = task
            .o
            .chunks_mut(per_panel)
            .zip(task.lse.chunks_mut(per_panel));
        for (panel, (o, lse)) in self.panels.iter_mut().zip(results) {
            let scale = sizes.exponent_scale;
            panel.softmax.finish(scale, &mut panel.o, lse);
            if let Some(sinks) = inputs.sinks {
                let head =
                    |lane| head_k * sizes.group_size + (panel.first_row + lane) % sizes.group_size;
                let softmax = &mut panel.softmax;
                softmax.add_sinks(&mut panel.o, lse, |lane| sinks[head(lane)]);
            }
            store_lanes(&panel.o, |_| dropout::inverse_keep(&at), &mut self.row, o);
        }
    }

    /// Puts a run of rows into panels and clears their state; returns how many panels it takes.
    fn load_queries<Q: Widen>(
        &mut self,
        q: &HeadRows<Q>,
        first_row: usize,
        n_rows: usize,
    ) -> usize {
        let per_panel = self.machine.wide_lanes();
        for (index, panel) in self
            .panels
            .iter_mut()
            .take(n_rows.div_ceil(per_panel))
            .enumerate()
        {
            panel.first_row = first_row + index * per_panel;
            panel.n_rows = per_panel.min(n_rows - index * per_panel);
            let lanes = self.machine.lanes_for(panel.n_rows);
            q.load(panel.first_row..panel.first_row + panel.n_rows, &mut self.k);
            panel.q.transpose(&self.k, 0..panel.n_rows, lanes);
            panel.o.clear(lanes);
            panel.softmax.reset(lanes);
        }
        n_rows.div_ceil(per_panel)
    }
}

#[cfg(test)]
pub(super) fn make_workspace(machine: Machine, sizes: &Sizes, n_sequences: usize) {
    let n_panels = panels_per_task(machine, sizes, n_sequences);
    Workspace::new(machine, sizes, n_panels, None);
}

impl QueryPanel {
    fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.n_rows
    }

    /// One block of keys, which are rows 0.. of the tiles.
    fn step(
        &mut self,
        machine: &Machine,
        at: Location,
        keys: Range<usize>,
        (k, v): (&Tile, &Tile),
        (s, editor): (&mut Panel, Option<&mut Editor>),
    ) {
        let n_keys = keys.len();
        machine.multiply_rows(k, 0..n_keys, &self.q, s); // S = K Qᵀ
        if let Some(editor) = editor {
            editor.edit(&at, Lanes::Queries, (&self.rows(), &keys), s, None);
        }
        let rows = self.rows();
        at.hide_keys(s, &rows, keys.clone());
        let alpha = self.softmax.update(machine, s, n_keys); // m, l;  S ← P
        dropout::clear(&at, Lanes::Queries, (&rows, &keys), s);
        machine.add_columns(v, 0..n_keys, s, Some(alpha), &mut self.o); // O ← O diag(α) + Vᵀ P
    }
}
