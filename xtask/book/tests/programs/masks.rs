//! Masks as matrices of 0 and 1: the library's own, and the program's.

use ferroflash::{Attention, Device, Dtype, Error, Inputs, Mask, Problem, Tensor, WeightsOf};
use ferroflash_book::programs::masks::Band;
use ferroflash_kernels::attention::mask::{self, Bounds, Rows};
use ferroflash_kernels::params::Window;

use super::assert_says;

/// Rows of 0 and 1.
fn drawn(rows: &[Vec<bool>]) -> String {
    let row = |row: &Vec<bool>| {
        let cells: Vec<&str> = row
            .iter()
            .map(|sees| if *sees { "1" } else { "0" })
            .collect();
        cells.join(" ")
    };
    rows.iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Which keys the library's queries see: all scores are 0, so a weight is greater than 0 where the key is visible.
fn library(mask: Mask, seqlen_q: usize, seqlen_k: usize) -> Result<Vec<Vec<bool>>, Error> {
    let problem = Problem::builder(Dtype::F32).heads(1).head_dim(1).mask(mask);
    let problem = problem.seqlen_q(seqlen_q).seqlen_k(seqlen_k).build()?;
    let (q, k) = (vec![0f32; seqlen_q], vec![0f32; seqlen_k]);
    let inputs = Inputs::latent(
        &Tensor::bshd(&q, problem.shape_q())?,
        &Tensor::bshd(&k, problem.shape_k())?,
    );
    let mut weights = vec![0f32; seqlen_q * seqlen_k];
    let of = WeightsOf {
        batch: 0,
        head: 0,
        rows: 0..seqlen_q,
    };
    Attention::new(&Device::cpu(), problem)?.weights(&inputs, &of, &mut weights)?;
    let rows = weights.chunks(seqlen_k);
    Ok(rows
        .map(|row| row.iter().map(|p| *p > 0.0).collect())
        .collect())
}

/// The program's.
fn program(band: Band) -> Vec<Vec<bool>> {
    let row = |i| {
        (0..band.seqlen_k)
            .map(|j| band.keys(i).contains(&j))
            .collect()
    };
    (0..band.seqlen_q).map(row).collect()
}

fn window(left: Option<usize>, right: Option<usize>) -> Mask {
    Mask::Window { left, right }
}

#[test]
fn masks_are_the_librarys() -> Result<(), Error> {
    let cases = [
        (Mask::Causal, 4, 4),
        (Mask::Causal, 2, 5),
        (Mask::Causal, 4, 2),
        (window(Some(1), Some(0)), 5, 5),
        (window(Some(1), Some(1)), 3, 5),
        (Mask::PrefixLm { prefix: 3 }, 5, 5),
    ];
    let mut said = Vec::new();
    for (mask, seqlen_q, seqlen_k) in cases {
        let rows = library(mask, seqlen_q, seqlen_k)?;
        said.push(drawn(&rows));
        if matches!(mask, Mask::PrefixLm { .. }) {
            continue; // not a band that the program has
        }
        let (left, right) = mask.window();
        let band = Band {
            seqlen_q: seqlen_q as isize,
            seqlen_k: seqlen_k as isize,
            left: left.map(|x| x as isize),
            right: right.map(|x| x as isize),
        };
        assert_eq!(program(band), rows, "{mask:?}");
    }
    assert_says("masks.md", &said);
    Ok(())
}

/// Two sequences of 2 and 3 tokens, one after the other: a causal mask of each, and nothing between them.
#[test]
fn packed_sequences_are_the_librarys() -> Result<(), Error> {
    let (cu_seqlens, total) = ([0, 2, 5], 5);
    let problem = Problem::builder(Dtype::F32).heads(1).head_dim(1).batch(2);
    let problem = problem
        .seqlen(3)
        .packed_q(total)
        .packed_k(total)
        .mask(Mask::Causal);
    let problem = problem.build()?;
    let zeros = [0f32; 5];
    let inputs = Inputs::latent(
        &Tensor::bshd(&zeros, problem.shape_q())?,
        &Tensor::bshd(&zeros, problem.shape_k())?,
    );
    let inputs = inputs.cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens);
    let attention = Attention::new(&Device::cpu(), problem)?;
    let mut rows = vec![vec![false; total]; total];
    for batch in 0..2 {
        let (first, end) = (cu_seqlens[batch] as usize, cu_seqlens[batch + 1] as usize);
        let mut weights = vec![0f32; (end - first) * 3];
        let of = WeightsOf {
            batch,
            head: 0,
            rows: 0..end - first,
        };
        attention.weights(&inputs, &of, &mut weights)?;
        for (i, row) in weights.chunks(3).enumerate() {
            for (j, p) in row.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                assert!(*p > 0.0 && first + j < end);
                rows[first + i][first + j] = true;
            }
        }
    }
    assert_says("masks.md", &[drawn(&rows)]);
    Ok(())
}

/// Blocks of 128 × 128 of 1024 queries and keys: the program's marks, and the ranges that the kernels walk.
#[test]
fn blocks_are_those_that_the_kernels_visit() {
    let (n, size) = (1024isize, 128isize);
    for (left, right) in [(None, Some(0)), (Some(255), Some(0)), (None, None)] {
        let band = Band {
            seqlen_q: n,
            seqlen_k: n,
            left,
            right,
        };
        let bounds = Bounds {
            left: left.is_some(),
            right: right.is_some(),
            prefix: false,
        };
        // The kernels' numbers: query i sees keys from i + left on, and before i + right.
        let numbers = Window {
            left: -left.unwrap_or(0) as i32,
            right: right.map_or(0, |right| right as i32 + 1),
            ..Window::default()
        };
        let kernels = mask::Band::new(n as u32, n as u32, numbers, bounds);
        let mut lines = Vec::new();
        for i in 0..n / size {
            let queries = Rows {
                first: (i * size) as u32,
                len: size as u32,
            };
            let blocks = kernels.kv_blocks(queries, size as u32);
            let tile = i * size..(i + 1) * size;
            let marks = (0..n / size).map(|j| {
                let mark = band.block(tile.clone(), j * size..(j + 1) * size);
                let j = j as u32;
                let visited = (blocks.first..blocks.end).contains(&j);
                let full = (blocks.full_first..blocks.full_end).contains(&j);
                let expected = match (visited, full) {
                    (false, _) => '.',
                    (true, true) => '#',
                    (true, false) => '/',
                };
                assert_eq!(mark, expected, "{left:?} {right:?} {i} {j}");
                mark.to_string()
            });
            lines.push(marks.collect::<Vec<_>>().join(" "));
        }
        if right.is_some() {
            let visited = lines
                .iter()
                .flat_map(|line| line.chars())
                .filter(|c| "#/".contains(*c));
            let says = format!("{} of 64 blocks", visited.count());
            assert_says("masks.md", &[lines.join("\n"), says]);
        }
    }
}
