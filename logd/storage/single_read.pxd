# Types for single_read.py when it is compiled. They do not change what it does.

import cython


cdef class SingleReads:
    cdef public str topic
    cdef bytes _prefix
    cdef object _readable
    cdef dict _counters
    cdef object _partition

    @cython.locals(request=tuple, offset=cython.longlong)
    cpdef bytes answer(self, bytes data, int socket)
