//! TFLOP/s of the library and of its peers over the length, and ratios to the best of them, each panel from one run of the record.

use crate::record::{self, Run};
use anyhow::{Context, Result};
use ferroflash_lab::canvas::{Area, colours};
use ferroflash_lab::chart::{Chart, Line, Look, Mark, Page};

/// The lengths of the papers.
const SEQLENS: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16384];

/// The last run of flash3's forward pass with every length and every peer.
const FORWARD: &str = "2026-11-29T20:43:00Z";
/// The same of the backward pass. FlashAttention 3 was not in it: the wheel has its forward pass alone.
const BACKWARD: &str = "2026-11-29T20:50:00Z";
/// The run of both passes of flash2.
const FLASH2: &str = "2026-11-20T20:00:00Z";

/// How the axes of ratios and speeds are written.
fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

fn hundredths(value: &f64) -> String {
    format!("{value:.2}")
}

/// Who is drawn: the name in the record, the name in the legend, how the line looks.
type Subject = (&'static str, &'static str, Look);

const fn look(colour: plotters::style::RGBColor, width: u32, mark: Mark) -> Look {
    Look {
        colour,
        width,
        mark,
    }
}

/// flash3 and its peers; ours last, so that it lies on top.
const OF_FLASH3: [Subject; 5] = [
    (
        "fa2",
        "FlashAttention 2",
        look(colours::GREY, 2, Mark::Cross),
    ),
    (
        "cudnn",
        "cuDNN 9.19",
        look(colours::VERMILION, 2, Mark::Triangle),
    ),
    ("fa3", "FlashAttention 3", look(colours::SKY, 2, Mark::Ring)),
    (
        "fa4",
        "FlashAttention 4",
        look(colours::PURPLE, 2, Mark::Square),
    ),
    (
        "ferroflash-flash3",
        "ferroflash",
        look(colours::GREEN, 3, Mark::Disc),
    ),
];

/// flash2 and its peers. cuDNN has Hopper's own instructions, which neither of the others uses.
const OF_FLASH2: [Subject; 3] = [
    (
        "cudnn",
        "cuDNN 9.19",
        look(colours::VERMILION, 2, Mark::Triangle),
    ),
    (
        "fa2",
        "FlashAttention 2",
        look(colours::GREY, 2, Mark::Cross),
    ),
    (
        "ferroflash-flash2",
        "ferroflash, flash2",
        look(colours::BLUE, 3, Mark::Disc),
    ),
];

/// A pass and its run.
#[derive(Clone, Copy)]
struct Measured<'a> {
    pass: &'static str,
    name: &'static str,
    run: &'a Run,
}

fn measured<'a>(runs: &'a [Run], dates: [&str; 2]) -> Result<[Measured<'a>; 2]> {
    let of = |pass, name, date| -> Result<Measured<'a>> {
        let run = record::find(runs, date, pass, &SEQLENS)?;
        Ok(Measured { pass, name, run })
    };
    Ok([
        of("fwd", "forward", dates[0])?,
        of("bwd", "backward", dates[1])?,
    ])
}

/// Where the numbers are from.
fn sources([forward, backward]: &[Measured; 2]) -> String {
    let of = |run: &Run| format!("{} ({})", run.day(), run.commit);
    let gpu = &forward.run.gpu;
    match forward.run.date == backward.run.date {
        true => format!(
            "{gpu}. Both passes from one run in shuffled order: record {}.",
            of(forward.run)
        ),
        false => format!(
            "{gpu}. Each pass from one run in shuffled order: record {} forward, {} backward.",
            of(forward.run),
            of(backward.run)
        ),
    }
}

/// Two rows of panels, forward and backward; full and causal side by side.
fn of_head_dim(
    passes: &[Measured; 2],
    (head_dim, title, subjects): (u64, &str, &[Subject]),
    note: &str,
) -> Result<String> {
    let legend: Vec<(String, Look)> = subjects
        .iter()
        .rev()
        .map(|&(_, name, look)| (name.to_owned(), look))
        .collect();
    let notes = [sources(passes), note.to_owned()];
    let most = passes
        .iter()
        .flat_map(|measured| &measured.run.rows)
        .filter(|row| row.head_dim == head_dim)
        .filter(|row| subjects.iter().any(|subject| subject.0 == row.peer))
        .fold(0.0, |most: f64, row| most.max(row.tflops));
    let most = (most / 100.0).ceil() * 100.0;
    let page = Page {
        size: (880, 580),
        title,
        legend: &legend,
        entry_width: 165,
        notes: &notes,
    };
    page.svg(|area| {
        let panels = area.split_evenly((2, 2));
        for (idx, panel) in panels.iter().enumerate() {
            let (measured, causal) = (&passes[idx / 2], idx % 2 == 1);
            let mask = if causal { "causal" } else { "full" };
            speeds(
                panel,
                measured,
                (head_dim, causal),
                subjects,
                &format!("{}, {mask}", measured.name),
                most,
            )?;
        }
        Ok(())
    })
}

