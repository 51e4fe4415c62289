//! Rows of strided tensors: read as f32 from any element type, and written back.

use std::ops::Range;

use super::buffer::{Panel, Tile};
use crate::dtype::{Element, Widen};
use crate::lengths::{Paged, Span};
use crate::problem::Fp8Kv;
use crate::tensor::Layout;

/// A tensor to read, in host memory.
#[derive(Clone, Copy)]
pub(super) struct View<'a, T> {
    data: &'a [T],
    layout: Layout,
    pages: Option<Paged<'a>>,
    scales: Option<Scales<'a>>,
    /// The factor of the rows of each head.
    factors: Option<&'a [f32]>,
}

/// The scales of elements, if they have some: values are elements times scales.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    /// `[batch or pages, heads]`.
    pub(super) values: &'a [f32],
    pub(super) of: Fp8Kv,
}

/// The rows that meet one key and value head, in the order (position, head within the group): those of one head for k
/// and v, those of every query head of the group for q and o. So the heads of a position are adjacent, and the range of keys that a row sees never
/// shrinks from one row to the next.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a, T> {
    data: &'a [T],
    group_size: usize,
    row_stride: usize,
    head_stride: usize,
    head_dim: usize,
    pages: Option<SequencePages<'a>>,
    scales: RowScales<'a>,
    /// The factor of each head of the group.
    factors: Option<&'a [f32]>,
}

/// The scales of rows of one head.
#[derive(Clone, Copy)]
enum RowScales<'a> {
    None,
    OfAll(f32),
    OfBlocks(BlockScales<'a>),
    /// Of page 0; those of later pages follow at this stride.
    OfPages(&'a [f32], usize),
}

/// The scales of a sequence and a head, each of so many positions.
#[derive(Clone, Copy)]
pub(super) struct BlockScales<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
}

/// The pages of a sequence.
#[derive(Clone, Copy)]
struct SequencePages<'a> {
    /// Which pages of the pool they are; the pool has those that hold rows of the sequence.
    entries: &'a [i32],
    page_size: usize,
    page_stride: usize,
    /// The sequence's first row in its pages.
    first: usize,
}

impl SequencePages<'_> {
    /// Which page of the pool a row of the sequence is in, and which row of it.
    fn place(&self, position: usize) -> (usize, usize) {
        let row = self.first + position;
        let page = self.entries[row / self.page_size] as usize;
        (page, row % self.page_size)
    }
}

impl<'a, T: Widen> View<'a, T> {
    /// The layout stays inside the data.
    pub(super) fn new(data: &'a [T], layout: Layout) -> View<'a, T> {
        View {
            data,
            layout,
            pages: None,
            scales: None,
            factors: None,
        }
    }

    /// `[batch, seqlen, heads, head_dim]`.
    pub(super) fn shape(&self) -> [usize; 4] {
        self.layout.shape()
    }

    /// The first columns of its rows.
    pub(super) fn first_columns(self, head_dim: usize) -> View<'a, T> {
        let layout = Layout {
            head_dim: head_dim.min(self.layout.head_dim),
            ..self.layout
        };
        View { layout, ..self }
    }

