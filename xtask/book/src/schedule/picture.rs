//! Timelines, drawn.

use anyhow::Result;
use ferroflash::Mask;
use ferroflash::plan::Algorithm;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{
    Deterministic, Doing, N_SMS, Order, Timeline, deterministic, flash1, forward, problem,
};
use crate::canvas::{Area, FAINT, GRID, INK, Page, colours, write};

/// SMs of the pictures of the backward pass.
pub const N_SMS_BACKWARD: u32 = 8;

/// Heads, length and mask of the pictures of the backward pass.
pub const FULL_BACKWARD: (usize, usize, Mask) = (2, 512, Mask::Full);
/// The same under a causal mask.
pub const CAUSAL_BACKWARD: (usize, usize, Mask) = (2, 1024, Mask::Causal);

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
    /// How many places an SM has.
    per_sm: usize,
    /// Pixels of a place.
    row: i32,
    /// What a step is.
    unit: &'static str,
}

impl Panel {
    fn height(&self) -> i32 {
        HEAD + self.row * self.timeline.lanes.len() as i32 + FOOT
    }

    /// `steps` is the length of the axis.
    fn draw(&self, area: &Area, steps: u32) -> Result<()> {
        let width = WIDTH - LEFT - RIGHT;
        let x = |step: u32| LEFT + (width as u32 * step / steps.max(1)) as i32;
        write(area, &self.title, 17, (14, 8), INK, (HPos::Left, VPos::Top))?;
        let bottom = HEAD + self.row * self.timeline.lanes.len() as i32;
        for (idx, lane) in self.timeline.lanes.iter().enumerate() {
            let top = HEAD + self.row * idx as i32;
            let ground = [(LEFT, top + 1), (LEFT + width, top + self.row - 1)];
            area.draw(&Rectangle::new(ground, GRID.mix(0.45).filled()))?;
            let (sm, place) = (idx / self.per_sm, idx % self.per_sm);
            let name = match self.per_sm {
                1 => format!("SM {sm}"),
                _ => format!("SM {sm}, {place}"),
            };
            let at = (LEFT - 8, top + self.row / 2);
            write(area, &name, 14, at, INK, (HPos::Right, VPos::Center))?;
            for stretch in lane {
                let (from, to) = (x(stretch.from), x(stretch.from + stretch.len));
                let (fill, ink, name) = looks(stretch.doing);
                let corners = [(from, top + 1), (to - 1, top + self.row - 1)];
                area.draw(&Rectangle::new(corners, fill.filled()))?;
                if to - from >= 9 * name.len() as i32 + 2 {
                    let at = ((from + to) / 2, top + self.row / 2);
                    write(area, &name, 13, at, ink, (HPos::Center, VPos::Center))?;
                }
            }
        }
        let axis = vec![(LEFT, bottom + 2), (LEFT + width, bottom + 2)];
        area.draw(&PathElement::new(axis, FAINT))?;
        let every = [1, 2, 4, 8, 16, 32]
            .into_iter()
            .find(|every| steps / every <= 16);
        for step in (0..=steps).step_by(every.unwrap_or(64) as usize) {
            let tick = vec![(x(step), bottom + 2), (x(step), bottom + 7)];
            area.draw(&PathElement::new(tick, FAINT))?;
            let at = (x(step), bottom + 9);
            write(
                area,
                &step.to_string(),
                13,
                at,
                INK,
                (HPos::Center, VPos::Top),
            )?;
        }
        let at = (LEFT + width / 2, bottom + 23);
        write(area, self.unit, 14, at, INK, (HPos::Center, VPos::Top))
    }
}

/// Colour, ink on it, and name.
fn looks(doing: Doing) -> (RGBColor, RGBColor, String) {
    const HEADS: [RGBColor; 4] = [
        colours::BLUE,
        colours::VERMILION,
        colours::GREEN,
        colours::ORANGE,
    ];
    match doing {
        Doing::Tile { head, tile } => {
            let colour = HEADS[head as usize % HEADS.len()];
            (colour, WHITE, format!("{head}·{tile}"))
        }
        Doing::Step { block, of } => {
            let part = f64::from(block) / f64::from(of.max(2) - 1);
            let ink = if part > 0.55 { BLACK } else { WHITE };
            (ViridisRGB.get_color(part), ink, block.to_string())
        }
        Doing::Wait => (RGBColor(190, 190, 190), INK, "–".to_owned()),
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
            let steps = match longest {
                Some(longest) if one_axis => longest,
                _ => panel.timeline.end(),
            };
            panel.draw(&own, steps)?;
            rest = below;
        }
        Ok(())
    })
}

