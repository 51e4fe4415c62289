//! Simulated timelines, drawn: a row for each place of a block of threads, a bar for each tile or each step.

use plotters::prelude::*;

use super::{Doing, STEP, Stretch, Timeline};
use crate::canvas::{Area, Drawn, INK, NotDrawn, anchor, colours, write, write_in};
use crate::chart::{FAINT, GRID, Page};

/// What a step is of a pass whose blocks of threads hold tiles of queries.
pub const OF_QUERY_TILE: &str = "time in steps: one block of keys past one tile of queries";
/// What it is where they hold tiles of keys: backward, and in flash1.
pub const OF_KEY_TILE: &str = "time in steps: one block of queries past one tile of keys";

/// Pixels.
const WIDTH: i32 = 880;
const LEFT: i32 = 88;
const RIGHT: i32 = 20;
const HEAD: i32 = 30;
const FOOT: i32 = 42;

/// Every place of a GPU with so many SMs, by SM: its name, and what it does.
pub fn rows(timeline: &Timeline, n_sms: u32) -> Vec<(String, &[Stretch])> {
    let n_sms = n_sms.max(1);
    let per_sm = (timeline.n_places / n_sms).max(1);
    let row = |idx: u32| {
        let (sm, place) = (idx / per_sm, idx % per_sm);
        let name = match per_sm {
            1 => format!("SM {sm}"),
            _ => format!("SM {sm}, {place}"),
        };
        // Every SM gets a block of threads before one gets a second.
        let lane = timeline.lanes.get((place * n_sms + sm) as usize);
        (name, lane.map_or(&[][..], Vec::as_slice))
    };
    (0..timeline.n_places).map(row).collect()
}

/// Rows of more places are lower, down to so many pixels: then the bars have no names.
const MOST_HIGH_ROWS: u32 = 48;
const LOW_ROWS: i32 = 1000;
const LEAST_ROW: i32 = 5;
/// A row has room for names.
const NAMED_ROW: i32 = 14;

/// A timeline with its title.
pub struct Panel {
    title: String,
    timeline: Timeline,
    n_sms: u32,
    /// Pixels of a place.
    row: i32,
    /// What a step is.
    unit: &'static str,
}

impl Panel {
    /// Of a GPU with so many SMs; `unit` says what a step is.
    pub fn new(n_sms: u32, title: &str, timeline: Timeline, unit: &'static str) -> Panel {
        let idle = 100.0 * timeline.idle().all();
        let n_places = timeline.n_places;
        Panel {
            title: format!(
                "{title} ({} steps, {idle:.0} % idle)",
                timeline.end_in_steps()
            ),
            row: match n_places {
                0..=MOST_HIGH_ROWS if n_places == n_sms => 22,
                0..=MOST_HIGH_ROWS => 20,
                _ => (LOW_ROWS / n_places as i32).max(LEAST_ROW),
            },
            timeline,
            n_sms: n_sms.max(1),
            unit,
        }
    }

    fn bottom(&self) -> i32 {
        HEAD + self.row * self.timeline.n_places as i32
    }

    fn height(&self) -> i32 {
        self.bottom() + FOOT
    }

    /// `end` is the length of the axis.
    fn draw(&self, area: &Area, end: u64) -> Drawn {
        let width = (WIDTH - LEFT - RIGHT) as u64;
        let x = |time: u64| LEFT + (width * time / end.max(1)) as i32;
        write(area, &self.title, 17, (14, 8), anchor::TOP_LEFT)?;
        let named_rows = (NAMED_ROW / self.row + 1) as usize;
        for (idx, (name, lane)) in rows(&self.timeline, self.n_sms).into_iter().enumerate() {
            let top = HEAD + self.row * idx as i32;
            let ground = [(LEFT, top + 1), (x(end), top + self.row - 1)];
            area.draw(&Rectangle::new(ground, GRID.mix(0.45).filled()))?;
            if idx.is_multiple_of(named_rows) {
                let at = (LEFT - 8, top + self.row / 2);
                write(area, &name, 14, at, anchor::RIGHT)?;
            }
            for stretch in lane {
                let (from, to) = (x(stretch.from), x(stretch.until));
                let (fill, ink, name) = looks(stretch.doing, self.blocks());
                let corners = [(from, top + 1), (to - 1, top + self.row - 1)];
                area.draw(&Rectangle::new(corners, fill.filled()))?;
                let has_room = to - from >= 9 * name.len() as i32 + 2 && self.row >= NAMED_ROW;
                if has_room {
                    let at = ((from + to) / 2, top + self.row / 2);
                    write_in(area, &name, 13, at, ink, anchor::CENTER)?;
                }
            }
        }
        self.draw_axis(area, end, x)
    }

