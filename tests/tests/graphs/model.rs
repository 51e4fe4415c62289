//! A small model that decodes: what its caches hold, what each step brings, and what each layer must give, by the oracle.

use conformance::compare::{Comparison, Errors};
use conformance::oracle::{self, Inputs as OracleInputs, Sizes, Terms};
use conformance::tolerance::{Arithmetic, Quantity};
use ferroflash::rotary::{Pairs, Positions, Rotary, RotaryTable};
use ferroflash::tensor::Vector;
use ferroflash::{
    Append, AppendInputs, AppendOutputs, AppendProblem, Attention, Device, Dtype, Error, Inputs,
    Mask, Outputs, Pages, Problem, Tensor, TensorMut,
};
use half::bf16;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Layers, each with caches of its own.
pub const N_LAYERS: usize = 32;
/// Rows that the sequences have before the first step.
pub const BEFORE: [i32; 4] = [0, 37, 129, 290];
/// Sequences.
pub const BATCH: usize = BEFORE.len();
/// Each brings a row for every sequence. The last one fills the longest.
pub const N_STEPS: usize = 10;
const SEQLEN: usize = 300;
const HEADS_Q: usize = 8;
const HEADS_K: usize = 2;
/// Keys of a split. Kernels round it up to whole blocks of 128 at most, so that the longest sequence has three.
const SPLIT: usize = 64;

/// What the sizes above leave open.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub head_dim: usize,
    /// `None`: the rows of a sequence lie side by side.
    pub page_size: Option<usize>,
}

impl Shape {
    /// A few pages more than sequences can fill.
    fn pages(self) -> Option<Pages> {
        let of_sequence = |size| SEQLEN.div_ceil(size);
        self.page_size
            .map(|size| Pages::new(BATCH * of_sequence(size) + 3, size))
    }

