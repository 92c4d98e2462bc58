# Types for index.py when it is compiled. They do not change what it does.


cdef class Index:
    cdef public object data
    cdef public Py_ssize_t _count
    cdef public object _last_position

    cpdef note(self, long long offset, long long position, long long time_ms)
