# Types for message_append.py where it is compiled. They do not change what it does.


cdef class MessageAppend:
    cdef public object _buffer
    cdef public Py_ssize_t _size
    cdef public Py_ssize_t _limit
