//! Predictions at several lengths, and their picture as SVG: a panel for each pass, a line for each schedule, both axes logarithmic.

use ferroflash::{Pass, Problem};
use plotters::prelude::*;

use super::{Estimate, EstimateError, Gpu, estimate};
use crate::canvas::{Area, Drawn, FONT, NotDrawn, colour};
use crate::words::head_dims;

/// Pixels of a panel.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 480;

/// All schedules of all passes of one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The problem.
    pub problem: Problem,
    /// One entry per pass.
    pub passes: Vec<Vec<Estimate>>,
}

impl Case {
    /// Predicts these passes.
    pub fn new(problem: Problem, gpu: &Gpu, passes: &[Pass]) -> Result<Case, EstimateError> {
        let passes = passes.iter().map(|&pass| estimate(&problem, gpu, pass));
        let passes = passes.collect::<Result<_, _>>()?;
        Ok(Case { problem, passes })
    }
}

/// The SVG of cases that differ in their lengths.
pub fn svg(gpu: &Gpu, cases: &[Case]) -> Result<String, NotDrawn> {
    let n_panels = cases.first().map_or(0, |case| case.passes.len()).max(1);
    crate::canvas::svg((WIDTH * n_panels as u32, HEIGHT), |root| {
        let panels = root.split_evenly((1, n_panels));
        let mut panels = panels.iter().enumerate();
        panels.try_for_each(|(pass, area)| panel(area, gpu, cases, pass))
    })
}

/// One pass.
fn panel(area: &Area, gpu: &Gpu, cases: &[Case], pass: usize) -> Drawn {
    let Some(first) = cases.first() else {
        return Ok(());
    };
    let estimates = || {
        cases
            .iter()
            .flat_map(|case| case.passes.get(pass))
            .flatten()
    };
    let times = || estimates().map(|estimate| estimate.seconds * 1e6);
    let (least, most) = times().fold((f64::MAX, 0.0), |(least, most), us| {
        (us.min(least), us.max(most))
    });
    let Some(shown) = estimates().next() else {
        return Ok(());
    };
    let problem = &first.problem;
    let title = format!(
        "{}, {}: {}{}, {}, {}",
        gpu.name,
        shown.pass.name(),
        problem.dtype(),
        if problem.fp8().is_some() {
            ", e4m3"
        } else {
            ""
        },
        head_dims(problem),
        problem.mask()
    );
    // Lengths double, so their places are a logarithmic axis. One length alone has an axis, too.
    let places = 0.0..(cases.len() - 1).max(1) as f64;
    let length = |place: &f64| match (place.fract() == 0.0, cases.get(*place as usize)) {
        (true, Some(case)) => case.problem.seqlen_q().to_string(),
        _ => String::new(),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(places, (least / 1.5..most * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("sequence length")
        .y_desc("predicted time, µs")
        .x_labels(cases.len())
        .x_max_light_lines(1)
        .x_label_formatter(&length)
        .y_label_formatter(&number)
        .draw()?;
    let schedules = first.passes.get(pass).into_iter().flatten();
    for algorithm in schedules.map(|estimate| estimate.algorithm) {
        let time = |(place, case): (usize, &Case)| -> Option<(f64, f64)> {
            let mut estimates = case.passes.get(pass)?.iter();
            let own = |estimate: &&Estimate| estimate.algorithm == algorithm;
            Some((place as f64, estimates.find(own)?.seconds * 1e6))
        };
        let points: Vec<(f64, f64)> = cases.iter().enumerate().filter_map(time).collect();
        let colour = colour(algorithm);
        let dots = points.iter().map(|&at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(dots)?;
        chart
            .draw_series([PathElement::new(points, colour.stroke_width(2))])?
            .label(algorithm.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .label_font((FONT, 14))
        .draw()?;
    Ok(())
}

/// A time of the axis, without superfluous digits.
fn number(us: &f64) -> String {
    match *us < 10.0 {
        true => format!("{us:.1}"),
        false => format!("{us:.0}"),
    }
}