    /// The same for a pool of pages. Sequences are those of the table, whose entries have been checked.
    pub(super) fn in_pages(self, pages: Option<Paged<'a>>) -> View<'a, T> {
        View { pages, ..self }
    }

    /// The same for elements with scales.
    pub(super) fn scaled(self, scales: Option<Scales<'a>>) -> View<'a, T> {
        View { scales, ..self }
    }

    /// The same with the rows of each head multiplied by its factor.
    pub(super) fn times(self, factors: Option<&'a [f32]>) -> View<'a, T> {
        View { factors, ..self }
    }

    /// The rows of a sequence and one group of heads; of an empty tensor, none.
    pub(super) fn head_rows(
        &self,
        span: Span,
        group_idx: usize,
        group_size: usize,
    ) -> HeadRows<'a, T> {
        let layout = &self.layout;
        let pages = self.pages.map(|pages| SequencePages {
            entries: pages.entries(span.batch_idx),
            page_size: pages.page_size(),
            page_stride: layout.batch_stride,
            first: span.first,
        });
        let row = match pages {
            Some(_) => 0,
            None => span.batch_idx * layout.batch_stride + span.first * layout.row_stride,
        };
        let start = row + group_idx * group_size * layout.head_stride;
        let heads = group_idx * group_size..(group_idx + 1) * group_size;
        let scales = match self.scales {
            None => RowScales::None,
            Some(Scales { values, of }) => match of {
                Fp8Kv::PerSequence => {
                    RowScales::OfAll(values[span.batch_idx * layout.heads + group_idx])
                }
                Fp8Kv::PerPage => RowScales::OfPages(&values[group_idx..], layout.heads),
            },
        };
        HeadRows {
            data: self.data.get(start..).unwrap_or_default(),
            group_size,
            row_stride: layout.row_stride,
            head_stride: layout.head_stride,
            head_dim: layout.head_dim,
            pages,
            scales,
            factors: self.factors.map(|factors| &factors[heads]),
        }
    }
}

impl<'a, T: Widen> HeadRows<'a, T> {
    /// One row, as it is in memory.
    pub(super) fn row(&self, row: usize) -> &'a [T] {
        let (position, in_group) = (row / self.group_size, row % self.group_size);
        let of_position = match self.pages {
            None => position * self.row_stride,
            Some(pages) => {
                let (page, row) = pages.place(position);
                page * pages.page_stride + row * self.row_stride
            }
        };
        let start = of_position + in_group * self.head_stride;
        &self.data[start..][..self.head_dim]
    }

    /// Puts these rows into the tile, the first one at its row 0.
    pub(super) fn load(&self, rows: Range<usize>, tile: &mut Tile) {
        for (index, row) in rows.enumerate() {
            let to = tile.row_mut(index);
            T::widen(self.row(row), to);
            if let Some(scale) = self.scale(row) {
                to.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }

    /// The same rows of one head multiplied by a factor.
    pub(super) fn times(self, factor: Option<f32>) -> HeadRows<'a, T> {
        match factor {
            Some(factor) => HeadRows {
                scales: RowScales::OfAll(factor),
                ..self
            },
            None => self,
        }
    }

    /// The same rows with scales of blocks.
    pub(super) fn scaled(self, scales: Option<BlockScales<'a>>) -> HeadRows<'a, T> {
        match scales {
            Some(scales) => HeadRows {
                scales: RowScales::OfBlocks(scales),
                ..self
            },
            None => self,
        }
    }

    /// The factor of the elements of a row.
    pub(super) fn scale(&self, row: usize) -> Option<f32> {
        let position = row / self.group_size;
        let scale = match (self.scales, self.pages) {
            (RowScales::None, _) | (RowScales::OfPages(..), None) => None,
            (RowScales::OfAll(scale), _) => Some(scale),
            (RowScales::OfBlocks(scales), _) => Some(scales.values[position / scales.rows]),
            (RowScales::OfPages(scales, step), Some(pages)) => {
                let (page, _) = pages.place(position);
                Some(scales[page * step])
            }
        };
        let factor = self.factors.map(|factors| factors[row % self.group_size]);
        match (scale, factor) {
            (Some(scale), Some(factor)) => Some(scale * factor),
            (scale, factor) => scale.or(factor),
        }
    }
}

/// The rows of a tensor to write, each one a slice of its own, in the order (batch entry, group, position, head within
/// the group). `None` if the rows overlap or exceed the data.
///
/// Takes 16 bytes per row, and lets threads write strided rows without sharing anything.
pub(super) fn rows_mut<T>(
    data: &mut [T],
    layout: Layout,
    group_size: usize,
) -> Option<Vec<&mut [T]>> {
    let Layout {
        batch,
        seqlen,
        heads,
        head_dim,
        batch_stride,
        row_stride,
        head_stride,
    } = layout;
    if layout.shape().contains(&0) || group_size == 0 {
        return Some(Vec::new());
    }
    // Visits the dimensions from the longest stride to the shortest, so that offsets only grow. What a step means in the
    // order of the result is carried along as a position there.
    let mut steps = [
        (batch_stride, batch, Dimension::Batch),
        (row_stride, seqlen, Dimension::Row),
        (head_stride, heads, Dimension::Head),
    ];
    steps.sort_by_key(|&(stride, n, _)| std::cmp::Reverse((stride, n)));
    let position = |index: [usize; 3]| {
        let at = |dimension| {
            steps
                .iter()
                .zip(index)
                .find(|((.., d), _)| *d == dimension)
                .map_or(0, |(_, i)| i)
        };
        let (batch_idx, row, head) = (
            at(Dimension::Batch),
            at(Dimension::Row),
            at(Dimension::Head),
        );
        let (group_idx, in_group) = (head / group_size, head % group_size);
        ((batch_idx * (heads / group_size) + group_idx) * seqlen + row) * group_size + in_group
    };
    let mut slots: Vec<&mut [T]> = Vec::new();
    slots.resize_with(batch * seqlen * heads, Default::default);
    let mut rest = data;
    let mut passed = 0;
    for outer in 0..steps[0].1 {
        for middle in 0..steps[1].1 {
            for inner in 0..steps[2].1 {
                let offset = outer * steps[0].0 + middle * steps[1].0 + inner * steps[2].0;
                let (_, from_row) = rest.split_at_mut_checked(offset.checked_sub(passed)?)?;
                let (row, after) = from_row.split_at_mut_checked(head_dim)?;
                slots[position([outer, middle, inner])] = row;
                rest = after;
                passed = offset + head_dim;
            }
        }
    }
    Some(slots)
}

/// The dimensions of a layout that [`rows_mut`] visits.
#[derive(Clone, Copy, PartialEq)]
enum Dimension {
    Batch,
    Row,
    Head,
}

/// Writes lane `index` of the panel, times its factor, to row `index`, rounded to the nearest value of the type.
pub(super) fn store_lanes<T: Element>(
    panel: &Panel,
    factor: impl Fn(usize) -> f32,
    scratch: &mut Vec<f32>,
    rows: &mut [&mut [T]],
) {
    for (lane, row) in rows.iter_mut().enumerate() {
        scratch.clear();
        let factor = factor(lane);
        scratch.extend(panel.lane(lane).take(row.len()).map(|value| value * factor));
        T::narrow(scratch, row);
    }
}
