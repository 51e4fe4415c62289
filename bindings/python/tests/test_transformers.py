"""Tiny random models of transformers with `attn_implementation="ferro"` beside "eager".

An error is the distance to what SDPA computes in float64 ("eager" takes its softmax in float32). The error of "ferro"
may be twice that of "eager" in the same dtype, and a rounding floor.
"""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch", reason="[not run] no torch")
transformers = pytest.importorskip("transformers", minversion="5.8", reason="[not run] no transformers")

import ferroflash  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402
from transformers_cases import exact_attention  # noqa: E402

ferroflash.transformers.register()
AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", masks.sdpa_mask)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.bfloat16] if DEVICE == "cuda" else [torch.float32, torch.bfloat16]
FLOOR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

DECODER = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    attention_dropout=0.0,
)  # fmt: skip
ENCODER = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0,
    max_position_embeddings=128,
)  # fmt: skip


WINDOWED = DECODER | dict(sliding_window=6)

# Tiny configurations: two layers of 64 features.
CONFIGS = {
    "llama": ("LlamaConfig", DECODER),
    "mistral": ("MistralConfig", WINDOWED),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        WINDOWED | dict(use_sliding_window=True, max_window_layers=1, mlp_only_layers=[0, 1]),
    ),
    "gemma2": ("Gemma2Config", WINDOWED | dict(attn_logit_softcapping=3.0, query_pre_attn_scalar=20)),
    "bert": ("BertConfig", ENCODER | dict(attention_probs_dropout_prob=0.0)),
    "modernbert": (
        "ModernBertConfig",
        ENCODER
        | dict(local_attention=8, global_attn_every_n_layers=2)
        | dict(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
    ),
    "bart": (
        "BartConfig",
        dict(vocab_size=97, d_model=64, pad_token_id=0, max_position_embeddings=128, dropout=0.0)
        | dict(encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=96)
        | dict(decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=96),
    ),
}
CLASSES = {"bert": "AutoModelForMaskedLM", "modernbert": "AutoModelForMaskedLM", "bart": "AutoModelForSeq2SeqLM"}
DECODERS = ["llama", "mistral", "qwen2_moe", "gemma2"]


def new_model(name: str, attention: str, dtype=torch.float64, **changes):
    """A model with weights that depend on the configuration alone, in evaluation mode: no dropout."""
    torch.manual_seed(0)
    config_class, sizes = CONFIGS[name]
    config = getattr(transformers, config_class)(**sizes | changes)
    auto = getattr(transformers, CLASSES.get(name, "AutoModelForCausalLM"))
    model = auto.from_config(config, attn_implementation="eager").eval()
    # Larger weights than models begin with: attention looks at single keys.
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(4)
    model = model.to(DEVICE, dtype)
    model.set_attn_implementation(attention)
    return model


model_of = functools.cache(new_model)


