//! How many views and rounds; what the driver is asked for.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::Mutex;

use ferroflash::backend::cuda::use_stand_ins;
use ferroflash::{Dtype, Mask};
use ferroflash_driver::fake::{self, Call as DriverCall, Launch};
use ferroflash_kernels::params::{
    AppendParams, BackwardParams, ClearParams, CombineParams, ForwardParams, TileListParams,
    TmaBackwardParams, TmaForwardParams,
};
use ferroflash_kernels::variants::{self, Kind};
use half::bf16;
use rand::SeedableRng;

use super::pool::Room;
use super::*;
use crate::bench::arguments::BenchArguments;
use crate::bench::{cases, measure};

fn problem(batch: usize, seqlen_k: usize) -> Problem {
    let sizes = Problem::builder(Dtype::Bf16).batch(batch);
    let sizes = sizes.seqlen_q(1).seqlen_k(seqlen_k);
    let heads = sizes.heads_q(32).heads_k(8).head_dim(128);
    heads.mask(Mask::Full).build().unwrap()
}

#[test]
fn a_round_of_views_is_more_than_the_l2_cache_holds() {
    let room = Room::of(64 << 30);
    let n_views = |batch, seqlen_k| room.n_views(&problem(batch, seqlen_k), 1);
    // 4 MiB of keys and values, 32, 256, and 2 GiB.
    assert_eq!(n_views(1, 1024), 48);
    assert_eq!(n_views(1, 8192), 12);
    assert_eq!(n_views(8, 8192), 2);
    assert_eq!(n_views(64, 8192), 1);
}

#[test]
fn a_case_is_admitted_if_there_is_room_for_it() {
    // 2 GiB of keys and values, and less than 16 MiB beside them.
    let case = problem(64, 8192);
    let fits = |free_mib: u64| Room::of(free_mib << 20).admit(&case, 1);
    assert!(fits(2300).is_ok());
    assert_eq!(
        fits(2100).unwrap_err().to_string(),
        "skipped: q, k, v and o take 2.0 GiB, and 1.9 of the 2.1 GiB that are free may be theirs"
    );
    // Each layer has a view.
    assert!(Room::of(4400 << 20).admit(&case, 2).is_ok());
    assert!(Room::of(4300 << 20).admit(&case, 2).is_err());
    assert_eq!(Room::of(4400 << 20).n_views(&case, 2), 2);
    // Views take what there is.
    assert_eq!(Room::of(600 << 20).n_views(&problem(8, 8192), 1), 2);
    assert_eq!(Room::of(500 << 20).n_views(&problem(8, 8192), 1), 1);
}

#[test]
fn views_are_repeated_until_a_replay_takes_long_enough() {
    assert_eq!(rounds(1.5), 1);
    assert_eq!(rounds(1.0), 1);
    assert_eq!(rounds(0.24), 5);
    assert_eq!(rounds(0.0), MAX_ROUNDS);
    assert_eq!(rounds(1e-9), MAX_ROUNDS);
}

/// Bytes of the parameter of a kernel that is enqueued here.
fn params_bytes(kernel: &str) -> Option<usize> {
    match variants::by_name(kernel)?.kind {
        Kind::Forward => Some(size_of::<ForwardParams>()),
        Kind::TmaForward => Some(size_of::<TmaForwardParams>()),
        Kind::Combine => Some(size_of::<CombineParams>()),
        Kind::Append => Some(size_of::<AppendParams>()),
        Kind::TmaBackward => Some(size_of::<TmaBackwardParams>()),
        Kind::BackwardPreprocess
        | Kind::Backward
        | Kind::BackwardPostprocess
        | Kind::TmaBackwardPreprocess => Some(size_of::<BackwardParams>()),
        Kind::Clear => Some(size_of::<ClearParams>()),
        Kind::TileList | Kind::TmaTileList => Some(size_of::<TileListParams>()),
        _ => None,
    }
}

