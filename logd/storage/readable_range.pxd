# Types for readable_range.py when it is compiled. They do not change what it does.


cdef class ReadableRange:
    cdef public object partitions
    cdef public long long first
    cdef public long long next
    cdef public tuple damages
    cdef long long _active_size
    cdef object _on_read

    cpdef set_end(self, long long next_, long long active_size)


cdef class WaitingReaders:
    cdef public dict calls
    cdef public object newest
    cdef public object group
    cdef public object followers
