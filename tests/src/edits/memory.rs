//! Tensors that expressions read, dense for the oracle and in memory of their own for backends.

use ferroflash::{ReadTensor, VectorMut};
use ferroflash_expression::{Contiguous, ElementType, Elements};
use half::{bf16, f16};

use super::gradients::Differentiable;

/// How such a tensor lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strides {
    /// Contiguous.
    Contiguous,
    /// Rows are of odd lengths, with NaN between them, and nothing is aligned to more than an element.
    Odd,
    /// The first index moves to the next element.
    Reversed,
    /// As `Odd`, with a stride of 0: this dimension's elements are one.
    Repeated(usize),
}

/// A tensor that a call gives an expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// By which the expression names it.
    pub name: &'static str,
    /// Of its elements.
    pub element: ElementType,
    /// Its extents.
    pub extents: Vec<usize>,
    /// How it lies in memory.
    pub strides: Strides,
    /// Its elements, dense.
    pub values: Vec<f64>,
}

/// Elements of nobody's on both sides.
const MARGIN: usize = 16;

impl Given {
    /// With the nearest elements to what `f` says of their indices.
    pub fn new(
        name: &'static str,
        element: ElementType,
        extents: &[usize],
        strides: Strides,
        f: impl Fn(&[usize]) -> f64,
    ) -> Given {
        let values = (0..extents.iter().product()).map(|at| {
            let mut indices = indices(extents, at);
            if let Strides::Repeated(dim) = strides {
                indices[dim] = 0;
            }
            round(f(&indices), element)
        });
        Given {
            name,
            element,
            extents: extents.to_vec(),
            strides,
            values: values.collect(),
        }
    }

    /// As an evaluator takes it.
    pub fn dense(&self) -> Contiguous {
        let elements = match self.element {
            ElementType::I32 => Elements::I32(self.values.iter().map(|&x| x as i32).collect()),
            _ => Elements::F32(self.values.iter().map(|&x| x as f32).collect()),
        };
        Contiguous::new(&self.extents, elements).expect("as many elements as extents say")
    }

    /// Makes an element NaN, or of whole numbers one that is no other's. Elements that a stride of 0 makes one are left as they are.
    pub fn spoil(&mut self, at: usize) {
        if !matches!(self.strides, Strides::Repeated(_)) {
            self.values[at] = nobodys(self.element, at);
        }
    }

    /// Elements from one to the next of each dimension, and how many elements the memory has.
    fn layout(&self) -> (Vec<usize>, usize) {
        let mut strides = vec![0; self.extents.len()];
        let mut next = 1;
        let mut put = |dim: usize, padding: usize| {
            strides[dim] = next;
            next = (next * self.extents[dim] + padding) | padding;
        };
        let dims = 0..self.extents.len();
        match self.strides {
            Strides::Contiguous => dims.rev().for_each(|dim| put(dim, 0)),
            Strides::Reversed => dims.for_each(|dim| put(dim, 0)),
            Strides::Odd => dims.rev().for_each(|dim| put(dim, 1)),
            Strides::Repeated(repeated) => {
                let others = dims.rev().filter(|&dim| dim != repeated);
                others.for_each(|dim| put(dim, 1));
            }
        }
        (strides, next)
    }

    /// In memory of its own, with NaN in every element that is not the tensor's.
    pub fn memory(&self) -> Memory {
        let (strides, extent) = self.layout();
        let first =
            MARGIN + usize::from(matches!(self.strides, Strides::Odd | Strides::Repeated(_)));
        let n = first + extent + MARGIN;
        let mut all: Vec<f64> = (0..n).map(|at| nobodys(self.element, at)).collect();
        for (at, &value) in self.values.iter().enumerate() {
            let pairs = indices(&self.extents, at).into_iter().zip(&strides);
            all[first + pairs.map(|(index, stride)| index * stride).sum::<usize>()] = value;
        }
        let all = all.into_iter();
        Memory {
            name: self.name,
            first,
            extents: self.extents.clone(),
            strides,
            numbers: match self.element {
                ElementType::F32 => Numbers::F32(all.map(|x| x as f32).collect()),
                ElementType::F16 => Numbers::F16(all.map(f16::from_f64).collect()),
                ElementType::Bf16 => Numbers::Bf16(all.map(bf16::from_f64).collect()),
                ElementType::I32 => Numbers::I32(all.map(|x| x as i32).collect()),
            },
        }
    }
}

