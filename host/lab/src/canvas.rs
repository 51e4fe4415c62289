//! Common parts of pictures: an SVG, texts, colours.
//!
//! Texts name a generic font and are placed by their anchors, and no font is measured: so a picture has the same bytes on every machine.
//! The background is white on purpose: pictures look the same on light and dark pages.

use ferroflash::Algorithm;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::Pos;

/// The drawing area.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The font.
pub const FONT: &str = "sans-serif";
/// The colour of texts and axes.
pub const INK: RGBColor = RGBColor(40, 40, 40);

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the picture cannot be drawn: {0}")]
pub struct NotDrawn(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for NotDrawn {
    fn from(error: DrawingAreaErrorKind<E>) -> NotDrawn {
        NotDrawn(error.to_string())
    }
}

/// The result of drawing.
pub type Drawn = Result<(), NotDrawn>;

/// Colours that people with any colour vision can tell apart (Okabe and Ito 2008).
pub mod colours {
    use plotters::style::RGBColor;

    /// Green.
    pub const GREEN: RGBColor = RGBColor(0, 158, 115);
    /// Blue.
    pub const BLUE: RGBColor = RGBColor(0, 114, 178);
    /// Vermilion.
    pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
    /// Orange.
    pub const ORANGE: RGBColor = RGBColor(230, 159, 0);
    /// Purple.
    pub const PURPLE: RGBColor = RGBColor(204, 121, 167);
    /// Sky blue.
    pub const SKY: RGBColor = RGBColor(86, 180, 233);
    /// Grey.
    pub const GREY: RGBColor = RGBColor(120, 120, 120);
}

/// A schedule's colour.
pub fn colour(algorithm: Algorithm) -> RGBColor {
    match algorithm {
        Algorithm::Standard => colours::VERMILION,
        Algorithm::Flash1 => colours::ORANGE,
        Algorithm::Flash2 => colours::BLUE,
        Algorithm::Flash3 | Algorithm::Tiled => colours::GREEN,
    }
}

/// The SVG of a picture of this many pixels; `draw` draws on its white background.
pub fn svg<E: From<NotDrawn>>(
    size: (u32, u32),
    draw: impl FnOnce(&Area) -> Result<(), E>,
) -> Result<String, E> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(NotDrawn::from)?;
        draw(&root)?;
        root.present().map_err(NotDrawn::from)?;
    }
    Ok(svg)
}

/// The anchor of a text: the point of it that is at its position.
pub mod anchor {
    use plotters::style::text_anchor::{HPos, Pos, VPos};

    const fn of(h_pos: HPos, v_pos: VPos) -> Pos {
        Pos { h_pos, v_pos }
    }

    /// Its upper left corner.
    pub const TOP_LEFT: Pos = of(HPos::Left, VPos::Top);
    /// Its lower left corner.
    pub const BOTTOM_LEFT: Pos = of(HPos::Left, VPos::Bottom);
    /// The middle of its upper edge.
    pub const TOP: Pos = of(HPos::Center, VPos::Top);
    /// The middle of its left edge.
    pub const LEFT: Pos = of(HPos::Left, VPos::Center);
    /// The middle of its right edge.
    pub const RIGHT: Pos = of(HPos::Right, VPos::Center);
    /// Its middle.
    pub const CENTER: Pos = of(HPos::Center, VPos::Center);
}

/// Draws a text in [`INK`] at a position.
pub fn write(area: &Area, text: &str, size: u32, at: (i32, i32), anchor: Pos) -> Drawn {
    write_in(area, text, size, at, INK, anchor)
}

/// Draws a text of any colour at a position.
pub fn write_in(
    area: &Area,
    text: &str,
    size: u32,
    at: (i32, i32),
    colour: RGBColor,
    anchor: Pos,
) -> Drawn {
    let style = (FONT, size).into_font().color(&colour).pos(anchor);
    Ok(area.draw_text(text, &style, at)?)
}
