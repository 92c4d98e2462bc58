# Types for topic_sync.py when it is compiled. They do not change what it does.

import cython


cdef class LogPosition:
    cdef readonly long long partition
    cdef readonly long long position
    cdef readonly long long next
    cdef readonly long long batches


cdef class TopicSync:
    cdef dict __dict__
    cdef public LogPosition written
    cdef public LogPosition synced
    cdef public bint is_stopped
    cdef public long long awaiting
    cdef public double delayed_since_s
    cdef object _scheduler
    cdef object _policy
    cdef object _job
    cdef object _topic
    cdef object _timer
    cdef double _oldest_at_s

    cpdef wrote(self, LogPosition end, double now_s)
    @cython.locals(has_much=cython.bint)
    cpdef start_when_due(self)
