//! Speeds of a record's rows by length, drawn: a panel for each pass, type, head_dim and mask, a line for each one who was measured.

use std::collections::{BTreeMap, BTreeSet};

use plotters::style::RGBColor;

use crate::canvas::{NotDrawn, colours};
use crate::chart::{Chart, Line, Look, Mark, Page};
use crate::record::Row;

/// Pixels of a panel, and of one that is alone.
const PANEL: (u32, u32) = (440, 300);
const ALONE: (u32, u32) = (880, 400);
/// Panels side by side.
const PER_ROW: usize = 2;
/// Values that an axis names, at most, beside 0.
const MOST_NAMES: f64 = 6.0;
/// Pixels of a letter of the legend, and of what stands before a name.
const LETTER: i32 = 8;
const BEFORE_NAME: i32 = 52;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Floating-point operations, as papers count them.
    Tflops,
    /// Bytes of inputs and outputs, each once: what bounds decoding.
    Gbps,
}

impl Quantity {
    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::Tflops => "TFLOP/s",
            Quantity::Gbps => "GB/s",
        }
    }

    /// That of a row.
    pub fn of(self, row: &Row) -> Option<f64> {
        match self {
            Quantity::Tflops => Some(row.tflops),
            Quantity::Gbps => row.gbps,
        }
    }
}

/// Rows that have all but a length in common.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What they have in common: `forward, bf16, head_dim 128, causal`.
    pub title: String,
    /// What their length counts.
    pub length_name: &'static str,
    /// By length and by who was measured; of rows that differ in nothing, the last.
    pub rows: BTreeMap<u64, BTreeMap<&'a str, &'a Row>>,
}

/// All groups, in the order of their first rows.
pub fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let by_queries = row.seqlen == row.seqlen_k;
        let (length, length_name) = match by_queries {
            true => (row.seqlen, "sequence length"),
            false => (row.seqlen_k, "keys"),
        };
        let title = title(row, by_queries);
        let nth = groups.iter().position(|group| group.title == title);
        let nth = nth.unwrap_or_else(|| {
            groups.push(Group {
                title,
                length_name,
                rows: BTreeMap::new(),
            });
            groups.len() - 1
        });
        let of_length = groups[nth].rows.entry(length).or_default();
        of_length.insert(&row.peer, row);
    }
    groups
}

fn title(row: &Row, by_queries: bool) -> String {
    let pass = match row.pass.as_str() {
        "fwd" => "forward",
        "bwd" => "backward",
        other => other,
    };
    let mask = if row.causal { "causal" } else { "full" };
    let mut words = vec![
        pass.to_owned(),
        row.dtype.clone(),
        format!("head_dim {}", row.head_dim),
        mask.to_owned(),
    ];
    if !by_queries {
        let (heads, heads_k) = row.heads;
        words[3] = match row.seqlen {
            1 => "1 query".to_owned(),
            n => format!("{n} queries"),
        };
        words.push(format!("batch {}, heads {heads}/{heads_k}", row.batch));
    }
    words.retain(|word| !word.is_empty());
    words.join(", ")
}

/// Everybody who was measured, in the order of their first rows.
pub fn peers(rows: &[Row]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let names = rows.iter().map(|row| row.peer.as_str());
    names.filter(|name| seen.insert(*name)).collect()
}

/// How the line of the nth one looks: no two of 35 alike.
fn look(nth: usize, peer: &str) -> Look {
    const COLOURS: [RGBColor; 7] = [
        colours::GREEN,
        colours::BLUE,
        colours::VERMILION,
        colours::PURPLE,
        colours::ORANGE,
        colours::SKY,
        colours::GREY,
    ];
    const MARKS: [Mark; 5] = [
        Mark::Disc,
        Mark::Square,
        Mark::Triangle,
        Mark::Ring,
        Mark::Cross,
    ];
    Look {
        colour: COLOURS[nth % COLOURS.len()],
        width: if peer.starts_with("ferroflash") { 3 } else { 2 },
        mark: MARKS[nth % MARKS.len()],
    }
}

