//! Lengths of sequences, as a file or an option gives them.

use ferroflash::arguments::{Argument, ByArgument};
use ferroflash::{Inputs, Vector};

/// The vectors that say where sequences lie.
pub const VECTORS: [Argument; 5] = [
    Argument::CuSeqlensQ,
    Argument::CuSeqlensK,
    Argument::SeqUsedQ,
    Argument::SeqUsedK,
    Argument::LeftpadK,
];

/// The vectors of one problem; none where all sequences are of one length.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    vectors: ByArgument<Option<Vec<i32>>>,
}

impl Lengths {
    /// q, k and v of these lengths, packed; `None` where their sum is no i32.
    pub fn packed(lens: &[usize]) -> Option<Lengths> {
        let mut cu_seqlens = vec![0i32];
        let mut end = 0i32;
        for &len in lens {
            end = end.checked_add(i32::try_from(len).ok()?)?;
            cu_seqlens.push(end);
        }
        let mut lengths = Lengths::default();
        lengths.set(Argument::CuSeqlensQ, cu_seqlens.clone());
        lengths.set(Argument::CuSeqlensK, cu_seqlens);
        Some(lengths)
    }

    /// With this vector too.
    pub fn set(&mut self, argument: Argument, vector: Vec<i32>) {
        self.vectors[argument] = Some(vector);
    }

    /// A vector, where there is one.
    pub fn get(&self, argument: Argument) -> Option<&[i32]> {
        self.vectors[argument].as_deref()
    }

    /// Those that there are.
    pub fn iter(&self) -> impl Iterator<Item = (Argument, &[i32])> {
        VECTORS
            .into_iter()
            .filter_map(|argument| Some((argument, self.get(argument)?)))
    }

    /// How many sequences a `cu_seqlens` has, and the most rows of one.
    pub fn of_packed(&self, argument: Argument) -> Option<(usize, usize)> {
        let cu_seqlens = self.get(argument)?;
        let lens = cu_seqlens
            .windows(2)
            .map(|pair| i64::from(pair[1]) - i64::from(pair[0]));
        // Whether they make sense is for the library to say.
        let longest = lens.max().unwrap_or(0).max(0);
        Some((cu_seqlens.len().saturating_sub(1), longest as usize))
    }

    /// The inputs with these vectors, from the host's memory.
    pub fn put<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        put(inputs, |argument| self.get(argument).map(Vector::of))
    }
}

/// The inputs with these vectors.
pub fn put<'a>(
    mut inputs: Inputs<'a>,
    vector: impl Fn(Argument) -> Option<Vector<'a>>,
) -> Inputs<'a> {
    inputs.cu_seqlens_q = vector(Argument::CuSeqlensQ);
    inputs.cu_seqlens_k = vector(Argument::CuSeqlensK);
    inputs.seqused_q = vector(Argument::SeqUsedQ);
    inputs.seqused_k = vector(Argument::SeqUsedK);
    inputs.leftpad_k = vector(Argument::LeftpadK);
    inputs
}
