//! Rotary position embedding: frequencies and turns as transformers has them, and what is refused.

use ferroflash::error::RotaryError;
use ferroflash::rotary::{Pairs, Positions, Rotary, RotaryTable, Scaling};
use ferroflash::{Error, Layout, Tensor, TensorMut};
use half::f16;

/// Some of the frequencies that `ROPE_INIT_FUNCTIONS` of transformers 5.17 gives for the same numbers, in f32.
fn check_frequencies(rotary: Rotary, expected: &[(usize, f64)]) {
    let given = rotary.frequencies().unwrap();
    for &(i, expected) in expected {
        assert!(
            (given[i] - expected).abs() <= 2e-6 * expected,
            "{i}: {}, {expected}",
            given[i]
        );
    }
}

#[test]
fn linear_is_that_of_transformers() {
    let rotary = Rotary::new(16).scaling(Scaling::Linear { factor: 4.0 });
    check_frequencies(
        rotary,
        &[
            (0, 0.25),
            (1, 0.07905694097),
            (6, 0.0002500000119),
            (7, 7.905694656e-05),
        ],
    );
}

/// Its "dynamic" at four times the length trained on.
#[test]
fn ntk_is_that_of_transformers() {
    let rotary = Rotary::new(16).scaling(Scaling::Ntk { factor: 4.0 });
    check_frequencies(
        rotary,
        &[
            (0, 1.0),
            (1, 0.2594128251),
            (4, 0.004528618418),
            (7, 7.905694656e-05),
        ],
    );
}

#[test]
fn yarn_is_that_of_transformers() {
    let rotary = Rotary::new(64).scaling(Scaling::Yarn {
        factor: 8.0,
        original_seqlen: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
    });
    // The ramp is from pair 10 on.
    let expected = [
        (0, 1.0),
        (10, 0.05623412877),
        (11, 0.0393313095),
        (17, 0.003965786658),
        (22, 0.0003419768182),
        (23, 0.0001666901808),
        (31, 1.666901881e-05),
    ];
    check_frequencies(rotary, &expected);
    assert!((rotary.attention_factor() - 1.2079441541679836).abs() < 1e-12);
    let table = rotary.table(1).unwrap();
    assert_eq!((table.cos()[3], table.sin()[3]), (1.207_944_2, 0.0));
}

#[test]
fn llama3_is_that_of_transformers() {
    let rotary = Rotary::new(64).base(500_000.0).scaling(Scaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_seqlen: 8192,
    });
    // The ramp is from pair 15 to pair 17.
    let expected = [
        (0, 1.0),
        (14, 0.003211446106),
        (15, 0.001371893683),
        (16, 0.000524846022),
        (17, 0.0001785077911),
        (18, 7.784655463e-05),
        (31, 3.767322596e-07),
    ];
    check_frequencies(rotary, &expected);
    assert_eq!(rotary.attention_factor(), 1.0);
}

/// `apply_rotary_pos_emb` of its Llama and of its GPT-J, in f64, of 1 to 8 at position 5.
#[test]
fn both_kinds_of_pairs_are_those_of_transformers() {
    let table = Rotary::new(8).table(6).unwrap();
    let x: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    let halves = [
        5.078283, -1.121388, 2.646396, 3.95995, 0.459386, 6.224346, 7.141189, 8.019899,
    ];
    let interleaved = [
        2.20151, -0.391599, 0.715045, 4.948606, 4.693876, 6.242397, 6.959912, 8.034899,
    ];
    for (pairs, expected) in [(Pairs::Halves, halves), (Pairs::Interleaved, interleaved)] {
        let y = rotate(&table, pairs, Positions::From(5), &x, [1, 1, 1, 8]).unwrap();
        for (y, expected) in y.iter().zip(expected) {
            assert!((y - expected).abs() < 2e-6, "{y}, {expected}");
        }
    }
}

fn rotate(
    table: &RotaryTable,
    pairs: Pairs,
    positions: Positions,
    x: &[f32],
    shape: [usize; 4],
) -> Result<Vec<f32>, Error> {
    let mut y = vec![f32::NAN; x.len()];
    let x = Tensor::bshd(x, shape)?;
    table.rotate(pairs, positions, &x, &mut TensorMut::bshd(&mut y, shape)?)?;
    Ok(y)
}