/// The text of the picture; a line of `notes` for each line below.
pub fn svg(
    title: &str,
    rows: &[Row],
    quantity: Quantity,
    notes: &[String],
) -> Result<String, NotDrawn> {
    let (groups, peers) = (groups(rows), peers(rows));
    let legend = peers.iter().enumerate();
    let legend: Vec<(String, Look)> = legend
        .map(|(nth, peer)| ((*peer).to_owned(), look(nth, peer)))
        .collect();
    let longest = peers.iter().map(|peer| peer.len()).max().unwrap_or(0) as i32;
    let per_row = groups.len().clamp(1, PER_ROW);
    let n_rows = groups.len().max(1).div_ceil(per_row);
    let panel = if per_row == 1 { ALONE } else { PANEL };
    let page = Page {
        size: (panel.0 * per_row as u32, panel.1 * n_rows as u32),
        title,
        legend: &legend,
        entry_width: BEFORE_NAME + LETTER * longest,
        notes,
    };
    page.svg(|area| {
        let panels = area.split_evenly((n_rows, per_row));
        for (group, panel) in groups.iter().zip(&panels) {
            chart(group, &legend, quantity, |chart| chart.draw(panel))?;
        }
        Ok(())
    })
}

/// Makes a group's chart.
fn chart<R>(
    group: &Group,
    legend: &[(String, Look)],
    quantity: Quantity,
    draw: impl FnOnce(&Chart) -> R,
) -> R {
    let lengths: Vec<u64> = group.rows.keys().copied().collect();
    let line = |(peer, look): &(String, Look)| {
        let of_length = group.rows.values().enumerate();
        let points = of_length.filter_map(|(place, rows)| {
            let row = rows.get(peer.as_str())?;
            Some((place as f64, quantity.of(row)?))
        });
        Line {
            points: points.collect(),
            look: *look,
        }
    };
    let lines: Vec<Line> = legend.iter().map(line).collect();
    let values = lines.iter().flat_map(|line| &line.points);
    let most = values.fold(0.0, |most: f64, point| most.max(point.1));
    let (most, n_names) = nice(most);
    draw(&Chart {
        title: &group.title,
        x_name: group.length_name,
        seqlens: &lengths,
        y_name: quantity.unit(),
        y: (0.0, most),
        y_labels: n_names + 1,
        y_format: number,
        level: None,
        lines,
    })
}

/// The end of an axis from 0 on that has room for a value, and how many steps of 1, 2 or 5 times a power of ten it has.
fn nice(most: f64) -> (f64, usize) {
    if !(most.is_finite() && 0.0 < most) {
        return (1.0, 1);
    }
    let power = 10f64.powf((most / MOST_NAMES).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| most / step <= MOST_NAMES);
    let step = step.unwrap_or(10.0 * power);
    let n_steps = (most / step).ceil().max(1.0);
    (n_steps * step, n_steps as usize)
}

/// A value of the axis, without digits that say nothing.
fn number(value: &f64) -> String {
    let digits = format!("{value:.3}");
    digits
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, seqlen: u64, tflops: f64) -> Row {
        Row {
            peer: peer.to_owned(),
            pass: "fwd".to_owned(),
            dtype: "bf16".to_owned(),
            head_dim: 64,
            seqlen,
            seqlen_k: seqlen,
            batch: 1,
            heads: (8, 2),
            ms: 1.0,
            tflops,
            ..Row::default()
        }
    }

    #[test]
    fn an_axis_ends_above_its_values() {
        for (most, end) in [
            (0.0, (1.0, 1)),
            (0.037, (0.04, 4)),
            (6.0, (6.0, 6)),
            (651.0, (800.0, 4)),
        ] {
            let (given, n_steps) = nice(most);
            assert!((given - end.0).abs() < 1e-9, "{most}: {given}");
            assert_eq!(n_steps, end.1, "{most}");
        }
        assert_eq!([0.0, 200.0, 0.04].map(|x| number(&x)), ["0", "200", "0.04"]);
    }

    #[test]
    fn a_panel_for_each_case_and_the_last_of_equal_rows() {
        let decode = Row {
            seqlen: 1,
            seqlen_k: 8192,
            gbps: Some(3000.0),
            ..row("fa3", 1, 2.0)
        };
        let rows = [
            row("fa3", 512, 1.0),
            row("fa3", 1024, 2.0),
            row("ours", 512, 3.0),
            row("fa3", 512, 4.0),
            decode,
        ];
        let groups = groups(&rows);
        let titles: Vec<&str> = groups.iter().map(|group| group.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "forward, bf16, head_dim 64, full",
                "forward, bf16, head_dim 64, 1 query, batch 1, heads 8/2"
            ]
        );
        assert_eq!(groups[0].rows[&512]["fa3"].tflops, 4.0);
        let svg = svg("Speed", &rows, Quantity::Tflops, &["a note".to_owned()]).unwrap();
        for text in ["<svg", "Speed", "ours", "a note", "TFLOP/s", "keys", "8k"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
