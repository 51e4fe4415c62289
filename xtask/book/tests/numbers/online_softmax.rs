//! The softmax of two rows of four scores, in two blocks of keys, step by step; compared with the definition, and with the library's own result.

use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut};

use super::assert_says;

/// The scores.
const S: [[f64; 4]; 2] = [[1.0, 3.0, 2.0, 5.0], [4.0, 0.0, 1.0, 3.0]];
/// The values.
const V: [[f64; 2]; 4] = [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [1.0, 3.0]];
/// Keys of a block.
const BLOCK: usize = 2;

const CHAPTER: &str = "online_softmax.md";

/// What is kept of a row.
#[derive(Clone, Copy)]
struct Row {
    m: f64,
    l: f64,
    o: [f64; 2],
}

/// A row of the chapter's tables.
fn line(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

fn number(x: f64) -> String {
    format!("{x:.4}")
}

fn pair(x: [f64; 2]) -> String {
    format!("{:.4}, {:.4}", x[0], x[1])
}

/// One block of keys; the row of the table that says what happens.
fn step(row: &mut Row, at: usize, block: usize) -> String {
    let keys = block * BLOCK..(block + 1) * BLOCK;
    let scores = &S[at][keys.clone()];
    let m = scores.iter().copied().fold(row.m, f64::max);
    let alpha = (row.m - m).exp();
    let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
    let l = alpha * row.l + p.iter().sum::<f64>();
    let mut o = row.o.map(|o| alpha * o);
    for (p, key) in p.iter().zip(keys) {
        o = [o[0] + p * V[key][0], o[1] + p * V[key][1]];
    }
    *row = Row { m, l, o };
    line(&[
        at.to_string(),
        format!("{}, {}", scores[0], scores[1]),
        m.to_string(),
        number(alpha),
        pair([p[0], p[1]]),
        number(l),
        pair(o),
    ])
}

#[test]
fn steps_are_as_the_chapter_says() {
    let empty = Row {
        m: f64::NEG_INFINITY,
        l: 0.0,
        o: [0.0; 2],
    };
    let mut rows = [empty; 2];
    let mut said = Vec::new();
    for block in [1, 0] {
        for (at, row) in rows.iter_mut().enumerate() {
            said.push(step(row, at, block));
        }
    }
    for (at, row) in rows.iter().enumerate() {
        let o = row.o.map(|o| o / row.l);
        let lse = row.m + row.l.ln();
        said.push(line(&[at.to_string(), pair(o), number(lse)]));

        // The definition: all scores at once.
        let sum: f64 = S[at].iter().map(|s| s.exp()).sum();
        let by_definition = |column: usize| -> f64 {
            let terms = S[at].iter().zip(&V).map(|(s, v)| s.exp() / sum * v[column]);
            terms.sum()
        };
        assert!((lse - sum.ln()).abs() < 1e-12);
        assert!((0..2).all(|column| (o[column] - by_definition(column)).abs() < 1e-12));
    }
    assert_says(CHAPTER, &said);
}

/// The exercise: row 0 with its blocks in the other order.
#[test]
fn the_other_order_ends_with_the_same_sums() {
    let mut row = Row {
        m: f64::NEG_INFINITY,
        l: 0.0,
        o: [0.0; 2],
    };
    step(&mut row, 0, 0);
    let first = format!(
        "m = {}, l = {:.4}, o = ({:.4}, {:.4})",
        row.m, row.l, row.o[0], row.o[1]
    );
    step(&mut row, 0, 1);
    let last = format!(
        "l = {:.4} and o = ({:.4}, {:.4})",
        row.l, row.o[0], row.o[1]
    );
    assert_says(CHAPTER, &[first, last]);
}

/// The library on the same numbers: queries are the unit vectors, so that S are the keys' columns.
#[test]
fn the_library_gives_the_same() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen_q(2)
        .seqlen_k(4)
        .heads(1)
        .head_dim(2)
        .softmax_scale(1.0)
        .build()
        .expect("a good problem");
    let q = [1f32, 0.0, 0.0, 1.0];
    let k: Vec<f32> = (0..4)
        .flat_map(|key| [S[0][key] as f32, S[1][key] as f32])
        .collect();
    let v: Vec<f32> = V.iter().flatten().map(|&x| x as f32).collect();
    let (mut o, mut lse) = ([0f32; 4], [0f32; 2]);
    let mut run = || -> Result<(), ferroflash::Error> {
        let inputs = Inputs::new(
            &Tensor::bshd(&q, problem.shape_q())?,
            &Tensor::bshd(&k, problem.shape_k())?,
            &Tensor::bshd(&v, problem.shape_v())?,
        );
        let o = TensorMut::bshd(&mut o, problem.shape_o())?;
        let mut outputs = Outputs::new(o, &mut lse[..]);
        Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut outputs)?;
        Ok(())
    };
    run().expect("the processor takes it");
    let rows = (0..2).map(|at| {
        let o = [o[2 * at], o[2 * at + 1]].map(f64::from);
        line(&[at.to_string(), pair(o), number(lse[at].into())])
    });
    assert_says(CHAPTER, &rows.collect::<Vec<_>>());
}
