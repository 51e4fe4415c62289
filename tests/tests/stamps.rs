//! Profiled kernels on the emulator: they give what the kernels give that they are copies of, bit for bit, and record every tile of the plan once.

use std::collections::BTreeMap;

use ferroflash::arguments::Argument;
use ferroflash::plan::workspace::ALIGNMENT_BYTES;
use ferroflash::plan::{
    Algorithm, Backend, DeviceInfo, NoStamps, Plan, PlannedLaunch, Stamp, plan,
};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Dtype, Mask, Pass, Problem};
use ferroflash_kernels::emu::{self, GlobalMemory};
use ferroflash_kernels::entry;
use ferroflash_kernels::variants::{PROFILED, TileShape, VARIANTS};
use ferroflash_lab::timeline::{BadStamps, Measured};
use half::bf16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use Argument::{DK, DO, DQ, DV, K, Lse, O, Q, V};

/// What an argument holds.
#[derive(Clone, Debug, PartialEq)]
enum Data {
    Half(Vec<u16>),
    Single(Vec<u32>),
}

/// All arguments of a call, and the records of a profiled one.
#[derive(Clone, Default)]
struct Call {
    arguments: BTreeMap<Argument, Data>,
    stamps: Vec<Stamp>,
}

/// A problem and what runs it.
struct Case {
    problem: Problem,
    algorithm: Algorithm,
    n_sms: u32,
    /// The kernel that should be planned, in each pass.
    kernels: &'static [(Pass, &'static str)],
}

fn problem(seqlens: (usize, usize), heads: (usize, usize), mask: Mask) -> Problem {
    let problem = Problem::builder(Dtype::Bf16)
        .seqlen_q(seqlens.0)
        .seqlen_k(seqlens.1)
        .heads_q(heads.0)
        .heads_k(heads.1)
        .head_dim(128)
        .mask(mask);
    problem.build().unwrap()
}

impl Case {
    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            n_sms: self.n_sms,
            ..DeviceInfo::emulated_hopper()
        }
    }

    fn plan(&self, pass: Pass) -> Plan {
        let checked = without_tensors(&self.problem, pass, Location::Host).unwrap();
        let device = self.device();
        plan(&checked, &device, Backend::Emulated, Some(self.algorithm)).unwrap()
    }

    /// Random inputs; o and lse as the forward pass gives them, if they are wanted.
    fn inputs(&self, pass: Pass) -> Call {
        let mut random = StdRng::seed_from_u64(7);
        let mut half = |shape: [usize; 4]| {
            let number = |_| bf16::from_f32(random.random_range(-2.0..2.0)).to_bits();
            Data::Half((0..shape.iter().product()).map(number).collect())
        };
        let shapes = &self.problem;
        let mut call = Call::default();
        for (argument, shape) in [
            (Q, shapes.shape_q()),
            (K, shapes.shape_k()),
            (V, shapes.shape_v()),
            (DO, shapes.shape_o()),
        ] {
            call.arguments.insert(argument, half(shape));
        }
        let zeros = |shape: [usize; 4]| Data::Half(vec![0; shape.iter().product()]);
        call.arguments.insert(O, zeros(shapes.shape_o()));
        let rows = shapes.shape_lse().iter().product();
        call.arguments.insert(Lse, Data::Single(vec![0; rows]));
        if pass == Pass::Backward {
            call = run(&self.plan(Pass::Forward), &self.device(), 3, &call);
            for (argument, shape) in [
                (DQ, shapes.shape_q()),
                (DK, shapes.shape_k()),
                (DV, shapes.shape_v()),
            ] {
                call.arguments.insert(argument, zeros(shape));
            }
        }
        call
    }
}

fn outputs(pass: Pass) -> &'static [Argument] {
    match pass {
        Pass::Backward => &[DQ, DK, DV],
        _ => &[O, Lse],
    }
}