fn percent(timeline: &Timeline) -> String {
    format!(
        "{} steps, {} % busy",
        timeline.end(),
        timeline.busy_percent()
    )
}

/// flash1, flash2 and flash3 on the same work.
fn three() -> Result<String> {
    let problem = problem(2, 1024, Mask::Full)?;
    let one = flash1(&problem);
    let two = forward(&problem, Algorithm::Flash2, Order::Planned)?;
    let three = forward(&problem, Algorithm::Flash3, Order::Planned)?;
    let unit = "steps: one block of keys past one tile of queries";
    let panels = [
        Panel {
            title: format!(
                "flash1: a block of threads for each head, its outer loop over keys ({})",
                percent(&one)
            ),
            timeline: one,
            per_sm: 1,
            row: 22,
            unit: "steps: one block of queries past one block of keys",
        },
        Panel {
            title: format!(
                "flash2: a block of threads for each tile of queries ({})",
                percent(&two)
            ),
            per_sm: two.lanes.len() / N_SMS as usize,
            timeline: two,
            row: 20,
            unit,
        },
        Panel {
            title: format!(
                "flash3: resident blocks of threads claim tiles of queries ({})",
                percent(&three)
            ),
            per_sm: three.lanes.len() / N_SMS as usize,
            timeline: three,
            row: 22,
            unit,
        },
    ];
    let notes = [
        "bf16, 2 heads, 1024 queries and keys, head_dim 128, full, on 4 SMs. A bar h·t is tile t of head h: of keys in the first panel, of queries in the others.".to_owned(),
        "Each panel has a clock of its own: a step is of other blocks, and two blocks of threads on an SM share it.".to_owned(),
    ];
    page("The forward pass, three schedules", &panels, false, &notes)
}

/// A causal mask: tiles in ascending order, and the longest first.
fn causal() -> Result<String> {
    let problem = problem(4, 2048, Mask::Causal)?;
    let of = |title: &str, order| -> Result<Panel> {
        let timeline = forward(&problem, Algorithm::Flash3, order)?;
        Ok(Panel {
            title: format!("{title} ({})", percent(&timeline)),
            per_sm: 1,
            timeline,
            row: 22,
            unit: "steps: one block of keys past one tile of queries",
        })
    };
    let panels = [
        of(
            "one head after the other, tiles ascending",
            Order::Ascending,
        )?,
        of(
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
fn backward(
    title: &str,
    (heads, seqlen, mask): (usize, usize, Mask),
    order: Deterministic,
) -> Result<Panel> {
    let timeline = deterministic(&problem(heads, seqlen, mask)?, N_SMS_BACKWARD, order)?;
    Ok(Panel {
        title: format!("{title} ({})", percent(&timeline)),
        per_sm: 1,
        timeline,
        row: 22,
        unit: "steps: one block of queries past one tile of keys",
    })
}

/// Without a mask: all tiles from the same block on, and in shifted order.
fn backward_full() -> Result<String> {
    let problem = FULL_BACKWARD;
    let panels = [
        backward(
            "every tile from block 0 up",
            problem,
            Deterministic::FromFirst,
        )?,
        backward("as planned: shifted order", problem, Deterministic::Planned)?,
    ];
    let notes = [
        "flash3, bf16, 2 heads, 512 queries and keys, head_dim 128, full, on 8 SMs: each has a tile of 128 keys. A cell is a step, its number the".to_owned(),
        "block of 64 queries to whose dQ the tile adds. The tiles of a head add to a block in a fixed order. Grey: a tile waits at the dQ semaphore.".to_owned(),
    ];
    page("The deterministic backward pass", &panels, true, &notes)
}

/// Under a causal mask.
fn backward_causal() -> Result<String> {
    let panels = [backward(
        "as planned: one head up, the other down",
        CAUSAL_BACKWARD,
        Deterministic::Planned,
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
