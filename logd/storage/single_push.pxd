# Types for single_push.py when it is compiled. They do not change what it does.

import cython

from logd.storage.single_read cimport SingleReads


cdef class SinglePushes:
    cdef public object clients
    cdef public object content
    cdef public object messages
    cdef public object offset
    cdef public list waiting

    @cython.locals(
        offset=cython.longlong, first=cython.longlong, connection=SinglePushConnection, sockets=list
    )
    cpdef stored(self)


cdef class Singles:
    cdef object _topic
    cdef object _call
    cdef list _bodies
    cdef list _waiting
    cdef Py_ssize_t _size
    cdef public Py_ssize_t call_at
    cdef public bint is_open

    cpdef add(self, bytes body, connection)


cdef class SinglePushConnection:
    cdef public bytes route_prefix
    cdef public object route_max_bytes
    cdef public Singles route
    cdef public dict routes
    cdef public SingleReads reads
    cdef public int socket_fd
    cdef public object write
    cdef public object unwritten_bytes
    cdef public object queue
    cdef public object slots
    cdef public bint is_held
    cdef public bint has_single
    cdef public object single_slot
    cdef public bint is_write_paused
    cdef public bint is_read_paused
    cdef public bint is_ending
    cdef public bint is_closing
    cdef public bint is_active

    @cython.locals(singles=Singles, prefix=bytes)
    cpdef take_single(self, bytes data)
    @cython.locals(rest=bytes)
    cpdef take_read(self, bytes data)
    cpdef int single_stored(self, long long offset)


cpdef answer_one(SinglePushConnection connection, long long offset)
