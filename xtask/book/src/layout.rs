//! Which bytes lie where: the matrix of scores in tiles, and the swizzle of shared memory.

use anyhow::Result;
use plotters::prelude::*;

use crate::programs::masks::Band;
use ferroflash_lab::canvas::{Area, INK, anchor, colours, write, write_in};
use ferroflash_lab::chart::{FAINT, GRID, Page};

/// Tokens of the picture of tiles, and rows of a tile.
pub const N: isize = 1024;
/// Rows of a tile, of queries as of keys.
pub const TILE: isize = 128;
/// The tile of queries that is drawn at work.
pub const AT_WORK: isize = 4;
/// Bytes of a row of Q, K or V: bf16, head_dim 128.
pub const ROW_BYTES: isize = 256;

/// The place of a chunk of 16 bytes within a row of 128 bytes or more, as the kernels' `SharedTile` has it.
pub const fn swizzled(row: u32, chunk: u32) -> u32 {
    chunk ^ (row % 8)
}

/// Pictures, by name.
pub fn pictures() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![("tiles", tiles()?), ("swizzle", swizzle()?)])
}

/// A cell with a text.
fn cell(
    area: &Area,
    [x, y, width, height]: [i32; 4],
    fill: RGBColor,
    ink: RGBColor,
    text: &str,
) -> Result<()> {
    let corners = [(x + 1, y + 1), (x + width - 1, y + height - 1)];
    area.draw(&Rectangle::new(corners, fill.filled()))?;
    let at = (x + width / 2, y + height / 2);
    Ok(write_in(area, text, 13, at, ink, anchor::CENTER)?)
}

/// The first byte of tile `i` of Q, K or V, in KB.
fn kilobytes(i: isize) -> isize {
    i * TILE * ROW_BYTES / 1024
}

/// The scores of a causal head, with the tiles that one tile of queries loads.
fn tiles() -> Result<String> {
    let n = N / TILE;
    let notes = [
        "One head, 1024 queries and keys, head_dim 128, bf16, causal. A cell is a block of 128 × 128 scores, which exists in registers alone.".to_owned(),
        "Numbers at the sides: where a tile of Q, K or V begins in its head, in KB, if the head's rows lie one after the other. A tile has 32 KB.".to_owned(),
        "Orange: what the tile of queries at 128 KB loads, one block after the other, from the right to the left.".to_owned(),
    ];
    let page = Page {
        size: (880, 392),
        title: "The matrix of scores, in tiles",
        legend: &[],
        entry_width: 0,
        notes: &notes,
    };
    let band = Band {
        seqlen_q: N,
        seqlen_k: N,
        left: None,
        right: Some(0),
    };
    page.svg(|area| {
        let (left, top, width, height) = (190, 66, 66, 36);
        write(area, "K and V", 15, (left, 8), anchor::TOP_LEFT)?;
        write(area, "Q", 15, (left - 70, top + 4), anchor::RIGHT)?;
        for i in 0..n {
            let used = if i == AT_WORK { colours::ORANGE } else { GRID };
            let row = [left - 62, top + height * i as i32, 52, height];
            cell(area, row, used, INK, &kilobytes(i).to_string())?;
            let loaded = if i <= AT_WORK { colours::ORANGE } else { GRID };
            let column = [left + width * i as i32, top - 36, width, 26];
            cell(area, column, loaded, INK, &kilobytes(i).to_string())?;
            for j in 0..n {
                let rows = i * TILE..(i + 1) * TILE;
                let kind = band.block(rows, j * TILE..(j + 1) * TILE);
                let own = i == AT_WORK;
                let (fill, ink, text) = match kind {
                    '.' => (RGBColor(248, 248, 248), FAINT, ""),
                    '/' if own => (colours::VERMILION, WHITE, "edge"),
                    '/' => (colours::SKY, INK, "edge"),
                    _ if own => (colours::ORANGE, INK, "full"),
                    _ => (colours::BLUE, WHITE, "full"),
                };
                let at = [
                    left + width * j as i32,
                    top + height * i as i32,
                    width,
                    height,
                ];
                cell(area, at, fill, ink, text)?;
            }
        }
        Ok(())
    })
}

/// Eight rows of eight chunks, without the swizzle and with it.
fn swizzle() -> Result<String> {
    const CHUNKS: [RGBColor; 8] = [
        colours::BLUE,
        colours::VERMILION,
        colours::GREEN,
        colours::ORANGE,
        colours::PURPLE,
        colours::SKY,
        colours::GREY,
        RGBColor(60, 60, 60),
    ];
    let notes = [
        "Rows of 128 bytes in shared memory: 64 columns of bf16. A cell is a chunk of 16 bytes, its number the chunk of the row that lies there.".to_owned(),
        "The 32 banks of shared memory are as wide as a row. A read of one chunk of eight rows, the same number eight times, is served at once".to_owned(),
        "if the eight lie in different columns: on the right they do, on the left they wait for each other.".to_owned(),
    ];
    let page = Page {
        size: (880, 290),
        title: "The 128-byte swizzle",
        legend: &[],
        entry_width: 0,
        notes: &notes,
    };
    page.svg(|area| {
        let (width, height) = (44, 26);
        type Place = fn(u32, u32) -> u32;
        let plain: Place = |_, chunk| chunk;
        let panels = [
            (64, "chunk c at place c", plain),
            (488, "chunk c of row r at place c xor r % 8", swizzled),
        ];
        for (left, title, place) in panels {
            write(area, title, 15, (left, 8), anchor::TOP_LEFT)?;
            for row in 0..8u32 {
                let y = 62 + height * row as i32;
                let name = format!("row {row}");
                write(area, &name, 13, (left - 6, y + height / 2), anchor::RIGHT)?;
                for chunk in 0..8u32 {
                    let x = left + width * place(row, chunk) as i32;
                    let ink = if [3, 5].contains(&chunk) { INK } else { WHITE };
                    let colour = CHUNKS[chunk as usize];
                    cell(area, [x, y, width, height], colour, ink, &chunk.to_string())?;
                }
            }
            for at in 0..8 {
                let name = format!("{}", at * 16);
                let place = (left + width * at + width / 2, 46);
                write(area, &name, 12, place, anchor::CENTER)?;
            }
        }
        Ok(())
    })
}
