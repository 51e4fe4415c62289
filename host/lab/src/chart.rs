//! A page with a title, a legend in a strip of its own, panels, and notes below; charts over lengths.

use plotters::prelude::*;

use crate::canvas::{Area, Drawn, FONT, INK, NotDrawn, anchor, svg, write, write_in};

/// Of notes.
pub const FAINT: RGBColor = RGBColor(105, 105, 105);
/// Of the lines of a grid.
pub const GRID: RGBColor = RGBColor(226, 226, 226);

/// What marks the points of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A disc.
    Disc,
    /// A ring.
    Ring,
    /// A triangle.
    Triangle,
    /// A cross.
    Cross,
    /// A square.
    Square,
}

/// How a line looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Its colour.
    pub colour: RGBColor,
    /// Its width in pixels.
    pub width: u32,
    /// Its points.
    pub mark: Mark,
}

/// Height of the title, of the legend and of a line of the notes.
const TITLE: i32 = 34;
const LEGEND: i32 = 30;
const NOTE: i32 = 18;
/// Space at the sides.
const MARGIN: i32 = 14;

/// A page around its panels.
pub struct Page<'a> {
    /// Pixels of the panels together.
    pub size: (u32, u32),
    /// What stands on top.
    pub title: &'a str,
    /// What lines or colours mean; in several lines, where one has no room for all.
    pub legend: &'a [(String, Look)],
    /// Pixels of an entry of the legend.
    pub entry_width: i32,
    /// Lines below.
    pub notes: &'a [String],
}

impl Page<'_> {
    /// The text of the picture; `panels` draws into the middle.
    pub fn svg<E: From<NotDrawn>>(
        &self,
        panels: impl FnOnce(&Area) -> Result<(), E>,
    ) -> Result<String, E> {
        let notes = NOTE * self.notes.len() as i32 + 20;
        let per_line = (self.size.0 as i32 - MARGIN - 4) / self.entry_width.max(1);
        let per_line = per_line.max(1) as usize;
        let legend = LEGEND * self.legend.len().div_ceil(per_line) as i32;
        let top = TITLE + legend;
        svg((self.size.0, self.size.1 + (top + notes) as u32), |root| {
            write(root, self.title, 21, (MARGIN, 12), anchor::TOP_LEFT)?;
            for (idx, (name, look)) in self.legend.iter().enumerate() {
                let x = MARGIN + 4 + (idx % per_line) as i32 * self.entry_width;
                let y = TITLE + LEGEND / 2 + LEGEND * (idx / per_line) as i32;
                entry(root, (x, y), name, *look)?;
            }
            let (_, rest) = root.split_vertically(top);
            let (middle, below) = rest.split_vertically(self.size.1 as i32);
            panels(&middle)?;
            for (idx, note) in self.notes.iter().enumerate() {
                let at = (MARGIN, 12 + NOTE * idx as i32);
                write_in(&below, note, 14, at, FAINT, anchor::TOP_LEFT)?;
            }
            Ok(())
        })
    }
}

/// An entry of the legend: a piece of the line, and its name.
fn entry(area: &Area, (x, y): (i32, i32), name: &str, look: Look) -> Drawn {
    let line = vec![(x, y), (x + 30, y)];
    area.draw(&PathElement::new(
        line,
        look.colour.stroke_width(look.width),
    ))?;
    mark(area, (x + 15, y), look)?;
    write(area, name, 16, (x + 38, y), anchor::LEFT)
}

/// A point of a line.
pub fn mark(area: &Area, (x, y): (i32, i32), look: Look) -> Drawn {
    let colour = look.colour;
    match look.mark {
        Mark::Disc => area.draw(&Circle::new((x, y), 4, colour.filled()))?,
        Mark::Ring => {
            area.draw(&Circle::new((x, y), 4, WHITE.filled()))?;
            area.draw(&Circle::new((x, y), 4, colour.stroke_width(2)))?;
        }
        Mark::Triangle => area.draw(&TriangleMarker::new((x, y), 6, colour.filled()))?,
        Mark::Cross => area.draw(&Cross::new((x, y), 4, colour.stroke_width(2)))?,
        Mark::Square => {
            let corners = [(x - 4, y - 4), (x + 4, y + 4)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
        }
    }
    Ok(())
}

/// A line of a chart.
pub struct Line {
    /// Its points: place on the axis of lengths, and value.
    pub points: Vec<(f64, f64)>,
    /// How it looks.
    pub look: Look,
}

/// A chart over lengths that double.
pub struct Chart<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// What the horizontal axis counts.
    pub x_name: &'a str,
    /// Its lengths.
    pub seqlens: &'a [u64],
    /// What the vertical axis counts, with its unit.
    pub y_name: &'a str,
    /// Its least and greatest value.
    pub y: (f64, f64),
    /// How many of its values are named.
    pub y_labels: usize,
    /// How such a value is written.
    pub y_format: fn(&f64) -> String,
    /// A value with a line of its own.
    pub level: Option<f64>,
    /// The lines; those that are to lie on top come last.
    pub lines: Vec<Line>,
}

impl Chart<'_> {
    /// Draws it.
    pub fn draw(&self, area: &Area) -> Drawn {
        let last = self.seqlens.len().saturating_sub(1) as f64;
        let length = |place: &f64| {
            let at = place.round();
            match ((place - at).abs() < 1e-6, self.seqlens.get(at as usize)) {
                (true, Some(seqlen)) => name_of(*seqlen),
                _ => String::new(),
            }
        };
        let (top, chart) = area.split_vertically(26);
        write(&top, self.title, 17, (MARGIN + 58, 8), anchor::TOP_LEFT)?;
        let mut chart = ChartBuilder::on(&chart)
            .margin_left(MARGIN)
            .margin_right(MARGIN + 4)
            .margin_top(8)
            .x_label_area_size(46)
            .y_label_area_size(58)
            .build_cartesian_2d(-0.15..last + 0.15, self.y.0..self.y.1)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(FAINT)
            .x_labels(self.seqlens.len() + 1)
            .y_labels(self.y_labels)
            .x_desc(self.x_name)
            .y_desc(self.y_name)
            .x_label_formatter(&length)
            .y_label_formatter(&self.y_format)
            .label_style((FONT, 15).into_font().color(&INK))
            .axis_desc_style((FONT, 15).into_font().color(&INK))
            .draw()?;
        if let Some(level) = self.level {
            let line = vec![(-0.15, level), (last + 0.15, level)];
            chart.draw_series([PathElement::new(line, INK.stroke_width(1))])?;
        }
        let plane = chart.plotting_area();
        for line in &self.lines {
            let Look { colour, width, .. } = line.look;
            let path = PathElement::new(line.points.clone(), colour.stroke_width(width));
            plane.draw(&path)?;
        }
        let on_page = plane.strip_coord_spec();
        let (left, top) = on_page.get_base_pixel();
        for line in &self.lines {
            for point in &line.points {
                let (x, y) = plane.map_coordinate(point);
                mark(&on_page, (x - left, y - top), line.look)?;
            }
        }
        Ok(())
    }
}

/// A length: `512`, `16k`.
pub fn name_of(seqlen: u64) -> String {
    match seqlen % 1024 {
        0 => format!("{}k", seqlen / 1024),
        _ => seqlen.to_string(),
    }
}
