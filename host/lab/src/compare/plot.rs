//! Lines drawn, as SVG: for each type, head_dim, mask and pass a row of three panels: time by length, memory by length, and the roofline. All axes are
//! logarithmic; one that has a 0 is broken, and 0 has a line of its own below. Points and thick lines are measured, thin lines predicted.

mod axis;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ferroflash::Algorithm;
use plotters::prelude::*;

use axis::{Axis, bytes, draw_break, number, range};

use super::Line;
use crate::canvas::{self, Area, Drawn, FONT, NotDrawn, anchor, colour, write_in};
use crate::estimate::Gpu;
use crate::words::pass_word;

/// Pixels of a panel.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 360;
/// Pixels of the strip with the names.
const LEGEND: u32 = 40;
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Lines of one type, head_dim, mask and pass.
struct Group<'a> {
    title: String,
    lines: Vec<&'a Line>,
}

impl Group<'_> {
    /// The lengths, ascending.
    fn lengths(&self) -> Vec<usize> {
        let lengths = self.lines.iter().map(|line| line.problem.seqlen_q());
        BTreeSet::from_iter(lengths).into_iter().collect()
    }

    /// The schedules, in the order of their lines.
    fn schedules(&self) -> Vec<Algorithm> {
        schedules(self.lines.iter().copied())
    }

    /// Points of a schedule: length and value.
    fn points(&self, schedule: Algorithm, value: impl Fn(&Line) -> Option<f64>) -> Vec<(f64, f64)> {
        let own = self
            .lines
            .iter()
            .filter(|line| line.algorithm == Some(schedule));
        own.filter_map(|line| Some((line.problem.seqlen_q() as f64, value(line)?)))
            .collect()
    }
}

/// The schedules of lines, each once.
fn schedules<'a>(lines: impl Iterator<Item = &'a Line>) -> Vec<Algorithm> {
    let mut schedules = Vec::new();
    for schedule in lines.filter_map(|line| line.algorithm) {
        if !schedules.contains(&schedule) {
            schedules.push(schedule);
        }
    }
    schedules
}

/// The SVG of the picture.
pub fn svg(gpu: Option<&Gpu>, lines: &[Line]) -> Result<String, NotDrawn> {
    let groups = groups(lines);
    let n_rows = groups.len().max(1);
    let time = Quantity {
        name: "time, ms",
        label: number,
        of: [measured_ms, predicted_ms],
    };
    let memory = Quantity {
        name: "memory beside inputs and outputs",
        label: bytes,
        of: [measured_bytes, predicted_bytes],
    };
    canvas::svg((3 * WIDTH, LEGEND + HEIGHT * n_rows as u32), |root| {
        let (top, panels) = root.split_vertically(LEGEND);
        legend(&top, lines)?;
        for (group, row) in groups.iter().zip(panels.split_evenly((n_rows, 1))) {
            let panels = row.split_evenly((1, 3));
            by_length(&panels[0], group, &time)?;
            by_length(&panels[1], group, &memory)?;
            if let Some(gpu) = gpu {
                roofline(&panels[2], group, gpu)?;
            }
        }
        Ok(())
    })
}

fn groups(lines: &[Line]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for line in lines {
        let problem = &line.problem;
        let title = format!(
            "{}, {}, head_dim {}, {}",
            pass_word(line.pass),
            problem.dtype(),
            problem.head_dim(),
            problem.mask()
        );
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.lines.push(line),
            None => groups.push(Group {
                title,
                lines: vec![line],
            }),
        }
    }
    groups
}

fn measured_ms(line: &Line) -> Option<f64> {
    Some(line.measured.as_ref().ok()?.ms)
}

fn predicted_ms(line: &Line) -> Option<f64> {
    Some(line.predicted.as_ref()?.seconds * 1e3)
}

fn measured_bytes(line: &Line) -> Option<f64> {
    Some(line.measured.as_ref().ok()?.extra_bytes as f64)
}

fn predicted_bytes(line: &Line) -> Option<f64> {
    Some(line.predicted.as_ref()?.extra_bytes as f64)
}

/// What is drawn by length.
struct Quantity {
    name: &'static str,
    label: fn(&f64) -> String,
    /// Measured and predicted values.
    of: [fn(&Line) -> Option<f64>; 2],
}