#[test]
fn frequencies_that_make_no_sense_are_refused() {
    for given in [0, 1, 7, 65_538, usize::MAX - 1] {
        assert_eq!(
            Rotary::new(given).frequencies(),
            Err(RotaryError::RotaryDim { given })
        );
        let tables = RotaryTable::new(given, vec![], vec![]);
        assert_eq!(tables, Err(RotaryError::RotaryDim { given }));
    }
    let yarn = Scaling::Yarn {
        factor: 2.0,
        original_seqlen: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
    };
    let llama = |high_freq_factor, original_seqlen| Scaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor,
        original_seqlen,
    };
    let refused = [
        ("base", Rotary::new(8).base(0.0)),
        ("base", Rotary::new(8).base(f64::NAN)),
        ("base", Rotary::new(8).base(1.0).scaling(yarn)),
        (
            "factor",
            Rotary::new(8).scaling(Scaling::Linear { factor: 0.5 }),
        ),
        (
            "factor",
            Rotary::new(8).scaling(Scaling::Ntk {
                factor: f64::INFINITY,
            }),
        ),
        ("high_freq_factor", Rotary::new(8).scaling(llama(1.0, 8192))),
        ("original_seqlen", Rotary::new(8).scaling(llama(4.0, 0))),
    ];
    for (named, rotary) in refused {
        let error = rotary.frequencies().unwrap_err();
        assert!(
            matches!(error, RotaryError::Factor { what, .. } if what == named),
            "{error}"
        );
        assert_eq!(rotary.table(4).unwrap_err().to_string(), error.to_string());
    }
    for given in [usize::MAX, usize::MAX / 16] {
        let too_many = RotaryError::TooManyPositions { given };
        assert_eq!(Rotary::new(8).table(given), Err(too_many));
    }
    let one_row_more = RotaryTable::new(8, vec![1.0; 8], vec![0.0; 4]);
    let tables = RotaryError::Tables {
        cos: 8,
        sin: 4,
        n_pairs: 4,
    };
    assert_eq!(one_row_more, Err(tables));
    assert!(RotaryTable::new(8, vec![1.0; 6], vec![0.0; 6]).is_err());
    assert_eq!(
        RotaryTable::new(8, vec![1.0; 8], vec![0.0; 8])
            .unwrap()
            .n_positions(),
        2
    );
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let table = Rotary::new(8).table(10).unwrap();
    let x = vec![1.0f32; 2 * 3 * 8];
    let shape = [2, 3, 1, 8];
    let of = |positions| rotate(&table, Pairs::Halves, positions, &x, shape).map(drop);
    assert_eq!(of(Positions::From(7)), Ok(()));
    let beyond = |given| {
        Err(RotaryError::Position {
            given,
            n_positions: 10,
        }
        .into())
    };
    assert_eq!(of(Positions::From(8)), beyond(10));
    assert_eq!(of(Positions::From(usize::MAX)), beyond(i64::MAX));
    assert_eq!(of(Positions::FromEach(&[0, 8])), beyond(10));
    assert_eq!(of(Positions::FromEach(&[-1, 0])), beyond(-1));
    assert_eq!(of(Positions::OfRows(&[0, 1, 2, 3, 10, 5])), beyond(10));
    let count = |what, given, needed| {
        Err(RotaryError::Positions {
            what,
            given,
            needed,
        }
        .into())
    };
    assert_eq!(of(Positions::FromEach(&[0])), count("batch entries", 1, 2));
    assert_eq!(of(Positions::OfRows(&[0; 7])), count("rows", 7, 6));

    let wide = Rotary::new(10).table(10).unwrap();
    let (rotary_dim, head_dim) = (10, 8);
    let refused = rotate(&wide, Pairs::Halves, Positions::From(0), &x, shape);
    assert_eq!(
        refused,
        Err(RotaryError::HeadDim {
            rotary_dim,
            head_dim
        }
        .into())
    );

    let from = Tensor::bshd(&x, shape).unwrap();
    let turn = |to: &mut TensorMut| table.rotate(Pairs::Halves, Positions::From(0), &from, to);
    let mut other = vec![0.0f32; x.len()];
    let given = [3, 2, 1, 8];
    let refused = turn(&mut TensorMut::bshd(&mut other, given).unwrap());
    let needed = shape;
    assert_eq!(refused, Err(RotaryError::Shape { given, needed }.into()));
    let mut half = vec![f16::ZERO; x.len()];
    let refused = turn(&mut TensorMut::bshd(&mut half, shape).unwrap()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the rotated tensor is f16; needed: f32"
    );
    let one_row = Layout {
        row_stride: 0,
        ..Layout::bshd(shape).unwrap()
    };
    let refused = turn(&mut TensorMut::strided(&mut other, one_row).unwrap());
    assert!(
        matches!(refused, Err(Error::Rotary(RotaryError::Overlapping { .. }))),
        "{refused:?}"
    );
}

#[test]
fn nothing_is_turned_where_there_is_nothing() {
    let table = Rotary::new(4).table(0).unwrap();
    for shape in [[0, 3, 1, 8], [2, 0, 1, 8], [2, 0, 0, 8]] {
        let rotated = rotate(&table, Pairs::Halves, Positions::From(5), &[], shape);
        assert_eq!(rotated, Ok(vec![]));
    }
}
