//! Where an expression reads a tensor: what a gradient of the tensor needs to know.

use std::fmt;

use super::{Expression, Id, Index, MAX_RANK, Node, Type};

/// How each dimension of a tensor is indexed: by an index of the score's position or, for `None`, by 0. Dimensions beyond the tensor's rank do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadDims {
    dims: [Option<Index>; MAX_RANK],
    rank: usize,
}

/// Why a tensor has no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReadDims {
    /// The score does not depend on it.
    NotRead,
    /// Its elements are whole numbers.
    WholeNumbers,
    /// The score has no derivative by it, since it has too many nodes.
    NoDerivative,
    /// It is read at two places for one score.
    Twice,
    /// A dimension is indexed by something else than batch, head or kv_head, q, k, each once, or 0.
    Index {
        /// The dimension.
        dim: usize,
    },
    /// No dimension is indexed by this: for every query and every key there must be an element.
    Without {
        /// [`Index::Query`] or [`Index::Key`].
        index: Index,
    },
}

impl fmt::Display for NoReadDims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoReadDims::NotRead => f.write_str("the score does not read it"),
            NoReadDims::WholeNumbers => f.write_str("its elements are whole numbers"),
            NoReadDims::NoDerivative => f.write_str("the derivative by it has too many nodes"),
            NoReadDims::Twice => f.write_str("the score reads it at two places"),
            NoReadDims::Index { dim } => write!(
                f,
                "dimension {dim} must be indexed by batch, head or kv_head, q, k, each once, or 0"
            ),
            NoReadDims::Without { index } => {
                write!(f, "a dimension must be indexed by {index}")
            }
        }
    }
}

impl ReadDims {
    /// What indexes each of the tensor's dimensions.
    pub fn dims(&self) -> &[Option<Index>] {
        &self.dims[..self.rank]
    }

    /// Which dimension this indexes.
    pub fn dim_of(&self, index: Index) -> Option<usize> {
        self.dims().iter().position(|dim| *dim == Some(index))
    }
}

impl Expression {
    /// Where the expression reads the tensor at this place among [`Expression::tensors`], if that is one element for every query and key, which depends on
    /// nothing but where the score lies: then the tensor has a gradient.
    pub fn read_dims(&self, place: u8) -> Result<ReadDims, NoReadDims> {
        let tensor = self.tensors().get(usize::from(place));
        let tensor = tensor.ok_or(NoReadDims::NotRead)?;
        if tensor.element.ty() != Type::F32 {
            return Err(NoReadDims::WholeNumbers);
        }
        let mut reads = self.nodes().iter().filter_map(|node| match node {
            Node::Read(read, indices) if *read == place => Some(indices),
            _ => None,
        });
        let indices = reads.next().ok_or(NoReadDims::NotRead)?;
        // Equal nodes are one, so another read is one of other indices.
        if reads.next().is_some() {
            return Err(NoReadDims::Twice);
        }
        let mut read = ReadDims {
            dims: [None; MAX_RANK],
            rank: usize::from(tensor.rank),
        };
        for (dim, &id) in indices.iter().take(read.rank).enumerate() {
            read.dims[dim] = self
                .dim(id)
                .filter(|index| match index {
                    None => true,
                    Some(index) => !read.dims[..dim].contains(&Some(*index)),
                })
                .ok_or(NoReadDims::Index { dim })?;
        }
        if let (Some(_), Some(dim)) = (read.dim_of(Index::Head), read.dim_of(Index::KvHead)) {
            return Err(NoReadDims::Index { dim });
        }
        for index in [Index::Query, Index::Key] {
            read.dim_of(index).ok_or(NoReadDims::Without { index })?;
        }
        Ok(read)
    }

    /// What an index of a read is; `None` where it is neither 0 nor a place.
    fn dim(&self, id: Id) -> Option<Option<Index>> {
        match self.nodes()[id as usize] {
            Node::I32(0) => Some(None),
            Node::Index(Index::SeqlenQ | Index::SeqlenK) => None,
            Node::Index(index) => Some(Some(index)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{At, Num};

    fn dims(score: impl FnOnce(Num, At) -> Num) -> Result<Vec<Option<Index>>, NoReadDims> {
        let score = Expression::score(score).unwrap();
        Ok(score.read_dims(0)?.dims().to_vec())
    }

    #[test]
    fn a_bias_has_an_element_for_every_query_and_key() {
        assert_eq!(
            dims(|s, at| s + at.tensor_bf16("bias", [at.batch, at.head, at.q, at.k])),
            Ok([Index::Batch, Index::Head, Index::Query, Index::Key]
                .map(Some)
                .to_vec())
        );
        assert_eq!(
            dims(|s, at| s * at.tensor_f32("x", [at.k, at.constant(0), at.q])),
            Ok(vec![Some(Index::Key), None, Some(Index::Query)])
        );
    }

    #[test]
    fn what_has_no_gradient_is_said_why() {
        let without = |index| Err(NoReadDims::Without { index });
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.head])),
            without(Index::Query)
        );
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.q])),
            without(Index::Key)
        );
        let wrong = |dim| Err(NoReadDims::Index { dim });
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.q, at.k - at.q])),
            wrong(1)
        );
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.q, at.k, at.k])),
            wrong(2)
        );
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.head, at.kv_head, at.q, at.k])),
            wrong(1)
        );
        assert_eq!(
            dims(|s, at| s + at.tensor_f32("x", [at.q, at.seqlen_k])),
            wrong(1)
        );
        let twice =
            dims(|s, at| s + at.tensor_f32("x", [at.q, at.k]) + at.tensor_f32("x", [at.k, at.q]));
        assert_eq!(twice, Err(NoReadDims::Twice));
        let whole = dims(|s, at| s + at.tensor_i32("x", [at.q, at.k]).to_f32());
        assert_eq!(whole, Err(NoReadDims::WholeNumbers));
        assert_eq!(dims(|s, _| s), Err(NoReadDims::NotRead));
    }
}