/// Measures on a driver that runs nothing: the JSON of each row, and the launches of each graph, as often as it was launched.
fn measured(line: &str) -> (Vec<String>, Vec<Vec<Launch>>) {
    // Nothing that this driver runs has right results.
    let line = format!("--decode --backend cuda --unchecked {line}");
    let arguments = BenchArguments::parse(&line).unwrap();
    let device = arguments.on.device().unwrap();
    let cuda = device.as_cuda().unwrap();
    let cases = cases::cases(&arguments, &device).unwrap();
    let mut random = SmallRng::seed_from_u64(0);
    let pool = Pool::<bf16>::new(cuda, &cases, &mut random).unwrap();
    let pool = Arc::new(Mutex::new(pool));
    fake::state().calls = Some(Vec::new());
    let mut rows = Vec::new();
    for case in &cases {
        rows.extend(measure(case, &device, &arguments, Some(&pool), &mut random).unwrap());
    }
    let calls = fake::state().calls.take().unwrap();
    let graph = |call| match call {
        DriverCall::LaunchGraph { launches, .. } => Some(launches),
        _ => None,
    };
    let rows = rows.iter().map(|row| row.json()).collect();
    (rows, calls.into_iter().filter_map(graph).collect())
}

/// The address at an offset of a kernel's parameter.
fn address(launch: &Launch, offset: usize) -> u64 {
    u64::from_ne_bytes(launch.params[offset..offset + 8].try_into().unwrap())
}

/// One test, for the driver is one per process.
#[test]
fn each_call_of_a_graph_reads_another_view() {
    fake::install();
    use_stand_ins();
    fake::state().params_bytes = params_bytes;
    fake::state().registers = |kernel| {
        let tile_config = variants::by_name(kernel).map(|variant| variant.tile_config);
        tile_config.map_or(128, |tile_config| tile_config.launch_registers as i32)
    };
    let brief = "--rep 0 --warm-up 0 --rounds 2";

    let (rows, graphs) = measured(&format!(
        "--algorithm flash2,flash3 --batch 1,64 --seqlen-k 8192 {brief}"
    ));
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (row, algorithm) in rows.iter().zip(["flash2", "flash3"]) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["peer"], format!("ferroflash-{algorithm}"));
        assert_eq!((&row["graph"], &row["views"]), (&true.into(), &12.into()));
        // A replay takes as long as this driver says: 1.5 ms.
        assert_eq!(row["ms"], 0.125, "{row}");
    }
    // 2 GiB are more than the device has.
    for row in &rows[2..] {
        assert!(row.contains("\"err\":\"skipped: q, k, v and o"), "{row}");
    }
    // To begin with, to see how long it takes, to warm up, to be measured.
    let n_replays = 1 + MIN_REPLAYS + 2 * (1 + MIN_REPLAYS);
    assert_eq!(graphs.len(), 2 * n_replays);
    for launches in &graphs {
        assert_eq!(launches.len(), 12);
        let params: BTreeSet<&[u8]> = launches.iter().map(|call| call.params.as_slice()).collect();
        assert_eq!(params.len(), 12, "two calls read one view");
    }
    // The parameters of flash2 are plain views: of q, k, v and o.
    let of_flash2 = graphs
        .iter()
        .filter(|launches| launches[0].kernel.starts_with("forward_sm80"));
    let of_flash2: Vec<_> = of_flash2.collect();
    assert_eq!(of_flash2.len(), n_replays);
    for (view, launch) in of_flash2[0].iter().enumerate() {
        let behind = |offset| address(launch, offset) - address(&of_flash2[0][0], offset);
        let first = view as u64 * 8192 * 8 * 128 * 2;
        assert_eq!([0, 32, 64, 96].map(behind), [0, first, first, 0]);
    }

    // Splits of many rows are merged by a kernel of their own.
    let (_, graphs) = measured(&format!(
        "--algorithm flash3 --batch 8 --seqs 16 --seqlen-k 8192 --split-kv 1024 {brief}"
    ));
    for launches in &graphs {
        let n_merges = launches
            .iter()
            .filter(|launch| launch.kernel.starts_with("combine"))
            .count();
        assert_eq!(
            (launches.len(), n_merges),
            (4, 2),
            "{:?}",
            launches[1].kernel
        );
    }
    // Layers are as many views as there are, and each is appended to before it is read.
    let (rows, graphs) = measured(&format!(
        "--algorithm flash2 --batch 1 --seqlen-k 8192 --layers 3 --page-size 0,64 {brief}"
    ));
    for (row, of_pages) in rows.iter().zip(["", "-page64"]) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["peer"], format!("ferroflash-flash2{of_pages}-layers3"));
        assert_eq!((&row["layers"], &row["views"]), (&3.into(), &3.into()));
        assert_eq!(row["ms"], 0.5, "{row}");
    }
    for launches in &graphs {
        let kernels: Vec<_> = launches.iter().map(|call| call.kernel.as_str()).collect();
        assert_eq!(kernels.len(), 6, "{kernels:?}");
        for (layer, pair) in launches.chunks(2).enumerate() {
            assert!(pair[0].kernel.starts_with("append"), "{kernels:?}");
            assert!(pair[1].kernel.starts_with("forward_sm80"), "{kernels:?}");
            let first = layer as u64 * 8192 * 8 * 128 * 2;
            let at = [
                offset_of!(AppendParams, cache.k),
                offset_of!(AppendParams, cache.v),
            ];
            let behind = |offset| address(&pair[0], offset) - address(&launches[0], offset);
            assert_eq!(at.map(behind), [first; 2]);
            // Attention reads what the append wrote: k is its second tensor, q its first.
            assert_eq!(address(&pair[1], 32), address(&pair[0], at[0]));
            let rotated = address(&pair[0], offset_of!(AppendParams, q_out));
            assert_eq!(address(&pair[1], 0), rotated);
        }
    }
    lengths_of_the_device_are_read();
    expressions_are_measured_in_both_passes();
    wrong_results_are_not_measured();
}

