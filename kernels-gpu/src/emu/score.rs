//! Scores that an expression edits: what the host puts into a kernel's text, evaluated.

use std::cell::Cell;
use std::ptr;

use ferroflash_expression::ptx::Edit;
use ferroflash_expression::{
    Dependencies, ElementType, Evaluator, Expression, Index, MAX_RANK, Node, ParamValue,
    ScoreIndices, ScoreTensor, Tensors, Type,
};

use super::global;
use super::machine::Machine;
use crate::attention::score::{ScoreRows, ScoreTile};
use crate::params::{Scale, ScoreParams};

/// Where a thread's scores lie.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    params: *const ScoreParams,
    scale: Scale,
    rows: ScoreRows,
    tile: ScoreTile,
    first_column: Option<u32>,
    /// What the kernel adds to the block's scores itself.
    row_terms: [f32; 2],
}

impl Scores {
    fn given<'a>(&self, edit: &'a Edit) -> Given<'a> {
        Given {
            // SAFETY: the parameters are the launch's, which runs.
            params: unsafe { &*self.params },
            edit,
        }
    }
}

/// `ferroflash_score_tile`
pub(crate) fn begin_tile(params: &ScoreParams, scale: &Scale, rows: ScoreRows, tile: ScoreTile) {
    let scores = Scores {
        params: ptr::from_ref(params),
        scale: *scale,
        rows,
        tile,
        first_column: None,
        row_terms: [0.0; 2],
    };
    Machine::current().scores_of_thread().set(Some(scores));
}

/// `ferroflash_score_block`
pub(crate) fn begin_block(first_column: u32) {
    let own = Machine::current().scores_of_thread();
    let scores = own.get().map(|scores| Scores {
        first_column: Some(first_column),
        row_terms: [0.0; 2],
        ..scores
    });
    own.set(scores);
}

/// `ferroflash_score_block_apart`: any number will do as a row's term, and here it is what the expression makes of a score of 0 in the first column. That
/// pair may be hidden: what the column reads is left out, and a term is no number only where the row reads none.
pub(crate) fn begin_block_apart(first_column: u32) {
    /// Beyond it a term would take digits from the scores.
    const MOST: f32 = 1024.0;
    begin_block(first_column);
    let machine = Machine::current();
    let edit = machine.edit.expect("the launch has an edit").edit();
    let own = machine.scores_of_thread();
    let scores = own.get().expect("a tile has been begun");
    let given = scores.given(edit);
    let Some(score) = &edit.score else { return };
    let score = given.bind(score);
    let row_terms = scores.tile.rows.map(|row| {
        let place = place(&scores, row, first_column);
        let tensors = OfRows::new(&score, scores.rows);
        let evaluator = Evaluator::<f32>::new(score.expression, &score.values, &tensors);
        let mut evaluator = evaluator.expect("the launch gives what the expression takes");
        let term = evaluator.score(&place, 0.0) * given.params.inverse_unit;
        if term.abs() < MOST || !tensors.are_numbers.get() {
            term
        } else {
            0.0
        }
    });
    own.set(Some(Scores {
        row_terms,
        ..scores
    }));
}

/// What `ferroflash_score_with_rows` adds, and `ferroflash_score_without_rows` takes away.
pub(crate) fn row_terms() -> [f32; 2] {
    let scores = Machine::current().scores_of_thread().get();
    scores.expect("a tile has been begun").row_terms
}

/// `ferroflash_score_is_capped`
pub(crate) fn is_capped() -> bool {
    let edit = Machine::current().edit;
    edit.expect("the launch has an edit").edit().is_capped()
}

/// `ferroflash_score`
pub(crate) fn edit(x: &mut [f32; 4], n: usize) {
    edit_with_gradient(x, n);
}

/// `ferroflash_score_gradient`
pub(crate) fn edit_with_gradient(x: &mut [f32; 4], n: usize) -> [f32; 4] {
    let machine = Machine::current();
    let edit = machine.edit.expect("the launch has an edit").edit();
    let scores = machine.scores_of_thread().get();
    let scores = scores.expect("a tile has been begun");
    let first_column = scores.first_column.expect("a block has been begun");
    let given = scores.given(edit);
    let [score, mask, derivative] =
        [&edit.score, &edit.mask, &edit.derivative].map(|own| Some(given.bind(own.as_ref()?)));
    let mut score = score.as_ref().map(BoundExpression::evaluator);
    let mut mask = mask.as_ref().map(BoundExpression::evaluator);
    let mut derivative = derivative.as_ref().map(BoundExpression::evaluator);
    let mut gradient = [1.0; 4];
    for (idx, x) in x.iter_mut().enumerate() {
        let column = first_column + 8 * n as u32 + idx as u32 % 2;
        let place = place(&scores, scores.tile.rows[idx / 2], column);
        let s = *x * scores.scale.scale;
        if let Some(score) = &mut score {
            *x = score.score(&place, s) * given.params.inverse_unit - scores.row_terms[idx / 2];
        }
        if let Some(derivative) = &mut derivative {
            gradient[idx] = derivative.score(&place, s);
        }
        if let Some(mask) = &mut mask
            && !mask.mask(&place)
        {
            *x = f32::NEG_INFINITY;
            gradient[idx] = 0.0;
        }
    }
    gradient
}

