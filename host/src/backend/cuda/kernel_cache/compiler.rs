//! A folder of kernels filled ahead, on a machine that needs no GPU and no driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferroflash_expression::Kept;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::Variant;

use super::super::module::specialised;
use super::source::Source;
use super::{KernelCache, Origin, Ptxas, file};
use crate::error::DriverError;

/// Compiles kernels by [`Ptxas`] into a folder, where devices find them: see [`CudaDevice::keep_kernels_in`](super::super::CudaDevice::keep_kernels_in). Threads may share it.
#[derive(Debug)]
pub struct KernelCompiler {
    cache: KernelCache,
    ptxas: Ptxas,
    compute_capability: (u32, u32),
}

/// A kernel in the folder.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledKernel {
    /// Its file.
    pub file: PathBuf,
    /// [`Origin::Cache`] if it was there already, else [`Origin::Assembled`].
    pub origin: Origin,
    /// Registers of a thread, if it was compiled now and `ptxas` reports them.
    pub registers: Option<u32>,
    /// How long it took.
    pub time: Duration,
}

impl KernelCompiler {
    /// For devices of this compute capability, `(major, minor)`. The folder is created if it does not exist.
    pub fn new(
        folder: impl AsRef<Path>,
        ptxas: Ptxas,
        compute_capability: (u32, u32),
    ) -> Result<KernelCompiler, DriverError> {
        let cache = KernelCache::open(folder.as_ref(), Some(ptxas.clone()))?;
        Ok(KernelCompiler {
            cache,
            ptxas,
            compute_capability,
        })
    }

    /// The full path of the folder.
    pub fn folder(&self) -> &Path {
        self.cache.folder()
    }

    /// Compiles a kernel, unless a valid file of it is there.
    pub fn compile(
        &self,
        variant: &'static Variant,
        spec: Spec,
        edit: Option<Kept>,
    ) -> Result<CompiledKernel, DriverError> {
        let start = Instant::now();
        let ptx = specialised(variant, spec, edit)?;
        let source = Source::new(variant, &ptx, self.compute_capability);
        let key = source.key(self.ptxas.label());
        let file = self.folder().join(source.file_name(self.ptxas.label()));
        let whole = fs::read(&file).is_ok_and(|bytes| file::cubin(key, &bytes).is_ok());
        let (origin, registers) = if whole {
            (Origin::Cache, None)
        } else {
            let assembled =
                self.ptxas
                    .assemble(variant, &ptx, self.compute_capability, self.folder())?;
            let bytes = file::with_header(key, &assembled.cubin);
            super::write(self.folder(), &file, &bytes).map_err(|error| {
                DriverError::KernelCache {
                    folder: self.folder().to_owned(),
                    needed: "written to",
                    kind: error.kind(),
                    detail: error.to_string(),
                }
            })?;
            (Origin::Assembled, assembled.registers)
        };
        Ok(CompiledKernel {
            file,
            origin,
            registers,
            time: start.elapsed(),
        })
    }
}
