//! What both passes know of a call before it has addresses: the problem on a device, and how q, k and v lie.

use ferroflash::arguments::Argument;
use ferroflash::prepared::Layouts;
use ferroflash::{Attention, Error, Fp8Kv, Inputs, Layout, Pages};

use super::beside::Beside;
use super::memory::{Location, Span};
use super::score::Taken;
use crate::problem::Problem;

/// Strides in elements, without the last one, which is 1: of `[batch, seqlen, heads, head_dim]`, or of `[total, heads, head_dim]`.
pub(crate) type Strides = Vec<usize>;

/// The lengths that a call may give, and the table of its pages.
const LENGTHS: [Argument; 6] = [
    Argument::CuSeqlensQ,
    Argument::CuSeqlensK,
    Argument::SeqUsedQ,
    Argument::SeqUsedK,
    Argument::LeftpadK,
    Argument::PageTable,
];

/// Addresses of [`LENGTHS`]; of those that are given.
pub(crate) type Lengths = [u64; 6];

/// What both passes know of a call before it has addresses.
pub(crate) struct Shape {
    pub(crate) attention: Attention,
    inputs: [Layout; 3],
    /// Which of [`LENGTHS`] calls give.
    given: [bool; 6],
    /// What expressions take.
    pub(super) taken: Taken,
}

impl Shape {
    pub(crate) fn new(
        problem: &Problem,
        ordinal: Option<u32>,
        strides: [&Strides; 3],
        given: [bool; 6],
    ) -> Result<Shape, Error> {
        let sizes = &problem.problem;
        let [q, k, v] = strides;
        Ok(Shape {
            attention: problem.attention(ordinal)?,
            inputs: [
                strided(sizes.shape_q(), q),
                strided(sizes.shape_k(), k),
                strided(sizes.shape_v(), v),
            ],
            given,
            taken: problem.taken.clone(),
        })
    }

    pub(crate) fn layouts(&self) -> Layouts {
        let [q, k, v] = self.inputs;
        let layouts = Layouts::contiguous()
            .with(Argument::Q, q)
            .with(Argument::K, k);
        let layouts = match self.attention.problem().values_in_keys() {
            true => layouts,
            false => layouts.with(Argument::V, v),
        };
        let given = LENGTHS.into_iter().zip(self.given);
        let given = given.filter(|&(_, given)| given);
        given.fold(layouts, |layouts, (argument, _)| layouts.giving(argument))
    }