/// Runs a plan on the emulator.
fn run(plan: &Plan, device: &DeviceInfo, seed: u64, inputs: &Call) -> Call {
    let mut call = inputs.clone();
    let n_units = (plan.workspace.n_bytes() + ALIGNMENT_BYTES) as usize / 2;
    let mut workspace = vec![0u16; n_units];
    let first = workspace.as_ptr().align_offset(ALIGNMENT_BYTES as usize);
    {
        let mut memory = GlobalMemory::new();
        let mut addresses = BTreeMap::new();
        for (&argument, data) in &mut call.arguments {
            let (name, writes) = (argument.name(), outputs(plan.pass).contains(&argument));
            let address = match (data, writes) {
                (Data::Half(data), false) => memory.input(name, data),
                (Data::Half(data), true) => memory.output(name, data),
                (Data::Single(data), false) => memory.input(name, data),
                (Data::Single(data), true) => memory.output(name, data),
            };
            addresses.insert(argument, address);
        }
        let mut rest = &mut workspace[first..];
        let start = rest.as_ptr().addr() as u64;
        let mut lent = 0;
        for piece in plan.workspace.pieces() {
            let [offset, n_bytes] = [piece.offset_bytes, piece.n_bytes].map(|n| n as usize);
            let (own, behind) = rest
                .split_at_mut(offset / 2 - lent)
                .1
                .split_at_mut(n_bytes / 2);
            match piece.is_counter() {
                true => memory.kept(piece.name, own),
                false => memory.scratch(piece.name, own),
            };
            (lent, rest) = ((offset + n_bytes) / 2, behind);
        }
        for launch in &plan.launches {
            let params = plan.params(launch, start, |argument| {
                addresses.get(&argument).copied().unwrap_or(0)
            });
            let kernel = entry::emulated(launch.variant.name).unwrap();
            let options = emu::Options::seeded(seed);
            let shape = shape(launch, device);
            emu::run(&shape, &options, &mut memory, &|| kernel(&params))
                .unwrap_or_else(|fault| panic!("{}: {fault}", launch.variant.name));
        }
    }
    if let Some(piece) = plan.stamps() {
        let [offset, n_bytes] = [piece.offset_bytes, piece.n_bytes].map(|n| n as usize / 2);
        let halves = &workspace[first + offset..][..n_bytes];
        let words = halves
            .chunks(2)
            .map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
        let words: Vec<u32> = words.collect();
        let records = words
            .chunks(Stamp::WORDS)
            .map(|words| words.try_into().unwrap());
        call.stamps = records.map(Stamp::from_words).collect();
    }
    call
}

fn shape(launch: &PlannedLaunch, device: &DeviceInfo) -> emu::Launch {
    let tile_config = &launch.variant.tile_config;
    emu::Launch {
        grid: launch.grid,
        threads: tile_config.threads,
        shared_bytes: tile_config.shared_bytes,
        resident_blocks: device.n_sms * tile_config.blocks_per_sm,
        blocks_per_sm: tile_config.blocks_per_sm,
        cluster: tile_config.cluster,
        spec: launch.spec,
    }
}

/// Runs a case's passes with the planned kernels and with their profiled copies.
fn check(case: &Case) {
    for &(pass, kernel) in case.kernels {
        let plan = case.plan(pass);
        let names: Vec<_> = plan.kernels().map(|kernel| kernel.name).collect();
        assert!(names.contains(&kernel), "{names:?}, not {kernel}");
        let profiled = plan.profiled().unwrap();
        let (device, inputs) = (case.device(), case.inputs(pass));
        let shipped = run(&plan, &device, 1, &inputs);
        let recorded = run(&profiled, &device, 2, &inputs);
        for argument in outputs(pass) {
            assert!(
                shipped.arguments[argument] == recorded.arguments[argument],
                "{argument} of the profiled copy of {kernel}"
            );
        }
        assert!(shipped.stamps.is_empty());

        let measured = Measured::new(&profiled, &device, &recorded.stamps).unwrap();
        assert_eq!(measured.kernel, format!("{kernel}_profiled"));
        let busy = 1.0 - measured.without_tile();
        assert!(0.0 < busy && busy <= 1.0, "{busy}");
        let n_tiles: usize = measured.lanes.iter().map(|lane| lane.stretches.len()).sum();
        let there = recorded.stamps.iter().filter(|stamp| stamp.is_there());
        assert_eq!(n_tiles, there.count());
        assert!(measured.lanes.len() as u32 <= measured.n_places);

        // A record that is dropped is noticed, whichever it is.
        for place in 0..recorded.stamps.len() {
            let mut stamps = recorded.stamps.clone();
            let was_there = std::mem::take(&mut stamps[place]).is_there();
            let found = Measured::new(&profiled, &device, &stamps);
            assert_eq!(found.is_err(), was_there, "{kernel}, record {place}");
        }
    }
}

#[test]
fn flash2() {
    let kernels = &[
        (Pass::Forward, "forward_sm80_bf16_d128"),
        (Pass::Backward, "backward_sm80_bf16_d128"),
    ];
    for (heads, mask) in [((2, 1), Mask::Causal), ((1, 1), Mask::Full)] {
        check(&Case {
            problem: problem((200, 270), heads, mask),
            algorithm: Algorithm::Flash2,
            n_sms: 2,
            kernels,
        });
    }
}

