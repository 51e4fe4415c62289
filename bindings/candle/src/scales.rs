//! What keys and values in 8 bits are multiplied by: [`Scales`].

use candle_core::{DType, Result, Tensor};
use ferroflash::{Fp8Kv, ProblemBuilder};

use crate::error::Error;
use crate::guarded::Guarded;
use crate::kv_cache::{Descale, KvCache};
use crate::refuse;
use crate::rules::{dims, has_shape, has_type, same_device};

/// Scales of k and of v, f32 and contiguous, beside them.
pub(crate) struct Scales {
    k: Tensor,
    v: Tensor,
}

/// [`Scales`] while their memory is read; one tensor may be both.
pub(crate) struct GuardedScales<'a> {
    k: Guarded<'a>,
    v: Option<Guarded<'a>>,
}

impl Scales {
    /// Those of a cache, and the problem that says what they are of. A cache of the problem's type has none.
    pub(crate) fn of(
        cache: &KvCache,
        batch: usize,
        problem: ProblemBuilder,
    ) -> Result<(ProblemBuilder, Option<Scales>)> {
        if cache.k.dtype() != DType::F8E4M3 {
            return match cache.descale {
                Some(descale) => Err(refuse::descale(descale.k).into()),
                None => Ok((problem, None)),
            };
        }
        let [n_pages, _, heads_k, _] = dims(cache.k);
        let Some(Descale { k, v, of }) = cache.descale else {
            let ones = Tensor::ones((batch, heads_k), DType::F32, cache.k.device())?;
            let (k, v) = (ones.clone(), ones);
            return Ok((problem.fp8_kv(Fp8Kv::PerSequence), Some(Scales { k, v })));
        };
        let entries = match of {
            Fp8Kv::PerSequence => batch,
            Fp8Kv::PerPage => n_pages,
        };
        for (argument, descale) in [("k_descale", k), ("v_descale", v)] {
            fits(argument, descale, [entries, heads_k], cache.k)?;
        }
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        Ok((problem.fp8_kv(of), Some(Scales { k, v })))
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

impl<'a> GuardedScales<'a> {
    pub(crate) fn of(scales: &'a Scales) -> GuardedScales<'a> {
        let Scales { k, v } = scales;
        GuardedScales {
            k: Guarded::of("k_descale", k),
            v: (v.id() != k.id()).then(|| Guarded::of("v_descale", v)),
        }
    }

    pub(crate) fn k(&self) -> &Guarded<'a> {
        &self.k
    }

    pub(crate) fn v(&self) -> &Guarded<'a> {
        self.v.as_ref().unwrap_or(&self.k)
    }
}
