//! A heat map of attention weights, as SVG.
//!
//! Queries go down, keys to the right, with a cell for each pair. If there are more pairs than cells, a cell shows the largest weight of several.
//! The colour is viridis, which is perceptually uniform, of the square root of the weight: most weights of a long row are small.

use std::ops::Range;

use plotters::prelude::*;

use crate::canvas::{Area, Drawn, FONT, INK, NotDrawn, anchor, svg, write};

/// Cells of a side.
const MAX_CELLS: usize = 512;
/// The pixels that the cells fill, if they are not too few.
const WIDTH: usize = 900;
const HEIGHT: usize = 560;
/// Pixels of a side of a cell.
const MAX_CELL: usize = 24;
/// Room for the title and for names and numbers of the axes.
const LEFT: i32 = 80;
const TOP: i32 = 44;
const BOTTOM: i32 = 84;
/// Room for the scale of colours.
const RIGHT: i32 = 130;
/// Distance of the scale from the cells, and its size.
const SCALE_GAP: i32 = 28;
const SCALE_WIDTH: i32 = 16;
const SCALE_HEIGHT: i32 = 200;
/// Least width of the cells' room: for the title.
const MIN_WIDTH: i32 = 320;
/// Steps of colour.
const N_COLOURS: u32 = 255;

/// The content of the picture.
#[derive(Clone, Debug)]
pub struct HeatMap<'a> {
    /// The title.
    pub title: String,
    /// The queries.
    pub rows: Range<usize>,
    /// Keys, from 0 on.
    pub n_keys: usize,
    /// A row for each query.
    pub weights: &'a [Vec<f32>],
}

/// One side of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    /// Index of the first row or column.
    first: usize,
    n: usize,
    /// How many of them a cell shows.
    pooled: usize,
    /// Pixels of a cell.
    cell: i32,
}

impl Side {
    fn new(indices: Range<usize>, room: usize) -> Side {
        let n = indices.len();
        let pooled = n.div_ceil(MAX_CELLS).max(1);
        let cell = (room / n.div_ceil(pooled).max(1)).clamp(1, MAX_CELL);
        Side {
            first: indices.start,
            n,
            pooled,
            cell: cell as i32,
        }
    }

    fn n_cells(self) -> usize {
        self.n.div_ceil(self.pooled)
    }

    fn pixels(self) -> i32 {
        self.n_cells() as i32 * self.cell
    }

    /// Labelled indices, each with the middle of its cell: multiples of 1, 2 or 5 times a power of 10, at most ten.
    fn ticks(self) -> Vec<(usize, i32)> {
        let mut steps = (0..).flat_map(|power| [1, 2, 5].map(|step| step * 10usize.pow(power)));
        let step = steps.find(|step| self.n <= step * 10).unwrap_or(self.n);
        let indices = self.first..self.first + self.n;
        let named = indices.filter(|index| index.is_multiple_of(step));
        let middle =
            |index| (index - self.first) as i32 / self.pooled as i32 * self.cell + self.cell / 2;
        named.map(|index| (index, middle(index))).collect()
    }
}

impl HeatMap<'_> {
    /// The SVG of the picture.
    pub fn svg(&self) -> Result<String, NotDrawn> {
        let queries = Side::new(self.rows.clone(), HEIGHT);
        let keys = Side::new(0..self.n_keys, WIDTH);
        let width = keys.pixels().max(MIN_WIDTH);
        let height = TOP + queries.pixels().max(SCALE_HEIGHT) + BOTTOM;
        let size = ((LEFT + width + RIGHT) as u32, height as u32);
        let cells = self.pooled(queries, keys);
        let largest = cells.iter().flatten().copied().fold(0.0, f32::max);
        let largest = if largest > 0.0 { largest } else { 1.0 };
        svg(size, |root| {
            write(root, &self.title, 17, (LEFT, 12), anchor::TOP_LEFT)?;
            draw_cells(root, &cells, largest, (queries, keys))?;
            draw_axes(root, queries, keys)?;
            draw_scale(root, largest, LEFT + width + SCALE_GAP)?;
            let y = TOP + queries.pixels() + 58;
            write(root, &note(queries, keys), 12, (LEFT, y), anchor::TOP_LEFT)
        })
    }

    /// The largest weight of each cell; NaN is larger than any.
    fn pooled(&self, queries: Side, keys: Side) -> Vec<Vec<f32>> {
        let larger = |a: f32, b: f32| if a.total_cmp(&b).is_lt() { b } else { a };
        let mut cells = vec![vec![0f32; keys.n_cells()]; queries.n_cells()];
        for (query, row) in self.weights.iter().enumerate() {
            let cells = &mut cells[query / queries.pooled];
            for (key, &weight) in row.iter().enumerate() {
                let cell = &mut cells[key / keys.pooled];
                *cell = larger(*cell, weight);
            }
        }
        cells
    }
}

/// The explanation of the cells.
fn note(queries: Side, keys: Side) -> String {
    let of = |side: Side, what: &str| (side.pooled > 1).then(|| format!("{} {what}", side.pooled));
    let pooled: Vec<String> = [of(queries, "queries"), of(keys, "keys")]
        .into_iter()
        .flatten()
        .collect();
    match pooled.is_empty() {
        true => "one cell for each pair; colour follows the root of the weight".to_owned(),
        false => format!(
            "each cell: the largest weight of {}; colour follows the root of the weight",
            pooled.join(" by ")
        ),
    }
}

/// The colour step of a weight; `None`: NaN.
fn step(weight: f32, largest: f32) -> Option<u32> {
    let part = (weight / largest).sqrt();
    (!part.is_nan()).then(|| (part.clamp(0.0, 1.0) * N_COLOURS as f32).round() as u32)
}

