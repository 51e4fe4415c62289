//! Host memory: all cores of the processor compute.

use std::sync::LazyLock;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Storage};
use ferroflash::Device;
use ferroflash::raw::{Addresses, Call, Values};
use float8::F8E4M3;
use half::{bf16, f16};

use super::{Place, refused};

/// The host.
pub(crate) struct Host;

/// The processor.
static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// Calls a function or a method of the vector in a storage, for any element type; an error for types that no call takes.
macro_rules! of_elements {
    ($storage:expr, $elements:ident => $value:expr) => {
        match $storage {
            CpuStorage::BF16($elements) => $value,
            CpuStorage::F16($elements) => $value,
            CpuStorage::F32($elements) => $value,
            CpuStorage::F8E4M3($elements) => $value,
            CpuStorage::I32($elements) => $value,
            CpuStorage::U32($elements) => $value,
            other => {
                let (dtype, op) = (other.dtype(), "ferroflash");
                return Err(candle_core::Error::UnsupportedDTypeForOp(dtype, op).bt());
            }
        }
    };
}

impl Place for Host {
    type Storage = CpuStorage;
    type Order<'a> = ();

    fn of(_storage: &CpuStorage) -> Result<Host> {
        Ok(Host)
    }

    fn device(&self) -> &Device {
        &CPU
    }

    fn location(&self) -> DeviceLocation {
        DeviceLocation::Cpu
    }

    fn find(storage: &Storage) -> Option<&CpuStorage> {
        match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        }
    }

    fn wrap(storage: CpuStorage) -> Storage {
        Storage::Cpu(storage)
    }

    fn room(&self, dtype: DType, n: usize) -> Result<CpuStorage> {
        Ok(match dtype {
            DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; n]),
            DType::F16 => CpuStorage::F16(vec![f16::ZERO; n]),
            DType::I32 => CpuStorage::I32(vec![0; n]),
            DType::U32 => CpuStorage::U32(vec![0; n]),
            DType::F8E4M3 => CpuStorage::F8E4M3(vec![F8E4M3::ZERO; n]),
            _ => CpuStorage::F32(vec![0.0; n]),
        })
    }

    fn read<'a>(&'a self, storage: &'a CpuStorage, first: usize) -> Result<(u64, ())> {
        // An empty tensor may begin behind the end.
        let address = of_elements!(storage, elements => {
            let elements = elements.get(first..).unwrap_or_default();
            elements.as_ptr().expose_provenance()
        });
        Ok((address as u64, ()))
    }

    fn write<'a>(&'a self, storage: &'a mut CpuStorage, first: usize) -> Result<(u64, ())> {
        let address = of_elements!(storage, elements => {
            let elements = elements.get_mut(first..).unwrap_or_default();
            elements.as_mut_ptr().expose_provenance()
        });
        Ok((address as u64, ()))
    }

    fn copy(storage: &CpuStorage, _layout: &Layout) -> Result<CpuStorage> {
        Ok(storage.clone())
    }

    unsafe fn run(&self, call: &Call, addresses: &Addresses, values: &Values) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call.run(addresses, values, None) }.map_err(refused)
    }
}
