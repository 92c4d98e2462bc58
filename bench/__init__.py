"""How fast logd is beside its peers and beside the kernel, on this machine: `python -m bench`."""
