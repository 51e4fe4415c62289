"""The package itself: what it needs to be imported, what it says of the machine, what its native module defines."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import get_type_hints

import ferroflash
import pytest
from ferroflash import _native


def test_it_is_imported_without_torch_and_says_what_there_is():
    program = """
import sys
for name in ("torch", "numpy", "transformers", "jax"):
    sys.modules[name] = None
import ferroflash
info = ferroflash.info()
assert info["version"] == ferroflash.__version__, info
assert info["processor"] and info["kernels"]
assert info["gpus"] or info["no_gpu"]
assert "flash_attn_func" in dir(ferroflash)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["peers", "decode", "mla"])
def test_benchmarks_say_their_arguments_without_torch(name):
    script = Path(__file__).resolve().parents[3] / f"tests/benches/{name}.py"
    if not script.is_file():
        pytest.skip("[not run] not in the repository")
    program = "import runpy, sys; sys.modules['torch'] = None; script = sys.argv.pop(1); runpy.run_path(script, run_name='__main__')"
    said = subprocess.run([sys.executable, "-c", program, str(script), "--help"], check=True, capture_output=True, text=True)
    assert "--ferroflash" in said.stdout


def test_the_example_of_the_readme_runs_as_it_stands():
    pytest.importorskip("torch", reason="[not run] no torch")
    readme = Path(__file__).resolve().parents[3] / "README.md"
    if not readme.is_file():
        pytest.skip("[not run] not in the repository")
    _, _, rest = readme.read_text().partition("```python\n")
    example, _, _ = rest.partition("```")
    checked = f"{example}\nassert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))"
    subprocess.run([sys.executable, "-c", checked], check=True)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="flash_attention"):
        ferroflash.flash_attention  # noqa: B018


def test_the_version_is_that_of_the_package():
    try:
        installed = metadata.version("ferroflash")
    except metadata.PackageNotFoundError:
        pytest.skip("[not run] the package is not installed, only found")
    assert installed == ferroflash.__version__


@pytest.mark.skipif(shutil.which("nm") is None, reason="[not run] no nm")
def test_the_native_module_defines_nothing_but_its_beginning():
    """Names of the driver's functions would catch the calls of every other library in the process."""
    listed = subprocess.run(["nm", "-D", "--defined-only", _native.__file__], check=True, capture_output=True, text=True)
    names = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    assert "PyInit__native" in names
    assert not {name for name in names if name.startswith("cu")}
    needed = subprocess.run(["nm", "-D", "--undefined-only", _native.__file__], check=True, capture_output=True, text=True)
    assert not {name for name in needed.stdout.split() if name.startswith("cu")}


def test_problems_are_checked():
    with pytest.raises(TypeError, match="dtype is float64"):
        _native.Problem("float64", [1, 2, 3, 8], [1, 2, 3, 8])
    with pytest.raises(ValueError, match="q has the shape"):
        _native.Problem("float32", [2, 3], [1, 2, 3, 8])
    with pytest.raises(ValueError, match="max_seqlen_k is missing"):
        _native.Problem("float32", [1, 2, 3, 8], [2, 3, 8])
    with pytest.raises(ValueError, match="batch is missing"):
        _native.Problem("float32", [2, 3, 8], [2, 3, 8], max_seqlen_q=2, max_seqlen_k=2)
    shapes = [1, 2, 3, 8], [1, 2, 3, 8]
    with pytest.raises(ValueError, match="fp8_kv is e4m3; allowed: per_sequence, per_page"):
        _native.Problem("float32", *shapes, fp8_kv="e4m3")
    for options, word in (
        ({"fp8_kv": "per_page"}, "a scale for each page"),
        ({"values_in_keys": 9}, "head_dim_v is 9"),
        ({"values_in_keys": 8, "fp8_kv": "per_sequence"}, "values in the keys and keys and values in e4m3"),
    ):
        with pytest.raises(ValueError, match=word):
            _native.Problem("float32", *shapes, **options).explain()


def test_the_keywords_are_those_of_the_library():
    from ferroflash import _inputs

    hints = set(get_type_hints(_inputs.InputsAndWanted))
    wanted = {f"d_{name}" for name, row in _inputs.INPUTS.items() if row.differentiable}
    assert hints == set(_inputs.INPUTS) | wanted
    assert set(_inputs.INPUTS) <= set(inspect.signature(ferroflash.attention).parameters)
    assert hints <= set(inspect.signature(ferroflash.array.attention_backward).parameters)
    assert all(f"{name}: " in ferroflash.attention.__doc__ for name in _inputs.INPUTS)
    with pytest.raises(TypeError, match="sink was given; allowed: sinks"):
        ferroflash.attention(memoryview(b""), None, None, sink=None)


def test_shapes_of_appends_are_checked():
    strides = {"k_new": [48, 24, 8], "v_new": [48, 24, 8], "k_cache": [216, 24, 8], "v_cache": [216, 24, 8]}
    _native.Call.append("float32", [1, 2, 3, 8], [1, 9, 3, 8], None, strides, [], batch=1)
    for new, cache, word in (
        ([1, 2, 2, 8], [1, 9, 3, 8], "k has the shape"),
        ([2, 2, 3, 8], [1, 9, 3, 8], "k has the shape"),
        ([1, 2, 3, 8], [2, 9, 3, 8], "k_cache has the shape"),
        ([1, 2, 3, 8], [9, 3, 8], "k_cache has the shape"),
        ([3, 8], [1, 9, 3, 8], "k has the shape"),
    ):
        with pytest.raises(ValueError, match=word):
            _native.Call.append("float32", new, cache, None, strides, [], batch=1)
    with pytest.raises(ValueError, match="split_kv"):
        _native.Problem("float32", [1, 2, 3, 8], [1, 2, 3, 8], split_kv="half")


def test_what_would_run_is_explained():
    problem = _native.Problem("float32", [1, 200, 4, 64], [1, 200, 2, 64], right=0)
    for backward in (False, True):
        assert "cpu" in problem.explain(backward=backward)