def tokens(batch: int = 3, seqlen: int = 21):
    return torch.randint(3, 97, (batch, seqlen), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def padding(kind: str, batch: int = 3, seqlen: int = 21):
    """Masks of [batch, seqlen]; the first sequence has no padding."""
    mask = torch.ones(batch, seqlen, dtype=torch.long)
    if kind in ("left", "both", "gaps"):
        mask[1, :4] = 0
        mask[2, :9] = 0
    if kind in ("right", "both"):
        mask[1, -7:] = 0
        mask[2, -2:] = 0
    if kind == "gaps":
        mask[1, 8:11] = 0
    return mask.to(DEVICE)


def results(model, counted, arguments):
    """Logits of the tokens that count, and the gradients of all weights."""
    logits = model(**arguments, use_cache=False).logits.double()
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(DEVICE)
    loss = (logits * weights)[counted].sum() / counted.sum()
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {"logits": logits.detach()[counted]} | {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def compare(name: str, dtype, counted, arguments, ferro_arguments=None):
    exact = results(model_of(name, "exact"), counted, arguments)
    naive = results(model_of(name, "eager", dtype), counted, arguments)
    ours = results(model_of(name, "ferro", dtype), counted, ferro_arguments or arguments)
    assert exact.keys() == ours.keys()
    sizes = {what: wanted.abs().max().item() for what, wanted in exact.items()}
    # Some gradients are 0 but for rounding, those of biases of keys, say: they are measured by the others.
    least = 0.05 * max(sizes.values())
    for what, wanted in exact.items():
        error, allowed = ((x[what] - wanted).abs().max().item() for x in (ours, naive))
        size = max(sizes[what], least) if sizes[what] < 1e-12 else sizes[what]
        assert error <= 2 * allowed + FLOOR[dtype] * size, f"{what}: {error} of {size}; eager: {allowed}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*DECODERS, "bert", "modernbert"])
@pytest.mark.parametrize("kind", ["none", "left", "right", "both"])
def test_padding(name, kind, dtype):
    mask = padding(kind)
    compare(name, dtype, mask.bool(), {"input_ids": tokens(), "attention_mask": mask})


@pytest.mark.parametrize("name", [*DECODERS, "bert", "modernbert"])
def test_no_mask(name):
    compare(name, DTYPES[0], torch.ones_like(tokens(), dtype=torch.bool), {"input_ids": tokens()})


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_padding_with_gaps(name):
    mask = padding("gaps")
    compare(name, DTYPES[0], mask.bool(), {"input_ids": tokens(), "attention_mask": mask})


def test_padding_with_gaps_is_refused_under_a_window():
    model = model_of("mistral", "ferro", DTYPES[0])
    with pytest.raises(NotImplementedError, match="attention_mask"):
        model(tokens(), attention_mask=padding("gaps"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_packed_by_position_ids(name, dtype):
    """Two rows, each of several sequences, longer and shorter than the window."""
    lengths = [[9, 5, 7], [1, 17, 3]]
    places = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths]).to(DEVICE)
    ids = tokens(batch=2)
    compare(name, dtype, torch.ones_like(ids, dtype=torch.bool), {"input_ids": ids, "position_ids": places})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_packed_by_cu_seq_lens(name, dtype):
    ids, lengths = tokens(batch=1), [9, 5, 7]
    places = torch.cat([torch.arange(n) for n in lengths])[None].to(DEVICE)
    begins = torch.tensor([0, 9, 14, 21], dtype=torch.int32, device=DEVICE)
    packed = {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 9, "max_length_k": 9}
    arguments = {"input_ids": ids, "position_ids": places}
    compare(name, dtype, torch.ones_like(ids, dtype=torch.bool), arguments, {**arguments, **packed})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "left", "right", "gaps"])
def test_cross_attention(kind, dtype):
    """The decoder's queries see all tokens of the encoder but padding."""
    decoded = tokens(seqlen=8)
    arguments = {"input_ids": tokens(), "attention_mask": padding(kind), "decoder_input_ids": decoded}
    compare("bart", dtype, torch.ones_like(decoded, dtype=torch.bool), arguments)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation(name, kind, cache):
    """Scores are near the logits in float64 without a cache, and in float32 greedy tokens equal those of "eager"."""
    dtype, n = DTYPES[0], 12
    inputs = {"input_ids": tokens(seqlen=13), "attention_mask": padding(kind, seqlen=13)}
    options = dict(max_new_tokens=n, do_sample=False, cache_implementation=cache)
    options |= dict(output_scores=True, return_dict_in_generate=True)
    ours = model_of(name, "ferro", dtype).generate(**inputs, **options)
    if dtype == torch.float32:
        eager = model_of(name, "eager", dtype).generate(**inputs, **options)
        assert torch.equal(ours.sequences, eager.sequences)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, n), value=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        wanted = model_of(name, "exact")(ours.sequences, attention_mask=mask, position_ids=positions).logits[:, -n - 1 : -1]
    error = (torch.stack(ours.scores, 1).double() - wanted).abs().max() / wanted.abs().max()
    assert error <= 5 * FLOOR[dtype]


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_generation_goes_on_from_a_cache(name):
    """Several tokens at once after those in the cache: more than one query, and more keys than queries."""
    ids = tokens()
    with torch.no_grad():
        wanted = model_of(name, "exact")(ids).logits
        for cache in ("dynamic", "static"):
            model = model_of(name, "ferro", DTYPES[0])
            if cache == "static":
                past = transformers.StaticCache(config=model.config, max_cache_len=32)
            else:
                past = transformers.DynamicCache(config=model.config)
            parts = [model(ids[:, a:b], past_key_values=past).logits for a, b in ((0, 7), (7, 12), (12, 13), (13, 21))]
            error = (torch.cat(parts, 1).double() - wanted).abs().max() / wanted.abs().max()
            assert error <= 5 * FLOOR[DTYPES[0]], cache


