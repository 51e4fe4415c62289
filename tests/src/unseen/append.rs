//! Appends to pages with lengths and tables that are any numbers: a new row goes to the place that the numbers say, if there is one, and nothing
//! else is written; the lengths afterwards are those of the rows that there is a place for. Tables of cosines and sines, where there are some, end before the
//! cache does, and turn by no angle: so rows are copied all the same.

use ferroflash::arguments::Argument;
use ferroflash::backend::cuda::{DeviceBuffer, Queue};
use ferroflash::prepared::Layouts;
use ferroflash::rotary::Pairs;
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Device, Dtype, Error, Layout, Pages,
    Tensor, TensorMut,
};
use half::bf16;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::{DRAWS, EMULATED_DRAWS, LIMIT_OF_APPENDS, Watchdog};
use crate::beside::check_cases;
use crate::buffer::{Arrangement, Buffer};
use crate::cases::unseen::{packed_ends, some_number};
use crate::subject::Subject;

const BATCH: usize = 4;
/// New rows of all sequences.
const ROWS: usize = 23;
/// Rows of a sequence in the cache, of a page, and pages of a sequence.
const CACHE: usize = 45;
const PAGE_SIZE: usize = 8;
const COLUMNS: usize = CACHE.div_ceil(PAGE_SIZE);
const N_PAGES: usize = BATCH * COLUMNS;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const ROW: usize = HEADS * HEAD_DIM;
/// Positions of the tables.
const N_POSITIONS: usize = 30;
/// Cosines, or sines, of all positions.
const N_ANGLES: usize = N_POSITIONS * HEAD_DIM / 2;

/// What device memory says of an append.
#[derive(Debug)]
struct Numbers {
    cu_seqlens: Vec<i32>,
    seqused: Vec<i32>,
    table: Vec<i32>,
    is_turned: bool,
}

/// What an append writes.
struct Written {
    pools: [Vec<f64>; 2],
    seqused: Vec<i32>,
}

impl Numbers {
    /// No page is two sequences': rows that they both write would have either's bits.
    fn draw(seed: u64) -> Numbers {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut table: Vec<i32> = (0..N_PAGES as i32).collect();
        table.shuffle(&mut rng);
        for page in &mut table {
            if rng.random_range(0..4) == 0 {
                let number = some_number(&mut rng, N_PAGES);
                if !(0..N_PAGES as i32).contains(&number) {
                    *page = number;
                }
            }
        }
        Numbers {
            cu_seqlens: packed_ends(&mut rng, seed, BATCH, ROWS),
            seqused: (0..BATCH)
                .map(|_| match rng.random_range(0..3) {
                    0 => some_number(&mut rng, CACHE),
                    _ => rng.random_range(-3..=CACHE as i32),
                })
                .collect(),
            table,
            is_turned: rng.random(),
        }
    }

    /// Rows of a sequence that there is a place for.
    fn room(&self) -> usize {
        match self.is_turned {
            true => N_POSITIONS,
            false => CACHE,
        }
    }

    /// The new rows of a sequence, where they ascend.
    fn rows(&self, sequence: usize) -> std::ops::Range<i32> {
        let [begin, end] = [0, 1].map(|at| self.cu_seqlens[sequence + at].clamp(0, ROWS as i32));
        begin..end
    }

    /// The lengths afterwards, where sequences follow one another.
    fn lengths_after(&self) -> Vec<i32> {
        let after = |sequence: usize| {
            let len = i64::from(self.seqused[sequence]) + self.rows(sequence).len() as i64;
            len.clamp(0, self.room() as i64) as i32
        };
        (0..BATCH).map(after).collect()
    }

    /// Where a sequence's row lies in the pool.
    fn place(&self, sequence: usize, row: i64) -> Option<usize> {
        let row = usize::try_from(row).ok().filter(|&row| row < self.room())?;
        let page = self.table[sequence * COLUMNS + row / PAGE_SIZE];
        let page = usize::try_from(page).ok().filter(|&page| page < N_PAGES)?;
        Some(page * PAGE_SIZE + row % PAGE_SIZE)
    }

    /// The pool: numbers of new rows, and NaN where nothing is written. `None` where sequences do not follow one another.
    fn pool(&self, new: &[f64]) -> Option<Vec<f64>> {
        let mut pool = vec![f64::NAN; N_PAGES * PAGE_SIZE * ROW];
        if !self.cu_seqlens.is_sorted() {
            return None;
        }
        for sequence in 0..BATCH {
            for (nth, row) in self.rows(sequence).enumerate() {
                let at = i64::from(self.seqused[sequence]) + nth as i64;
                if let Some(to) = self.place(sequence, at) {
                    let from = row as usize * ROW;
                    pool[to * ROW..][..ROW].copy_from_slice(&new[from..from + ROW]);
                }
            }
        }
        Some(pool)
    }
}

