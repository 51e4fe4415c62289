"""FlashAttention's own tests, run unchanged on ferroflash's functions: see `run.py`."""
