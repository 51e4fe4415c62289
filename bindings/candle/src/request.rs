//! What a function is asked for, and the rules that it has to keep: tensors × options → [`Call`].
//!
//! Looks at shapes, types, strides and devices, each rule one function. Of the memory it looks at lengths on the host alone.
//! Sizes are ferroflash's to check, when the call runs.

use candle_core::{DType, Device, Storage, Tensor};
use ferroflash::{Dtype, Mask, Problem};

use crate::call::{Call, Lengths};
use crate::error::{Error, elsewhere};
use crate::layout::aligned;

/// A call of one of the functions, as it was made.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Queries.
    pub(crate) q: &'a Tensor,
    /// Keys.
    pub(crate) k: &'a Tensor,
    /// Values.
    pub(crate) v: &'a Tensor,
    /// Factor of the scores.
    pub(crate) softmax_scale: f32,
    /// Which keys a query sees.
    pub(crate) window: Window,
}

/// A window as candle-flash-attn spells it.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Keys to the left of a query's place; `None` is no limit.
    pub(crate) left: Option<usize>,
    /// Keys to the right.
    pub(crate) right: Option<usize>,
}

/// Where the sequences of packed tensors lie.
#[derive(Clone, Copy)]
pub(crate) struct Sequences<'a> {
    /// Where each sequence's queries begin, and where the last one's end.
    pub(crate) seqlens_q: &'a Tensor,
    /// The same of keys and values.
    pub(crate) seqlens_k: &'a Tensor,
    /// The most queries of a sequence.
    pub(crate) max_seqlen_q: usize,
    /// The most keys of a sequence.
    pub(crate) max_seqlen_k: usize,
}

/// A checked call with the tensors that it runs on.
pub(crate) struct Checked {
    /// The call.
    pub(crate) call: Call,
    /// q, k and v.
    pub(crate) inputs: [Tensor; 3],
}

impl Window {
    fn mask(self) -> Mask {
        match (self.left, self.right) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        }
    }
}

impl<'a> Request<'a> {
    /// What every function is given; a window of `None` and `Some(0)` is a causal mask.
    pub(crate) fn new(
        [q, k, v]: [&'a Tensor; 3],
        softmax_scale: f32,
        left: Option<usize>,
        right: Option<usize>,
    ) -> Request<'a> {
        Request {
            q,
            k,
            v,
            softmax_scale,
            window: Window { left, right },
        }
    }

    /// Tensors `[batch, seqlen, heads, head_dim]`.
    pub(crate) fn dense(self) -> candle_core::Result<Checked> {
        self.tensors::<4>()?;
        let [batch, seqlen_q, heads_q, head_dim] = dims(self.q);
        let [_, seqlen_k, heads_k, _] = dims(self.k);
        self.shapes([batch, seqlen_k, heads_k, head_dim])?;
        let problem = Problem::builder(self.dtype()?)
            .batch(batch)
            .seqlen_q(seqlen_q)
            .seqlen_k(seqlen_k)
            .heads_q(heads_q)
            .heads_k(heads_k)
            .head_dim(head_dim)
            .softmax_scale(self.softmax_scale)
            .mask(self.window.mask())
            .build()
            .map_err(Error::from)?;
        self.checked(problem, Lengths::None)
    }

    /// Packed tensors, `[total, heads, head_dim]`.
    pub(crate) fn packed(self, sequences: Sequences) -> candle_core::Result<Checked> {
        self.tensors::<3>()?;
        let [total_q, heads_q, head_dim] = dims(self.q);
        let [total_k, heads_k, _] = dims(self.k);
        self.shapes([total_k, heads_k, head_dim])?;
        let batch = batch(&sequences)?;
        let lengths = self.lengths(&sequences)?;
        let problem = Problem::builder(self.dtype()?)
            .batch(batch)
            .seqlen_q(sequences.max_seqlen_q)
            .seqlen_k(sequences.max_seqlen_k)
            .packed_q(total_q)
            .packed_k(total_k)
            .heads_q(heads_q)
            .heads_k(heads_k)
            .head_dim(head_dim)
            .softmax_scale(self.softmax_scale)
            .mask(self.window.mask())
            .build()
            .map_err(Error::from)?;
        self.checked(problem, lengths)
    }

