//! `--compare`: schedules that were measured, each beside what is predicted of it.

mod counted;

use ferroflash::Device;
use ferroflash_lab::compare::{self, Line};
use ferroflash_lab::estimate::Gpu;
use serde_json::Value;

use super::arguments::BenchArguments;
use super::row::Row;
use crate::failure::Failure;
use crate::output;
use crate::profile::Ncu;

/// All of them.
pub struct Beside {
    gpu: Option<Gpu>,
    device: Device,
    ncu: Option<Ncu>,
    lines: Vec<Line>,
}

impl Beside {
    /// `None` without `--compare`. A device that is none of the estimate's table has no predictions, and that is said.
    pub fn new(arguments: &BenchArguments, device: &Device) -> Result<Option<Beside>, Failure> {
        if arguments.compare.is_empty() {
            return Ok(None);
        }
        let gpu = match (&arguments.gpu, device.as_cuda()) {
            (Some(name), _) => Some(Gpu::named(name)?),
            (None, None) => None,
            (None, Some(_)) => match Gpu::of_device(device.info()) {
                Ok(gpu) => Some(gpu),
                Err(error) => {
                    eprintln!("no predictions: {error}");
                    None
                }
            },
        };
        let ncu = match (arguments.ncu, device.as_cuda()) {
            (false, _) => None,
            (true, Some(_)) => Some(Ncu::find()?),
            (true, None) => {
                let word = "--ncu counts what kernels of a GPU do; allowed: --backend cuda";
                return Err(Failure::Option(word.to_owned()));
            }
        };
        Ok(Some(Beside {
            gpu,
            device: device.clone(),
            ncu,
            lines: Vec::new(),
        }))
    }

    /// Keeps a row, and gives its text.
    pub fn add(&mut self, row: &Row, as_json: bool) -> Result<String, Failure> {
        let mut line = row.line(self.gpu.as_ref());
        if let (Some(ncu), Ok(_)) = (&self.ncu, &line.measured) {
            line.counted_bytes = Some(counted::bytes(ncu, &self.device, &line)?);
        }
        let text = match as_json {
            true => {
                let fields = serde_json::from_str(&row.json()).unwrap_or(Value::Null);
                line.json(fields).to_string()
            }
            false => line.text(),
        };
        self.lines.push(line);
        Ok(text)
    }

    /// Writes the files that are asked for.
    pub fn write(&self, arguments: &BenchArguments) -> Result<(), Failure> {
        if let Some(path) = &arguments.csv {
            output::replace(path, compare::csv(&self.lines).as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            let svg = compare::svg(self.gpu.as_ref(), &self.lines)?;
            output::replace(path, svg.as_bytes())?;
        }
        Ok(())
    }
}
