# Types for topic.py when it is compiled. They do not change what it does.

import cython

from logd.partition cimport Partition
from logd.storage.readable_range cimport ReadableRange, WaitingReaders
from logd.storage.single_push cimport Singles, SinglePushConnection
from logd.storage.topic_sync cimport LogPosition, TopicSync


cdef class Topic:
    cdef dict __dict__
    cdef public str name
    cdef public bint ready
    cdef public bint closing
    cdef public bint has_room
    cdef public tuple damages
    cdef public long long stored_messages
    cdef public long long stored_bytes
    cdef public ReadableRange readable
    cdef public WaitingReaders waiting_readers
    cdef public Partition active
    cdef public Singles singles
    cdef public TopicSync _sync
    cdef public object _scheduler
    cdef public object _config
    cdef public object _job
    cdef public object _expiration
    cdef public object _files
    cdef public object _pending
    cdef public bint _acks_wait
    cdef public bint _came_alone
    cdef public bint _turn_is_due
    cdef public bint _tail_is_dirty
    cdef public long long _time_ms
    cdef public double _partition_began_s

    cpdef turn_soon(self)
    @cython.locals(now_s=cython.double)
    cpdef _single_came(self)
    cpdef bint _may_store_single(self) except -1
    cpdef _turn(self)
    cpdef _take_singles(self)
    cpdef _flush(self)
    @cython.locals(active=Partition, time_ms=cython.longlong, offset=cython.longlong, size=cython.longlong)
    cpdef _store_single(self, double now_s)
    cpdef _job_before_write(self)
    cpdef long long _now_ms(self)
    @cython.locals(active=Partition, commits=TopicSync)
    cpdef _wrote(self, long long messages, long long size, long long batches, double since_s)
