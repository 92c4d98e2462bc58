"""Measures logd against other servers and the kernel, on this machine: `python -m bench`."""
