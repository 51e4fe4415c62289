//! Pictures of places: the kernels' own functions say the same.

use ferroflash::Algorithm;
use ferroflash_book::layout::swizzled;
use ferroflash_book::roofline::{SEQLENS, forward, gpu};
use ferroflash_kernels::config;
use ferroflash_kernels::tile::fragment;
use ferroflash_kernels::tile::shared::SharedTile;

use super::assert_says;

#[test]
fn the_swizzle_is_the_kernels() {
    let tile = SharedTile {
        base: 1024,
        row_bytes: 128,
    };
    for (row, chunk) in (0..64).flat_map(|row| (0..8).map(move |chunk| (row, chunk))) {
        let address = tile.chunk(row, chunk);
        assert_eq!(address, 1024 + row * 128 + swizzled(row, chunk) * 16);
    }
    let at = |row, chunk| format!("| {row} | {chunk} | {} |", tile.chunk(row, chunk) - 1024);
    assert_says("tiles.md", &[at(0, 3), at(1, 3), at(7, 3), at(8, 3)]);
}

/// Lane and register of each element of a 16 × 8 accumulator.
#[test]
fn the_registers_of_a_warp_are_the_kernels() {
    let mut holders = [[(0, 0); 8]; 16];
    for (lane, idx) in (0..32).flat_map(|lane| (0..4).map(move |idx| (lane, idx))) {
        let place = fragment::accumulator(lane, idx);
        holders[place.row as usize][place.col as usize] = (lane, idx);
    }
    let line = |row: usize| {
        let cells = holders[row].map(|(lane, idx)| format!("{:>5}", format!("{lane}.{idx}")));
        format!("row {row:>2} {}", cells.join(""))
    };
    let lines: Vec<String> = [0, 1, 7, 8, 15].map(line).to_vec();
    assert_says("tiles.md", &lines);
}

/// Sizes of tiles in bytes.
#[test]
fn bytes_of_tiles_are_the_chapters() {
    let tiles = config::forward(2, 128);
    assert_eq!((tiles.block_q, tiles.block_k), (128, 64));
    let kilobytes = tiles.shared_bytes / 1024;
    let says = format!("{kilobytes} KB: 32 KB of Q, and two stages of 16 KB each of K and of V");
    assert_says("tiles.md", &[says]);
}

#[test]
fn points_are_where_the_chapter_says() {
    let gpu = gpu().expect("it is in the table");
    let ridge = 989.4e12 / gpu.bandwidth;
    let of = |seqlen, algorithm| forward(seqlen, algorithm).expect("it is counted");
    for seqlen in SEQLENS {
        for algorithm in [Algorithm::Standard, Algorithm::Flash1] {
            assert!(of(seqlen, algorithm).intensity < ridge, "{algorithm}");
        }
        for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
            assert!(of(seqlen, algorithm).intensity > ridge, "{algorithm}");
        }
    }
    let (standard, flash3) = (of(8192, Algorithm::Standard), of(8192, Algorithm::Flash3));
    let flash1 = of(8192, Algorithm::Flash1);
    let said = [
        format!(
            "| `standard` | {:.0} | {:.0} |",
            standard.intensity, standard.tflops
        ),
        format!(
            "| `flash1` | {:.0} | {:.0} |",
            flash1.intensity, flash1.tflops
        ),
        {
            let flash2 = of(8192, Algorithm::Flash2);
            format!(
                "| `flash2` | {:.0} | {:.0} |",
                flash2.intensity, flash2.tflops
            )
        },
        format!(
            "| `flash3` | {:.0} | {:.0} |",
            flash3.intensity, flash3.tflops
        ),
    ];
    assert_says("roofline.md", &said);
}
