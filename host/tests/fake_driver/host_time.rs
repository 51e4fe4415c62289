//! What a call costs the host beside the driver: `cargo test -p ferroflash --test fake_driver -- --nocapture costs`.
//!
//! The driver of functions does as little as it can; what that takes is measured alone, by the same functions called as often, and
//! taken off.

use std::hint::black_box;

use ferroflash::{PlanCache, raw};

use super::foreign::{Library, of_the_driver};
use super::*;

/// With checks, and little optimised, code takes longer.
const MOST_NS: f64 = if cfg!(debug_assertions) {
    10_000.0
} else {
    5_000.0
};

/// The least time of one call of many, in nanoseconds.
fn least_ns(mut call: impl FnMut()) -> f64 {
    const N_CALLS: u32 = 500;
    let mut run = || {
        let start = Instant::now();
        (0..N_CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(N_CALLS)
    };
    (0..30).map(|_| run()).fold(f64::INFINITY, f64::min)
}

/// What each call takes beside the driver, in nanoseconds.
fn beside_the_driver(what: &str, mut call: impl FnMut()) -> f64 {
    call();
    let calls = calls_of(&mut call);
    let n_enqueued = calls.len();
    let of_driver = of_the_driver(&calls);
    let (all, driver) = (
        least_ns(&mut call),
        least_ns(|| of_driver.iter().for_each(|call| call())),
    );
    let own = all - driver;
    eprintln!("{what}: {own:.0} ns beside the driver ({n_enqueued} calls of it, {driver:.0} ns)");
    own
}

#[test]
fn prepared_costs() {
    let _turn = turn();
    let device = gpu(0);
    // Its context is current meanwhile.
    let _library = Library::new(fake::CONTEXTS[0]);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let mut forward = Forward::with(&device, algorithm);
        let own = beside_the_driver(&format!("a prepared forward pass of {algorithm}"), || {
            forward.enqueue().unwrap();
        });
        assert!(own < MOST_NS, "{algorithm}: {own:.0} ns");
    }
    let mut decode = Decode::new(&device);
    let own = beside_the_driver("a prepared step of decode over pages", || decode.enqueue());
    assert!(own < MOST_NS, "{own:.0} ns");
}

/// As a binding to a framework calls it: nothing is kept but the plans, and the workspace is lent.
#[test]
fn looked_up_costs() {
    let _turn = turn();
    let library = Library::new(fake::CONTEXTS[0]);
    let device = library.device();
    let cache = PlanCache::new(256);
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let what = format!("a forward pass of {algorithm}, looked up");
        let own = beside_the_driver(&what, || {
            let attention = Attention::new(&device, problem()).unwrap();
            let attention = attention.with_algorithm(algorithm);
            let layout = Layout::bshd(SHAPE).unwrap();
            let layouts = [Argument::Q, Argument::K, Argument::V]
                .iter()
                .fold(Layouts::contiguous(), |layouts, &argument| {
                    layouts.with(argument, layout)
                });
            let layouts = layouts.without(Argument::Lse);
            let prepared = cache.forward(&attention, &layouts).unwrap();
            library.forward(&device, black_box(&prepared));
        });
        assert!(own < MOST_NS, "{algorithm}: {own:.0} ns");
    }
}

/// A call on addresses, each under its argument's name: as the bindings make it, with a plan of their own.
#[test]
fn raw_costs() {
    let _turn = turn();
    let library = Library::new(fake::CONTEXTS[0]);
    let device = library.device();
    let attention = Attention::new(&device, Decode::problem()).unwrap();
    let call = raw::Call::forward(&attention, &Decode::layouts(), &PlanCache::new(4)).unwrap();
    let own = beside_the_driver("a step of decode over pages, on addresses", || {
        library.run(black_box(&call));
    });
    assert!(own < MOST_NS, "{own:.0} ns");
}

/// One query of each sequence over keys in pages.
struct Decode {
    prepared: PreparedForward,
    problem: Problem,
    q: DeviceBuffer<bf16>,
    k: DeviceBuffer<bf16>,
    v: DeviceBuffer<bf16>,
    o: DeviceBuffer<bf16>,
    seqused: DeviceBuffer<i32>,
    table: DeviceBuffer<i32>,
    queue: Queue,
}

impl Decode {
    fn problem() -> Problem {
        Problem::builder(Dtype::Bf16)
            .batch(8)
            .seqlen_q(1)
            .seqlen_k(1024)
            .heads_q(32)
            .heads_k(8)
            .head_dim(128)
            .pages(ferroflash::Pages::new(128, 64))
            .build()
            .unwrap()
    }

    fn layouts() -> Layouts {
        Layouts::contiguous()
            .giving(Argument::SeqUsedK)
            .without(Argument::Lse)
    }

    fn new(device: &Device) -> Decode {
        let problem = Decode::problem();
        let attention = Attention::new(device, problem).unwrap();
        let prepared = attention.prepare_forward(&Decode::layouts()).unwrap();
        let cuda = device.as_cuda().unwrap();
        let rows = |shape: [usize; 4]| DeviceBuffer::new(cuda, shape.iter().product()).unwrap();
        let mut queue = Queue::new(cuda).unwrap();
        queue.reserve(prepared.plan()).unwrap();
        Decode {
            prepared,
            problem,
            q: rows(problem.shape_q()),
            k: rows(problem.shape_k()),
            v: rows(problem.shape_v()),
            o: rows(problem.shape_o()),
            seqused: DeviceBuffer::new(cuda, 8).unwrap(),
            table: DeviceBuffer::new(cuda, 8 * 16).unwrap(),
            queue,
        }
    }

    fn enqueue(&mut self) {
        let layout = |shape| Layout::bshd(shape).unwrap();
        let of_q = layout(self.problem.shape_q());
        let of_k = layout(self.problem.shape_k());
        let inputs = Inputs::new(
            &Tensor::device(self.q.slice(), of_q).unwrap(),
            &Tensor::device(self.k.slice(), of_k).unwrap(),
            &Tensor::device(self.v.slice(), of_k).unwrap(),
        );
        let inputs = inputs
            .seqused_k(self.seqused.slice())
            .page_table(self.table.slice());
        let o = TensorMut::device(self.o.slice_mut(), of_q).unwrap();
        let mut outputs = Outputs::without_lse(o);
        self.prepared
            .forward(&mut self.queue, &inputs, &mut outputs)
            .unwrap();
    }
}
