//! The roofline: what each schedule could do, and what the library's estimate says that it does.

use anyhow::{Context, Result};
use ferroflash::{Algorithm, Dtype, Pass, Problem};
use ferroflash_lab::canvas::{Area, FONT, INK, anchor, colour, write_in};
use ferroflash_lab::chart::{FAINT, GRID, Look, Mark, Page, mark};
use ferroflash_lab::estimate::{Estimate, Gpu};
use plotters::prelude::*;

/// Lengths of the sequences whose forward pass is drawn.
pub const SEQLENS: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16384];
/// Schedules that are drawn.
pub const SCHEDULES: [Algorithm; 4] = [
    Algorithm::Standard,
    Algorithm::Flash1,
    Algorithm::Flash2,
    Algorithm::Flash3,
];
/// FLOP per byte of a step of decoding whose keys serve four query heads: 4·d operations for each query head and key, and 4·d bytes for each key.
pub const DECODE: f64 = 4.0;

/// A point: FLOP per byte through HBM, and TFLOP/s as predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// FLOP per byte.
    pub intensity: f64,
    /// TFLOP/s.
    pub tflops: f64,
}

/// The GPU of the picture.
pub fn gpu() -> Result<Gpu> {
    Ok(Gpu::named("H200")?)
}

/// The forward pass of 16 heads of 128 columns, in bf16.
pub fn forward(seqlen: usize, algorithm: Algorithm) -> Result<Point> {
    let problem = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(16);
    let problem = problem.head_dim(128).build()?;
    let estimate = Estimate::of(&problem, &gpu()?, Pass::Forward, algorithm);
    let estimate = estimate.context("the schedule is counted")?;
    Ok(Point {
        intensity: estimate.intensity(),
        tflops: estimate.flops() as f64 / estimate.seconds / 1e12,
    })
}

/// The picture, by name.
pub fn pictures() -> Result<Vec<(&'static str, String)>> {
    let gpu = gpu()?;
    let peak = gpu.peak(Dtype::Bf16)? / 1e12;
    let bandwidth = gpu.bandwidth / 1e12;
    let look = |colour, mark| Look {
        colour,
        width: 2,
        mark,
    };
    let legend =
        SCHEDULES.map(|algorithm| (algorithm.to_string(), look(colour(algorithm), Mark::Disc)));
    let notes = [
        format!("{}, bf16. The roofs: {bandwidth:.1} TB/s, and {peak:.0} TFLOP/s; they meet at {:.0} FLOP per byte. Points are predicted: forward, 16 heads of 128 columns,", gpu.name, peak / bandwidth),
        "full, from 512 to 16k tokens: of flash1, flash2 and flash3 from the left to the right. The thin line is a step of decoding, 4 query heads for each head of keys.".to_owned(),
    ];
    let page = Page {
        size: (980, 420),
        title: "Roofline",
        legend: &legend,
        entry_width: 150,
        notes: &notes,
    };
    let picture = page.svg(|area| draw(area, peak, bandwidth, &legend))?;
    Ok(vec![("roofline", picture)])
}

fn draw(area: &Area, peak: f64, bandwidth: f64, legend: &[(String, Look)]) -> Result<()> {
    let (x, y) = (1f64..20_000f64, 4f64..2_000f64);
    let mut chart = ChartBuilder::on(area)
        .margin_left(14)
        .margin_right(18)
        .margin_top(8)
        .x_label_area_size(46)
        .y_label_area_size(62)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    let number = |x: &f64| format!("{x:.0}");
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_desc("FLOP per byte through HBM")
        .y_desc("TFLOP/s")
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    let ridge = peak / bandwidth;
    let roofs = vec![(1.0, bandwidth), (ridge, peak), (20_000.0, peak)];
    chart.draw_series([PathElement::new(roofs, INK.stroke_width(2))])?;
    let decode = vec![(DECODE, 4.0), (DECODE, DECODE * bandwidth)];
    chart.draw_series([PathElement::new(decode, FAINT)])?;
    let mut lines = Vec::new();
    for algorithm in SCHEDULES {
        let points: Result<Vec<Point>> =
            SEQLENS.map(|n| forward(n, algorithm)).into_iter().collect();
        lines.push(points?);
    }
    let plane = chart.plotting_area();
    let on_page = plane.strip_coord_spec();
    let (left, top) = on_page.get_base_pixel();
    for (points, (_, look)) in lines.iter().zip(legend) {
        let path: Vec<(f64, f64)> = points.iter().map(|p| (p.intensity, p.tflops)).collect();
        plane.draw(&PathElement::new(
            path.clone(),
            look.colour.stroke_width(look.width),
        ))?;
        for point in path {
            let (x, y) = plane.map_coordinate(&point);
            mark(&on_page, (x - left, y - top), *look)?;
        }
    }
    let named = [
        ((12.0, 12.0 * bandwidth), "memory bound", (-66, -14)),
        ((DECODE, 8.0), "decode", (36, 0)),
        ((3000.0, peak), "compute bound", (0, -16)),
    ];
    for (at, name, (dx, dy)) in named {
        let (x, y) = plane.map_coordinate(&at);
        let at = (x - left + dx, y - top + dy);
        write_in(&on_page, name, 15, at, FAINT, anchor::CENTER)?;
    }
    Ok(())
}
