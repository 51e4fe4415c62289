//! Where weights come from: chance, or a file that a training has written.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::model::{Config, Model};

/// Gives the weights of a model, f32.
pub trait Weights {
    /// Starts as numbers of mean 0 and this standard deviation.
    fn matrix(&mut self, name: &str, shape: [usize; 2], deviation: f64) -> Result<Tensor>;

    /// Starts as ones.
    fn ones(&mut self, name: &str, length: usize) -> Result<Tensor>;
}

/// Makes variables.
pub struct Random<'a> {
    rng: StdRng,
    device: &'a Device,
    pub variables: Vec<Var>,
}

impl Random<'_> {
    pub fn new(seed: u64, device: &Device) -> Random<'_> {
        Random {
            rng: StdRng::seed_from_u64(seed),
            device,
            variables: Vec::new(),
        }
    }

    fn variable(&mut self, numbers: Tensor) -> Result<Tensor> {
        let variable = Var::from_tensor(&numbers)?;
        let tensor = variable.as_tensor().clone();
        self.variables.push(variable);
        Ok(tensor)
    }
}

impl Weights for Random<'_> {
    /// Uniform numbers.
    fn matrix(&mut self, _name: &str, shape: [usize; 2], deviation: f64) -> Result<Tensor> {
        let bound = (3f64.sqrt() * deviation) as f32;
        let numbers: Vec<f32> = (0..shape[0] * shape[1])
            .map(|_| self.rng.random_range(-bound..bound))
            .collect();
        self.variable(Tensor::from_vec(numbers, &shape, self.device)?)
    }

    fn ones(&mut self, _name: &str, length: usize) -> Result<Tensor> {
        self.variable(Tensor::ones(length, DType::F32, self.device)?)
    }
}

/// What a file calls the numbers of layers and heads, and the width of a head.
const SIZES: &str = "layers, heads, head_dim";

/// Writes a file of safetensors, with the weights in bf16.
pub fn save(model: &Model, path: &Path) -> Result<()> {
    let mut tensors = HashMap::new();
    for (name, tensor) in model.named() {
        let small = tensor.detach().to_dtype(DType::BF16)?;
        tensors.insert(name, small.to_device(&Device::Cpu)?);
    }
    let Config {
        layers,
        heads,
        head_dim,
        ..
    } = *model.config();
    let sizes = [layers, heads, head_dim].map(|size| size as u32);
    tensors.insert(SIZES.to_owned(), Tensor::new(&sizes, &Device::Cpu)?);
    candle_core::safetensors::save(&tensors, path)
}

/// The model of such a file, without gradients: for texts of so many tokens, with products in this type.
pub fn load(file: &[u8], positions: usize, dtype: DType, device: &Device) -> Result<Model> {
    let mut stored = Stored {
        tensors: candle_core::safetensors::load_buffer(file, &Device::Cpu)?,
        device,
    };
    let sizes = stored.take(SIZES)?.to_vec1::<u32>()?;
    let &[layers, heads, head_dim] = sizes.as_slice() else {
        bail!("{SIZES}: {} numbers; allowed: 3", sizes.len());
    };
    let config = Config {
        layers: layers as usize,
        heads: heads as usize,
        head_dim: head_dim as usize,
        positions,
        dtype,
    };
    Model::of(config, &mut stored, device)?.frozen()
}

/// Takes tensors out of a file.
struct Stored<'a> {
    tensors: HashMap<String, Tensor>,
    device: &'a Device,
}

impl Stored<'_> {
    fn take(&mut self, name: &str) -> Result<Tensor> {
        match self.tensors.remove(name) {
            Some(tensor) => Ok(tensor),
            None => bail!("the file of weights has no {name}"),
        }
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.take(name)?;
        if tensor.dims() != shape {
            bail!("{name} has shape {:?}; allowed: {shape:?}", tensor.dims());
        }
        tensor.to_dtype(DType::F32)?.to_device(self.device)
    }
}

impl Weights for Stored<'_> {
    fn matrix(&mut self, name: &str, shape: [usize; 2], _deviation: f64) -> Result<Tensor> {
        self.weight(name, &shape)
    }

    fn ones(&mut self, name: &str, length: usize) -> Result<Tensor> {
        self.weight(name, &[length])
    }
}