/// A driver that runs nothing leaves zeros in o: each variant is wrong, the first one too.
fn wrong_results_are_not_measured() {
    for line in [
        "--decode --batch 1 --seqlen-k 1024",
        "--decode --batch 1 --seqlen-k 1024 --page-size 64 --split-kv never",
        "--hdims 64 --width 128 --seqs 64 --tokens 64 --causal 1 --passes fwd",
    ] {
        let line = format!("--backend cuda --algorithm flash2,flash3 --rep 0 --warm-up 0 {line}");
        let arguments = BenchArguments::parse(&line).unwrap();
        let device = arguments.on.device().unwrap();
        let cases = cases::cases(&arguments, &device).unwrap();
        let mut random = SmallRng::seed_from_u64(0);
        let pool = arguments.decode.then(|| {
            let pool = Pool::<bf16>::new(device.as_cuda().unwrap(), &cases, &mut random);
            Arc::new(Mutex::new(pool.unwrap()))
        });
        let rows = measure::<bf16>(&cases[0], &device, &arguments, pool.as_ref(), &mut random);
        let rows = rows.unwrap();
        assert_eq!(rows.len(), 2, "{line}");
        for row in rows {
            assert!(row.is_wrong(), "{line}: {}", row.json());
            assert!(
                row.json().contains("differs from the processor's"),
                "{}",
                row.json()
            );
        }
    }
}

/// Where lengths are asked for on the device, calls are given their address.
fn lengths_of_the_device_are_read() {
    for (words, on_device) in [("shape", false), ("device", true)] {
        let (rows, graphs) = measured(&format!(
            "--algorithm flash2 --batch 1 --seqlen-k 8192 --cache-lengths {words} --rep 0 --warm-up 0 --rounds 1"
        ));
        let row: serde_json::Value = serde_json::from_str(&rows[0]).unwrap();
        assert_eq!(row["cache_lengths"] == "device", on_device, "{row}");
        let lens = address(&graphs[0][0], offset_of!(ForwardParams, lengths.seqused_k));
        assert_eq!(lens != 0, on_device);
    }
}

/// Not decode, but on the same driver.
fn expressions_are_measured_in_both_passes() {
    let sizes = "--hdims 128 --width 512 --seqs 256 --tokens 512 --causal 0 --order deterministic";
    let line = format!(
        "--backend cuda --unchecked {sizes} --rep 0 --warm-up 0 --rounds 1 --algorithm flash2,flash3 \
         --score soft-cap-alibi --mask-expression document"
    );
    let arguments = BenchArguments::parse(&line).unwrap();
    let device = arguments.on.device().unwrap();
    let cases = cases::cases(&arguments, &device).unwrap();
    assert_eq!(cases.len(), 2);
    let mut random = SmallRng::seed_from_u64(0);
    for case in &cases {
        let rows = measure::<bf16>(case, &device, &arguments, None, &mut random).unwrap();
        assert_eq!(rows.len(), 2);
        for row in rows {
            let row: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
            assert!(row["ms"].is_number() && row["err"].is_null(), "{row}");
            assert_eq!(row["score"], "soft-cap-alibi");
        }
    }
}
