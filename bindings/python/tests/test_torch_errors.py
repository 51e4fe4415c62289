"""Arguments that `attention` refuses: the error's type, and that its text names the argument."""

from __future__ import annotations

import pytest
from torch_cases import DEVICES, random

torch = pytest.importorskip("torch", reason="[not run] no torch")

from ferroflash._torch import attention  # noqa: E402

INT = torch.int32


def tensors(device="cpu", dtype=torch.bfloat16):
    return [random(2, 16, heads, 64, device=device, dtype=dtype, grad=False) for heads in (4, 2, 2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("error", "word", "change"),
    [
        (TypeError, "[qk] is", lambda q, k, v: ((q.double(), k, v), {})),
        (TypeError, "q is", lambda q, k, v: ((q.int(), k, v), {})),
        (TypeError, "k is", lambda q, k, v: ((q, k.half(), v), {})),
        (TypeError, "v is", lambda q, k, v: ((q, k, v.float()), {})),
        (TypeError, "q is list", lambda q, k, v: ((q.tolist(), k, v), {})),
        (TypeError, "v is NoneType", lambda q, k, v: ((q, k, None), {})),
        (ValueError, "q has the shape", lambda q, k, v: ((q[0, 0], k, v), {})),
        (ValueError, "k has the shape", lambda q, k, v: ((q, k[0, 0], v), {})),
        (ValueError, "v has the shape", lambda q, k, v: ((q, k, v[:, :7]), {})),
        (ValueError, "k has head_dim", lambda q, k, v: ((q, k[..., :32], v[..., :32]), {})),
        (ValueError, "k has batch", lambda q, k, v: ((q, k[:1], v[:1]), {})),
        (ValueError, "heads_q", lambda q, k, v: ((q[:, :, :3], k, v), {})),
        (ValueError, "head_dim", lambda q, k, v: tuple([[x.repeat(1, 1, 1, 10) for x in (q, k, v)], {}])),
        (ValueError, "head_dim", lambda q, k, v: ((q[..., :0], k[..., :0], v[..., :0]), {})),
        (ValueError, "softmax_scale", lambda q, k, v: ((q, k, v), {"softmax_scale": 0.0})),
        (ValueError, "softmax_scale", lambda q, k, v: ((q, k, v), {"softmax_scale": float("nan")})),
        (ValueError, "window", lambda q, k, v: ((q, k, v), {"window": (-1, None)})),
        (ValueError, "cu_seqlens_q", lambda q, k, v: ((q[0], k, v), {})),
        (ValueError, "cu_seqlens_k", lambda q, k, v: ((q, k, v), {"cu_seqlens_k": lengths(q, 0, 16, 32)})),
        (ValueError, "max_seqlen_k", lambda q, k, v: ((q, k[0], v[0]), {"cu_seqlens_k": lengths(q, 0, 8, 16)})),
        (TypeError, "seqused_k is", lambda q, k, v: ((q, k, v), {"seqused_k": lengths(q, 3, 4).long()})),
        (ValueError, "seqused_k has the shape", lambda q, k, v: ((q, k, v), {"seqused_k": lengths(q, 3)})),
        (ValueError, "seqused_q has the stride", lambda q, k, v: ((q, k, v), {"seqused_q": lengths(q, 3, 0, 4)[::2]})),
    ],
)
def test_refused(device, error, word, change):
    arguments, options = change(*tensors(device))
    with pytest.raises(error, match=word):
        attention(*arguments, **options)


def lengths(like, *numbers):
    return torch.tensor(numbers, dtype=INT, device=like.device)


def test_lengths_on_the_host_are_looked_at():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="seqused_k, sequence 1: 17"):
        attention(q, k, v, seqused_k=lengths(q, 3, 17))


@pytest.mark.skipif("cuda" not in DEVICES, reason="[not run] no CUDA device")
def test_devices_do_not_mix():
    (q, k, v), (_, k_host, _) = tensors("cuda"), tensors()
    with pytest.raises(TypeError, match="k lies on cpu"):
        attention(q, k_host, v)
    with pytest.raises(TypeError, match="seqused_k lies on cpu"):
        attention(q, k, v, seqused_k=lengths(k_host, 3, 4))
    # float32 has kernels up to a head_dim of 128.
    wide = torch.zeros(1, 8, 2, 256, device="cuda")
    with pytest.raises(NotImplementedError, match="f32"):
        attention(wide, wide, wide)


def test_second_derivatives_are_refused():
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    (d_q,) = torch.autograd.grad(attention(q, k, v)[0].sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(d_q.sum(), q)
