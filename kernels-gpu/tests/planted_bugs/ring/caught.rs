//! What must be found in which wrong kernel.

use ferroflash_kernels::emu::{Asynchronous, Kind, Options, Place};

use super::{Bug, Problem, Q, run};
use crate::{Shows, accept, catch};

const PROBLEM: Problem = Problem {
    seqlen_q: 200,
    seqlen_k: 170,
    consumers: 2,
    q_from: Q::Shared,
};

#[test]
fn the_right_kernel_with_two_consumers_passes() {
    accept(|options| run(PROBLEM, Bug::None, options));
}

#[test]
fn the_right_kernel_with_one_consumer_passes() {
    let problem = Problem {
        seqlen_q: 150,
        consumers: 1,
        ..PROBLEM
    };
    accept(|options| run(problem, Bug::None, options));
}

#[test]
fn the_right_kernel_with_q_in_registers_passes() {
    let q_from = Q::Registers;
    accept(|options| run(Problem { q_from, ..PROBLEM }, Bug::None, options));
}