/// A value by length: measured, and predicted.
fn by_length(area: &Area, group: &Group, quantity: &Quantity) -> Drawn {
    let [measured, predicted] = quantity.of;
    let all = group.lines.iter();
    let values = all.flat_map(|line| [measured(line), predicted(line)]);
    let values: Vec<f64> = values.flatten().collect();
    let Some(axis) = Axis::of(&values) else {
        return Ok(());
    };
    let (left, right, names) = axis::of_lengths(&group.lengths());
    let n_names = names.len();
    let lengths = (left..right).log_scale().with_key_points(names);
    let label = |value: &f64| match axis.below {
        Some((end, _)) if *value < end => String::new(),
        _ => (quantity.label)(value),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(&group.title, (FONT, 16))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d(lengths, (axis.least..axis.most).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("sequence length")
        .y_desc(quantity.name)
        .x_labels(n_names)
        .x_max_light_lines(1)
        .x_label_formatter(&number)
        .y_label_formatter(&label)
        .draw()?;
    if let Some((end, zero)) = axis.below {
        // No line of the mesh is below the break.
        let ground = [(left, axis.least), (right, end)];
        chart.draw_series([Rectangle::new(ground, WHITE.filled())])?;
        let plane = chart.plotting_area();
        let line = |value| vec![(left, value), (right, value)];
        plane.draw(&PathElement::new(line(zero), GRID.stroke_width(1)))?;
        plane.draw(&PathElement::new(line(axis.least), BLACK.stroke_width(1)))?;
        let on_page = |value| {
            let ((x, y), (x0, y0)) = (plane.map_coordinate(&(left, value)), area.get_base_pixel());
            (x - x0, y - y0)
        };
        draw_break(area, on_page(end), on_page(zero), &(quantity.label)(&0.0))?;
    }
    for schedule in group.schedules() {
        let colour = colour(schedule);
        let points = |value: fn(&Line) -> Option<f64>| {
            group.points(schedule, |line| value(line).map(|value| axis.place(value)))
        };
        chart.draw_series([PathElement::new(points(predicted), colour.stroke_width(1))])?;
        let points = points(measured);
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
        chart.draw_series([PathElement::new(points, colour.stroke_width(2))])?;
    }
    Ok(())
}

/// The position of a line in the roofline, if it takes this many seconds: FLOP per byte through HBM, and TFLOP/s. FLOPs are those that run, for the
/// measured and the predicted time: papers count differently.
fn in_roofline(line: &Line, seconds: f64) -> Option<(f64, f64)> {
    let one = line.predicted.as_ref()?;
    Some((one.intensity(), one.flops() as f64 / seconds / 1e12))
}

/// TFLOP/s by FLOP per byte through HBM: the roofs of the GPU, and a point for each measured row.
fn roofline(area: &Area, group: &Group, gpu: &Gpu) -> Drawn {
    let point = |line: &Line| in_roofline(line, measured_ms(line)? / 1e3);
    let predicted = |line: &Line| in_roofline(line, line.predicted.as_ref()?.seconds);
    let Some(first) = group.lines.first() else {
        return Ok(());
    };
    // A GPU that does not multiply the type has no roof of it.
    let Ok(peak) = gpu.peak(first.problem.dtype()) else {
        return Ok(());
    };
    let peak = peak / 1e12;
    let bandwidth = gpu.bandwidth / 1e12;
    let both = group
        .lines
        .iter()
        .flat_map(|line| [point(line), predicted(line)]);
    let points: Vec<(f64, f64)> = both.flatten().collect();
    let ridge = peak / bandwidth;
    let x = points.iter().map(|point| point.0).chain([ridge]);
    let y = points.iter().map(|point| point.1).chain([peak]);
    let (Some((x0, x1)), Some((y0, y1))) = (range(x), range(y)) else {
        return Ok(());
    };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: roofline", gpu.name), (FONT, 16))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d((x0..x1).log_scale(), (y0..y1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("FLOP per byte through HBM, by count")
        .y_desc("TFLOP/s, of what runs")
        .x_labels(6)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    let begin = x0.max(y0 / bandwidth);
    let roofs = vec![(begin, begin * bandwidth), (ridge, peak), (x1, peak)];
    chart.draw_series([PathElement::new(roofs, BLACK.stroke_width(2))])?;
    for schedule in group.schedules() {
        let colour = colour(schedule);
        let own = group
            .lines
            .iter()
            .filter(|line| line.algorithm == Some(schedule));
        let own: Vec<&&Line> = own.collect();
        let rings = own.iter().filter_map(|line| predicted(line));
        chart.draw_series(rings.map(|at| Circle::new(at, 4, colour.stroke_width(1))))?;
        let points = own.iter().filter_map(|line| point(line));
        chart.draw_series(points.map(|at| Circle::new(at, 4, colour.filled())))?;
    }
    Ok(())
}

/// Names of the schedules, above all panels.
fn legend(area: &Area, lines: &[Line]) -> Drawn {
    let schedules = schedules(lines.iter());
    let middle = LEGEND as i32 / 2;
    let name = |text: &str, x| write_in(area, text, 16, (x, middle), BLACK, anchor::LEFT);
    for (idx, schedule) in schedules.iter().enumerate() {
        let (x, colour) = (16 + 130 * idx as i32, colour(*schedule));
        let line = vec![(x, middle), (x + 30, middle)];
        area.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        area.draw(&Circle::new((x + 15, middle), 4, colour.filled()))?;
        name(schedule.name(), x + 38)?;
    }
    let note = "points and thick lines: measured; thin lines and rings: predicted";
    name(note, 16 + 130 * schedules.len() as i32 + 20)
}