def test_generation_after_padding_on_the_right():
    """Keys in the cache with a gap before the new tokens."""
    ids = tokens()
    mask = padding("none")
    mask[1, 9:12] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        wanted = model_of("llama", "exact")(ids, attention_mask=mask, position_ids=positions).logits
        model = model_of("llama", "ferro", DTYPES[0])
        past = transformers.DynamicCache(config=model.config)
        parts = [
            model(ids[:, a:b], attention_mask=mask[:, :b], position_ids=positions[:, a:b], past_key_values=past).logits
            for a, b in ((0, 12), (12, 13), (13, 21))
        ]
    error = (torch.cat(parts, 1).double() - wanted)[mask.bool()].abs().max() / wanted.abs().max()
    assert error <= 5 * FLOOR[DTYPES[0]]


def test_padding_changes_nothing():
    """What stands in padded places has no influence, bit by bit."""
    model, mask = model_of("llama", "ferro", DTYPES[0]), padding("both")
    other = torch.where(mask.bool(), tokens(), 5)
    with torch.no_grad():
        first, second = (model(ids, attention_mask=mask).logits[mask.bool()] for ids in (tokens(), other))
    assert torch.equal(first, second)


def test_training_is_deterministic():
    mask = padding("both")
    model = model_of("mistral", "ferro", DTYPES[0])
    first, second = (results(model, mask.bool(), {"input_ids": tokens(), "attention_mask": mask}) for _ in range(2))
    assert all(torch.equal(first[what], second[what]) for what in first)


def test_gradient_checkpointing():
    mask = padding("left")
    model = new_model("llama", "ferro", DTYPES[0]).train()
    arguments = {"input_ids": tokens(), "attention_mask": mask}
    plain = results(model, mask.bool(), arguments)
    model.gradient_checkpointing_enable()
    again = results(model, mask.bool(), arguments)
    assert all(torch.equal(plain[what], again[what]) for what in plain)


def test_dropout_in_training():
    model = new_model("llama", "ferro", DTYPES[0], attention_dropout=0.5).train()
    counted = padding("left").bool()
    arguments = {"input_ids": tokens(), "attention_mask": padding("left")}

    def seeded(seed):
        torch.manual_seed(seed)
        return results(model, counted, arguments)

    first, again, other = seeded(1), seeded(1), seeded(2)
    assert all(torch.equal(first[what], again[what]) for what in first)
    assert not torch.equal(first["logits"], other["logits"])
    model.eval()
    evaluated = seeded(1)
    assert torch.equal(evaluated["logits"], results(model_of("llama", "ferro", DTYPES[0]), counted, arguments)["logits"])


# ---- what is refused ----


def test_masks_of_the_callers_own_are_refused():
    model = model_of("llama", "ferro", DTYPES[0])
    for mask in (
        torch.zeros(3, 1, 21, 21),
        torch.ones(3, 1, 21, 21, dtype=torch.bool),
        torch.ones(3, 1, 21, 21, dtype=torch.int32),
    ):
        with pytest.raises(NotImplementedError, match="attention_mask"):
            model(tokens(), attention_mask=mask.to(DEVICE))


def test_other_patterns_are_refused():
    prefix = masks.or_masks(masks.causal_mask_function, lambda b, h, q, k: k < 3)
    for function in (prefix, masks.blockwise_overlay(torch.zeros(1, 8)), lambda b, h, q, k: k <= q):
        with pytest.raises(NotImplementedError, match="mask_function"):
            ferroflash.transformers.make_mask(1, 8, 8, mask_function=function)
    chunks = masks.chunked_causal_mask_function(8, torch.zeros(1))
    assert ferroflash.transformers.make_mask(1, 8, 8, mask_function=chunks) is None
    with pytest.raises(NotImplementedError, match="chunked"):
        ferroflash.transformers.make_mask(1, 9, 9, mask_function=chunks)


@pytest.mark.parametrize("argument", ["position_bias", "indices"])
def test_arguments_are_refused_by_name(argument):
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(NotImplementedError, match=argument):
        ferroflash.transformers.attention(torch.nn.Module(), q, q, q, None, **{argument: torch.ones(1)})


def test_packed_arguments_belong_together():
    q, begins = torch.randn(1, 2, 4, 8), torch.tensor([0, 4])
    with pytest.raises(ValueError, match="cu_seq_lens_k, max_length_q, max_length_k"):
        ferroflash.transformers.attention(torch.nn.Module(), q, q, q, None, cu_seq_lens_q=begins)