fn speeds(
    area: &Area,
    measured: &Measured,
    (head_dim, causal): (u64, bool),
    subjects: &[Subject],
    title: &str,
    most: f64,
) -> Result<()> {
    let line = |&(peer, _, look): &Subject| {
        let times = measured.run.times(peer, (measured.pass, head_dim, causal));
        let place = |seqlen| SEQLENS.iter().position(|&other| other == seqlen);
        let points = times
            .into_iter()
            .filter_map(|(seqlen, row)| Some((place(seqlen)? as f64, row.tflops)));
        Line {
            points: points.collect(),
            look,
        }
    };
    let chart = Chart {
        title,
        x_name: "sequence length",
        seqlens: &SEQLENS,
        y_name: "TFLOP/s",
        y: (0.0, most),
        y_labels: (most / 100.0) as usize + 1,
        y_format: whole,
        level: None,
        lines: subjects
            .iter()
            .map(line)
            .filter(|line| !line.points.is_empty())
            .collect(),
    };
    Ok(chart.draw(area)?)
}

/// The ratio of the best peer's time to ours, at each length.
pub fn ratios(run: &Run, ours: &str, case: record::Case) -> Result<Vec<(u64, f64)>> {
    let (pass, head_dim, causal) = case;
    let times = run.times(ours, case).into_iter();
    times
        .map(|(seqlen, row)| {
            let best = run
                .of(pass, head_dim, causal)
                .filter(|other| other.seqlen == seqlen && !other.peer.starts_with("ferroflash"))
                .map(|other| other.ms)
                .min_by(f64::total_cmp);
            let best = best.with_context(|| format!("no peer at {seqlen}"))?;
            Ok((seqlen, best / row.ms))
        })
        .collect()
}

/// flash3 by the best peer: a panel for each pass, a line for each head_dim and mask.
fn ratio(passes: &[Measured; 2]) -> Result<String> {
    let cases = [
        (64, false, "64 full", look(colours::SKY, 2, Mark::Disc)),
        (64, true, "64 causal", look(colours::SKY, 2, Mark::Ring)),
        (128, false, "128 full", look(colours::GREEN, 2, Mark::Disc)),
        (128, true, "128 causal", look(colours::GREEN, 2, Mark::Ring)),
        (
            256,
            false,
            "256 full",
            look(colours::VERMILION, 2, Mark::Disc),
        ),
        (
            256,
            true,
            "256 causal",
            look(colours::VERMILION, 2, Mark::Ring),
        ),
    ];
    let legend: Vec<(String, Look)> = cases
        .iter()
        .map(|&(_, _, name, look)| (name.to_owned(), look))
        .collect();
    let notes = [
        sources(passes),
        "Time of the fastest of cuDNN 9.19 and FlashAttention 2, 3 and 4, by ferroflash's: above 1.00 ferroflash is faster. Lines: head_dim, mask.".to_owned(),
    ];
    let page = Page {
        size: (880, 320),
        title: "Speed of flash3 compared with the best peer, bf16",
        legend: &legend,
        entry_width: 138,
        notes: &notes,
    };
    page.svg(|area| {
        for (panel, measured) in area.split_evenly((1, 2)).iter().zip(passes) {
            let mut lines = Vec::new();
            for &(head_dim, causal, _, look) in &cases {
                let ratios = ratios(
                    measured.run,
                    "ferroflash-flash3",
                    (measured.pass, head_dim, causal),
                )?;
                let points = ratios
                    .iter()
                    .enumerate()
                    .map(|(place, &(_, ratio))| (place as f64, ratio));
                lines.push(Line {
                    points: points.collect(),
                    look,
                });
            }
            let chart = Chart {
                title: measured.name,
                x_name: "sequence length",
                seqlens: &SEQLENS,
                y_name: "ratio to the best peer",
                y: (0.9, 1.25),
                y_labels: 8,
                y_format: hundredths,
                level: Some(1.0),
                lines,
            };
            chart.draw(panel)?;
        }
        Ok(())
    })
}

/// Every picture of speed, by name.
pub fn pictures(runs: &[Run]) -> Result<Vec<(&'static str, String)>> {
    let flash3 = measured(runs, [FORWARD, BACKWARD])?;
    let flash2 = measured(runs, [FLASH2, FLASH2])?;
    let of_flash3 = "16k tokens, heads · head_dim = 2048. ferroflash's backward pass is deterministic, the peers' are not. FlashAttention 3 ran forward, at head_dim 64 and 128.";
    let of_flash2 = "16k tokens, heads · head_dim = 2048. ferroflash's backward pass is deterministic, the peers' are not. cuDNN uses Hopper's own instructions.";
    let title3 = |head_dim: u64| format!("Attention on Hopper: bf16, head_dim {head_dim}");
    let title2 = |head_dim: u64| format!("flash2 and its peers: bf16, head_dim {head_dim}");
    Ok(vec![
        (
            "speed-64",
            of_head_dim(&flash3, (64, &title3(64), &OF_FLASH3), of_flash3)?,
        ),
        (
            "speed-128",
            of_head_dim(&flash3, (128, &title3(128), &OF_FLASH3), of_flash3)?,
        ),
        (
            "speed-256",
            of_head_dim(&flash3, (256, &title3(256), &OF_FLASH3), of_flash3)?,
        ),
        (
            "speed-flash2-64",
            of_head_dim(&flash2, (64, &title2(64), &OF_FLASH2), of_flash2)?,
        ),
        (
            "speed-flash2-128",
            of_head_dim(&flash2, (128, &title2(128), &OF_FLASH2), of_flash2)?,
        ),
        ("ratio", ratio(&flash3)?),
    ])
}

#[cfg(test)]
mod tests;
