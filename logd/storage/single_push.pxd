# Types for express.py, where it is compiled. Nothing here changes what it does.

import cython


cdef class SinglePushes:
    cdef public object clients
    cdef public object content
    cdef public object messages
    cdef public object offset
    cdef public list waiting

    @cython.locals(offset=cython.longlong, first=cython.longlong, who=Express, sockets=list)
    cpdef stored(self)


cdef class Singles:
    cdef object _topic
    cdef object _call
    cdef list _bodies
    cdef list _waiting
    cdef Py_ssize_t _size
    cdef public Py_ssize_t call_at
    cdef public bint is_open

    cpdef add(self, bytes body, who)


cdef class Express:
    cdef public bytes _again_prefix
    cdef public object _again_most
    cdef public Singles _again_singles
    cdef public dict _ways
    cdef public int _socket
    cdef public object _write
    cdef public object _unwritten
    cdef public object _queue
    cdef public object _slots
    cdef public bint _held
    cdef public bint _single_is_sent
    cdef public object _single_slot
    cdef public bint _write_is_paused
    cdef public bint _read_is_paused
    cdef public bint _ending
    cdef public bint _closing
    cdef public bint _is_active

    @cython.locals(singles=Singles, prefix=bytes)
    cpdef take_single(self, bytes data)
    cpdef int single_stored(self, long long offset)


cpdef answer_one(Express who, long long offset)
