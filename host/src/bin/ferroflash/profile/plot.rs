//! The simulated timeline, as SVG: a panel for each pass, a row for each place of a block of threads, time to the right.

use std::error::Error;

use ferroflash::timeline::{Doing, STEP, Stretch, Timeline};
use ferroflash::{Algorithm, Pass};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{OfPass, Profile};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels of a panel.
const WIDTH: i32 = 1120;
const LEFT: i32 = 72;
const RIGHT: i32 = 24;
const TOP: i32 = 52;
const BOTTOM: i32 = 60;
/// Pixels that rows fill, if they are neither too low nor too high.
const ROWS: i32 = 560;
const ROW: std::ops::RangeInclusive<i32> = 3..=18;
/// Rows that are drawn, at most.
const MOST_ROWS: usize = 300;
/// Pixels of a letter.
const LETTER: i32 = 8;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const IDLE: RGBColor = RGBColor(236, 236, 236);
const WAIT: RGBColor = RGBColor(150, 150, 150);

/// A panel: what is drawn of a pass.
struct Panel<'a> {
    pass: &'a OfPass,
    timeline: Option<&'a Timeline>,
    /// Pixels of a row.
    row: i32,
    rows: usize,
}

/// The text of the picture.
pub fn svg(profile: &Profile) -> Result<String, Box<dyn Error>> {
    let panels: Vec<Panel> = profile.passes.iter().map(Panel::new).collect();
    let height: i32 = panels.iter().map(Panel::height).sum();
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, height.max(1) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let mut rest = root.clone();
        for panel in &panels {
            let (own, below) = rest.split_vertically(panel.height());
            panel.draw(&own, profile)?;
            rest = below;
        }
        root.present()?;
    }
    Ok(svg)
}