#[test]
fn flash3() {
    let kernels = &[
        (Pass::Forward, "forward_sm90a_bf16_d128"),
        (Pass::Backward, "backward_sm90a_bf16_d128"),
    ];
    for (heads, mask) in [
        ((4, 2), Mask::Causal),
        ((3, 3), Mask::Full),
        ((4, 4), Mask::PrefixLm { prefix: 70 }),
    ] {
        check(&Case {
            problem: problem((300, 290), heads, mask),
            algorithm: Algorithm::Flash3,
            n_sms: 2,
            kernels,
        });
    }
}

/// Queries see the last keys alone: the kernel passes over the other tiles, and records none of them.
#[test]
fn tiles_that_no_query_sees() {
    let mask = Mask::Window {
        left: Some(60),
        right: Some(0),
    };
    let case = Case {
        problem: problem((100, 500), (2, 2), mask),
        algorithm: Algorithm::Flash3,
        n_sms: 1,
        kernels: &[(Pass::Backward, "backward_sm90a_bf16_d128")],
    };
    check(&case);
    let (pass, device) = (Pass::Backward, case.device());
    let profiled = case.plan(pass).profiled().unwrap();
    let recorded = run(&profiled, &device, 5, &case.inputs(pass)).stamps;
    let skipped = recorded.iter().position(|stamp| !stamp.is_there()).unwrap();
    let mut stamps = recorded;
    stamps[skipped] = *stamps.iter().find(|stamp| stamp.is_there()).unwrap();
    let found = Measured::new(&profiled, &device, &stamps).unwrap_err();
    assert!(matches!(found, BadStamps::Skipped { .. }), "{found}");
}

/// Query heads of a group are shared out among tiles of the same keys: each has its record.
#[test]
fn shares() {
    check(&Case {
        problem: problem((200, 200), (4, 1), Mask::Causal),
        algorithm: Algorithm::Flash3,
        n_sms: 8,
        kernels: &[(Pass::Backward, "backward_sm90a_bf16_d128")],
    });
}

#[test]
fn wide_tiles() {
    check(&Case {
        problem: problem((4096, 100), (1, 1), Mask::Full),
        algorithm: Algorithm::Flash3,
        n_sms: 2,
        kernels: &[(Pass::Forward, "forward_sm90a_bf16_d128_wide")],
    });
    check(&Case {
        problem: problem((1024, 300), (1, 1), Mask::Full),
        algorithm: Algorithm::Flash3,
        n_sms: 2,
        kernels: &[(Pass::Backward, "backward_sm90a_bf16_d128_wide")],
    });
}

/// Profiled rows are no rows of the list, and each is the copy of one.
#[test]
fn stamped_rows_stand_beside_the_list() {
    for row in PROFILED {
        assert!(VARIANTS.iter().all(|listed| listed.name != row.name));
        let copied: Vec<_> = VARIANTS
            .iter()
            .filter(|listed| listed.profiled() == Some(row))
            .collect();
        let [copied] = copied[..] else {
            panic!("{} is a copy of {} rows", row.name, copied.len())
        };
        assert_eq!(format!("{}_profiled", copied.name), row.name);
        assert_eq!(copied.tile_config, row.tile_config);
        assert!(
            row.capabilities()
                .constants()
                .all(|constant| copied.capabilities().has(constant))
        );
    }
}

#[test]
fn what_is_not_stamped_says_why() {
    let of = |problem: Problem, algorithm| {
        let case = Case {
            problem,
            algorithm,
            n_sms: 132,
            kernels: &[],
        };
        case.plan(Pass::Forward).profiled().unwrap_err()
    };
    let full = problem((256, 256), (1, 1), Mask::Full);
    let refused = of(full, Algorithm::Standard);
    assert_eq!(refused, NoStamps::NoTiles(Algorithm::Standard));
    // Its tiles are compact.
    let short = of(full, Algorithm::Flash3);
    assert!(matches!(short, NoStamps::NoRow { .. }), "{short}");
    assert!(short.to_string().contains("forward_sm90a_bf16_d128_wide"));
    let other = VARIANTS.iter().filter(|row| row.profiled().is_some());
    assert!(other.clone().all(|row| row.tiles != TileShape::Compact));
    let builder = Problem::builder(Dtype::Bf16)
        .seqlen(2048)
        .heads(64)
        .head_dim(128);
    let dropped = of(builder.dropout(0.5).build().unwrap(), Algorithm::Flash2);
    assert!(matches!(dropped, NoStamps::Feature { .. }), "{dropped}");
    assert!(dropped.to_string().contains("no code for dropout"));
}
