"""Inputs by the thousand, right and wrong, over TCP, over HTTP and in the files.

Nothing may crash, hang, or make the daemon grow; what is answered is compared with a small model.
`make fuzz` runs a fixed seed, `make test-fuzz` a fresh one and many more inputs.
"""
