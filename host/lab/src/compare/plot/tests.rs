//! Where points are drawn.

use super::*;
use crate::compare::Figures;
use crate::estimate::Estimate;
use ferroflash::{Dtype, Pass, Problem};

fn line(algorithm: Algorithm, seqlen: usize, bytes: u64) -> Line {
    let problem = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(1);
    let problem = problem.head_dim(64).build().unwrap();
    let measured = figures(1.0, bytes);
    Line::new(problem, Pass::Forward, Some(algorithm), Ok(measured), None)
}

fn figures(ms: f64, extra_bytes: u64) -> Figures {
    Figures {
        ms,
        tflops: 100.0,
        extra_bytes,
    }
}

/// A number of an element.
fn attribute(element: &str, name: &str) -> Option<i32> {
    let value = element.split(&format!("{name}=\"")).nth(1)?;
    value.split('"').next()?.parse().ok()
}

/// Where the discs of a schedule are, from the left and the top of the picture; the legend's first.
fn places(svg: &str, algorithm: Algorithm) -> Vec<(i32, i32)> {
    let RGBColor(r, g, b) = colour(algorithm);
    let fill = format!("fill=\"#{r:02X}{g:02X}{b:02X}\"");
    let circles = svg.split("<circle ").skip(1);
    let own = circles.filter(|circle| circle.split("/>").next().unwrap().contains(&fill));
    own.filter_map(|circle| Some((attribute(circle, "cx")?, attribute(circle, "cy")?)))
        .collect()
}

/// Their heights.
fn discs(svg: &str, algorithm: Algorithm) -> Vec<i32> {
    places(svg, algorithm).iter().map(|place| place.1).collect()
}

/// The height of the text that names 0.
fn zero(svg: &str) -> Option<i32> {
    let before = svg
        .split("\n0 B\n")
        .next()
        .filter(|text| text.len() < svg.len())?;
    let y = before.rsplit("<text ").next()?.split("y=\"").nth(1)?;
    y.split('"').next()?.parse().ok()
}

#[test]
fn no_memory_is_drawn_at_the_line_of_zero() {
    let lines = [
        line(Algorithm::Flash2, 512, 0),
        line(Algorithm::Flash2, 1024, 0),
        line(Algorithm::Standard, 512, 2_000_000),
        line(Algorithm::Standard, 1024, 8_000_000),
    ];
    let svg = svg(None, &lines).unwrap();
    let zero = zero(&svg).expect("0 has a name");
    // The legend, two times, two sizes of memory.
    let flash2 = discs(&svg, Algorithm::Flash2);
    assert_eq!(flash2[3..], [zero, zero], "{flash2:?}");
    let standard = discs(&svg, Algorithm::Standard);
    assert!(
        standard[4] < standard[3] && standard[3] < zero - 20,
        "{standard:?}"
    );
    assert!(svg.contains("\n1 MB\n") && !svg.contains("\n1 kB\n"));
}

#[test]
fn an_axis_without_zeros_is_not_broken() {
    let lines = [
        line(Algorithm::Flash2, 512, 4),
        line(Algorithm::Flash2, 1024, 4096),
    ];
    assert_eq!(zero(&svg(None, &lines).unwrap()), None);
}

/// Lengths stand apart by their ratios.
#[test]
fn lengths_are_on_a_logarithmic_axis() {
    let lengths = [512, 1024, 8192];
    let lines = lengths.map(|length| line(Algorithm::Flash2, length, 4096));
    let svg = svg(None, &lines).unwrap();
    let places = places(&svg, Algorithm::Flash2);
    // The legend, then times, then memory.
    for panel in [&places[1..4], &places[4..7]] {
        let [first, second, last] = panel else {
            panic!("{panel:?}")
        };
        let (octave, three) = (second.0 - first.0, last.0 - second.0);
        assert!((three - 3 * octave).abs() <= 2, "{panel:?}");
    }
    for length in lengths {
        assert_eq!(svg.matches(&format!("\n{length}\n")).count(), 2, "{length}");
    }
}

/// A schedule that takes as long as is predicted is where the prediction is, whatever the papers count.
#[test]
fn the_roofline_counts_what_runs() {
    let gpu = Gpu::named("H200").unwrap();
    let line = line(Algorithm::Flash2, 1024, 0);
    let own = Estimate::of(&line.problem, &gpu, line.pass, Algorithm::Flash2).unwrap();
    let tflops = own.flops() as f64 / own.seconds / 1e12;
    let line = Line {
        measured: Ok(figures(own.seconds * 1e3, 0)),
        predicted: Some(own),
        ..line
    };
    let at = in_roofline(&line, measured_ms(&line).unwrap() / 1e3).unwrap();
    assert!((at.1 / tflops - 1.0).abs() < 1e-9, "{at:?}, {tflops}");
    let svg = svg(Some(&gpu), &[line]).unwrap();
    // The ring and the disc in it come last.
    let circles: Vec<&str> = svg.split("<circle ").collect();
    let [.., ring, disc] = &circles[..] else {
        panic!("{svg}")
    };
    let at = |circle: &str| ["cx", "cy"].map(|name| attribute(circle, name));
    assert_eq!(at(ring), at(disc));
}
