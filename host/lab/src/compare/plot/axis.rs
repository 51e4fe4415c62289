//! Logarithmic axes and their labels.

use plotters::prelude::*;

use crate::canvas::{Area, Drawn, anchor, write_in};

/// The fraction of an axis below its break.
const BELOW: f64 = 0.16;
/// The fraction of an axis of lengths that a label takes, and the free fraction before the first and after the last.
const NAME: f64 = 0.1;
const ROOM: f64 = 0.02;

/// A logarithmic axis, which has 0 below a break if one of the values is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Its ends.
    pub least: f64,
    pub most: f64,
    /// The end of the break, and the position of 0.
    pub below: Option<(f64, f64)>,
}

impl Axis {
    /// `None` without values.
    pub fn of(values: &[f64]) -> Option<Axis> {
        let positive = || values.iter().copied().filter(|value| *value > 0.0);
        let (least, most) = match (range(positive()), values.is_empty()) {
            (_, true) => return None,
            (Some(ends), false) => ends,
            // Nothing but zeros: what is above the break is empty.
            (None, false) => (1.0, 10.0),
        };
        if positive().count() == values.len() {
            let below = None;
            return Some(Axis { least, most, below });
        }
        let decades = (most / least).log10();
        let part = |part: f64| least / 10f64.powf(decades * part / (1.0 - BELOW));
        Some(Axis {
            least: part(BELOW),
            most,
            below: Some((least, part(BELOW / 2.0))),
        })
    }

    /// The position of a value.
    pub fn place(&self, value: f64) -> f64 {
        match self.below {
            Some((_, zero)) if value <= 0.0 => zero,
            _ => value,
        }
    }
}

/// The ends of a logarithmic axis of ascending lengths, and the lengths with a label: as many as fit.
pub fn of_lengths(lengths: &[usize]) -> (f64, f64, Vec<f64>) {
    let first = lengths.first().map_or(1.0, |&length| length as f64);
    let last = lengths.last().map_or(1.0, |&length| length as f64);
    let last = last.max(2.0 * first);
    let mut names: Vec<f64> = Vec::new();
    for length in lengths.iter().map(|&length| length as f64) {
        let is_far = |before: &f64| (length / before).ln() >= NAME * (last / first).ln();
        if names.last().is_none_or(is_far) {
            names.push(length);
        }
    }
    let room = (last / first).powf(ROOM);
    (first / room, last * room, names)
}

/// The least and the greatest, with room around them.
pub fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (least, most) = values.fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| {
        (least.min(value), most.max(value))
    });
    // A decade at least, in which an axis has a few names.
    let room = (most / least).max(1.0);
    let room = 1.7 * (10.0 / room).sqrt().max(1.0);
    (least <= most).then_some((least / room, most * room))
}

/// Draws two strokes through the axis at `end`, and the label of 0 at its line.
pub fn draw_break(area: &Area, end: (i32, i32), zero: (i32, i32), name: &str) -> Drawn {
    let bottom = (end.0, 2 * zero.1 - end.1);
    // The mesh's ticks below the break.
    let ticks = [(end.0 - 6, end.1 + 1), (end.0 - 1, bottom.1 - 1)];
    area.draw(&Rectangle::new(ticks, WHITE.filled()))?;
    area.draw(&PathElement::new(vec![end, bottom], BLACK.stroke_width(1)))?;
    for y in [end.1 + 3, end.1 + 7] {
        let stroke = vec![(end.0 - 5, y + 2), (end.0 + 5, y - 2)];
        area.draw(&PathElement::new(stroke, BLACK.stroke_width(1)))?;
    }
    let tick = vec![(zero.0 - 5, zero.1), zero];
    area.draw(&PathElement::new(tick, BLACK.stroke_width(1)))?;
    let at = (zero.0 - 10, zero.1);
    write_in(area, name, 12, at, BLACK, anchor::RIGHT)
}

/// A value of an axis, without superfluous digits.
pub fn number(value: &f64) -> String {
    match *value >= 1.0 {
        true => format!("{value:.0}"),
        false => {
            let digits = format!("{value:.4}");
            digits.trim_end_matches('0').to_owned()
        }
    }
}

/// Bytes, in the unit that leaves one to three digits before the point.
pub fn bytes(bytes: &f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let unit = units.into_iter().find(|(unit, _)| *bytes >= 0.9999 * unit);
    let (unit, name) = unit.unwrap_or((1.0, "B"));
    format!("{:.0} {name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 is below the break, which is below every other value; also if all values are 0.
    #[test]
    fn zero_is_below_all_others() {
        for values in [&[0.0, 3.0, 5e9][..], &[0.0], &[0.0, 4.0]] {
            let axis = Axis::of(values).unwrap();
            let (end, zero) = axis.below.unwrap();
            assert!(
                axis.least < zero && zero < end && end < axis.most,
                "{axis:?}"
            );
            let positive = values.iter().filter(|value| **value > 0.0);
            assert!(
                positive
                    .into_iter()
                    .all(|&value| end < value && value < axis.most)
            );
            assert_eq!((axis.place(0.0), axis.place(3.0)), (zero, 3.0));
        }
    }

    #[test]
    fn an_axis_without_zeros_is_not_broken() {
        assert_eq!(Axis::of(&[1.0, 1000.0]).unwrap().below, None);
        assert_eq!(Axis::of(&[]), None);
    }

    #[test]
    fn lengths_have_names_where_there_is_room() {
        let (left, right, names) = of_lengths(&[512, 544, 1024, 16384]);
        assert!(left < 512.0 && 16384.0 < right);
        assert_eq!(names, [512.0, 1024.0, 16384.0]);
        // One length has an octave.
        let (left, right, names) = of_lengths(&[4096]);
        assert!(left < 4096.0 && 8192.0 < right && names == [4096.0]);
    }

    #[test]
    fn bytes_have_their_unit() {
        let named = [0.0, 4.0, 1e3, 999_999.9, 2e7, 1e9].map(|value| bytes(&value));
        assert_eq!(named, ["0 B", "4 B", "1 kB", "1 MB", "20 MB", "1 GB"]);
    }
}
