//! Everything that a call was given, with its memory.

use ferroflash_kernels::params::ScoreParams;

use super::{Argument, ArgumentSet, Arguments, ByArgument, Given, ScoreGradients, ScoreInputs};
use super::{Gradients, Inputs, OutputGradients, Outputs, Saved};
use crate::dtype::Scalar;
use crate::tensor::{Allocation, Memory, MemoryMut, Share, Tensor, TensorMut, Vector, VectorMut};

/// One argument with its memory.
#[derive(Debug)]
pub(crate) enum Operand<'a> {
    Tensor(Tensor<'a>),
    TensorMut(TensorMut<'a>),
    Vector(Vector<'a>),
    VectorMut(VectorMut<'a>),
}

/// The memory of an argument, to read or to write.
pub(crate) enum Lent<'s, 'a> {
    Read(&'s Memory<'a>),
    Write(&'s mut MemoryMut<'a>),
}

impl<'a> Operand<'a> {
    /// All but the memory.
    pub(crate) fn describe(&self) -> Given {
        match self {
            Operand::Tensor(tensor) => tensor.describe().into(),
            Operand::TensorMut(tensor) => tensor.describe().into(),
            Operand::Vector(vector) => vector.describe().into(),
            Operand::VectorMut(vector) => vector.describe().into(),
        }
    }

    fn allocation(&self) -> Option<&dyn Allocation> {
        match self {
            Operand::Tensor(tensor) => tensor.memory().allocation(),
            Operand::TensorMut(tensor) => tensor.memory().allocation(),
            Operand::Vector(vector) => vector.memory().allocation(),
            Operand::VectorMut(vector) => vector.memory().allocation(),
        }
    }

    /// Its memory.
    pub(crate) fn lend(&mut self) -> Lent<'_, 'a> {
        match self {
            Operand::Tensor(tensor) => Lent::Read(tensor.memory()),
            Operand::TensorMut(tensor) => Lent::Write(tensor.memory_mut()),
            Operand::Vector(vector) => Lent::Read(vector.memory()),
            Operand::VectorMut(vector) => Lent::Write(vector.memory_mut()),
        }
    }
}

/// Kernel arguments by value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Values {
    /// Inputs of score expressions, except addresses.
    pub(crate) score: ScoreParams,
    /// Seed and offset of dropout.
    pub(crate) dropout: [u64; 2],
}

/// The arguments of a call.
#[derive(Debug)]
pub(crate) struct Operands<'a> {
    given: ByArgument<Option<Operand<'a>>>,
    /// The names in `given`.
    which: ArgumentSet,
    /// Inputs of expressions, by name.
    pub(super) score_inputs: ScoreInputs<'a>,
    /// Whether seed and offset of dropout are among the values.
    pub(super) has_dropout_values: bool,
    /// Kernel arguments by value.
    pub(super) values: Values,
    /// Gradients of tensors that the score reads, by name, until validation has assigned them.
    pub(super) score_gradients: ScoreGradients<'a>,
}

impl Default for Operands<'_> {
    fn default() -> Self {
        Operands {
            given: ByArgument::none(),
            which: ArgumentSet::default(),
            score_inputs: ScoreInputs::default(),
            has_dropout_values: false,
            values: Values::default(),
            score_gradients: ScoreGradients::default(),
        }
    }
}

impl<'a> Operands<'a> {
    /// The operands of a forward pass.
    pub(crate) fn forward(inputs: &Inputs<'a>, outputs: &'a mut Outputs<'_>) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        outputs.put(&mut operands);
        operands
    }

    /// The inputs of both passes.
    pub(crate) fn inputs(inputs: &Inputs<'a>) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        operands
    }

    /// The operands of a backward pass.
    pub(crate) fn backward(
        inputs: &Inputs<'a>,
        saved: &Saved<'a>,
        of_output: &OutputGradients<'a>,
        gradients: &'a mut Gradients<'_>,
    ) -> Operands<'a> {
        let mut operands = Operands::default();
        inputs.put(&mut operands);
        saved.put(&mut operands);
        of_output.put(&mut operands);
        gradients.put(&mut operands);
        operands
    }

    /// Kernel arguments by value.
    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Adds an argument.
    pub(crate) fn put(&mut self, argument: Argument, operand: impl Into<Operand<'a>>) {
        self.given[argument] = Some(operand.into());
        self.which.insert(argument);
    }

    /// The names of the arguments that the call gives.
    pub(crate) fn which(&self) -> ArgumentSet {
        self.which
    }

    /// All but the memory of an argument, if the call gives it.
    pub(crate) fn given(&self, argument: Argument) -> Option<Given> {
        Some(self.given[argument].as_ref()?.describe())
    }

    /// All but the memory.
    pub(crate) fn describe(&self) -> Arguments {
        Arguments::from_fn(|argument| self.given(argument))
    }

    /// The given arguments.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Argument, &mut Operand<'a>)> {
        self.given
            .iter_mut()
            .filter_map(|(argument, operand)| Some((argument, operand.as_mut()?)))
    }

    /// Keeps their device memory allocated, except memory of another library.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> {
        let operands = self
            .given
            .iter()
            .filter_map(|(_, operand)| operand.as_ref());
        operands.filter_map(|operand| operand.allocation().map(Allocation::share))
    }

    /// Whether the call gives it.
    pub(crate) fn has(&self, argument: Argument) -> bool {
        self.given[argument].is_some()
    }

    /// The vector of this name.
    pub(crate) fn vector(&self, argument: Argument) -> Option<&Vector<'a>> {
        match &self.given[argument] {
            Some(Operand::Vector(vector)) => Some(vector),
            _ => None,
        }
    }

    /// The same with these vectors in place of those that were given.
    pub(crate) fn with_vectors<'b>(
        self,
        vector: impl Fn(Argument) -> Option<Vector<'b>>,
    ) -> Operands<'b>
    where
        'a: 'b,
    {
        let mut operands: Operands<'b> = self;
        for argument in Argument::ALL {
            if let Some(vector) = vector(argument) {
                operands.put(argument, vector);
            }
        }
        operands
    }

    /// The numbers of the vector of this name, if it was given and is on the host: lengths, scales.
    pub(crate) fn numbers<T: Scalar>(&self, argument: Argument) -> Option<&'a [T]> {
        self.vector(argument)?.host()
    }

    /// Takes an argument out.
    pub(crate) fn take(&mut self, argument: Argument) -> Option<Operand<'a>> {
        self.which.remove(argument);
        self.given[argument].take()
    }
}

macro_rules! operand {
    ($type:ident) => {
        impl<'a> From<$type<'a>> for Operand<'a> {
            fn from(operand: $type<'a>) -> Operand<'a> {
                Operand::$type(operand)
            }
        }
    };
}
operand!(Tensor);
operand!(TensorMut);
operand!(Vector);
operand!(VectorMut);
