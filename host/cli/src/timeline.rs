//! `ferroflash timeline`: which block of threads works on which tile when, by simulation, in the terminal and as SVG.

use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::Args;
use ferroflash::plan::{Backend, DeviceInfo, Plan, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Algorithm, Dtype, Order, Pass};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::timeline::picture::{Axes, OF_KEY_TILE, OF_QUERY_TILE, Panel, page, rows};
use ferroflash_lab::timeline::{Detail, Doing, NoTimeline, Stretch, Timeline, backward};
use ferroflash_lab::words::sizes;

use crate::failure::Failure;
use crate::output;
use crate::posed::SizeWords;
use crate::print::{HEADING, columns, say, waiting};
use crate::words::{Schedule, dtype, order, pass, schedule};

/// Options of `timeline`: a problem, a kernel of it, and a GPU.
#[derive(Debug, Args)]
pub struct TimelineArguments {
    /// Sizes and mask of the problem.
    #[command(flatten)]
    pub sizes: SizeWords,
    /// Type of the elements.
    #[arg(long, default_value = "bf16", value_parser = dtype())]
    pub dtype: Dtype,
    /// The pass whose main kernel is drawn.
    #[arg(long, default_value = "fwd", value_parser = pass())]
    pub pass: Pass,
    /// The schedule; one that cannot serve is an error.
    #[arg(long, default_value = "auto", value_parser = schedule())]
    pub algorithm: Schedule,
    /// Order of the backward pass's sums.
    #[arg(long, default_value = "deterministic", value_parser = order())]
    pub order: Order,
    /// The GPU, as `ferroflash estimate` takes it.
    #[arg(long, default_value = "H200")]
    pub gpu: String,
    /// A GPU like it with so many SMs: a few make a picture in which every tile has a name.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sms: Option<u32>,
    /// Of the backward pass of flash2 and flash3: each step of a tile, not the tile as a whole.
    #[arg(long)]
    pub steps: bool,
    /// Draws all places; an existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Simulates and draws.
pub fn timeline(arguments: &TimelineArguments) -> Result<ExitCode, Failure> {
    let device = device(arguments)?;
    let builder = arguments.sizes.problem(arguments.dtype)?;
    let problem = builder.order(arguments.order).build()?;
    let checked = without_tensors(&problem, arguments.pass, Location::Cuda(0))?;
    let plan = plan(&checked, &device, Backend::Cuda, arguments.algorithm);
    let plan = plan.map_err(ferroflash::Error::from)?;
    let timeline = {
        let _bar = waiting("simulates the schedule");
        simulated(&plan, &device, arguments.steps)?
    };
    let title = format!(
        "{}, {} on {} SMs of {}",
        plan.pass.name(),
        plan.algorithm,
        device.n_sms,
        device.name
    );
    let idle = timeline.idle();
    say!("{HEADING}{title}{HEADING:#}");
    say!("problem   {}, {}", sizes(&problem), problem.mask());
    say!(
        "time      {} steps, {:.1} % idle: {:.1} % beginnings and ends of tiles, {:.1} % waits at semaphores, {:.1} % without a tile",
        timeline.end_in_steps(),
        100.0 * idle.all(),
        100.0 * idle.edges,
        100.0 * idle.waits,
        100.0 * idle.without_tile
    );
    let unit = match (plan.pass, plan.algorithm) {
        (Pass::Backward, _) | (_, Algorithm::Flash1) => OF_KEY_TILE,
        _ => OF_QUERY_TILE,
    };
    print(&timeline, device.n_sms, unit);
    if let Some(path) = &arguments.svg {
        let words = format!(
            "{}, {}. Simulated, not measured.",
            sizes(&problem),
            problem.mask()
        );
        let cells = match has_steps(timeline.lanes.iter().flatten()) {
            true => {
                "A cell is a step, its number the block of queries. Pale: a tile's beginning and end. Grey: a wait at a semaphore."
            }
            false => {
                "A bar h·t is tile t of head h. Four colours tell heads apart. Grey: a wait at a semaphore."
            }
        };
        let notes = [words, cells.to_owned()];
        let panel = Panel::new(device.n_sms, &title, timeline, unit);
        let svg = page("A simulated schedule", &[panel], Axes::Own, &notes)?;
        output::replace(path, svg.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The GPU, with as many SMs as are asked for.
fn device(arguments: &TimelineArguments) -> Result<DeviceInfo, Failure> {
    let name = &arguments.gpu;
    let device = Gpu::named(name)?.device_info();
    let device = device
        .ok_or_else(|| Failure::Option(format!("gpu is {name:?}; allowed: {}", Gpu::names())))?;
    Ok(DeviceInfo {
        n_sms: arguments.sms.unwrap_or(device.n_sms),
        ..device
    })
}

fn simulated(plan: &Plan, device: &DeviceInfo, steps: bool) -> Result<Timeline, NoTimeline> {
    let has_steps = plan.pass == Pass::Backward && plan.algorithm != Algorithm::Flash1;
    if steps && has_steps {
        let launch = backward::Launch::of_plan(plan, device)?;
        return backward::trace(&launch, &launch.ways(), Detail::Steps);
    }
    Timeline::of_plan(plan, device)
}

/// Places that are printed, at most.
const MOST_ROWS: usize = 32;
/// Columns before the bars.
const NAME: usize = 10;

/// A line for each place: letters are tiles, or blocks of queries where steps are told apart.
fn print(timeline: &Timeline, n_sms: u32, unit: &str) {
    let rows = rows(timeline, n_sms);
    let width = columns().saturating_sub(NAME + 1).max(10);
    for (name, lane) in rows.iter().take(MOST_ROWS) {
        say!("{name:<NAME$}{}", in_letters(lane, timeline.end(), width));
    }
    if MOST_ROWS < rows.len() {
        let n = rows.len();
        say!("The first {MOST_ROWS} of {n} places; --svg draws all, --sms 8 has fewer.");
    }
    say!("{:NAME$}{unit}", "");
    let letters = match has_steps(timeline.lanes.iter().flatten()) {
        true => "A letter is a block of queries, 0 to 9, then a to z; = a beginning or an end",
        false => "A letter is a tile, 0 to 9, then a to z, and a colour its head",
    };
    say!(
        "{:NAME$}{letters}; - waits at a semaphore; . has no tile",
        ""
    );
}

/// Whether steps are told apart.
fn has_steps<'a>(stretches: impl IntoIterator<Item = &'a Stretch>) -> bool {
    let mut doings = stretches.into_iter().map(|stretch| stretch.doing);
    doings.any(|doing| matches!(doing, Doing::Step { .. }))
}

/// What a place does, a letter for each part of the time.
fn in_letters(lane: &[Stretch], end: u64, width: usize) -> String {
    let steps = has_steps(lane);
    let at = |column: usize| {
        // The middle of the column.
        let time = (2 * column as u64 + 1) * end / (2 * width as u64);
        let doing = lane
            .iter()
            .find(|stretch| stretch.from <= time && time < stretch.until);
        match doing.map(|stretch| stretch.doing) {
            None => ('.', Style::new()),
            Some(Doing::Wait) => ('-', Style::new()),
            Some(Doing::Tile { head, .. }) if steps => ('=', style(head)),
            Some(Doing::Tile { head, tile }) => (letter(tile), style(head)),
            Some(Doing::Step { head, block, .. }) => (letter(block), style(head)),
        }
    };
    let mut line = String::new();
    let mut last = Style::new();
    for (letter, style) in (0..width).map(at) {
        if style != last {
            line.push_str(&format!("{last:#}{style}"));
            last = style;
        }
        line.push(letter);
    }
    line.push_str(&format!("{last:#}"));
    line
}

/// One of 36.
fn letter(number: u32) -> char {
    char::from_digit(number % 36, 36).unwrap_or('?')
}

/// The colour of a head.
fn style(head: u32) -> Style {
    const COLOURS: [AnsiColor; 6] = [
        AnsiColor::Blue,
        AnsiColor::Red,
        AnsiColor::Green,
        AnsiColor::Yellow,
        AnsiColor::Magenta,
        AnsiColor::Cyan,
    ];
    COLOURS[head as usize % COLOURS.len()].on_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_letters() {
        let stretch = |from, until, doing| Stretch { from, until, doing };
        let tile = |tile| Doing::Tile { head: 0, tile };
        let lane = [
            stretch(0, 200, tile(1)),
            stretch(200, 300, Doing::Wait),
            stretch(300, 400, tile(10)),
        ];
        let text = anstream::adapter::strip_str(&in_letters(&lane, 500, 10)).to_string();
        assert_eq!(text, "1111--aa..");
    }
}