impl Panel<'_> {
    fn new(pass: &OfPass) -> Panel<'_> {
        let timeline = pass.timeline.as_ref().ok();
        let rows = timeline.map_or(0, |timeline| timeline.lanes.len());
        let rows = rows.min(MOST_ROWS);
        Panel {
            pass,
            timeline,
            row: (ROWS / rows.max(1) as i32).clamp(*ROW.start(), *ROW.end()),
            rows,
        }
    }

    fn height(&self) -> i32 {
        TOP + self.row * self.rows as i32 + BOTTOM
    }

    fn draw(&self, area: &Area, profile: &Profile) -> Result<(), Box<dyn Error>> {
        let plan = &self.pass.plan;
        let pass = match plan.pass {
            Pass::Backward => "backward",
            Pass::Forward | Pass::ForwardWithWeights => "forward",
        };
        let problem = &profile.problem;
        let title = format!(
            "{pass} with {} on {}: {}, {} queries, {} keys, {} heads, head_dim {}, {}",
            plan.algorithm,
            profile.device.name,
            problem.dtype(),
            problem.seqlen_q(),
            problem.seqlen_k(),
            problem.batch() * problem.heads_q(),
            problem.head_dim(),
            problem.mask()
        );
        let left = (HPos::Left, VPos::Top);
        write(area, &title, 17, (LEFT, 8), left)?;
        match (self.timeline, &self.pass.timeline) {
            (Some(timeline), _) => self.draw_rows(area, timeline),
            (None, Err(reason)) => write(
                area,
                &format!("not simulated: {reason}"),
                14,
                (LEFT, 31),
                left,
            ),
            (None, Ok(_)) => Ok(()),
        }
    }

    fn draw_rows(&self, area: &Area, timeline: &Timeline) -> Result<(), Box<dyn Error>> {
        let end = timeline.end().max(1);
        let width = WIDTH - LEFT - RIGHT;
        let x = |time: u64| LEFT + (width as u64 * time / end) as i32;
        let shown = match self.rows < timeline.lanes.len() {
            true => format!(
                ", the first {} of {} drawn",
                self.rows,
                timeline.lanes.len()
            ),
            false => String::new(),
        };
        let caption = format!(
            "Simulated, not measured: {} of {} places of a block of threads have tiles{shown}; {:.1} % idle. Colour: the tile, from first (dark) to last (bright); grey: it waits; light: nothing.",
            timeline.lanes.len(),
            timeline.n_places,
            100.0 * timeline.idle().all()
        );
        write(area, &caption, 14, (LEFT, 31), (HPos::Left, VPos::Top))?;
        let last_tile = timeline.lanes.iter().flatten().filter_map(tile).max();
        for (idx, lane) in timeline.lanes.iter().take(self.rows).enumerate() {
            let top = TOP + self.row * idx as i32;
            let ground = [(LEFT, top), (LEFT + width, top + self.row - 1)];
            area.draw(&Rectangle::new(ground, IDLE.filled()))?;
            if idx.is_multiple_of(self.every()) {
                let at = (LEFT - 6, top + self.row / 2);
                write(area, &idx.to_string(), 12, at, (HPos::Right, VPos::Center))?;
            }
            for stretch in lane {
                let (from, until) = (x(stretch.from), x(stretch.until));
                let colour = match tile(stretch) {
                    None if until - from < 1 => continue,
                    None => WAIT,
                    Some(tile) => {
                        let last = last_tile.unwrap_or(0).max(1);
                        ViridisRGB.get_color(f64::from(tile) / f64::from(last))
                    }
                };
                // A tile's own edge shows where there is room for it.
                let gap = i32::from(until - from > 3);
                let corners = [(from, top), (until - gap, top + self.row - 1)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                self.draw_name(area, stretch, (from, until), top)?;
            }
        }
        self.draw_axis(area, end, x)
    }

    /// Rows from one number to the next.
    fn every(&self) -> usize {
        (16 / self.row.max(1)).max(1) as usize
    }

    /// Head and tile, where there is room.
    fn draw_name(
        &self,
        area: &Area,
        stretch: &Stretch,
        (from, until): (i32, i32),
        top: i32,
    ) -> Result<(), Box<dyn Error>> {
        let Doing::Tile { head, tile } = stretch.doing else {
            return Ok(());
        };
        let name = format!("{head}·{tile}");
        if self.row < 12 || until - from < LETTER * name.chars().count() as i32 {
            return Ok(());
        }
        let at = ((from + until) / 2, top + self.row / 2);
        let place = Pos::new(HPos::Center, VPos::Center);
        let style = (FONT, 11).into_font().color(&WHITE).pos(place);
        Ok(area.draw_text(&name, &style, at)?)
    }

    fn draw_axis(
        &self,
        area: &Area,
        end: u64,
        x: impl Fn(u64) -> i32,
    ) -> Result<(), Box<dyn Error>> {
        let bottom = TOP + self.row * self.rows as i32 + 3;
        let steps = end / STEP;
        let powers = std::iter::successors(Some(1u64), |every| every.checked_mul(2));
        let every = powers.into_iter().find(|every| steps / every <= 16);
        for step in (0..=steps).step_by(every.unwrap_or(1) as usize) {
            let place = x(step * STEP);
            let tick = vec![(place, bottom), (place, bottom + 5)];
            area.draw(&PathElement::new(tick, INK))?;
            let at = (place, bottom + 8);
            write(area, &step.to_string(), 12, at, (HPos::Center, VPos::Top))?;
        }
        let of_step = match (self.pass.plan.pass, self.pass.plan.algorithm) {
            (Pass::Backward, _) | (_, Algorithm::Flash1) => {
                "time in steps: one block of queries past a tile of keys each"
            }
            _ => "time in steps: one block of keys past a tile of queries each",
        };
        let at = (WIDTH / 2, bottom + 26);
        write(area, of_step, 14, at, (HPos::Center, VPos::Top))
    }
}

/// The tile that is worked on.
fn tile(stretch: &Stretch) -> Option<u32> {
    match stretch.doing {
        Doing::Tile { tile, .. } | Doing::Step { tile, .. } => Some(tile),
        Doing::Wait => None,
    }
}

fn write(
    area: &Area,
    text: &str,
    size: i32,
    at: (i32, i32),
    (across, down): (HPos, VPos),
) -> Result<(), Box<dyn Error>> {
    let place = Pos::new(across, down);
    let style = (FONT, size).into_font().color(&INK).pos(place);
    Ok(area.draw_text(text, &style, at)?)
}