    pub(crate) fn location(&self) -> Location<'_> {
        Location::of(self.attention.device().as_cuda())
    }

    pub(crate) fn span_q(&self, argument: Argument, address: u64) -> Result<Span, Error> {
        self.contiguous(self.attention.problem().shape_q(), argument, address)
    }

    pub(crate) fn span_k(&self, argument: Argument, address: u64) -> Result<Span, Error> {
        self.contiguous(self.attention.problem().shape_k(), argument, address)
    }

    pub(crate) fn span_v(&self, argument: Argument, address: u64) -> Result<Span, Error> {
        self.contiguous(self.attention.problem().shape_v(), argument, address)
    }

    pub(crate) fn span_o(&self, argument: Argument, address: u64) -> Result<Span, Error> {
        self.contiguous(self.attention.problem().shape_o(), argument, address)
    }

    fn contiguous(
        &self,
        shape: [usize; 4],
        argument: Argument,
        address: u64,
    ) -> Result<Span, Error> {
        let layout = Layout::bshd(shape)?;
        Ok(self.span(argument, layout, address))
    }

    pub(crate) fn span(&self, argument: Argument, layout: Layout, address: u64) -> Span {
        Span {
            argument,
            address,
            layout,
            dtype: self.attention.problem().dtype(),
        }
    }

    /// Elements of lse.
    pub(crate) fn n_rows(&self) -> usize {
        self.attention.problem().shape_lse().iter().product()
    }

    /// Entries of the table of pages.
    fn n_table_entries(&self) -> usize {
        let problem = self.attention.problem();
        let columns = |pages: Pages| pages.n_columns(problem.seqlen_k());
        // That the product can be counted has been checked.
        problem.batch() * problem.pages().map_or(0, columns)
    }

    /// Scales of k, and as many of v.
    fn n_scales(&self) -> usize {
        let problem = self.attention.problem();
        let each = match (problem.fp8_kv(), problem.pages()) {
            (Some(Fp8Kv::PerPage), Some(pages)) => pages.n_pages(),
            _ => problem.batch(),
        };
        // That the product can be counted has been checked.
        each * problem.heads_k()
    }

    /// q, k and v, and of keys and values in 8 bits the scales.
    ///
    /// # Safety
    /// As for [`Forward::run`](super::call::Forward).
    unsafe fn tensors<'a>(
        &self,
        location: Location<'a>,
        addresses: [u64; 3],
        scales: [u64; 2],
    ) -> Result<Inputs<'a>, Error> {
        let names = [Argument::Q, Argument::K, Argument::V];
        let [q, k, v] = [0, 1, 2].map(|at| self.span(names[at], self.inputs[at], addresses[at]));
        let problem = self.attention.problem();
        // SAFETY: as the caller promises.
        unsafe {
            let q = location.tensor(q)?;
            if problem.values_in_keys() {
                return Ok(Inputs::latent(&q, &location.tensor(k)?));
            }
            if problem.fp8_kv().is_none() {
                return Ok(Inputs::new(&q, &location.tensor(k)?, &location.tensor(v)?));
            }
            let (k, v) = (location.tensor_e4m3(k)?, location.tensor_e4m3(v)?);
            let [of_k, of_v] = scales;
            let scales =
                |argument, address| location.statistics(argument, address, self.n_scales());
            let k_descale = scales(Argument::KDescale, of_k)?;
            let v_descale = scales(Argument::VDescale, of_v)?;
            let inputs = Inputs::new(&q, &k, &v);
            Ok(inputs.k_descale(k_descale).v_descale(v_descale))
        }
    }

    /// q, k, v, the lengths, and what stands beside them.
    ///
    /// # Safety
    /// As for [`Forward::run`](super::call::Forward).
    pub(crate) unsafe fn inputs<'a>(
        &self,
        location: Location<'a>,
        addresses: [u64; 3],
        lengths: Lengths,
        beside: &Beside,
    ) -> Result<Inputs<'a>, Error> {
        // SAFETY: as the caller promises.
        let mut inputs = unsafe { self.tensors(location, addresses, beside.scales)? };
        let problem = self.attention.problem();
        let batch = problem.batch();
        for ((argument, given), address) in LENGTHS.into_iter().zip(self.given).zip(lengths) {
            if !given {
                continue;
            }
            let n_elems = match argument {
                Argument::CuSeqlensQ | Argument::CuSeqlensK => batch + 1,
                Argument::PageTable => self.n_table_entries(),
                _ => batch,
            };
            // SAFETY: as the caller promises.
            let vector = unsafe { location.integers(argument, address, n_elems)? };
            inputs = match argument {
                Argument::CuSeqlensQ => inputs.cu_seqlens_q(vector),
                Argument::CuSeqlensK => inputs.cu_seqlens_k(vector),
                Argument::SeqUsedQ => inputs.seqused_q(vector),
                Argument::SeqUsedK => inputs.seqused_k(vector),
                Argument::PageTable => inputs.page_table(vector),
                _ => inputs.leftpad_k(vector),
            };
        }
        // SAFETY: as the caller promises.
        unsafe { beside.give(inputs, location, problem, &self.taken) }
    }
}

/// A layout of this shape. Packed rows are one batch entry.
pub(crate) fn strided(shape: [usize; 4], strides: &Strides) -> Layout {
    let [batch, seqlen, heads, head_dim] = shape;
    let [batch_stride, row_stride, head_stride] = match **strides {
        [batch, row, head] => [batch, row, head],
        [row, head] => [0, row, head],
        _ => [0; 3],
    };
    Layout {
        batch,
        seqlen,
        heads,
        head_dim,
        batch_stride,
        row_stride,
        head_stride,
    }
}
