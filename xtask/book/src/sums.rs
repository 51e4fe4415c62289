//! What 14 bits of a sum cost: how much too small O comes out over so many keys, by the table of the chapter on 8 bits.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferroflash_lab::canvas::colours;
use ferroflash_lab::chart::{Chart, Line, Look, Mark, Page};

/// The chapter that has the table.
const CHAPTER: &str = "docs/src/fp8.md";
/// The first cells of the table's head.
const HEAD: &str = "| keys | values of mean 0";

/// A column of the table: its place, its name in the legend, how its line looks.
const COLUMNS: [(usize, &str, Look); 3] = [
    (2, "one level", look(colours::SKY, Mark::Ring)),
    (4, "cuDNN 9.19", look(colours::VERMILION, Mark::Triangle)),
    (
        3,
        "two levels, the default",
        look(colours::GREEN, Mark::Disc),
    ),
];

const fn look(colour: plotters::style::RGBColor, mark: Mark) -> Look {
    Look {
        colour,
        width: 2,
        mark,
    }
}

/// A row of the table: keys, and the cells, where they have a number.
#[derive(Debug, PartialEq)]
struct Row {
    keys: u64,
    cells: Vec<Option<f64>>,
}

/// The rows of the chapter's table.
fn rows(chapter: &str) -> Result<Vec<Row>> {
    let lines = chapter.lines().skip_while(|line| !line.starts_with(HEAD));
    // The head, and the line below it.
    let table = lines.skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(str::trim);
        let number = |cell: &str| cell.replace('−', "-").parse().ok();
        let cells: Vec<Option<f64>> = cells.map(number).collect();
        let keys = cells
            .first()
            .copied()
            .flatten()
            .context("a row without keys")?;
        Ok(Row {
            keys: keys as u64,
            cells,
        })
    };
    let rows: Vec<Row> = table.map(row).collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "{CHAPTER} has no table of sums");
    Ok(rows)
}

/// The picture, by name.
pub fn pictures(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let rows = rows(&fs::read_to_string(root.join(CHAPTER))?)?;
    let keys: Vec<u64> = rows.iter().map(|row| row.keys).collect();
    let line = |&(column, _, look): &(usize, &str, Look)| {
        let value = |(place, row): (usize, &Row)| {
            let bias = row.cells.get(column).copied().flatten()?;
            Some((place as f64, -100.0 * bias))
        };
        Line {
            points: rows.iter().enumerate().filter_map(value).collect(),
            look,
        }
    };
    let legend = COLUMNS.map(|(_, name, look)| (name.to_owned(), look));
    let notes = [
        "H200, head_dim 128, no mask, a scale for each tensor; values of mean 1 and deviation 1. Values of mean 0 lose nothing.".to_owned(),
    ];
    let page = Page {
        size: (720, 320),
        title: "How much too small o is: sums of products of 8-bit numbers",
        legend: &legend,
        entry_width: 200,
        notes: &notes,
    };
    let chart = Chart {
        title: "",
        x_name: "keys",
        seqlens: &keys,
        y_name: "% of o",
        y: (0.0, 50.0),
        y_labels: 6,
        y_format: |value| format!("{value:.0}"),
        level: None,
        lines: COLUMNS.iter().map(line).collect(),
    };
    let picture = page.svg(|area| chart.draw(area))?;
    Ok(vec![("sums", picture)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_numbers() {
        let chapter = "text\n| keys | values of mean 0 | a |\n|---|---|---|\n| 512 | 0.5 | −0.25 |\n| 2048 | | |\n\nmore | text";
        let expected = [
            Row {
                keys: 512,
                cells: vec![Some(512.0), Some(0.5), Some(-0.25)],
            },
            Row {
                keys: 2048,
                cells: vec![Some(2048.0), None, None],
            },
        ];
        assert_eq!(rows(chapter).unwrap(), expected);
        assert!(rows("no table").is_err());
    }

    /// A column that moves would be drawn under another's name.
    #[test]
    fn the_columns_are_those_of_the_legend() {
        let chapter = fs::read_to_string(crate::root().join(CHAPTER)).unwrap();
        let head = chapter.lines().find(|line| line.starts_with(HEAD)).unwrap();
        let names: Vec<&str> = head.trim_matches('|').split('|').map(str::trim).collect();
        for (column, word) in [(2, "one level"), (3, "two levels"), (4, "cuDNN 9.19")] {
            assert!(names[column].contains(word), "{}", names[column]);
        }
    }
}
