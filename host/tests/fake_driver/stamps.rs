//! Calls whose main kernel records its tiles: the records are cleared before a call and read after it, where the plan has them.

use super::*;
use ferroflash::plan::NoStamps;
use ferroflash::prepared::NotStamped;
use ferroflash::timeline::{BadStamps, Measured, Moment, Stamp};

/// As [`problem`], of columns that stamped kernels have.
fn stamped_problem() -> Problem {
    let [batch, seqlen, heads, _] = SHAPE;
    let sizes = Problem::builder(Dtype::Bf16).batch(batch).seqlen(seqlen);
    sizes.heads(heads).head_dim(128).build().unwrap()
}

fn prepared(device: &Device, problem: Problem) -> PreparedForward {
    let attention = Attention::new(device, problem).unwrap();
    let attention = attention.with_algorithm(Algorithm::Flash2);
    attention.prepare_forward(&Layouts::contiguous()).unwrap()
}

#[test]
fn records_are_cleared_and_read() {
    let _turn = turn();
    let device = gpu(0);
    let plain = prepared(&device, stamped_problem());
    let stamped = plain.stamped().unwrap();
    let plan = stamped.plan();
    assert_eq!(
        plain.plan().launches[0].variant.name,
        "forward_sm80_bf16_d128"
    );
    assert_eq!(
        plan.launches[0].variant.name,
        "forward_sm80_bf16_d128_stamped"
    );
    assert_eq!(plan.launches[0].grid, plain.plan().launches[0].grid);

    let mut queue = Queue::new(device.as_cuda().unwrap()).unwrap();
    queue.reserve(plan).unwrap();
    let piece = plan.stamps().unwrap();
    // Two tiles of each of eight heads.
    assert_eq!(piece.n_bytes, 16 * size_of::<Stamp>() as u64);
    let stream = queue.stream().as_raw() as usize;
    let calls = calls_of(|| queue.clear_stamps(plan).unwrap());
    let [
        Call::Fill {
            address,
            value,
            n_bytes,
            stream: on,
        },
    ] = calls[..]
    else {
        panic!("{calls:?}")
    };
    assert_eq!((value, n_bytes as u64, on), (0, piece.n_bytes, stream));

    // What a kernel would do.
    let moment = |ns| Moment { ns, cycles: 2 * ns };
    let stamp = |place: u32| Stamp {
        block: place,
        sm: place % 3,
        head: place / 2,
        tile: place % 2,
        start: moment(1000 + u64::from(place)),
        end: moment(2000 + u64::from(place)),
    };
    let records: Vec<Stamp> = (0..16).map(stamp).collect();
    for (place, record) in records.iter().enumerate() {
        // SAFETY: the driver's memory is the host's, and the piece has so many records.
        unsafe { (address as *mut Stamp).add(place).write(*record) };
    }
    assert_eq!(queue.read_stamps(plan).unwrap(), records);
    let measured = Measured::new(plan, device.info(), &records).unwrap();
    assert_eq!((measured.end(), measured.tick_ns), (1015, 1));
    assert_eq!((measured.n_sms(), measured.clock_ghz), (3, 2.0));

    // Nobody has written any: that is found out.
    queue.clear_stamps(plan).unwrap();
    let none = queue.read_stamps(plan).unwrap();
    let missing = Measured::new(plan, device.info(), &none);
    assert_eq!(missing, Err(BadStamps::Missing { head: 0, tile: 0 }));
}

#[test]
fn other_plans_have_no_records() {
    let _turn = turn();
    let device = gpu(0);
    let plain = prepared(&device, stamped_problem());
    let mut queue = Queue::new(device.as_cuda().unwrap()).unwrap();
    queue.reserve(plain.plan()).unwrap();
    let calls = calls_of(|| {
        queue.clear_stamps(plain.plan()).unwrap();
        assert_eq!(queue.read_stamps(plain.plan()).unwrap(), []);
    });
    assert_eq!(calls, [Call::Synchronize]);
    let refused = Measured::new(plain.plan(), device.info(), &[]);
    let kernel = "forward_sm80_bf16_d128";
    assert_eq!(refused, Err(BadStamps::NotStamped { kernel }));

    // A kernel of 64 columns has no stamped copy.
    let refused = prepared(&device, problem()).stamped().unwrap_err();
    let NotStamped::NoStamps(NoStamps::NoRow { kernel, .. }) = refused else {
        panic!("{refused}")
    };
    assert_eq!(kernel, "forward_sm80_bf16_d64");
}
