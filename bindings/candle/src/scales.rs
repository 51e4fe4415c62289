//! The scales of keys and values in 8 bits: [`Scales`].

use candle_core::{DType, Result, Tensor};
use ferroflash::Fp8Kv;
use ferroflash::arguments::Argument;

use crate::error::Error;
use crate::given::{Given, Source};
use crate::kv_cache::{Descale, KvCache};
use crate::refuse;
use crate::rules::{dims, has_shape, has_type, same_device};

/// Scales of k and of v, f32 and contiguous, on their device.
pub(crate) struct Scales {
    k: Tensor,
    v: Tensor,
}

impl Scales {
    /// The arguments of a call, with these.
    pub(crate) fn put(self, given: Given) -> Given {
        let given = given.with(Argument::KDescale, Source::Tensor(self.k));
        given.with(Argument::VDescale, Source::Tensor(self.v))
    }

    /// The scales of a cache of `batch` sequences, and of which kind they are. A cache of the problem's type has none.
    pub(crate) fn of(cache: &KvCache, batch: usize) -> Result<Option<(Fp8Kv, Scales)>> {
        if cache.k.dtype() != DType::F8E4M3 {
            return match cache.descale {
                Some(descale) => Err(refuse::descale(descale.k).into()),
                None => Ok(None),
            };
        }
        let [n_pages, _, heads_k, _] = dims(cache.k);
        let Some(Descale { k, v, of }) = cache.descale else {
            let ones = Tensor::ones((batch, heads_k), DType::F32, cache.k.device())?;
            let (k, v) = (ones.clone(), ones);
            return Ok(Some((Fp8Kv::PerSequence, Scales { k, v })));
        };
        let entries = match of {
            Fp8Kv::PerSequence => batch,
            Fp8Kv::PerPage => n_pages,
        };
        for (argument, descale) in [("k_descale", k), ("v_descale", v)] {
            fits(argument, descale, [entries, heads_k], cache.k)?;
        }
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        Ok(Some((of, Scales { k, v })))
    }
}

fn fits(
    argument: &'static str,
    descale: &Tensor,
    shape: [usize; 2],
    k: &Tensor,
) -> std::result::Result<(), Error> {
    same_device(argument, descale, k)?;
    has_type(argument, descale, &[DType::F32])?;
    has_shape(argument, descale, &shape)
}
