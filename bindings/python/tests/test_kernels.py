"""Kernels in a folder: compiled ahead without a GPU, by a script in place of ptxas."""

import stat
import sys

import ferroflash
import pytest
from ferroflash import kernels

pytestmark = pytest.mark.skipif(
    "ferroflash-ptx" not in ferroflash.info()["kernels"], reason="[not run] this build has no kernels to compile"
)

WELL = """\
if sys.argv[1] == "--version":
    print("Cuda compilation tools, release 13.0, V13.0.88")
else:
    print("ptxas info    : Used 96 registers", file=sys.stderr)
    with open(sys.argv[sys.argv.index("-o") + 1], "wb") as cubin:
        cubin.write(b"\\x7fELF")
"""


@pytest.fixture
def ptxas(tmp_path):
    return script(tmp_path / "ptxas", WELL)


def script(path, text):
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_kernels_are_compiled_ahead_once(tmp_path, ptxas):
    folder = tmp_path / "of" / "kernels"
    calls = ["forward bf16 128 causal seqlen=4096 batch=8 heads=16", "backward f16 64 seqlen=2048 heads=16"]
    compiled = ferroflash.compile_kernels(*calls, folder=folder, compute_capability=(9, 0), ptxas=ptxas)
    names = [kernel["kernel"] for kernel in compiled]
    assert any(name.startswith("forward_sm90a_bf16_d128") and name.endswith("right_bound") for name in names)
    assert any(name.startswith("backward_sm90a_f16_d64") for name in names)
    assert all(kernel["registers"] == 96 and kernel["origin"].startswith("compiled by ptxas") for kernel in compiled)
    assert len(list(folder.iterdir())) == len(names)
    again = ferroflash.compile_kernels(*calls, folder=folder, compute_capability=(9, 0), ptxas=ptxas)
    assert [kernel["origin"] for kernel in again] == ["from the kernel cache"] * len(names)


@pytest.mark.parametrize(
    ("calls", "options", "message"),
    [
        ((), {}, "calls is empty"),
        (("forward bf16 128 casual",), {}, '"casual" is given for calls; allowed: causal, '),
        (("forward bf16 1280",), {}, "head_dim is 1280"),
        (("forward bf16 128",), {"compute_capability": (7, 5)}, r"compute_capability is \(7, 5\)"),
        (("forward bf16 128",), {"ptxas": None}, "compute_capability is given and ptxas is not"),
        (("forward bf16 128",), {"ptxas": "/no/such/ptxas"}, "ptxas: /no/such/ptxas cannot be run"),
    ],
)
def test_what_cannot_be_meant_is_a_value_error(tmp_path, ptxas, calls, options, message):
    options = {"compute_capability": (9, 0), "ptxas": ptxas, **options}
    with pytest.raises(ValueError, match=message):
        ferroflash.compile_kernels(*calls, folder=tmp_path, **options)


def test_a_ptxas_that_fails_is_said(tmp_path):
    text = WELL.replace('print("ptxas info    : Used 96 registers", file=sys.stderr)', 'sys.exit("no memory")')
    broken = script(tmp_path / "ptxas", text)
    with pytest.raises(RuntimeError, match="no memory"):
        ferroflash.compile_kernels("forward bf16 128", folder=tmp_path / "kernels", compute_capability=(9, 0), ptxas=broken)


def test_ptxas_is_found_on_path_and_in_packages(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "triton" / "backends" / "nvidia" / "bin"
    package.mkdir(parents=True)
    in_package = script(package / "ptxas", WELL)
    paths = {"purelib": str(tmp_path / "packages"), "platlib": str(tmp_path / "packages")}
    monkeypatch.setattr(kernels.sysconfig, "get_paths", lambda: paths)
    assert kernels._of_packages()[0] == str(in_package)
    on_path = tmp_path / "bin"
    on_path.mkdir()
    script(on_path / "ptxas", WELL)
    monkeypatch.setenv("PATH", str(on_path), prepend=":")
    assert kernels._program("auto") == "ptxas"


def test_a_folder_is_kept_where_there_is_no_gpu(tmp_path, ptxas):
    ferroflash.keep_kernels_in(tmp_path / "kernels", ptxas=ptxas)
    assert (tmp_path / "kernels").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ferroflash.keep_kernels_in(tmp_path / "file", ptxas=None)
    with pytest.raises(ValueError, match="ptxas: "):
        ferroflash.keep_kernels_in(tmp_path / "kernels", ptxas=tmp_path / "file")