fn colour(step: Option<u32>) -> RGBColor {
    match step {
        Some(step) => ViridisRGB.get_color(step as f32 / N_COLOURS as f32),
        None => WHITE,
    }
}

fn rectangle(area: &Area, [x, y, width, height]: [i32; 4], colour: RGBColor) -> Drawn {
    let corners = [(x, y), (x + width, y + height)];
    area.draw(&Rectangle::new(corners, colour.filled()))?;
    Ok(())
}

/// Adjacent cells of one colour are one rectangle.
fn draw_cells(
    area: &Area,
    cells: &[Vec<f32>],
    largest: f32,
    (queries, keys): (Side, Side),
) -> Drawn {
    let all = [LEFT, TOP, keys.pixels(), queries.pixels()];
    rectangle(area, all, colour(Some(0)))?;
    for (row, y) in cells.iter().zip((TOP..).step_by(queries.cell as usize)) {
        let steps: Vec<_> = row.iter().map(|&weight| step(weight, largest)).collect();
        let mut x = LEFT;
        for run in steps.chunk_by(|a, b| a == b) {
            let width = run.len() as i32 * keys.cell;
            if run[0] != Some(0) {
                rectangle(area, [x, y, width, queries.cell], colour(run[0]))?;
            }
            x += width;
        }
    }
    Ok(())
}

fn draw_axes(area: &Area, queries: Side, keys: Side) -> Drawn {
    let bottom = TOP + queries.pixels();
    for (key, middle) in keys.ticks() {
        let x = LEFT + middle;
        line(area, (x, bottom), (x, bottom + 5))?;
        write(area, &key.to_string(), 13, (x, bottom + 8), anchor::TOP)?;
    }
    for (query, middle) in queries.ticks() {
        let y = TOP + middle;
        line(area, (LEFT - 5, y), (LEFT, y))?;
        write(area, &query.to_string(), 13, (LEFT - 8, y), anchor::RIGHT)?;
    }
    let middle = LEFT + keys.pixels() / 2;
    write(area, "key index", 15, (middle, bottom + 30), anchor::TOP)?;
    let upwards = (FONT, 15).into_font().transform(FontTransform::Rotate270);
    let upwards = upwards.color(&INK).pos(anchor::CENTER);
    let at = (LEFT - 60, TOP + queries.pixels() / 2);
    area.draw(&Text::new("query index", at, upwards))?;
    Ok(())
}

fn draw_scale(area: &Area, largest: f32, x: i32) -> Drawn {
    write(area, "weight", 13, (x, TOP - 8), anchor::BOTTOM_LEFT)?;
    for y in 0..SCALE_HEIGHT {
        let part = (SCALE_HEIGHT - 1 - y) as f32 / (SCALE_HEIGHT - 1) as f32;
        let step = (part * N_COLOURS as f32).round() as u32;
        rectangle(area, [x, TOP + y, SCALE_WIDTH, 1], colour(Some(step)))?;
    }
    for quarter in 0..=4 {
        let part = quarter as f32 / 4.0;
        let y = TOP + SCALE_HEIGHT - 1 - (part * (SCALE_HEIGHT - 1) as f32).round() as i32;
        let right = x + SCALE_WIDTH;
        line(area, (right, y), (right + 4, y))?;
        let weight = number(largest * part * part, largest);
        write(area, &weight, 12, (right + 8, y), anchor::LEFT)?;
    }
    Ok(())
}

/// A weight of the scale; in units of a power of ten if all are small.
fn number(weight: f32, largest: f32) -> String {
    match largest < 0.01 {
        true => format!("{weight:.2e}"),
        false => format!("{weight:.3}"),
    }
}

fn line(area: &Area, from: (i32, i32), to: (i32, i32)) -> Drawn {
    area.draw(&PathElement::new(vec![from, to], INK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_fit_the_picture() {
        let side = Side::new(0..64, HEIGHT);
        assert_eq!((side.n_cells(), side.pooled, side.cell), (64, 1, 8));
        let side = Side::new(3..5003, WIDTH);
        assert_eq!((side.n_cells(), side.pooled, side.cell), (500, 10, 1));
        assert_eq!(Side::new(0..0, WIDTH).pixels(), 0);
        let named: Vec<usize> = side.ticks().iter().map(|&(index, _)| index).collect();
        assert_eq!(named[..3], [500, 1000, 1500]);
    }

    #[test]
    fn a_cell_shows_the_largest_weight_and_the_note_says_so() {
        let n_keys = 1025;
        let mut row = vec![0f32; n_keys];
        row[4] = 0.25;
        row[5] = 0.75;
        let picture = HeatMap {
            title: "title".into(),
            rows: 7..8,
            n_keys,
            weights: &[row],
        };
        let keys = Side::new(0..n_keys, WIDTH);
        assert_eq!(keys.pooled, 3);
        let cells = picture.pooled(Side::new(7..8, HEIGHT), keys);
        assert_eq!(cells[0][..3], [0.0, 0.75, 0.0]);
        let svg = picture.svg().unwrap();
        assert!(svg.contains("the largest weight of 3 keys"), "{svg}");
    }

    #[test]
    fn colours_are_a_scale() {
        assert_eq!(step(0.0, 0.5), Some(0));
        assert_eq!(step(0.5, 0.5), Some(N_COLOURS));
        assert_eq!(step(0.125, 0.5), Some(128));
        assert_eq!(step(f32::NAN, 0.5), None);
        // From dark to light.
        let brightness = |RGBColor(r, g, b)| 2 * u32::from(r) + 5 * u32::from(g) + u32::from(b);
        let scale = (0..=N_COLOURS).map(|step| brightness(colour(Some(step))));
        assert!(scale.collect::<Vec<_>>().is_sorted());
    }
}
