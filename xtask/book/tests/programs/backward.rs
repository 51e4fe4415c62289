//! Gradients: the program, the chapter's small example, the library, and central differences.

use ferroflash::{Device, Error, attend};
use ferroflash_book::programs::backward::backward;
use ferroflash_book::programs::flash2::flash2;
use ferroflash_book::programs::standard::standard;
use ferroflash_book::programs::{Head, Row, dot};

use super::{Random, assert_near, assert_says, elements, rows};

const TILES: [usize; 2] = [16, 8];

#[test]
fn the_library_gives_the_same() -> Result<(), Error> {
    let random = Random::<16>::new(40, 50);
    let d_o = rows::<16>(40, 4);
    let attended = flash2(&random.head(), TILES);
    let given = backward(&random.head(), &attended, &d_o, TILES);

    let [q, k, v] = [&random.q, &random.k, &random.v].map(|x| elements(x, |x| x));
    let (of_q, of_k) = ([1, 40, 1, 16], [1, 50, 1, 16]);
    let call = attend((&q, of_q), (&k, of_k), (&v, of_k));
    let d_o = elements(&d_o, |x| x);
    let library = call.forward(&Device::cpu())?.backward(&d_o)?;
    let expected = [library.d_q, library.d_k, library.d_v];
    for (name, (given, expected)) in ["dQ", "dK", "dV"].iter().zip(given.iter().zip(&expected)) {
        let expected: Vec<f64> = expected.iter().copied().map(f64::from).collect();
        assert_near(name, given.as_flattened(), &expected, 1e-5);
    }
    Ok(())
}

const Q: [Row<2>; 2] = [[1.0, 0.0], [1.0, 1.0]];
const K: [Row<2>; 2] = [[2.0, 0.0], [0.0, 1.0]];
const V: [Row<2>; 2] = [[1.0, 0.0], [0.0, 2.0]];
const D_O: [Row<2>; 2] = [[1.0, 0.0], [0.0, 1.0]];
const SCALE: f64 = 0.5;

fn head<'a>(q: &'a [Row<2>], k: &'a [Row<2>], v: &'a [Row<2>]) -> Head<'a, 2> {
    let scale = SCALE;
    Head { q, k, v, scale }
}

fn line(name: &str, rows: &[Row<2>]) -> String {
    let row = |row: &Row<2>| format!("{:.4}, {:.4}", row[0], row[1]);
    format!("| {name} | {} | {} |", row(&rows[0]), row(&rows[1]))
}

/// Every step of the table, by the definition.
#[test]
fn the_example_is_the_chapters() {
    let head = head(&Q, &K, &V);
    let attended = standard(&head);
    let (o, lse) = &attended;
    let of = |f: &dyn Fn(usize, usize) -> f64| [[f(0, 0), f(0, 1)], [f(1, 0), f(1, 1)]];
    let s = of(&|i, j| SCALE * dot(&Q[i], &K[j]));
    let p = of(&|i, j| (s[i][j] - lse[i]).exp());
    let d_p = of(&|i, j| dot(&D_O[i], &V[j]));
    let delta = [0, 1].map(|i| dot(&D_O[i], &o[i]));
    let d_s = of(&|i, j| p[i][j] * (d_p[i][j] - delta[i]));
    let [d_q, d_k, d_v] = backward(&head, &attended, &D_O, [1, 1]);
    let one = |name: &str, x: [f64; 2]| format!("| {name} | {:.4} | {:.4} |", x[0], x[1]);
    let lines = [
        line("S", &s),
        one("L", [lse[0], lse[1]]),
        line("P", &p),
        line("O", o),
        line("dP", &d_p),
        one("Δ", delta),
        line("dS", &d_s),
        line("dQ", &d_q),
        line("dK", &d_k),
        line("dV", &d_v),
    ];
    assert_says("backward.md", &lines);
    // A row of dS adds up to 0.
    assert!(d_s.iter().all(|row| (row[0] + row[1]).abs() < 1e-12));
}

/// dQ, dK and dV are what Σ dO ∘ O changes by, for each element.
#[test]
fn central_differences_give_the_same() {
    let loss = |[q, k, v]: [&[Row<2>]; 3]| {
        let (o, _) = standard(&head(q, k, v));
        o.iter().zip(&D_O).map(|(o, d_o)| dot(o, d_o)).sum::<f64>()
    };
    let tensors = [Q, K, V];
    let head = head(&Q, &K, &V);
    let gradients = backward(&head, &standard(&head), &D_O, [2, 2]);
    for (at, gradient) in gradients.iter().enumerate() {
        for (row, col) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let moved = |by: f64| {
                let mut tensors = tensors;
                tensors[at][row][col] += by;
                loss([&tensors[0], &tensors[1], &tensors[2]])
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!(
                (slope - gradient[row][col]).abs() < 1e-9,
                "{at} {row} {col}"
            );
        }
    }
}

/// Bytes of a head: what storing P would move, and what computing it again does.
#[test]
fn bytes_are_the_chapters() {
    let (n, d) = (8192u64, 128u64);
    let p = 2 * n * n;
    let statistics = 4 * n;
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    assert_says(
        "backward.md",
        &[
            format!("{} of P", mb(p)),
            format!("{:.3} MB of L", statistics as f64 / 1e6),
            format!("{:.1} · 10⁹ operations", 2.0 * (n * n * d) as f64 / 1e9),
            format!("{:.0} µs", 2.0 * (n * n * d) as f64 / 989e12 * 1e6),
            format!("{:.0} µs", 2.0 * p as f64 / 4.8e12 * 1e6),
        ],
    );
}
