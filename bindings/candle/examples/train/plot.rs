//! Loss curves as an SVG file.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use crate::training::Training;

/// Blue, orange, green: told apart without red and green side by side.
const COLOURS: [RGBColor; 3] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 120, 0),
    RGBColor(0, 158, 115),
];

/// Draws the loss of every step, and the held-out loss, dashed.
pub fn draw(path: &Path, trainings: &[Training]) -> Result<()> {
    let steps = trainings.iter().map(|one| one.losses.len()).max();
    let steps = steps.unwrap_or(1).max(1);
    let losses = || trainings.iter().flat_map(|one| &one.losses);
    let low = losses().copied().fold(f32::INFINITY, f32::min);
    let high = losses().copied().fold(f32::NEG_INFINITY, f32::max);
    let margin = 0.05 * (high - low).max(0.1);

    let root = SVGBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption("Loss by step (dashed: held out)", ("sans-serif", 22))
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0..steps, low - margin..high + margin)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("step")
        .y_desc("nats per byte")
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    // The first is drawn last and thinnest: where curves coincide, the others show beside it.
    for (index, training) in trainings.iter().enumerate().rev() {
        let colour = COLOURS[index % COLOURS.len()];
        let width = if index == 0 { 1 } else { 3 };
        let losses = training.losses.iter().copied().enumerate();
        let style = if index == 0 {
            colour.mix(1.0)
        } else {
            colour.mix(0.45)
        };
        chart
            .draw_series(LineSeries::new(losses, style.stroke_width(width)))?
            .label(training.label.clone())
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 20, y)], style.stroke_width(width))
            });
        let held_out = training.held_out.iter().copied();
        let style = colour.stroke_width(width);
        chart.draw_series(DashedLineSeries::new(held_out, 6, 4, style))?;
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", 15))
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present().with_context(|| path.display().to_string())
}
