//! Rows rotated by their positions, on any device: [`Rotate::forward`] and [`Rotate::backward`].
//!
//! [`rotary`](crate::rotary) defines the rotation and makes the tables. An [`Append`](crate::Append) rotates keys and queries as it writes them to a
//! cache; this module is for training, where there is no cache.
//!
//! ```
//! use ferroflash::rotary::{Pairs, Rotary};
//! use ferroflash::{Device, Dtype, Rotate, RotateInputs, RotateProblem, Tensor, TensorMut};
//!
//! let table = Rotary::new(8).table(128)?;
//! let shape = [2, 5, 3, 8];
//! let rotate = Rotate::new(&Device::cpu(), RotateProblem::new(Dtype::F32, shape, table.turns(Pairs::Halves)))?;
//! let (q, mut rotated) = (vec![0.5f32; 240], vec![0f32; 240]);
//! let inputs = RotateInputs::new(&Tensor::bshd(&q, shape)?, table.cos(), table.sin());
//! rotate.forward(&inputs, &mut TensorMut::bshd(&mut rotated, shape)?)?;
//!
//! // A rotation keeps lengths, so the gradient is the inverse rotation. Here it is done in place.
//! let inputs = RotateInputs::in_place(table.cos(), table.sin());
//! rotate.backward(&inputs, &mut TensorMut::bshd(&mut rotated, shape)?)?;
//! assert!(rotated.iter().all(|x| (x - 0.5).abs() < 1e-6));
//! # Ok::<(), ferroflash::Error>(())
//! ```

use crate::arguments::{Operands, RotateInputs};
use crate::backend::cpu;
use crate::device::Device;
use crate::error::Error;
use crate::lengths::new_rows;
use crate::operation::{Call, Done};
use crate::plan::plan_rotate;
use crate::prepared::{Layouts, PreparedRotate};
use crate::problem::rotate::RotateProblem;
use crate::rotary::Direction;
use crate::tensor::TensorMut;
use crate::validate::rotary::{check_rotate, rotate_sizes};

/// Rotations of one shape and type on a device.
///
/// Row i of sequence b is rotated as at position `seqlen_offsets[b] + i`, or i, by the arithmetic of
/// [`RotaryTable::rotate`](crate::rotary::RotaryTable::rotate): in f32, rounded once; elements from rotary_dim on are copied bit for bit.
///
/// - x and y have the same shape and any strides whose last dimension is contiguous; rows of y do not overlap. y has either the memory and layout of
///   x, or does not overlap it. Without x, y is rotated in place.
/// - Every call checks lengths on the host. The host does not look at lengths in device memory: a row outside every sequence, or at a position that
///   is negative or beyond the tables, is not written.
/// - Equal inputs give equal bits, on every backend.
///
/// GPUs take the same tensors as for [`Append`](crate::Append), which has the same kernel.
#[derive(Clone, Debug)]
pub struct Rotate {
    device: Device,
    problem: RotateProblem,
}

impl Rotate {
    /// Rotations of this shape and type.
    ///
    /// # Errors
    /// A size makes no sense: head_dim is 0 or above 256, rotary_dim is 0, odd or above head_dim, sequences are longer than the tables.
    pub fn new(device: &Device, problem: RotateProblem) -> Result<Rotate, Error> {
        rotate_sizes(&problem)?;
        Ok(Rotate {
            device: device.clone(),
            problem,
        })
    }

    /// The problem.
    pub fn problem(&self) -> &RotateProblem {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Rotates the rows of x. Returns when y is written. On a GPU it takes tensors in device memory, and tensors on the host, which it copies there and back.
    ///
    /// # Errors
    /// [`ProblemError`](crate::error::ProblemError), [`PlanError`](crate::error::PlanError): an argument does not fit, or a length on the host
    /// contradicts another. Nothing was written.
    pub fn forward(&self, inputs: &RotateInputs, y: &mut TensorMut) -> Result<Done, Error> {
        self.compute(Direction::Forth, &mut Operands::rotate(inputs, y))
    }

    /// The gradient of x from that of y: x is the gradient of the rotated rows, and y becomes that of the rows. If the tables contain a factor
    /// (YaRN's), so does the gradient.
    ///
    /// # Errors
    /// As [`Rotate::forward`].
    pub fn backward(&self, inputs: &RotateInputs, y: &mut TensorMut) -> Result<Done, Error> {
        self.compute(Direction::Back, &mut Operands::rotate(inputs, y))
    }

    /// Prepares rotations of tensors of these layouts in device memory, to be enqueued on a [`Queue`](crate::Queue) without waiting. Only on a GPU.
    /// Every call gives x and y, unless [`Layouts::without`] names [`X`](crate::error::Argument::X): then y is rotated in place.
    /// Calls give offsets if [`Layouts::giving`] names [`SeqlenOffsets`](crate::error::Argument::SeqlenOffsets).
    pub fn prepare(
        &self,
        direction: Direction,
        layouts: &Layouts,
    ) -> Result<PreparedRotate, Error> {
        Ok(PreparedRotate::new(self.call(direction).prepare(layouts)?))
    }

    pub(crate) fn compute(
        &self,
        direction: Direction,
        operands: &mut Operands,
    ) -> Result<Done, Error> {
        self.call(direction).run(operands, |problem, operands| {
            cpu::rotary::rotate(problem, direction, operands)
        })
    }

    fn call(&self, direction: Direction) -> Call<'_, RotateProblem> {
        Call {
            device: &self.device,
            problem: &self.problem,
            check: check_rotate,
            lengths: |problem, operands| new_rows::of_rotate(problem, operands).map(drop),
            plan: match direction {
                Direction::Forth => |checked, device, backend| {
                    plan_rotate(checked, Direction::Forth, device, backend)
                },
                Direction::Back => |checked, device, backend| {
                    plan_rotate(checked, Direction::Back, device, backend)
                },
            },
        }
    }
}
