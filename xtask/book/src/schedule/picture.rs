//! Timelines, drawn.

use anyhow::Result;
use ferroflash::plan::Algorithm;
use ferroflash_lab::timeline::{Doing, STEP, Timeline};
use plotters::prelude::*;

use super::{CAUSAL, CAUSAL_BACKWARD, FORWARD, FULL_BACKWARD, Order, Scene, steps};
use crate::canvas::{Area, FAINT, GRID, INK, Page, anchor, colours, write, write_in};

/// Pixels.
const WIDTH: i32 = 880;
const LEFT: i32 = 88;
const RIGHT: i32 = 20;
const HEAD: i32 = 30;
const FOOT: i32 = 42;

/// A timeline with its title.
struct Panel {
    title: String,
    timeline: Timeline,
    n_sms: u32,
    /// Pixels of a place.
    row: i32,
    /// What a step is.
    unit: &'static str,
}

impl Panel {
    fn new(scene: Scene, title: &str, timeline: Timeline, unit: &'static str) -> Panel {
        let idle = 100.0 * timeline.idle().all();
        Panel {
            title: format!("{title} ({} steps, {idle:.0} % idle)", steps(&timeline)),
            row: if timeline.n_places == scene.n_sms {
                22
            } else {
                20
            },
            timeline,
            n_sms: scene.n_sms,
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
    fn draw(&self, area: &Area, end: u64) -> Result<()> {
        let width = (WIDTH - LEFT - RIGHT) as u64;
        let x = |time: u64| LEFT + (width * time / end.max(1)) as i32;
        write(area, &self.title, 17, (14, 8), anchor::TOP_LEFT)?;
        let per_sm = self.timeline.n_places / self.n_sms;
        for idx in 0..self.timeline.n_places {
            let top = HEAD + self.row * idx as i32;
            let ground = [(LEFT, top + 1), (x(end), top + self.row - 1)];
            area.draw(&Rectangle::new(ground, GRID.mix(0.45).filled()))?;
            let (sm, place) = (idx / per_sm, idx % per_sm);
            let name = match per_sm {
                1 => format!("SM {sm}"),
                _ => format!("SM {sm}, {place}"),
            };
            let at = (LEFT - 8, top + self.row / 2);
            write(area, &name, 14, at, anchor::RIGHT)?;
            // Every SM gets a block of threads before one gets a second.
            let lane = self.timeline.lanes.get((place * self.n_sms + sm) as usize);
            for stretch in lane.into_iter().flatten() {
                let (from, to) = (x(stretch.from), x(stretch.until));
                let (fill, ink, name) = looks(stretch.doing, self.blocks());
                let corners = [(from, top + 1), (to - 1, top + self.row - 1)];
                area.draw(&Rectangle::new(corners, fill.filled()))?;
                if to - from >= 9 * name.len() as i32 + 2 {
                    let at = ((from + to) / 2, top + self.row / 2);
                    write_in(area, &name, 13, at, ink, anchor::CENTER)?;
                }
            }
        }
        self.draw_axis(area, end, x)
    }

    fn draw_axis(&self, area: &Area, end: u64, x: impl Fn(u64) -> i32) -> Result<()> {
        let bottom = self.bottom();
        let axis = vec![(LEFT, bottom + 2), (x(end), bottom + 2)];
        area.draw(&PathElement::new(axis, FAINT))?;
        let steps = end / STEP;
        let every = [1, 2, 4, 8, 16, 32]
            .into_iter()
            .find(|every| steps / every <= 16);
        for step in (0..=steps).step_by(every.unwrap_or(64) as usize) {
            let place = x(step * STEP);
            let tick = vec![(place, bottom + 2), (place, bottom + 7)];
            area.draw(&PathElement::new(tick, FAINT))?;
            let (name, at) = (step.to_string(), (place, bottom + 9));
            write(area, &name, 13, at, anchor::TOP)?;
        }
        let at = ((LEFT + x(end)) / 2, bottom + 23);
        Ok(write(area, self.unit, 14, at, anchor::TOP)?)
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

/// Panels below each other, on one axis of time if asked.
fn page(title: &str, panels: &[Panel], one_axis: bool, notes: &[String]) -> Result<String> {
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
                Some(longest) if one_axis => longest,
                _ => panel.timeline.end(),
            };
            panel.draw(&own, end)?;
            rest = below;
        }
        Ok(())
    })
}

