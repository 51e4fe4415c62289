//! The picture of a profile.

use ferroflash::{Algorithm, Pass};

use super::panel::{Panel, Picture, Row, WIDTH};
use super::{OfPass, Profile};
use crate::canvas::{self, NotDrawn};
use crate::timeline::{Measured, MeasuredLane, STEP, Timeline};
use crate::words::head_dims;

/// Nanoseconds of a microsecond.
const NS_PER_US: u64 = 1000;

/// The legend of colours.
const COLOURS: &str =
    "Colour: the tile, from first (dark) to last (bright); grey: it waits; light: nothing.";

impl Profile {
    /// The SVG: for each pass the timeline by time stamps, if measured, and the simulated one.
    pub fn svg(&self) -> Result<String, NotDrawn> {
        let panels = self.passes.iter().flat_map(|pass| panels(self, pass));
        let panels: Vec<Panel> = panels.collect();
        let height: i32 = panels.iter().map(Panel::height).sum();
        canvas::svg((WIDTH as u32, height.max(1) as u32), |root| {
            let mut rest = root.clone();
            for panel in &panels {
                let (own, below) = rest.split_vertically(panel.height());
                panel.draw(&own)?;
                rest = below;
            }
            Ok(())
        })
    }
}

/// Those of a pass.
fn panels<'a>(profile: &Profile, pass: &'a OfPass) -> Vec<Panel<'a>> {
    let title = title(profile, pass);
    let measured = pass.measured.iter().flatten().map(of_measured);
    let simulated = match &pass.timeline {
        Ok(timeline) => of_simulated(pass, timeline),
        Err(reason) => Picture::words(format!("Not simulated: {reason}.")),
    };
    let pictures = measured.chain([simulated]);
    pictures
        .map(|picture| Panel::new(title.clone(), picture))
        .collect()
}

/// The kernel, and its device.
fn title(profile: &Profile, pass: &OfPass) -> String {
    let plan = &pass.plan;
    let problem = &profile.problem;
    format!(
        "{} with {} on {}: {}, {} queries, {} keys, {} heads, {}, {}",
        plan.pass.name(),
        plan.algorithm,
        profile.device.name,
        problem.dtype(),
        problem.seqlen_q(),
        problem.seqlen_k(),
        problem.batch() * problem.heads_q(),
        head_dims(problem),
        problem.mask()
    )
}

fn of_measured<'a>(measured: &'a Measured) -> Picture<'a> {
    let row = |lane: &'a MeasuredLane| Row {
        name: lane.sm.to_string(),
        stretches: &lane.stretches,
    };
    Picture {
        caption: format!(
            "Measured, by time stamps of {}: {} of {} places of a block of threads have tiles; {:.1} % without one. {COLOURS} Rows: the multiprocessor.",
            measured.kernel,
            measured.lanes.len(),
            measured.n_places,
            100.0 * measured.without_tile()
        ),
        rows: measured.lanes.iter().map(row).collect(),
        end: measured.end(),
        unit: NS_PER_US,
        axis: "time in µs from the first tile on",
    }
}

fn of_simulated<'a>(pass: &OfPass, timeline: &'a Timeline) -> Picture<'a> {
    let why = match &pass.measured {
        Some(Err(reason)) => format!(" ({reason})"),
        Some(Ok(_)) | None => String::new(),
    };
    let row = |(idx, lane): (usize, &'a Vec<_>)| Row {
        name: idx.to_string(),
        stretches: lane,
    };
    Picture {
        caption: format!(
            "Simulated, not measured{why}: {} of {} places of a block of threads have tiles; {:.1} % idle. {COLOURS}",
            timeline.lanes.len(),
            timeline.n_places,
            100.0 * timeline.idle().all()
        ),
        rows: timeline.lanes.iter().enumerate().map(row).collect(),
        end: timeline.end(),
        unit: STEP,
        axis: match (pass.plan.pass, pass.plan.algorithm) {
            (Pass::Backward, _) | (_, Algorithm::Flash1) => {
                "time in steps: one block of queries past a tile of keys each"
            }
            _ => "time in steps: one block of keys past a tile of queries each",
        },
    }
}
