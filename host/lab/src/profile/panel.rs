//! A picture of a timeline: a row for each slot of a block of threads, time to the right.

use plotters::prelude::*;

use crate::canvas::{Area, Drawn, INK, anchor, write, write_in};
use crate::timeline::{Doing, Stretch};

/// Pixels of a panel.
pub const WIDTH: i32 = 1120;
const LEFT: i32 = 72;
const RIGHT: i32 = 24;
/// Above the caption, a line of it, and below it.
const CAPTION: i32 = 31;
const LINE: i32 = 17;
const BELOW_CAPTION: i32 = 4;
const BOTTOM: i32 = 60;
/// Letters of a line of the caption.
const LINE_LETTERS: usize = 150;
/// Pixels that rows fill, if they are neither too low nor too high.
const ROWS: i32 = 560;
const ROW: std::ops::RangeInclusive<i32> = 3..=18;
/// Rows that are drawn, at most.
const MOST_ROWS: usize = 300;
/// Pixels of a letter.
const LETTER: i32 = 8;
const IDLE: RGBColor = RGBColor(236, 236, 236);
const WAIT: RGBColor = RGBColor(150, 150, 150);

/// The content of a panel.
pub struct Picture<'a> {
    /// Its title.
    pub caption: String,
    /// The places.
    pub rows: Vec<Row<'a>>,
    /// When the last tile ends.
    pub end: u64,
    /// How many of a stretch's units make one of the axis.
    pub unit: u64,
    /// The axis' label.
    pub axis: &'static str,
}

/// A place.
pub struct Row<'a> {
    /// Its label.
    pub name: String,
    /// Its stretches.
    pub stretches: &'a [Stretch],
}

impl Picture<'_> {
    /// Words in a picture's place.
    pub fn words(caption: String) -> Self {
        Picture {
            caption,
            rows: Vec::new(),
            end: 0,
            unit: 1,
            axis: "",
        }
    }
}

/// A picture under its title.
pub struct Panel<'a> {
    title: String,
    /// The caption in lines.
    caption: Vec<String>,
    picture: Picture<'a>,
    /// Pixels of a row.
    row: i32,
    /// Rows that are drawn.
    rows: usize,
}

impl<'a> Panel<'a> {
    /// As high as its rows need.
    pub fn new(title: String, picture: Picture<'a>) -> Panel<'a> {
        let all = picture.rows.len();
        let rows = all.min(MOST_ROWS);
        let shown = match rows < all {
            true => format!(" The first {rows} rows of {all} are drawn."),
            false => String::new(),
        };
        Panel {
            title,
            caption: lines(&format!("{}{shown}", picture.caption)),
            picture,
            row: (ROWS / rows.max(1) as i32).clamp(*ROW.start(), *ROW.end()),
            rows,
        }
    }

    /// Its pixels.
    pub fn height(&self) -> i32 {
        self.top() + self.row * self.rows as i32 + BOTTOM
    }

    /// Pixels above the rows.
    fn top(&self) -> i32 {
        CAPTION + LINE * self.caption.len() as i32 + BELOW_CAPTION
    }

    /// Draws it.
    pub fn draw(&self, area: &Area) -> Drawn {
        write(area, &self.title, 17, (LEFT, 8), anchor::TOP_LEFT)?;
        for (nth, line) in self.caption.iter().enumerate() {
            let at = (LEFT, CAPTION + LINE * nth as i32);
            write(area, line, 14, at, anchor::TOP_LEFT)?;
        }
        match self.picture.rows.is_empty() {
            true => Ok(()),
            false => self.draw_rows(area),
        }
    }

    fn draw_rows(&self, area: &Area) -> Drawn {
        let rows = &self.picture.rows;
        let width = WIDTH - LEFT - RIGHT;
        let stretches = rows.iter().flat_map(|row| row.stretches);
        let last_tile = stretches.filter_map(tile).max();
        for (idx, lane) in rows.iter().take(self.rows).enumerate() {
            let top = self.top() + self.row * idx as i32;
            let ground = [(LEFT, top), (LEFT + width, top + self.row - 1)];
            area.draw(&Rectangle::new(ground, IDLE.filled()))?;
            if idx.is_multiple_of(self.every()) {
                let at = (LEFT - 6, top + self.row / 2);
                write(area, &lane.name, 12, at, anchor::RIGHT)?;
            }
            for stretch in lane.stretches {
                let (from, until) = (self.x(stretch.from), self.x(stretch.until));
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
        self.draw_axis(area)
    }

    /// The position of a time.
    fn x(&self, time: u64) -> i32 {
        let width = (WIDTH - LEFT - RIGHT) as u64;
        LEFT + (width * time / self.picture.end.max(1)) as i32
    }

    /// Rows from one number to the next.
    fn every(&self) -> usize {
        (16 / self.row.max(1)).max(1) as usize
    }

    /// Head and tile, if there is room.
    fn draw_name(
        &self,
        area: &Area,
        stretch: &Stretch,
        (from, until): (i32, i32),
        top: i32,
    ) -> Drawn {
        let Doing::Tile { head, tile } = stretch.doing else {
            return Ok(());
        };
        let name = format!("{head}·{tile}");
        if self.row < 12 || until - from < LETTER * name.chars().count() as i32 {
            return Ok(());
        }
        let at = ((from + until) / 2, top + self.row / 2);
        write_in(area, &name, 11, at, WHITE, anchor::CENTER)
    }

    fn draw_axis(&self, area: &Area) -> Drawn {
        let bottom = self.top() + self.row * self.rows as i32 + 3;
        let (end, unit) = (self.picture.end, self.picture.unit);
        let n_units = end / unit;
        let powers = std::iter::successors(Some(1u64), |every| every.checked_mul(2));
        let every = powers.into_iter().find(|every| n_units / every <= 16);
        for nth in (0..=n_units).step_by(every.unwrap_or(1) as usize) {
            let place = self.x(nth * unit);
            let tick = vec![(place, bottom), (place, bottom + 5)];
            area.draw(&PathElement::new(tick, INK))?;
            let at = (place, bottom + 8);
            write(area, &nth.to_string(), 12, at, anchor::TOP)?;
        }
        let at = (WIDTH / 2, bottom + 26);
        write(area, self.picture.axis, 14, at, anchor::TOP)
    }
}

/// A text in lines of [`LINE_LETTERS`], if its words let it.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() < LINE_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The tile that is worked on.
fn tile(stretch: &Stretch) -> Option<u32> {
    match stretch.doing {
        Doing::Tile { tile, .. } | Doing::Step { tile, .. } => Some(tile),
        Doing::Wait => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caption_is_broken_between_words() {
        let words = vec!["seventeen-letters"; 20];
        let lines = lines(&words.join(" "));
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= LINE_LETTERS)
        );
        assert_eq!((lines.len(), lines.join(" ")), (3, words.join(" ")));
        let rows = |n| {
            vec![(); n].into_iter().map(|()| Row {
                name: String::new(),
                stretches: &[],
            })
        };
        let height = |caption: &str, n| {
            let mut picture = Picture::words(caption.to_owned());
            picture.rows = rows(n).collect();
            Panel::new(String::new(), picture).height()
        };
        assert_eq!(height(&words.join(" "), 0) - height("short", 0), 2 * LINE);
        assert_eq!(height("short", 100) - height("short", 0), 100 * 5);
    }
}