/// A step of the forward pass, and of the backward pass.
const OF_QUERY_TILE: &str = "time in steps: one block of keys past one tile of queries";
const OF_KEY_TILE: &str = "time in steps: one block of queries past one tile of keys";

/// flash1, flash2 and flash3 on the same work.
fn three() -> Result<String> {
    let panel = |algorithm, title, unit| -> Result<Panel> {
        let timeline = FORWARD.forward(algorithm, Order::Planned)?;
        Ok(Panel::new(FORWARD, title, timeline, unit))
    };
    let panels = [
        panel(
            Algorithm::Flash1,
            "flash1: a block of threads for each head, its outer loop over keys",
            OF_KEY_TILE,
        )?,
        panel(
            Algorithm::Flash2,
            "flash2: a block of threads for each tile of queries",
            OF_QUERY_TILE,
        )?,
        panel(
            Algorithm::Flash3,
            "flash3: resident blocks of threads claim tiles of queries",
            OF_QUERY_TILE,
        )?,
    ];
    let notes = [
        "bf16, 2 heads, 1024 queries and keys, head_dim 128, full, on 4 SMs. A bar h·t is tile t of head h: of keys in the first panel, of queries in the others.".to_owned(),
        "A bar holds its tile's beginning and end. Each panel has a clock of its own: a step is of blocks of other sizes, and as fast as its schedule.".to_owned(),
    ];
    page("The forward pass, three schedules", &panels, false, &notes)
}

/// A causal mask: tiles in ascending order, and the longest first.
fn causal() -> Result<String> {
    let panel = |title, order| -> Result<Panel> {
        let timeline = CAUSAL.forward(Algorithm::Flash3, order)?;
        Ok(Panel::new(CAUSAL, title, timeline, OF_QUERY_TILE))
    };
    let panels = [
        panel(
            "one head after the other, tiles ascending",
            Order::Ascending,
        )?,
        panel(
            "as planned: heads side by side, longest tiles first",
            Order::Planned,
        )?,
    ];
    let notes = ["flash3, bf16, 4 heads, 2048 queries and keys, head_dim 128, causal, on 4 SMs. A bar h·t is tile t of queries of head h.".to_owned()];
    page(
        "The forward pass under a causal mask",
        &panels,
        true,
        &notes,
    )
}

/// A panel of the deterministic backward pass.
fn backward(title: &str, scene: Scene, order: Order) -> Result<Panel> {
    let timeline = scene.backward(order)?;
    Ok(Panel::new(scene, title, timeline, OF_KEY_TILE))
}

/// Without a mask: all tiles from the same block on, and in shifted order.
fn backward_full() -> Result<String> {
    let panels = [
        backward(
            "every tile from block 0 up",
            FULL_BACKWARD,
            Order::Ascending,
        )?,
        backward("as planned: shifted order", FULL_BACKWARD, Order::Planned)?,
    ];
    let notes = [
        "flash3, bf16, 2 heads, 512 queries and keys, head_dim 128, full, on 8 SMs: each has a tile of 128 keys. A cell is a step, its number the".to_owned(),
        "block of 64 queries to whose dQ the tile adds after it. The tiles of a head add to a block in a fixed order. Grey: a tile waits at the dQ".to_owned(),
        "semaphore. Pale: its beginning, until the first step, and its end.".to_owned(),
    ];
    page("The deterministic backward pass", &panels, true, &notes)
}

/// Under a causal mask.
fn backward_causal() -> Result<String> {
    let panels = [backward(
        "as planned: one head up, the other down",
        CAUSAL_BACKWARD,
        Order::Planned,
    )?];
    let notes = [
        "flash3, bf16, 2 heads, 1024 queries and keys, head_dim 128, causal, on 8 SMs. Cells as above, of blocks of 64 queries. A block of threads".to_owned(),
        "that begins with a short tile of one head goes on with a long one of the other.".to_owned(),
    ];
    page(
        "The deterministic backward pass under a causal mask",
        &panels,
        true,
        &notes,
    )
}

/// Every picture of a schedule, by name.
pub fn pictures() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("schedule-forward", three()?),
        ("schedule-causal", causal()?),
        ("schedule-backward", backward_full()?),
        ("schedule-backward-causal", backward_causal()?),
    ])
}
