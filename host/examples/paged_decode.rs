//! A serving loop on a cache in pages: prompts of different lengths, an answer that is continued in two ways, sequences that end while others go on.
//! `cargo run --release --example paged_decode`.

use std::error::Error;

use ferroflash::{Device, KvCache, attend};

const HEADS_Q: usize = 4;
const HEADS_K: usize = 2;
const HEAD_DIM: usize = 16;

/// What a model's projections would give for a token: rows of q, k and v.
fn project(token: u32) -> [Vec<f32>; 3] {
    let row = |n: usize, salt: u32| -> Vec<f32> {
        let number =
            |at: usize| ((token * 97 + salt * 31 + at as u32 * 7) % 41) as f32 / 20.0 - 1.0;
        (0..n).map(number).collect()
    };
    [
        row(HEADS_Q * HEAD_DIM, 1),
        row(HEADS_K * HEAD_DIM, 2),
        row(HEADS_K * HEAD_DIM, 3),
    ]
}

/// The same for several tokens, one row behind the other.
fn project_all(tokens: &[u32]) -> [Vec<f32>; 3] {
    let rows = tokens.iter().map(|&token| project(token));
    rows.fold([vec![], vec![], vec![]], |all, row| {
        let mut rows = row.into_iter();
        all.map(|mut all: Vec<f32>| {
            all.extend(rows.next().unwrap_or_default());
            all
        })
    })
}

/// What a model's last layer would make of a row of o: the next token.
fn sample(o: &[f32]) -> u32 {
    (o.iter().sum::<f32>().abs() * 1000.0) as u32 % 101
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    // 32 pages of 8 rows. On a GPU: `KvCache::<bf16, _>::on_gpu(&device, …)`, with rows in its memory.
    let mut cache = KvCache::<f32>::on_host([32, 8, HEADS_K, HEAD_DIM])?;

    // Prefill: each prompt's keys and values go to pages; its last query gives the first token.
    let mut running = Vec::new();
    for prompt in [vec![5, 17, 3, 99, 42], vec![7; 11]] {
        let sequence = cache.begin();
        let [q, k, v] = project_all(&prompt);
        let (of_q, of_k) = (
            [1, prompt.len(), HEADS_Q, HEAD_DIM],
            [1, prompt.len(), HEADS_K, HEAD_DIM],
        );
        cache.append(&[sequence], (&k, of_k), (&v, of_k))?;
        let attended = cache
            .attend(&[sequence], (&q, of_q))?
            .causal()
            .forward(&device)?;
        let first = sample(&attended.o[(prompt.len() - 1) * HEADS_Q * HEAD_DIM..]);
        running.push((sequence, prompt, first));
    }
    // The first prompt gets a second answer, which shares the pages of the prompt.
    let (of, prompt, first) = running[0].clone();
    running.push((cache.fork(of)?, prompt, first + 1));

    // Decode: one token of every sequence at a time.
    for step in 0..12 {
        if step == 6 {
            // An answer is finished: its pages are free for others.
            let (sequence, ..) = running.remove(1);
            cache.remove(sequence)?;
        }
        let batch: Vec<_> = running.iter().map(|(sequence, ..)| *sequence).collect();
        let next: Vec<_> = running.iter().map(|(.., next)| *next).collect();
        let [q, k, v] = project_all(&next);
        let (of_q, of_k) = (
            [batch.len(), 1, HEADS_Q, HEAD_DIM],
            [batch.len(), 1, HEADS_K, HEAD_DIM],
        );
        cache.append(&batch, (&k, of_k), (&v, of_k))?;
        let attended = cache.attend(&batch, (&q, of_q))?.forward(&device)?;
        for ((_, tokens, next), o) in running
            .iter_mut()
            .zip(attended.o.chunks(HEADS_Q * HEAD_DIM))
        {
            tokens.push(*next);
            *next = sample(o);
        }
    }

    for (sequence, tokens, next) in &running {
        println!("{tokens:?} then {next}: {} rows", cache.seqlen(*sequence)?);
        // The same without a cache: the last query over all keys at once.
        let [q, k, v] = project_all(tokens);
        let (of_q, of_k) = (
            [tokens.len(), HEADS_Q, HEAD_DIM],
            [tokens.len(), HEADS_K, HEAD_DIM],
        );
        let all = attend((&q, of_q), (&k, of_k), (&v, of_k))
            .causal()
            .forward(&device)?;
        assert_eq!(
            sample(&all.o[(tokens.len() - 1) * HEADS_Q * HEAD_DIM..]),
            *next
        );
    }
    println!("{} of 32 pages are free", cache.free_pages());
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
