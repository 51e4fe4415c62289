//! Edits that people use.

use super::tree::Tree;
use crate::ptx::Edit;
use crate::{Binary, Compare, Expression, Id, Index, Precision, Type, Unary};

fn scores(tree: Tree) -> Edit {
    Edit {
        score: Some(tree.build()),
        ..Edit::default()
    }
}

fn masks(tree: Tree) -> Edit {
    Edit {
        mask: Some(tree.build()),
        ..Edit::default()
    }
}

/// k − q.
fn distance(tree: &mut Tree) -> Id {
    let (q, k) = (tree.index(Index::Query), tree.index(Index::Key));
    tree.binary(Binary::Sub, k, q)
}

/// s + slope[head] · (k − q).
fn with_alibi(tree: &mut Tree, score: Id) -> Id {
    let head = tree.index(Index::Head);
    let slope = tree.read(0, &[head]);
    let distance = distance(tree);
    let distance = tree.unary(Unary::ToF32, distance);
    let bias = tree.binary(Binary::Mul, slope, distance);
    tree.binary(Binary::Add, score, bias)
}

/// cap · tanh(s / cap).
fn with_soft_cap(tree: &mut Tree, score: Id) -> Id {
    let cap = tree.param(1);
    let part = tree.binary(Binary::Div, score, cap);
    let tanh = tree.unary(Unary::Tanh(Precision::Fast), part);
    tree.binary(Binary::Mul, tanh, cap)
}

pub fn alibi() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    with_alibi(&mut tree, score);
    scores(tree)
}

pub fn soft_cap() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    with_soft_cap(&mut tree, score);
    scores(tree)
}

fn soft_cap_alibi() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    let score = with_soft_cap(&mut tree, score);
    with_alibi(&mut tree, score);
    scores(tree)
}

/// The derivative is 1 − tanh².
fn soft_cap_gradient() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    let cap = tree.param(1);
    let part = tree.binary(Binary::Div, score, cap);
    let tanh = tree.unary(Unary::Tanh(Precision::Fast), part);
    let square = tree.binary(Binary::Mul, tanh, tanh);
    let one = tree.f32(1.0);
    tree.binary(Binary::Sub, one, square);
    Edit {
        derivative: Some(tree.build()),
        ..soft_cap()
    }
}

/// k ≤ q + seqlen_k − seqlen_q.
pub fn causal() -> Edit {
    let mut tree = Tree::default();
    let (q, k) = (tree.index(Index::Query), tree.index(Index::Key));
    let (m, n) = (tree.index(Index::SeqlenQ), tree.index(Index::SeqlenK));
    let last = tree.binary(Binary::Add, q, n);
    let last = tree.binary(Binary::Sub, last, m);
    tree.compare(Compare::Le, k, last);
    masks(tree)
}

/// |k − q| < window, as two comparisons.
fn window() -> Edit {
    let mut tree = Tree::default();
    let (window, distance) = (tree.param(2), distance(&mut tree));
    let back = tree.unary(Unary::Neg, distance);
    let after = tree.compare(Compare::Lt, distance, window);
    let before = tree.compare(Compare::Lt, back, window);
    tree.binary(Binary::And, after, before);
    masks(tree)
}

/// doc[q] = doc[k].
pub fn documents() -> Edit {
    let mut tree = Tree::default();
    let (q, k) = (tree.index(Index::Query), tree.index(Index::Key));
    let (a, b) = (tree.read(1, &[q]), tree.read(1, &[k]));
    tree.compare(Compare::Eq, a, b);
    masks(tree)
}

/// s + bias[head, q, k].
fn bias() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    let indices = [Index::Head, Index::Query, Index::Key].map(|index| tree.index(index));
    let bias = tree.read(2, &indices);
    tree.binary(Binary::Add, score, bias);
    scores(tree)
}

/// s + table[head, k − q + 64].
fn relative() -> Edit {
    let mut tree = Tree::default();
    let score = tree.score();
    let (head, distance) = (tree.index(Index::Head), distance(&mut tree));
    let middle = tree.i32(64);
    let place = tree.binary(Binary::Add, distance, middle);
    let bias = tree.read(3, &[head, place]);
    tree.binary(Binary::Add, score, bias);
    scores(tree)
}

/// A function of the score that is within a few units of the last place.
pub fn unary(unary: Unary) -> Expression {
    let mut tree = Tree::default();
    let score = tree.score();
    tree.put(crate::Node::Unary(unary, score), Type::F32);
    tree.build()
}

fn full(name: Unary) -> Edit {
    Edit {
        score: Some(unary(name)),
        ..Edit::default()
    }
}

pub fn all() -> Vec<(&'static str, Edit)> {
    vec![
        ("identity", Edit::default()),
        ("alibi", alibi()),
        ("soft_cap", soft_cap()),
        ("soft_cap_alibi", soft_cap_alibi()),
        ("soft_cap_gradient", soft_cap_gradient()),
        ("causal", causal()),
        ("window", window()),
        ("documents", documents()),
        ("bias", bias()),
        ("relative", relative()),
        ("tanh_full", full(Unary::Tanh(Precision::Full))),
        ("ln_full", full(Unary::Ln(Precision::Full))),
        ("sigmoid_full", full(Unary::Sigmoid(Precision::Full))),
    ]
}