/// A tensor in memory of its own.
#[derive(Clone, Debug)]
pub struct Memory {
    /// By which the expression names it.
    pub name: &'static str,
    first: usize,
    extents: Vec<usize>,
    strides: Vec<usize>,
    numbers: Numbers,
}

#[derive(Clone, Debug)]
enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I32(Vec<i32>),
}

impl Memory {
    /// To read.
    pub fn view(&self) -> ReadTensor<'_> {
        let (first, extents) = (self.first, &self.extents);
        let strides: Vec<i64> = self.strides.iter().map(|&stride| stride as i64).collect();
        let tensor = match &self.numbers {
            Numbers::F32(all) => ReadTensor::new(&all[first..], extents),
            Numbers::F16(all) => ReadTensor::new(&all[first..], extents),
            Numbers::Bf16(all) => ReadTensor::new(&all[first..], extents),
            Numbers::I32(all) => ReadTensor::new(&all[first..], extents),
        };
        tensor.strides(strides)
    }
}

/// The indices of a dense tensor's element.
fn indices(extents: &[usize], mut at: usize) -> Vec<usize> {
    let mut indices = vec![0; extents.len()];
    for (index, extent) in indices.iter_mut().zip(extents).rev() {
        *index = at % extent;
        at /= extent;
    }
    indices
}

/// The nearest element.
fn round(x: f64, element: ElementType) -> f64 {
    match element {
        ElementType::F32 => f64::from(x as f32),
        ElementType::F16 => f16::from_f64(x).to_f64(),
        ElementType::Bf16 => bf16::from_f64(x).to_f64(),
        ElementType::I32 => x.round(),
    }
}

/// What stands in memory that is nobody's.
fn nobodys(element: ElementType, at: usize) -> f64 {
    match element {
        ElementType::I32 => f64::from(i32::MIN) + at as f64,
        _ => f64::NAN,
    }
}

/// The gradient of a tensor, before it is written: NaN, on both sides, too.
#[derive(Debug)]
pub struct Unwritten(Numbers);

impl Unwritten {
    /// Of the tensor's own type.
    pub fn new(of: &Differentiable) -> Unwritten {
        let n = of.shape.iter().product::<usize>() + 2 * MARGIN;
        Unwritten(match of.element {
            ElementType::F16 => Numbers::F16(vec![f16::NAN; n]),
            ElementType::Bf16 => Numbers::Bf16(vec![bf16::NAN; n]),
            _ => Numbers::F32(vec![f32::NAN; n]),
        })
    }

    /// To be written.
    pub fn vector(&mut self) -> VectorMut<'_> {
        fn inner<T>(all: &mut [T]) -> &mut [T] {
            let end = all.len() - MARGIN;
            &mut all[MARGIN..end]
        }
        match &mut self.0 {
            Numbers::F32(all) => inner(all).into(),
            Numbers::F16(all) => inner(all).into(),
            Numbers::Bf16(all) => inner(all).into(),
            Numbers::I32(all) => inner(all).into(),
        }
    }

    fn all(&self) -> Vec<f64> {
        match &self.0 {
            Numbers::F32(all) => all.iter().map(|&x| x.into()).collect(),
            Numbers::F16(all) => all.iter().map(|&x| x.into()).collect(),
            Numbers::Bf16(all) => all.iter().map(|&x| x.into()).collect(),
            Numbers::I32(all) => all.iter().map(|&x| x.into()).collect(),
        }
    }

    /// What was written.
    pub fn values(&self) -> Vec<f64> {
        let all = self.all();
        all[MARGIN..all.len() - MARGIN].to_vec()
    }

    /// Whether somebody wrote beside it.
    pub fn strayed(&self) -> bool {
        let all = self.all();
        let (front, back) = (&all[..MARGIN], &all[all.len() - MARGIN..]);
        front.iter().chain(back).any(|x| !x.is_nan())
    }
}
