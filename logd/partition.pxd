# Types for partition.py when it is compiled. They do not change what it does.

import cython

from logd.storage.index cimport Index


cdef class Partition:
    cdef dict __dict__
    cdef public long long first
    cdef public long long next
    cdef public long long size
    cdef public long long max_time_ms
    cdef public bint sealed
    cdef public object open_file
    cdef public Index open_index
    cdef dict _recent

    @cython.locals(offset=cython.longlong, size=cython.longlong, position=cython.longlong, index=Index, recent=dict)
    cpdef append(self, buffers, placed, long long next_, long long time_ms)