/// Puts appends to the test; panics with every failure.
pub fn check(subject: &Subject, test: &str) {
    let draws: Vec<u64> = match subject.backend {
        ferroflash::Backend::Emulated => (0..EMULATED_DRAWS).collect(),
        _ => (0..DRAWS).collect(),
    };
    check_cases(subject, test, &draws, |&draw| {
        let device = (subject.open)(draw)?;
        let _watched = device
            .as_cuda()
            .map(|_| Watchdog::new(format!("{test}: draw {draw}"), LIMIT_OF_APPENDS));
        let new: Vec<f64> = (0..ROWS * ROW).map(|at| (1 + at % 100) as f64).collect();
        let numbers = Numbers::draw(draw);
        let failed = |error: Error| format!("{numbers:?}: {error}");
        let written = run(&device, &numbers, &new).map_err(failed)?;
        let Some(expected) = numbers.pool(&new) else {
            return Ok(Some(0.0));
        };
        if written.seqused != numbers.lengths_after() {
            return Err(format!("{numbers:?}: lengths of {:?}", written.seqused));
        }
        for pool in written.pools {
            let wrong = (0..pool.len()).find(|&at| {
                pool[at] != expected[at] && !(pool[at].is_nan() && expected[at].is_nan())
            });
            if let Some(at) = wrong {
                return Err(format!(
                    "{numbers:?}: element {at} of a pool is {} and not {}",
                    pool[at], expected[at]
                ));
            }
        }
        Ok(Some(0.0))
    });
}

fn run(device: &Device, numbers: &Numbers, new: &[f64]) -> Result<Written, Error> {
    let problem = AppendProblem::builder(Dtype::Bf16)
        .batch(BATCH)
        .packed_new(ROWS)
        .heads_k(HEADS)
        .head_dim(HEAD_DIM)
        .seqlen_cache(CACHE)
        .pages(Pages::new(N_PAGES, PAGE_SIZE));
    let problem = match numbers.is_turned {
        true => problem.rotary(Pairs::Halves, HEAD_DIM, N_POSITIONS),
        false => problem,
    };
    let problem = problem.build()?;
    let (cos, sin) = ([1f32; N_ANGLES], [0f32; N_ANGLES]);
    let mut after = vec![-7; BATCH];
    let (shape_new, shape) = (problem.shape_new(), problem.shape_cache());
    let append = Append::new(device, problem)?;
    let Some(gpu) = device.as_cuda() else {
        let new = Buffer::<bf16>::filled(new, shape_new, Arrangement::Bshd)?;
        let mut pools = [
            Buffer::<bf16>::unwritten(shape, Arrangement::Bshd)?,
            Buffer::<bf16>::unwritten(shape, Arrangement::Bshd)?,
        ];
        let new = new.view()?;
        let inputs = AppendInputs::new(&new, &new, &numbers.seqused)
            .page_table(&numbers.table)
            .cu_seqlens_new(&numbers.cu_seqlens);
        let inputs = match numbers.is_turned {
            true => inputs.rotary(&cos, &sin),
            false => inputs,
        };
        let [k, v] = &mut pools;
        append.run(
            &inputs,
            &mut AppendOutputs::new(k.view_mut()?, v.view_mut()?).seqused_out(&mut after),
        )?;
        return Ok(Written {
            pools: pools.map(|pool| pool.values()),
            seqused: after,
        });
    };
    let layouts = Layouts::contiguous().giving(Argument::SeqUsedOut);
    let (prepared, mut queue) = (append.prepare(&layouts)?, Queue::new(gpu)?);
    let angles = |angles: &[f32]| DeviceBuffer::from_slice(gpu, angles, &queue);
    let (cos, sin) = (angles(&cos)?, angles(&sin)?);
    let vector = |numbers: &[i32]| DeviceBuffer::from_slice(gpu, numbers, &queue);
    let (seqused, table) = (vector(&numbers.seqused)?, vector(&numbers.table)?);
    let (ends, mut lengths) = (vector(&numbers.cu_seqlens)?, vector(&after)?);
    let rows = |rows: &[f64]| {
        let rows: Vec<bf16> = rows.iter().map(|&x| bf16::from_f64(x)).collect();
        DeviceBuffer::from_slice(gpu, &rows, &queue)
    };
    let nothing = vec![f64::NAN; shape.iter().product()];
    let (new, mut k, mut v) = (rows(new)?, rows(&nothing)?, rows(&nothing)?);
    let (of_new, of_pool) = (Layout::bshd(shape_new)?, Layout::bshd(shape)?);
    let new = Tensor::device(new.slice(), of_new)?;
    let inputs = AppendInputs::new(&new, &new, seqused.slice())
        .page_table(table.slice())
        .cu_seqlens_new(ends.slice());
    let inputs = match numbers.is_turned {
        true => inputs.rotary(cos.slice(), sin.slice()),
        false => inputs,
    };
    let mut outputs = AppendOutputs::new(
        TensorMut::device(k.slice_mut(), of_pool)?,
        TensorMut::device(v.slice_mut(), of_pool)?,
    )
    .seqused_out(lengths.slice_mut());
    prepared.append(&mut queue, &inputs, &mut outputs)?;
    let read = |pool: &DeviceBuffer<bf16>| -> Result<Vec<f64>, Error> {
        let pool = pool.to_vec(&queue)?;
        Ok(pool.into_iter().map(f64::from).collect())
    };
    lengths.copy_to(&mut after, &queue)?;
    Ok(Written {
        pools: [read(&k)?, read(&v)?],
        seqused: after,
    })
}