@pytest.mark.parametrize("name", ["flash", "ferroflash", "eager", "sdpa", "a/b", ""])
def test_names_are_refused(name):
    with pytest.raises(ValueError, match="name"):
        ferroflash.transformers.register(name)


# ---- the mask itself ----


@pytest.mark.parametrize("seed", range(60))
def test_attention_under_masks(seed):
    """One layer beside transformers' own mask written out, of what a cache holds, on random sizes."""
    draw = torch.Generator().manual_seed(seed)
    number = lambda low, high: int(torch.randint(low, high + 1, (), generator=draw))  # noqa: E731
    causal, windowed = number(0, 3) > 0, number(0, 1)
    past = number(0, 20) if causal else 0
    q_length = number(1, 12)
    room = number(0, 5) if causal else 0
    # A sliding cache has forgotten the first keys.
    kv_offset = number(0, past) if windowed else 0
    kv_length = past + q_length + room - kv_offset
    if windowed:
        window = number(1, past - kv_offset + 1)
        overlay = masks.sliding_window_overlay if causal else masks.sliding_window_bidirectional_overlay
    function = masks.causal_mask_function if causal else masks.bidirectional_mask_function
    function = masks.and_masks(overlay(window), function) if windowed else function
    padding = torch.ones(3, past + q_length, dtype=torch.bool)
    for row in range(number(0, 2)):
        padding[row, : number(0, past + q_length)] = False
        padding[row, padding.shape[1] - number(0, min(4, q_length)) :] = False
    if number(0, 3) == 0 and not windowed:
        padding[2, number(0, past + q_length - 1)] = False
    q_offset = torch.tensor(past) if number(0, 1) else past
    arguments = dict(batch_size=3, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset)
    arguments |= dict(mask_function=function, attention_mask=padding if number(0, 4) else None)
    arguments |= dict(allow_is_bidirectional_skip=bool(number(0, 1)))

    q = torch.randn(3, 4, q_length, 16, generator=draw)
    k, v = (torch.randn(3, 2, kv_length, 16, generator=draw) for _ in range(2))
    mask = ferroflash.transformers.make_mask(**arguments)
    module = torch.nn.Module()
    module.is_causal = causal
    o, _ = ferroflash.transformers.attention(module, q, k, v, mask)

    visible = masks.sdpa_mask(**arguments | dict(allow_is_causal_skip=False, allow_is_bidirectional_skip=False))
    k, v = (x.double().repeat_interleave(2, dim=1) for x in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, attn_mask=visible).transpose(1, 2)
    counted = padding[:, past:] if arguments["attention_mask"] is not None else torch.ones(3, q_length, dtype=torch.bool)
    torch.testing.assert_close(o[counted].double(), wanted[counted], atol=2e-6, rtol=2e-6)
    assert o.isfinite().all()


def test_a_mask_survives_copies():
    """Models are spread over devices: the mask is moved."""
    function = masks.sliding_window_causal_mask_function(6)
    mask = ferroflash.transformers.make_mask(3, 21, 21, mask_function=function, attention_mask=padding("both").bool())
    assert mask.untyped_storage().nbytes() == 3 * 3 * 4
    decode = ferroflash.transformers._Mask.decode
    for copied in (mask.clone(), mask.contiguous(), mask.to(torch.device(DEVICE), copy=True)):
        assert torch.equal(decode(copied).lengths, decode(mask).lengths)
        assert decode(copied)[1:] == decode(mask)[1:] == (True, 5, None)


def test_a_plain_mask_is_none():
    make_mask = ferroflash.transformers.make_mask
    assert make_mask(3, 21, 21) is None
    assert make_mask(3, 21, 21, attention_mask=padding("none").bool()) is None
    assert make_mask(3, 5, 21, q_offset=16) is None
    packed = masks.packed_sequence_mask_function(torch.zeros(3, 21, dtype=torch.long))
    function = masks.and_masks(masks.causal_mask_function, packed)
    assert make_mask(3, 21, 21, mask_function=function, allow_is_causal_skip=False) is None
    assert make_mask(3, 5, 32, q_offset=16) is not None  # room in a static cache
    # Graphs compiled for one step of generation serve the others: the last one, too, which fills the cache.
    full, room = (make_mask(3, 1, n, q_offset=20, allow_is_causal_skip=False) for n in (21, 32))
    assert full.shape == room.shape and full.stride() == room.stride()
    with pytest.raises(ValueError, match="kv_length"):
        make_mask(3, 5, 20, q_offset=16)
