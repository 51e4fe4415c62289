//! The row statistics of a forward pass: kept when it has run, and handed out as a node of their own.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "cuda")]
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DeviceLocation, Layout, Result, Shape, Storage};

use crate::call::Call;
use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::elsewhere;
use crate::layout::tensor;

impl Call {
    /// o of q, k and v on the CPU; lse is kept.
    pub(crate) fn cpu_forward(&self, inputs: [(&CpuStorage, &Layout); 3]) -> Result<CpuStorage> {
        let (o, lse) = cpu::forward(self, inputs)?;
        self.keep_lse(tensor(Storage::Cpu(lse), self.lse_shape()));
        Ok(o)
    }

    /// The lse that is kept, on the CPU.
    pub(crate) fn cpu_lse(&self) -> Result<(CpuStorage, Shape)> {
        let lse = self.lse()?;
        match &*lse.storage_and_layout().0 {
            Storage::Cpu(storage) => Ok((storage.clone(), lse.shape().clone())),
            _ => Err(elsewhere("lse", lse, DeviceLocation::Cpu).into()),
        }
    }

    /// o of q, k and v on a GPU; lse is kept.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda_forward(&self, inputs: [(&CudaStorage, &Layout); 3]) -> Result<CudaStorage> {
        let (o, lse) = cuda::forward(self, inputs)?;
        self.keep_lse(tensor(Storage::Cuda(lse), self.lse_shape()));
        Ok(o)
    }

    /// The lse that is kept, on the GPU of q.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda_lse(&self, q: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::BackendDevice;

        let lse = self.lse()?;
        match &*lse.storage_and_layout().0 {
            Storage::Cuda(storage) => Ok((storage.try_clone(lse.layout())?, lse.shape().clone())),
            _ => Err(elsewhere("lse", lse, q.device().location()).into()),
        }
    }
}
