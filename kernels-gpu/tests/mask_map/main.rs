//! The kernel that maps masks, on the emulator: what it says of a block is so at each pair, and it says as much as the host's bounds do. And the kernel that
//! lists what such a map leaves.
#![cfg(feature = "emulator")]

mod call;
mod lists;

use call::Call;
use ferroflash_expression::random::{Kind, Random, Sample, random};
use ferroflash_expression::{At, Cond, Contiguous, Elements, Expression, ParamValue, mask_mapping};

/// A call of random sizes, with what its mask takes.
fn call_of(mask: Expression, seed: u64, mut random: Random) -> Call {
    let sample = Sample::new(&mask, seed);
    Call {
        seqlen_q: random.choose(&[130, 128, 257, 40]),
        seqlen_k: random.choose(&[129, 128, 200, 7]),
        causal: random.below(3) == 0,
        params: sample.params,
        tensors: sample.tensors,
        mask,
    }
}

#[test]
fn what_it_says_of_random_masks_is_so_at_each_pair() {
    let (mut n_mapped, mut n_known) = (0, 0);
    for seed in 0..160 {
        let mask = random(seed, 6 + seed as u32 % 40, Kind::Mask);
        let mask = match seed % 3 {
            0 => mask,
            _ => mask.simplified().unwrap(),
        };
        let call = call_of(mask, seed, Random(seed ^ 0xb10c));
        let Ok(map) = call.map(seed) else {
            continue;
        };
        n_mapped += 1;
        let [hidden, _, full] = call.check(&map, &format!("seed {seed}"));
        n_known += usize::from(hidden + full > 0);
    }
    // What nothing is known of is right, too.
    assert!(n_mapped > 140 && n_known > 50, "{n_mapped} {n_known}");
}

/// Of a mask that is evaluated at pairs all is known, whatever it is.
#[test]
fn pairs_settle_what_intervals_leave_open() {
    let mut n_more = 0;
    for seed in 0..40 {
        let mask = random(seed, 6 + seed as u32 % 40, Kind::Mask);
        let call = call_of(mask, seed, Random(seed ^ 0x9a1c));
        let [_, missed, _] = call.check(&call.map_at_pairs(seed), &format!("seed {seed}"));
        assert_eq!(missed, 0, "seed {seed}: {}", call.mask);
        if let Ok(map) = call.map(seed) {
            n_more += call.check(&map, "intervals")[1];
        }
    }
    assert!(n_more > 10, "{n_more}");
}

/// Masks of bits, products and tables, long ones, and which masks are evaluated at pairs.
#[test]
fn masks_that_intervals_do_not_bound_are_evaluated() {
    let is_at_pairs = |f: fn(At) -> Cond| {
        let mask = Expression::mask(f).unwrap();
        let mapping = mask_mapping(&mask, mask.params(), mask.tensors());
        mapping.at_pairs
    };
    let check = |name: &str, expected: [usize; 2], f: fn(At) -> Cond| {
        assert!(is_at_pairs(f), "{name}");
        let call = Call {
            seqlen_q: 300,
            seqlen_k: 400,
            causal: false,
            params: Vec::new(),
            tensors: Vec::new(),
            mask: Expression::mask(f).unwrap(),
        };
        let [hidden, missed, full] = call.check(&call.map_at_pairs(1), name);
        assert_eq!(([hidden, full], missed), (expected, 0), "{name}");
    };
    // Blocks of 256 by 256, told by the bits in which q and k differ.
    check("bits", [6, 6], |at| ((at.q ^ at.k) >> 8).eq(0));
    check("a product", [5, 1], |at| (at.q * at.k).lt(20_000));
    check("a long one", [0, 6], |at| {
        let hides = |n: i32| (at.q * at.k).ne(n);
        (1..40).fold(hides(0), |all, n| all & hides(n))
    });
    assert!(!is_at_pairs(|at| at.k.le(at.q)));
    assert!(!is_at_pairs(
        |at| at.q.ge(at.k) & (at.q - at.k).lt(at.i32("window"))
    ));
    assert!(!is_at_pairs(|at| {
        at.tensor_i32("documents", [at.batch, at.q])
            .eq(at.tensor_i32("documents", [at.batch, at.k]))
    }));
    assert!(!is_at_pairs(|at| (at.q / 128).eq(at.k / 128)));
    assert!(is_at_pairs(|at| at.tensor_i32("table", [at.q, at.k]).eq(1)));
}

/// Masks that are used, of each of whose blocks all is known that can be.
#[test]
fn usual_masks_are_known_wherever_they_can_be() {
    let check = |name: &str, f: fn(At) -> Cond| {
        let mask = Expression::mask(f).unwrap();
        let params = mask.params().iter().map(|_| ParamValue::I32(150));
        let document = |at: i32| [at / 100, at / 100 + 1];
        let elements: Vec<i32> = (0..2)
            .flat_map(|b| (0..400).map(move |at| document(at)[b]))
            .collect();
        let tensors = mask.tensors().iter().map(|tensor| match tensor.rank {
            1 => Contiguous::new(&[400], Elements::I32(elements[..400].to_vec())),
            _ => Contiguous::new(&[2, 400], Elements::I32(elements.clone())),
        });
        for (seqlen_q, seqlen_k, causal) in [(400, 400, false), (300, 400, true), (257, 257, true)]
        {
            let call = Call {
                seqlen_q,
                seqlen_k,
                causal,
                params: params.clone().collect(),
                tensors: tensors.clone().map(Result::unwrap).collect(),
                mask: mask.clone(),
            };
            let map = call.map(1).unwrap();
            let [hidden, missed, full] = call.check(&map, name);
            assert_eq!(missed, 0, "{name} {hidden} {full}");
        }
    };
    check("causal", |at| at.k.le(at.q));
    check("causal, from the end", |at| {
        (at.q + at.seqlen_k - at.seqlen_q - at.k).ge(0)
    });
    check("window", |at| (at.q - at.k).lt(at.i32("window")));
    check("causal window", |at| {
        at.q.ge(at.k) & (at.q - at.k).lt(at.i32("window"))
    });
    check("prefix", |at| at.k.lt(at.i32("prefix")) | at.q.ge(at.k));
    check("blocks", |at| (at.q / 128).eq(at.k / 128));
    check("every fourth", |at| (at.k % 4).eq(0));
    check("distance", |at| (at.q - at.k).abs().le(70));
    check("numbers", |at| (at.q - at.k).to_f32().ge(0.0));
    check("documents", |at| {
        at.tensor_i32("documents", [at.q])
            .eq(at.tensor_i32("documents", [at.k]))
    });
    check("causal documents of entries", |at| {
        let document = |place| at.tensor_i32("documents", [at.batch, place]);
        document(at.q).eq(document(at.k)) & at.k.le(at.q)
    });
    check("heads", |at| {
        at.head.lt(2).select(at.q.ge(at.k), at.q.gt(at.k - 130))
    });
    check("last keys", |at| {
        at.k.ge(at.tensor_i32("documents", [at.batch, at.q]) * 100)
    });
    check("every other block of keys", |at| {
        ((at.k >> 7) & 1).eq(at.kv_head)
    });
    check("all", |at| at.constant(true));
    check("none", |at| at.constant(false));
}
