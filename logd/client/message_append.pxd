# Types for intake.py, where it is compiled. Nothing here changes what it does.


cdef class MessageAppend:
    cdef public object _buffer
    cdef public Py_ssize_t _size
    cdef public Py_ssize_t _limit