    fn draw_axis(&self, area: &Area, end: u64, x: impl Fn(u64) -> i32) -> Drawn {
        let bottom = self.bottom();
        let axis = vec![(LEFT, bottom + 2), (x(end), bottom + 2)];
        area.draw(&PathElement::new(axis, FAINT))?;
        let steps = end / STEP;
        let powers = std::iter::successors(Some(1u64), |every| every.checked_mul(2));
        let every = powers.into_iter().find(|every| steps / every <= 16);
        for step in (0..=steps).step_by(every.unwrap_or(1) as usize) {
            let place = x(step * STEP);
            let tick = vec![(place, bottom + 2), (place, bottom + 7)];
            area.draw(&PathElement::new(tick, FAINT))?;
            let (name, at) = (step.to_string(), (place, bottom + 9));
            write(area, &name, 13, at, anchor::TOP)?;
        }
        let at = ((LEFT + x(end)) / 2, bottom + 23);
        write(area, self.unit, 14, at, anchor::TOP)
    }

    /// How many blocks of queries pass, where steps are told apart.
    fn blocks(&self) -> Option<u32> {
        let block = |doing| match doing {
            Doing::Step { block, .. } => Some(block + 1),
            _ => None,
        };
        let stretches = self.timeline.lanes.iter().flatten();
        stretches.filter_map(|stretch| block(stretch.doing)).max()
    }
}

/// Colour, ink on it, and name. Where steps are told apart, of so many blocks, a tile's beginning and end are pale.
fn looks(doing: Doing, blocks: Option<u32>) -> (RGBColor, RGBColor, String) {
    const HEADS: [RGBColor; 4] = [
        colours::BLUE,
        colours::VERMILION,
        colours::GREEN,
        colours::ORANGE,
    ];
    const PALE: RGBColor = RGBColor(248, 226, 190);
    const GREY: RGBColor = RGBColor(175, 175, 175);
    match doing {
        Doing::Tile { .. } if blocks.is_some() => (PALE, INK, String::new()),
        Doing::Tile { head, tile } => {
            let colour = HEADS[head as usize % HEADS.len()];
            (colour, WHITE, format!("{head}·{tile}"))
        }
        Doing::Step { block, .. } => {
            let last = blocks.unwrap_or_default().max(2) - 1;
            let part = f64::from(block) / f64::from(last);
            let ink = if part > 0.55 { BLACK } else { WHITE };
            (ViridisRGB.get_color(part), ink, block.to_string())
        }
        Doing::Wait => (GREY, INK, "–".to_owned()),
    }
}

/// How panels below each other show time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// All on one axis, which is as long as the longest needs.
    Shared,
    /// Each on an axis of its own.
    Own,
}

/// Panels below each other.
pub fn page(
    title: &str,
    panels: &[Panel],
    axes: Axes,
    notes: &[String],
) -> Result<String, NotDrawn> {
    let height: i32 = panels.iter().map(Panel::height).sum();
    let page = Page {
        size: (WIDTH as u32, height as u32),
        title,
        legend: &[],
        entry_width: 0,
        notes,
    };
    let longest = panels.iter().map(|panel| panel.timeline.end()).max();
    page.svg(|area| {
        let mut rest = area.clone();
        for panel in panels {
            let (own, below) = rest.split_vertically(panel.height());
            let end = match longest {
                Some(longest) if axes == Axes::Shared => longest,
                _ => panel.timeline.end(),
            };
            panel.draw(&own, end)?;
            rest = below;
        }
        Ok(())
    })
}
