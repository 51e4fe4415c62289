"""What ferroflash lacks of what FlashAttention's tests ask for: why cases are left out, in this order."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import Reason

OUTPUTS = frozenset({"test_flash_attn_output", "test_flash_attn_varlen_output"})
"""The tests of both passes that FlashAttention-3 and -4 share by name."""


def _positive(value: float) -> bool:
    return value > 0


def _given(value: object) -> bool:
    return value is not None


def _whole(text: str, *tests: str) -> Reason:
    return Reason(text, tests=frozenset(tests))


_OTHER_GPU = "tests of another architecture, which skip themselves"
_PRIVATE = "private functions of FlashAttention"
_HEAD_DIM_V = "a head_dim of v unlike that of q"
_MLA = "qv (MLA)"
_FP8 = "fp8"

_PARAMETERS = [
    # These tests read which weights were dropped off the signs of all weights, which no kernel of ferroflash writes, and divide the others by
    # 1 - dropout_p, which ferroflash rounds to a multiple of 1/256.
    Reason("dropout", "dropout_p", _positive),
    Reason(_FP8, "dtype", lambda dtype: "float8" in str(dtype)),
    Reason(_MLA, "has_qv"),
]

_REASONS: dict[str, list[Reason]] = {
    "fa2": [
        _whole(_PRIVATE, "test_flash_attn_generator_arg_must_be_none", "test_flash_attn_varlen_paged_kv_num_splits"),
        _whole("lengths that a call waits for, to check them", "test_flash_attn_kvcache_paged_block_table_bounds"),
    ],
    "fa3": [
        _whole(_PRIVATE, "test_flash3_bw_compatibility"),
        # These tests run every case with head_dim_v 256 and 512, too, or 128.
        Reason(_HEAD_DIM_V, "d", lambda d: d in (64, 192), OUTPUTS),
    ],
    "fa4-varlen": [],
    "fa4": [
        _whole(
            _MLA,
            "test_flash_attn_mla_absorbed",
            "test_flash_attn_mla_absorbed_varlen",
            "test_flash_attn_mla_paged",
            "test_flash_attn_mla_sparse_bwd_sentinel",
            "test_flash_attn_mla_sparse_bwd_sentinel_varlen",
        ),
        _whole(
            _FP8,
            "test_flash_attn_fp8_paged_decode_preserves_tail_mass",
            "test_flash_attn_fp8_paged_decode_tile_boundary",
        ),
        _whole(
            _OTHER_GPU,
            "test_flash_attn_ex2_emu_decode_prefill_consistency",
            "test_flash_attn_paged_deepseek",
            "test_flash_attn_paged_hd256_sm100_tma",
            "test_flash_attn_paged_hd256_sm100_tma_gqa",
            "test_flash_attn_paged_hd256_sm100_tma_shuffled",
            "test_flash_attn_paged_non_tma_partial_loader_tile",
        ),
        _whole(
            _PRIVATE,
            "test_flash_attn_bwd_preallocated_outputs",
            "test_flash_attn_cache_separates_broadcast_layouts",
            # The text of an assertion, for sizes of which ferroflash serves some.
            "test_flash_attn_invalid_head_dim",
        ),
        Reason("the content of FlashAttention's scheduler metadata", "cumsum_mode", lambda mode: mode != "jit_cumsum"),
        _whole("splits that the caller sizes", "test_flash_attn_varlen_seqlen_k_per_split"),
        _whole(_HEAD_DIM_V, "test_flash_attn_value_dim_larger_than_query_dim"),
        # These tests run every case with head_dim_v 64, too, or 128.
        Reason(_HEAD_DIM_V, "d", lambda d: d in (128, 192), OUTPUTS),
        Reason(_HEAD_DIM_V, "d", lambda d: d == 192, frozenset({"test_flash_attn_seqlen_k_zero"})),
        # 2 and 3 stand for a limit that lies before or behind the query's place, given as a negative number.
        Reason("a negative window", "local_enum", lambda local: local in (2, 3), frozenset({"test_flash_attn_output"})),
    ],
}

AT_MOST = {
    "test_flash_attn_race_condition": 6,
    "test_flash_attn_combine": 30,
}
"""Of a sample: tests that repeat a call 250 or 1,000 times, and one that merges partial results, where no kernel runs."""

SWITCHES: dict[str, dict[str, object]] = {"fa3": {"DISABLE_LOCAL": True}}
"""Switches of a test file that are set once its cases are made. FlashAttention-3's file loops over `attention_chunk` inside its
tests, which ferroflash lacks, unless `DISABLE_LOCAL` is set; cases with a window are made before, and run."""


def reasons(suite: str) -> Sequence[Reason]:
    """Those of a suite."""
    return [*_PARAMETERS, *_REASONS[suite]]