/// What the mask alone makes of the pairs of a fragment.
pub(crate) fn shows(n: usize) -> [bool; 4] {
    let machine = Machine::current();
    let edit = machine.edit.expect("the launch has an edit").edit();
    let scores = machine.scores_of_thread().get();
    let scores = scores.expect("a tile has been begun");
    let first_column = scores.first_column.expect("a block has been begun");
    let given = scores.given(edit);
    let mask = edit.mask.as_ref().map(|mask| given.bind(mask));
    let mut mask = mask.as_ref().map(BoundExpression::evaluator);
    [0, 1, 2, 3].map(|idx| {
        let column = first_column + 8 * n as u32 + idx as u32 % 2;
        let place = place(&scores, scores.tile.rows[idx / 2], column);
        mask.as_mut().is_none_or(|mask| mask.mask(&place))
    })
}

/// The indices of a score.
fn place(scores: &Scores, row: u32, column: u32) -> ScoreIndices {
    let (q, k) = match scores.rows {
        ScoreRows::Queries => (row, column),
        ScoreRows::Keys => (column, row),
    };
    let tile = &scores.tile;
    [
        (Index::Batch, tile.batch),
        (Index::Head, tile.head),
        (Index::KvHead, tile.kv_head),
        (Index::Query, q),
        (Index::Key, k),
        (Index::SeqlenQ, tile.seqlen_q),
        (Index::SeqlenK, tile.seqlen_k),
    ]
    .into_iter()
    .fold(ScoreIndices::default(), |place, (index, value)| {
        place.with(index, value as i32)
    })
}

/// What a launch gives its expressions.
struct Given<'a> {
    params: &'a ScoreParams,
    edit: &'a Edit,
}

impl Given<'_> {
    fn bind<'e>(&self, expression: &'e Expression) -> BoundExpression<'e> {
        let params = self.edit.params();
        let values = expression.params().iter().map(|param| {
            let slot = params.iter().position(|other| other == param);
            let bits = self.params.values[slot.unwrap_or_default()];
            match param.ty {
                Type::I32 => ParamValue::I32(bits as i32),
                Type::F32 | Type::Bool => ParamValue::F32(f32::from_bits(bits)),
            }
        });
        BoundExpression {
            expression,
            values: values.collect(),
            tensors: InMemory::new(self, expression),
        }
    }
}

/// An expression and what it takes of that.
struct BoundExpression<'e> {
    expression: &'e Expression,
    values: Vec<ParamValue>,
    tensors: InMemory,
}

impl BoundExpression<'_> {
    fn evaluator(&self) -> Evaluator<'_, f32> {
        let evaluator = Evaluator::new(self.expression, &self.values, &self.tensors);
        evaluator.expect("the launch gives what the expression takes")
    }
}

/// Tensors in the memory of the device.
struct InMemory(Vec<(ScoreTensor, ElementType)>);

impl InMemory {
    fn new(given: &Given<'_>, expression: &Expression) -> InMemory {
        let all = given.edit.tensors();
        let own = expression.tensors().iter().map(|tensor| {
            let slot = all.iter().position(|other| other == tensor);
            let tensor_in_memory = given.params.tensors[slot.unwrap_or_default()];
            (tensor_in_memory, tensor.element)
        });
        InMemory(own.collect())
    }

    /// The address of an element.
    fn address(&self, tensor: usize, indices: [usize; MAX_RANK]) -> u64 {
        let (tensor, element) = &self.0[tensor];
        let pairs = indices.into_iter().zip(tensor.stride);
        let elems: i64 = pairs.map(|(index, stride)| index as i64 * stride).sum();
        let n_bytes = elems * i64::from(element.size_bytes());
        tensor.base.wrapping_add_signed(n_bytes)
    }
}

impl Tensors for InMemory {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        self.0[tensor].0.len.map(|len| len as usize)
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        let address = self.address(tensor, indices);
        match self.0[tensor].1 {
            ElementType::F32 => f32::from_bits(load_u32(address)),
            ElementType::F16 => half::f16::from_bits(load_u16(address)).to_f32(),
            ElementType::Bf16 => half::bf16::from_bits(load_u16(address)).to_f32(),
            ElementType::I32 => load_u32(address) as i32 as f32,
        }
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        load_u32(self.address(tensor, indices)) as i32
    }
}

/// What rows alone read of the tensors: elements that depend on the column are 0.
struct OfRows<'a> {
    tensors: &'a InMemory,
    is_of_columns: Vec<bool>,
    /// Whether what has been read is finite.
    are_numbers: Cell<bool>,
}

impl OfRows<'_> {
    fn new<'a>(bound: &'a BoundExpression<'_>, rows: ScoreRows) -> OfRows<'a> {
        let column = match rows {
            ScoreRows::Queries => Index::Key,
            ScoreRows::Keys => Index::Query,
        };
        let expression = bound.expression;
        let mut is_of_columns = vec![false; expression.tensors().len()];
        for (node, depends) in expression.nodes().iter().zip(expression.dependencies()) {
            if let Node::Read(tensor, _) = node {
                is_of_columns[usize::from(*tensor)] |= depends.meets(Dependencies::index(column));
            }
        }
        OfRows {
            tensors: &bound.tensors,
            is_of_columns,
            are_numbers: Cell::new(true),
        }
    }
}

impl Tensors for OfRows<'_> {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        self.tensors.shape(tensor)
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        if self.is_of_columns[tensor] {
            return 0.0;
        }
        let element = self.tensors.f32(tensor, indices);
        self.are_numbers
            .set(self.are_numbers.get() && element.is_finite());
        element
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        match self.is_of_columns[tensor] {
            true => 0,
            false => self.tensors.i32(tensor, indices),
        }
    }
}

fn load_u32(address: u64) -> u32 {
    u32::from_le_bytes(global::load("ld.global.nc.b32", address))
}

fn load_u16(address: u64) -> u16 {
    u16::from_le_bytes(global::load("ld.global.nc.b16", address))
}