    fn named(&self) -> [(&'static str, &Tensor); 3] {
        [("q", self.q), ("k", self.k), ("v", self.v)]
    }

    /// The rules for each of q, k and v alone, and that they lie together and have one type.
    fn tensors<const RANK: usize>(&self) -> Result<(), Error> {
        backend(self.q.device())?;
        self.dtype()?;
        for (argument, tensor) in self.named() {
            same_device(argument, tensor, self.q)?;
            has_rank(argument, tensor, RANK)?;
            has_type(argument, tensor, &[self.q.dtype()])?;
            has_contiguous_rows(argument, tensor)?;
        }
        Ok(())
    }

    /// What the type of q is called in ferroflash.
    fn dtype(&self) -> Result<Dtype, Error> {
        match self.q.dtype() {
            DType::BF16 => Ok(Dtype::Bf16),
            DType::F16 => Ok(Dtype::F16),
            DType::F32 => Ok(Dtype::F32),
            given => Err(Error::Dtype {
                argument: "q",
                given,
                allowed: vec![DType::BF16, DType::F16, DType::F32],
            }),
        }
    }

    /// k and v have this shape, which q says in part.
    fn shapes<const RANK: usize>(&self, allowed: [usize; RANK]) -> Result<(), Error> {
        for (argument, tensor) in [("k", self.k), ("v", self.v)] {
            if tensor.dims() != allowed {
                return Err(Error::Shape {
                    argument,
                    given: tensor.dims().to_vec(),
                    allowed: allowed.to_vec(),
                });
            }
        }
        Ok(())
    }

    /// The cumulative lengths, where ferroflash reads them.
    fn lengths(&self, sequences: &Sequences) -> candle_core::Result<Lengths> {
        let Sequences {
            seqlens_q,
            seqlens_k,
            ..
        } = sequences;
        for (argument, tensor) in [("seqlens_q", seqlens_q), ("seqlens_k", seqlens_k)] {
            same_device(argument, tensor, self.q)?;
            has_type(argument, tensor, &[DType::U32, DType::I32])?;
            has_contiguous_rows(argument, tensor)?;
        }
        match self.q.device() {
            Device::Cpu => Ok(Lengths::Host {
                q: numbers("seqlens_q", seqlens_q)?,
                k: numbers("seqlens_k", seqlens_k)?,
            }),
            _ => Ok(Lengths::Device {
                q: (*seqlens_q).clone(),
                k: (*seqlens_k).clone(),
            }),
        }
    }

    fn checked(&self, problem: Problem, lengths: Lengths) -> candle_core::Result<Checked> {
        Ok(Checked {
            call: Call::new(problem, lengths),
            inputs: [aligned(self.q)?, aligned(self.k)?, aligned(self.v)?],
        })
    }
}

/// The dimensions of a tensor of this rank.
fn dims<const RANK: usize>(tensor: &Tensor) -> [usize; RANK] {
    std::array::from_fn(|dim| tensor.dims().get(dim).copied().unwrap_or(0))
}

/// Whether this build works on the device's kind.
fn backend(device: &Device) -> Result<(), Error> {
    let (given, allowed) = match device {
        Device::Cpu => return Ok(()),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => return Ok(()),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => (
            "CUDA",
            "the CPU; for CUDA build candle-ferroflash with the feature `cuda`",
        ),
        Device::Metal(_) => ("Metal", "the CPU, and CUDA with the feature `cuda`"),
    };
    Err(Error::Backend {
        argument: "q",
        given,
        allowed,
    })
}

fn same_device(argument: &'static str, tensor: &Tensor, q: &Tensor) -> Result<(), Error> {
    if tensor.device().same_device(q.device()) {
        return Ok(());
    }
    Err(elsewhere(argument, tensor, q.device().location()))
}

fn has_rank(argument: &'static str, tensor: &Tensor, allowed: usize) -> Result<(), Error> {
    match tensor.rank() {
        given if given == allowed => Ok(()),
        given => Err(Error::Rank {
            argument,
            given,
            allowed,
        }),
    }
}

fn has_type(argument: &'static str, tensor: &Tensor, allowed: &[DType]) -> Result<(), Error> {
    match tensor.dtype() {
        given if allowed.contains(&given) => Ok(()),
        given => Err(Error::Dtype {
            argument,
            given,
            allowed: allowed.to_vec(),
        }),
    }
}

/// The last dimension has stride 1; where it has one entry, or the tensor none, its stride says nothing.
fn has_contiguous_rows(argument: &'static str, tensor: &Tensor) -> Result<(), Error> {
    let last = tensor.dims().last().zip(tensor.stride().last());
    match last {
        Some((&n, &stride)) if n > 1 && stride != 1 && tensor.elem_count() > 0 => {
            Err(Error::Strides {
                argument,
                given: tensor.stride().to_vec(),
            })
        }
        _ => Ok(()),
    }
}

/// How many sequences the vectors of cumulative lengths say that there are.
fn batch(sequences: &Sequences) -> Result<usize, Error> {
    let n_elems = |argument, tensor: &Tensor| {
        has_rank(argument, tensor, 1)?;
        Ok::<usize, Error>(tensor.elem_count())
    };
    let n_q = n_elems("seqlens_q", sequences.seqlens_q)?;
    let n_k = n_elems("seqlens_k", sequences.seqlens_k)?;
    let refused = |argument, given, allowed| {
        Err(Error::Lengths {
            argument,
            given,
            allowed,
        })
    };
    match n_q.checked_sub(1) {
        None | Some(0) => refused("seqlens_q", n_q, "2 or more".to_owned()),
        Some(_) if n_k != n_q => {
            refused("seqlens_k", n_k, format!("{n_q}, as many as of seqlens_q"))
        }
        Some(batch) => Ok(batch),
    }
}

/// The cumulative lengths of a vector on the host, as ferroflash takes them.
fn numbers(argument: &'static str, tensor: &Tensor) -> candle_core::Result<Vec<i32>> {
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + tensor.elem_count();
    let Storage::Cpu(storage) = &*storage else {
        return Ok(Vec::new());
    };
    if tensor.dtype() == DType::I32 {
        let numbers = storage.as_slice::<i32>()?;
        return Ok(numbers.get(range).unwrap_or_default().to_vec());
    }
    let numbers = storage.as_slice::<u32>()?.get(range).unwrap_or_default();
    let fits = |(index, &given): (usize, &u32)| {
        i32::try_from(given).map_err(|_| Error::Length {
            argument,
            index,
            given,
        })
    };
    Ok(numbers
        .iter()
        .enumerate()
        .map(fits)
        .collect::<Result<_, _>>()?)
}
