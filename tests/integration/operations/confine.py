"""Run inside a clean machine: forbid system calls as the unit does, then become the command.

    python3 confine.py ALLOWED -- COMMAND...

ALLOWED is a file with the names of the system calls that SystemCallFilter= leaves. Besides them
MemoryDenyWriteExecute= and RestrictAddressFamilies= are done as systemd does them. By libseccomp,
which apt needs and so every Debian has; nothing but the standard library otherwise.
"""

import ctypes
import os
import sys

ALLOW, EPERM = 0x7FFF0000, 0x00050001
MASKED_EQ, EQ = 7, 4
PROT_WRITE, PROT_EXEC = 2, 4
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}


class Compare(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )  # fmt: skip


def main() -> None:
    names = open(sys.argv[1]).read().split()
    families = [FAMILIES[name] for name in os.environ["FAMILIES"].split()]
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(EPERM))

    def allow(name: str, *comparisons: Compare) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            array = (Compare * len(comparisons))(*comparisons)
            failed = library.seccomp_rule_add_array(context, ALLOW, number, len(comparisons), array)
            assert not failed, name

    for name in names:
        if name == "mmap":
            for prot in (0, PROT_WRITE, PROT_EXEC):
                allow(name, Compare(2, MASKED_EQ, PROT_WRITE | PROT_EXEC, prot))
        elif name in ("mprotect", "pkey_mprotect"):
            allow(name, Compare(2, MASKED_EQ, PROT_EXEC, 0))
        elif name == "socket":
            for family in families:
                allow(name, Compare(0, EQ, family))
        else:
            allow(name)
    assert not library.seccomp_load(context)
    os.execv(sys.argv[3], sys.argv[3:])


main()
