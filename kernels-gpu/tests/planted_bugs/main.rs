//! Wrong kernels that the emulator must catch, every one of them under every seed, and the right kernels that they
//! were made from, in which it must find nothing.
//!
//! Each kernel takes a `Bug`; `Bug::None` is the right one.
#![cfg(feature = "emulator")]

/// A test for each fault that a bug shows as, in a module with a `Bug` and a `run`.
macro_rules! caught {
    ($($name:ident: $bug:ident => $accepts:expr;)*) => { $(
        #[test]
        fn $name() {
            crate::catch(crate::Shows::As($accepts), |options| run(Bug::$bug, options));
        }
    )* };
}

mod append;
mod arrivals;
mod clusters;
mod columns;
mod first_kernel;
mod hopper;
mod launches;
mod owners;
mod pages;
mod product;
mod proxies;
mod reduction;
mod ring;
mod semaphores;
mod slots;
mod sums;
mod tensor_maps;
mod tiles;

use ferroflash_kernels::emu::{Checks, Fault, Kind, Options, Order};

/// Seeds under which everything here runs.
const SEEDS: std::ops::Range<u64> = 0..30;

/// How a planted bug shows.
enum Shows {
    /// The emulator stops with a fault that the function accepts.
    As(fn(&Kind) -> bool),
    /// The run ends and its result is wrong.
    InNumbers,
}

/// Runs a wrong kernel under every seed. `run` gives whether the result was right.
fn catch(shows: Shows, run: impl Fn(Options) -> Result<bool, Fault>) {
    for seed in SEEDS {
        match (run(Options::seeded(seed)), &shows) {
            (Err(fault), Shows::As(accepts)) => {
                assert!(
                    accepts(fault.kind()),
                    "seed {seed}: another fault than expected: {fault}"
                );
                assert!(!fault.to_string().is_empty());
            }
            (Ok(right), Shows::InNumbers) => {
                assert!(!right, "seed {seed}: the wrong kernel's result is right")
            }
            (Ok(_), Shows::As(_)) => panic!("seed {seed}: the planted bug was not caught"),
            (Err(fault), Shows::InNumbers) => {
                panic!("seed {seed}: a fault instead of wrong numbers: {fault}")
            }
        }
    }
}

/// Runs a right kernel under every seed, and in the orders and with the checks that tests do not use.
fn accept(run: impl Fn(Options) -> Result<bool, Fault>) {
    let seeded = SEEDS.map(Options::seeded);
    let others = [
        (Order::InTurn, Checks::Full),
        (Order::InTurn, Checks::Bounds),
        (Order::Random, Checks::Bounds),
    ];
    let others = others.map(|(order, checks)| Options {
        seed: 0,
        order,
        checks,
    });
    for options in seeded.chain(others) {
        match run(options) {
            Ok(right) => assert!(right, "{options:?}: the right kernel's result is wrong"),
            Err(fault) => panic!("{options:?}: a false alarm: {fault}"),
        }
    }
}
