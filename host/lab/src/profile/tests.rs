//! Pictures and tables of what has been measured, with records in place of a GPU's.

use ferroflash::plan::{Backend, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Dtype, Mask, Pass};

use super::*;
use crate::timeline::{Doing, MeasuredLane, Stretch};

fn profile(measured: Result<Measured, NotMeasured>) -> Profile {
    let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16);
    let problem = problem.head_dim(128).mask(Mask::Causal).build().unwrap();
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let device = DeviceInfo::h200();
    let plan = plan(&checked, &device, Backend::Cuda, None).unwrap();
    let mut pass = OfPass::new(plan, None, &device);
    pass.measured = Some(measured);
    Profile {
        gpu: Gpu::of_device(&device),
        device,
        problem,
        passes: vec![pass],
    }
}

/// Two places of a GPU of four, the second of which rests for half of the time.
fn measured() -> Measured {
    let stretch = |from, until, tile| Stretch {
        from,
        until,
        doing: Doing::Tile { head: 0, tile },
    };
    let lane = |sm, stretches| MeasuredLane { sm, stretches };
    Measured {
        kernel: "forward_sm90a_bf16_d128_profiled",
        lanes: vec![
            lane(7, vec![stretch(0, 6000, 3), stretch(6000, 8000, 1)]),
            lane(9, vec![stretch(0, 4000, 2)]),
        ],
        n_places: 4,
        tick_ns: 32,
        clock_ghz: 1.755,
    }
}

#[test]
fn a_measured_timeline_is_drawn_above_the_simulated_one() {
    let svg = profile(Ok(measured())).svg().unwrap();
    let at = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text}"));
    let stamps = "Measured, by time stamps of forward_sm90a_bf16_d128_profiled: 2 of 4 places";
    assert!(at(stamps) < at("Simulated, not measured: 132 of 132 places"));
    // 12 of 32 µs.
    assert!(at("62.5 % without one") < at("time in µs from the first tile on"));
    assert!(at("time in µs") < at("time in steps"));
}

#[test]
fn a_picture_without_time_stamps_says_why() {
    let reason = NoStamps::NoTiles(ferroflash::Algorithm::Standard);
    let svg = profile(Err(reason.into())).svg().unwrap();
    assert!(!svg.contains("by time stamps"));
    assert!(svg.contains("Simulated, not measured (no kernel of standard takes tiles"));
}

#[test]
fn json_has_what_was_measured_or_why_nothing_was() {
    let of = |profile: &Profile| profile.json().remove(0);
    let there = of(&profile(Ok(measured())));
    assert_eq!(there["stamps"]["without_tile"], 0.625);
    assert_eq!(there["stamps"]["ns"], 8000);
    assert_eq!(there["stamps"]["sms"], 2);
    assert!(there["not_profiled"].is_null());
    let reason = NoStamps::NoTiles(ferroflash::Algorithm::Standard);
    let none = of(&profile(Err(reason.into())));
    assert!(none["stamps"].is_null());
    assert!(none["not_profiled"].as_str().unwrap().contains("standard"));
}