    /// The append of a layer: one row for each sequence, keys and queries rotated.
    pub fn append(self) -> AppendProblem {
        let builder = AppendProblem::builder(Dtype::Bf16)
            .batch(BATCH)
            .seqlen_new(1)
            .heads_q(HEADS_Q)
            .rotary(Pairs::Halves, self.head_dim, SEQLEN);
        let builder = builder.heads_k(HEADS_K).head_dim(self.head_dim);
        let builder = builder.seqlen_cache(SEQLEN);
        match self.pages() {
            Some(pages) => builder.pages(pages).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    /// An append of no row, which hands lengths on.
    pub fn hand_on(self) -> AppendProblem {
        let builder = AppendProblem::builder(Dtype::Bf16)
            .batch(BATCH)
            .packed_new(1)
            .heads_k(HEADS_K)
            .head_dim(self.head_dim)
            .seqlen_cache(SEQLEN);
        match self.pages() {
            Some(pages) => builder.pages(pages).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    /// The attention of a layer.
    pub fn attention(self) -> Problem {
        let builder = Problem::builder(Dtype::Bf16)
            .batch(BATCH)
            .seqlen_q(1)
            .seqlen_k(SEQLEN)
            .heads_q(HEADS_Q)
            .heads_k(HEADS_K)
            .head_dim(self.head_dim)
            .mask(Mask::Causal)
            .split_kv(SPLIT);
        match self.pages() {
            Some(pages) => builder.pages(pages).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    /// Which page each page of a sequence is, in no order; nothing where there are none.
    pub fn table(self) -> Vec<i32> {
        let Some(pages) = self.pages() else {
            return Vec::new();
        };
        let mut order: Vec<i32> = (0..pages.n_pages() as i32).collect();
        order.shuffle(&mut StdRng::seed_from_u64(3));
        order.truncate(BATCH * pages.n_columns(SEQLEN));
        order
    }
}

/// What a step brings to a layer.
pub struct Rows {
    pub q: Vec<bf16>,
    pub k: Vec<bf16>,
    pub v: Vec<bf16>,
}

/// Random numbers of variance 1.
fn random(n: usize, rng: &mut StdRng) -> Vec<bf16> {
    let side = 3f32.sqrt();
    (0..n)
        .map(|_| bf16::from_f32(rng.random_range(-side..side)))
        .collect()
}

impl Rows {
    /// Each new key is the mean of the queries that read it, so that they see it well: a step that misses it is far off.
    pub fn new(shape: Shape, step: usize, layer: usize) -> Rows {
        let mut rng = StdRng::seed_from_u64((step * N_LAYERS + layer) as u64);
        let (n, group) = (BATCH * HEADS_K * shape.head_dim, HEADS_Q / HEADS_K);
        let q = random(n * group, &mut rng);
        let mean = |at: usize| {
            let (head, column) = (at / shape.head_dim, at % shape.head_dim);
            let own = (0..group).map(|i| q[(head * group + i) * shape.head_dim + column].to_f32());
            bf16::from_f32(own.sum::<f32>() / group as f32)
        };
        let k = (0..n).map(mean).collect();
        let v = random(n, &mut rng);
        Rows { q, k, v }
    }
}

/// Rows of keys, or of values, of each sequence.
type Cache = [Vec<bf16>; BATCH];

/// What a layer's caches must hold, and its queries rotated.
struct Layer {
    k: Cache,
    v: Cache,
    q: Vec<bf16>,
}

/// The model.
pub struct Model {
    pub shape: Shape,
    pub rotary: RotaryTable,
    /// Rows of each sequence.
    pub lens: [i32; BATCH],
    layers: Vec<Layer>,
}

impl Model {
    pub fn new(shape: Shape) -> Result<Model, Error> {
        let mut rng = StdRng::seed_from_u64(1 << 32);
        let row = HEADS_K * shape.head_dim;
        let mut cache = || BEFORE.map(|n_rows| random(n_rows as usize * row, &mut rng));
        let layers = (0..N_LAYERS).map(|_| Layer {
            k: cache(),
            v: cache(),
            q: Vec::new(),
        });
        Ok(Model {
            shape,
            rotary: Rotary::new(shape.head_dim).table(SEQLEN)?,
            lens: BEFORE,
            layers: layers.collect(),
        })
    }

    /// The memory of a layer's caches, of keys and of values. Rows that no sequence has are NaN.
    pub fn memory(&self, layer: usize) -> [Vec<bf16>; 2] {
        let (row, table) = (HEADS_K * self.shape.head_dim, self.shape.table());
        let n_elems = self.shape.append().shape_cache().iter().product();
        let Layer { k, v, .. } = &self.layers[layer];
        [k, v].map(|cache| {
            let mut memory = vec![bf16::NAN; n_elems];
            for (sequence, rows) in cache.iter().enumerate() {
                for (at, from) in rows.chunks(row).enumerate() {
                    let to = match self.shape.page_size {
                        Some(size) => {
                            let columns = SEQLEN.div_ceil(size);
                            table[sequence * columns + at / size] as usize * size + at % size
                        }
                        None => sequence * SEQLEN + at,
                    };
                    memory[to * row..][..row].copy_from_slice(from);
                }
            }
            memory
        })
    }

    /// Takes a step: every sequence is a row longer in every layer.
    pub fn grow(&mut self, step: usize) -> Result<(), Error> {
        let row = HEADS_K * self.shape.head_dim;
        for number in 0..N_LAYERS {
            let rows = Rows::new(self.shape, step, number);
            let layer = &mut self.layers[number];
            layer.q = rotated(&self.rotary, &self.lens, &rows.q, HEADS_Q)?;
            let k = rotated(&self.rotary, &self.lens, &rows.k, HEADS_K)?;
            for sequence in 0..BATCH {
                let own = sequence * row..(sequence + 1) * row;
                layer.k[sequence].extend_from_slice(&k[own.clone()]);
                layer.v[sequence].extend_from_slice(&rows.v[own]);
            }
        }
        self.lens.iter_mut().for_each(|len| *len += 1);
        Ok(())
    }

    /// Whether a layer gave what it must, for every sequence.
    pub fn judge(&self, layer: usize, o: &[bf16], lse: &[f32]) -> Result<(), String> {
        (0..BATCH).try_for_each(|sequence| self.judge_sequence(layer, sequence, 0, o, lse))
    }

    /// Whether there is a sequence that could have been without its newest row, and nobody would have seen it.
    pub fn could_be_stale(&self, layer: usize, o: &[bf16], lse: &[f32]) -> bool {
        (0..BATCH).any(|sequence| self.judge_sequence(layer, sequence, 1, o, lse).is_ok())
    }

    /// The same where a sequence is to be without its last few rows.
    fn judge_sequence(
        &self,
        layer: usize,
        sequence: usize,
        n_missing: usize,
        o: &[bf16],
        lse: &[f32],
    ) -> Result<(), String> {
        let head_dim = self.shape.head_dim;
        let sizes = Sizes {
            batch: 1,
            seqlen_q: 1,
            seqlen_k: self.lens[sequence] as usize - n_missing,
            heads_q: HEADS_Q,
            heads_k: HEADS_K,
            head_dim,
            head_dim_v: head_dim,
        };
        let wide = |from: &[bf16]| from.iter().copied().map(f64::from).collect::<Vec<_>>();
        let of_q = sequence * HEADS_Q * head_dim..(sequence + 1) * HEADS_Q * head_dim;
        let of_rows = sequence * HEADS_Q..(sequence + 1) * HEADS_Q;
        let Layer { k, v, q } = &self.layers[layer];
        let (q, o) = (wide(&q[of_q.clone()]), wide(&o[of_q]));
        let (k, v) = (wide(&k[sequence]), wide(&v[sequence]));
        let lse: Vec<f64> = lse[of_rows].iter().copied().map(f64::from).collect();
        let inputs = OracleInputs {
            sizes,
            q: &q,
            k: &k[..sizes.key_elems()],
            v: &v[..sizes.key_elems()],
            softmax_scale: (1.0 / (head_dim as f32).sqrt()).into(),
            visible: &oracle::full,
            block: None,
            edit: None,
            sinks: None,
            dropout: None,
        };
        let reference = oracle::forward(&inputs);
        let condition = oracle::condition(&inputs, &reference, &vec![0.0; q.len()], None);
        let of_lse = Terms::uniform(lse.len(), 1.0, 0.0);
        let check = |quantity, shape, actual, reference, terms| {
            let comparison = Comparison {
                quantity,
                arithmetic: Arithmetic::Bf16,
                shape,
                actual,
                reference,
                terms,
                n_terms: sizes.seqlen_k,
                score: condition.score,
                errors: Errors::Independent,
            };
            let close = comparison.check();
            close.map_err(|wrong| format!("layer {layer}, sequence {sequence}: {wrong}"))
        };
        let of_o = [1, 1, HEADS_Q, head_dim];
        check(Quantity::O, of_o, &o, &reference.o, &condition.o)?;
        let of_rows = [1, HEADS_Q, 1, 1];
        check(Quantity::Lse, of_rows, &lse, &reference.lse, &of_lse)?;
        Ok(())
    }
}

/// A row of each sequence rotated by its position, as the host does it.
fn rotated(
    table: &RotaryTable,
    positions: &[i32],
    rows: &[bf16],
    heads: usize,
) -> Result<Vec<bf16>, Error> {
    let mut rotated = vec![bf16::NAN; rows.len()];
    let shape = [BATCH, 1, heads, rows.len() / BATCH / heads];
    table.rotate(
        Pairs::Halves,
        Positions::FromEach(positions),
        &Tensor::bshd(rows, shape)?,
        &mut TensorMut::bshd(&mut rotated, shape)?,
    )?;
    Ok(rotated)
}

/// The same steps without a graph, on the CPU: the model's results are right, and one that lacks a row is noticed.
#[test]
fn the_cpu_takes_the_same_steps() {
    for page_size in [None, Some(16)] {
        let shape = Shape {
            head_dim: 64,
            page_size,
        };
        on_the_cpu(shape).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn on_the_cpu(shape: Shape) -> Result<(), Error> {
    const LAYER: usize = 5;
    let (device, mut model) = (Device::cpu(), Model::new(shape)?);
    let (append, attention) = (shape.append(), shape.attention());
    let ([mut k, mut v], table) = (model.memory(LAYER), shape.table());
    for step in 0..N_STEPS {
        let (rows, before, mut after) = (Rows::new(shape, step, LAYER), model.lens, [0; BATCH]);
        let mut q = vec![bf16::NAN; rows.q.len()];
        let new = append.shape_new();
        let mut inputs = AppendInputs::new(
            &Tensor::bshd(&rows.k, new)?,
            &Tensor::bshd(&rows.v, new)?,
            &before,
        )
        .rotary(model.rotary.cos(), model.rotary.sin())
        .q(Tensor::bshd(&rows.q, append.shape_q())?);
        inputs.page_table = table_of(shape, &table);
        let mut outputs = AppendOutputs::new(
            TensorMut::bshd(&mut k, append.shape_cache())?,
            TensorMut::bshd(&mut v, append.shape_cache())?,
        )
        .q_out(TensorMut::bshd(&mut q, append.shape_q())?)
        .seqused_out(&mut after);
        Append::new(&device, append)?.run(&inputs, &mut outputs)?;
        model.grow(step)?;
        assert_eq!(after, model.lens);
        let mut handed_on = [0; BATCH];
        let new = shape.hand_on().shape_new();
        let rows_of_none = Tensor::bshd(&rows.k[..HEADS_K * shape.head_dim], new)?;
        let mut inputs = AppendInputs::new(&rows_of_none, &rows_of_none, &after);
        inputs = inputs.cu_seqlens_new(&[0; BATCH + 1]);
        inputs.page_table = table_of(shape, &table);
        let k_written = TensorMut::bshd(&mut k, append.shape_cache())?;
        let v_written = TensorMut::bshd(&mut v, append.shape_cache())?;
        let mut outputs = AppendOutputs::new(k_written, v_written).seqused_out(&mut handed_on);
        Append::new(&device, shape.hand_on())?.run(&inputs, &mut outputs)?;
        assert_eq!(handed_on, after);
        for (lens, is_right) in [(after, true), (before, false)] {
            let (mut o, mut lse) = (vec![bf16::NAN; q.len()], vec![f32::NAN; BATCH * HEADS_Q]);
            let mut inputs = Inputs::new(
                &Tensor::bshd(&q, append.shape_q())?,
                &Tensor::bshd(&k, append.shape_cache())?,
                &Tensor::bshd(&v, append.shape_cache())?,
            )
            .seqused_k(&lens);
            inputs.page_table = table_of(shape, &table);
            let o_written = TensorMut::bshd(&mut o, append.shape_q())?;
            Attention::new(&device, attention)?
                .forward(&inputs, &mut Outputs::new(o_written, &mut lse))?;
            let judged = model.judge(LAYER, &o, &lse);
            assert_eq!(judged.is_ok(), is_right, "step {step}: {judged:?}");
            assert_eq!(model.could_be_stale(LAYER, &o, &lse), !is_right);
        }
    }
    let bits = |values: &[bf16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let expected = model.memory(LAYER);
    assert!(bits(&k) == bits(&expected[0]) && bits(&v) == bits(&expected[1]));
    Ok(())
}

/// The table, where there are pages.
fn table_of<'a>(shape: Shape, table: &'a [i32]) -> Option<Vector<'a>> {
    shape.page_size.map(|_| table.into())
}
