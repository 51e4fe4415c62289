//! Pictures and tables of speed, compared with the record.

use super::*;

/// A panel has a point for each length of everybody who ran.
#[test]
fn every_line_has_every_length() {
    let runs = record::read(&crate::root()).expect("the record can be read");
    let of = |dates| measured(&runs, dates).expect("the runs are there");
    let flash2 = of([FLASH2, FLASH2]);
    let flash3 = of([FORWARD, BACKWARD]);
    let n_lines = |passes: &[Measured], subjects: &[Subject], head_dim| {
        let mut n_lines = 0;
        for measured in passes {
            for (peer, causal) in subjects.iter().flat_map(|s| [(s.0, false), (s.0, true)]) {
                let times = measured.run.times(peer, (measured.pass, head_dim, causal));
                assert!(times.is_empty() || times.len() == SEQLENS.len(), "{peer}");
                n_lines += usize::from(!times.is_empty());
            }
        }
        n_lines
    };
    // Two masks; FlashAttention 3 forward only, and not at head_dim 256.
    for (head_dim, forward) in [(64, 5), (128, 5), (256, 4)] {
        assert_eq!(n_lines(&flash3, &OF_FLASH3, head_dim), 2 * (forward + 4));
    }
    for head_dim in [64, 128] {
        assert_eq!(n_lines(&flash2, &OF_FLASH2, head_dim), 2 * (3 + 3));
    }
}

/// Cells of the tables in `tests/benches/notes/speed.md` up to 16k: TFLOP/s, and in brackets the ratio to the best peer.
#[test]
fn tables_are_the_records() {
    let runs = record::read(&crate::root()).expect("the record can be read");
    let text = std::fs::read_to_string(crate::root().join("tests/benches/notes/speed.md"));
    let text = text.expect("it can be read");
    let tables: Vec<Vec<&str>> = text
        .split("\n\n")
        .filter(|part| part.starts_with("| head_dim | mask |"))
        .map(|table| table.lines().skip(2).collect())
        .collect();
    let flash3 = measured(&runs, [FORWARD, BACKWARD]).expect("the runs are there");
    let flash2 = measured(&runs, [FLASH2, FLASH2]).expect("the run is there");
    let mut n_cells = 0;
    let mut hold = |line: &str, measured: &Measured, ours: &str, n_names: usize| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let case = (
            measured.pass,
            cells[0].parse().expect("a head_dim"),
            cells[1] == "causal",
        );
        let speeds = measured.run.times(ours, case);
        let ratios = ratios(measured.run, ours, case).expect("peers ran");
        for (cell, (speed, ratio)) in cells[n_names..].iter().zip(speeds.iter().zip(&ratios)) {
            let (said, said_ratio) = cell.split_once(' ').expect("two numbers");
            let said_ratio = said_ratio.trim_matches(['(', ')']);
            let near = |said: &str, value: f64, most: f64| {
                let said: f64 = said.parse().expect("a number");
                assert!((said - value).abs() <= most, "{line}: {said}, not {value}");
            };
            near(said, speed.1.tflops, 0.51);
            // Those of the tables are made of rounded speeds.
            near(said_ratio, ratio.1, 0.0075);
            n_cells += 1;
        }
    };
    for (measured, table) in flash3.iter().zip(&tables) {
        for line in table {
            hold(line, measured, "ferroflash-flash3", 2);
        }
    }
    // Of flash2 the ratio is to FlashAttention-2, and cuDNN is left out.
    let mut without = [flash2[0].run.clone(), flash2[1].run.clone()];
    for run in &mut without {
        run.rows.retain(|row| row.peer != "cudnn");
    }
    for line in &tables[2] {
        let forward = line.contains("| forward |");
        let measured = Measured {
            run: &without[usize::from(!forward)],
            ..flash2[usize::from(!forward)]
        };
        let fastest = line.contains("fastest order");
        let ours = if fastest {
            "ferroflash-flash2-fastest"
        } else {
            "ferroflash-flash2"
        };
        hold(line, &measured, ours, 3);
    }
    assert_eq!(n_cells, 6 * (6 + 6 + 12));
}

#[test]
fn a_ratio_is_the_best_peers_time_by_ours() {
    let row = |peer: &str, ms| record::Row {
        peer: peer.to_owned(),
        pass: "fwd".to_owned(),
        head_dim: 64,
        causal: false,
        seqlen: 512,
        ms,
        tflops: 1.0,
        ..record::Row::default()
    };
    let run = Run {
        rows: vec![
            row("cudnn", 3.0),
            row("fa4", 2.5),
            row("ferroflash-flash3", 2.0),
            row("ferroflash-flash2", 1.0),
        ],
        ..Run::default()
    };
    let ratios = ratios(&run, "ferroflash-flash3", ("fwd", 64, false)).expect("there are peers");
    assert_eq!(ratios, [(512, 1.25)]);
}
