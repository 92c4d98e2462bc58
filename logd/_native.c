/* The loops over single messages that a profile shows. Each has a fallback in Python, for machines
 * without a compiler.
 *
 * count: the daemon checks every body of lines it stores, and bytes.count of CPython 3.11 goes byte
 * by byte: half of the time of a 64 KB push. This loop is one the compiler turns into vector
 * instructions. Fallback in logd/batch.py.
 *
 * split: the same is true of bytes.split; this one leaps from line end to line end with memchr, and
 * takes a view of a larger buffer as it is. Fallback in logd/batch.py.
 *
 * sizes: the line of sizes of a sized body may hold four million numbers. This checks and adds them without
 * an object for each, and without the interpreter lock. Fallback in logd/batch.py.
 *
 * elements: a JSON array may hold as many elements. This finds where they are, a few at a time. Fallback in
 * logd/web/json_parser.py.
 *
 * one_push, pushes, mixed_pushes: most of what a daemon receives is pushes of one message, of any size, to the topic that the
 * last one went to. Fallback in logd/wire/requests.py.
 *
 * ok_lines: the replies to pushes of one message each to several topics. Fallback in logd/net/replies.py.
 *
 * answer: clients that wait for one message each are answered side by side, without a call into the
 * event loop and an object for each. Fallback in logd/storage/single_push.py.
 *
 * deliver: the followers of a topic are sent the same bytes. Fallback in logd/net/follow.py.
 *
 * header: the header of a batch. Fallback in logd/batch.py.
 *
 * one_read, send_batches: a READ of a few messages, from the command line to the reply. Without it such a READ
 * takes the same way as any other.
 *
 * label: a reader hands out each message as a tuple of offset, time and value. Fallback in
 * logd/wire/read_state.py. */

#define _GNU_SOURCE /* preadv2 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* A block is short enough for its count to fit into a byte, which is what vectors add fastest. */
enum { BLOCK = 192 };

static Py_ssize_t count_line_ends(const unsigned char *at, Py_ssize_t size)
{
    Py_ssize_t total = 0;
    for (; size >= BLOCK; at += BLOCK, size -= BLOCK) {
        unsigned char found = 0;
        for (int i = 0; i < BLOCK; i++)
            found = (unsigned char)(found + (at[i] == '\n'));
        total += found;
    }
    for (Py_ssize_t i = 0; i < size; i++)
        total += at[i] == '\n';
    return total;
}

static PyObject *count(PyObject *module, PyObject *object)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t total = count_line_ends(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(total);
}

static PyObject *split(PyObject *module, PyObject *object)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const char *at = view.buf, *end = at + view.len;
    Py_ssize_t size = count_line_ends(view.buf, view.len);
    PyObject *lines = PyList_New(size);
    for (Py_ssize_t i = 0; lines != NULL && i < size; i++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        PyObject *line = PyBytes_FromStringAndSize(at, stop - at);
        if (line == NULL)
            Py_CLEAR(lines);
        else
            PyList_SET_ITEM(lines, i, line);
        at = stop + 1;
    }
    PyBuffer_Release(&view);
    return lines;
}

enum { MAX_DIGITS = 10 }; /* of one size */

/* Where the messages of a sized body start, or -1 where it does not start with a line of sizes. */
static Py_ssize_t read_sizes(const char *at, Py_ssize_t size, Py_ssize_t *count, long long *total)
{
    const char *first = at, *end = at + size;
    for (;;) {
        const char *digits = at;
        long long number = 0;
        while (at < end && *at >= '0' && *at <= '9' && at - digits <= MAX_DIGITS)
            number = 10 * number + (*at++ - '0');
        Py_ssize_t length = at - digits;
        if (length == 0 || length > MAX_DIGITS || (*digits == '0' && length > 1) || at == end)
            return -1;
        *count += 1;
        *total += number;
        if (*at == '\n')
            return at + 1 - first;
        if (*at++ != ' ')
            return -1;
    }
}

static PyObject *sizes(PyObject *module, PyObject *object)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t start, count = 0;
    long long total = 0;
    Py_BEGIN_ALLOW_THREADS
    start = read_sizes(view.buf, view.len, &count, &total);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (start < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(nnL)", count, start, total);
}

/* Where the `,` or `]` after the JSON value at `at` is; -1 where there is none. */
static Py_ssize_t element_end(const char *data, Py_ssize_t at, Py_ssize_t size)
{
    Py_ssize_t depth = 0;
    for (; at < size; at++) {
        switch (data[at]) {
        case '"':
            for (at++; at < size && data[at] != '"'; at++)
                at += data[at] == '\\';
            break;
        case '[':
        case '{':
            depth++;
            break;
        case ']':
        case '}':
            if (depth-- == 0)
                return at;
            break;
        case ',':
            if (depth == 0)
                return at;
            break;
        }
    }
    return -1;
}

static int is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static PyObject *elements(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer view;
    Py_ssize_t at, most;
    if (!PyArg_ParseTuple(args, "y*nn", &view, &at, &most))
        return NULL;
    const char *data = view.buf;
    PyObject *spans = PyList_New(0);
    int is_open = at >= 0;
    while (spans != NULL && is_open && PyList_GET_SIZE(spans) < most) {
        Py_ssize_t start = at, end = element_end(data, at, view.len);
        if (end < 0) {
            at = -1;
            break;
        }
        is_open = data[end] == ',';
        at = is_open ? end + 1 : 0;
        while (start < end && is_space(data[start]))
            start++;
        while (end > start && is_space(data[end - 1]))
            end--;
        PyObject *span = start == end ? NULL : Py_BuildValue("nn", start, end);
        if (start != end && (span == NULL || PyList_Append(spans, span) < 0))
            Py_CLEAR(spans);
        Py_XDECREF(span);
    }
    PyBuffer_Release(&view);
    return spans == NULL ? NULL : Py_BuildValue("(Nn)", spans, at);
}

/* Never tracked: numbers and bytes refer to nothing, so no cycle can form for the collector to find. */
static PyObject *labelled(PyTypeObject *type, Py_ssize_t offset, PyObject *time, PyObject *value)
{
    PyTupleObject *message = PyObject_GC_NewVar(PyTupleObject, type, 3);
    if (message == NULL)
        return NULL;
#if PY_VERSION_HEX >= 0x030E0000
    message->ob_hash = -1; /* not known yet */
#endif
    PyTuple_SET_ITEM(message, 0, PyLong_FromSsize_t(offset));
    PyTuple_SET_ITEM(message, 1, Py_NewRef(time));
    PyTuple_SET_ITEM(message, 2, Py_NewRef(value));
    if (PyTuple_GET_ITEM(message, 0) == NULL)
        Py_CLEAR(message);
    return (PyObject *)message;
}

static PyObject *label(PyObject *module, PyObject *args)
{
    (void)module;
    PyTypeObject *type;
    PyObject *time, *values;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "O!nO!O!", &PyType_Type, &type, &offset, &PyLong_Type, &time,
                          &PyList_Type, &values))
        return NULL;
    if (!PyType_IsSubtype(type, &PyTuple_Type) || type->tp_basicsize != PyTuple_Type.tp_basicsize ||
        type->tp_dictoffset != 0) {
        PyErr_SetString(PyExc_TypeError, "label makes tuples of three, with nothing beside them");
        return NULL;
    }
    Py_ssize_t size = PyList_GET_SIZE(values);
    PyObject *messages = PyList_New(size);
    for (Py_ssize_t i = 0; messages != NULL && i < size; i++) {
        PyObject *message = labelled(type, offset + i, time, PyList_GET_ITEM(values, i));
        if (message == NULL)
            Py_CLEAR(messages);
        else
            PyList_SET_ITEM(messages, i, message);
    }
    return messages;
}

/* Where the one message of a push starts that stands at `at`, and its size; NULL if no such push does. */
static const char *message_of_push(const char *at, const char *end, PyObject *prefix, Py_ssize_t most,
                                   Py_ssize_t *size)
{
    Py_ssize_t skip = PyBytes_GET_SIZE(prefix), number = 0;
    if (end - at < skip || memcmp(at, PyBytes_AS_STRING(prefix), (size_t)skip) != 0)
        return NULL;
    const char *digits = at += skip;
    while (at < end && *at >= '0' && *at <= '9' && number <= most)
        number = 10 * number + (*at++ - '0');
    if (at - digits > 19 || number < 1 || number > most)
        return NULL;
    at += at < end && *at == '\r';
    if (at == end || *at++ != '\n')
        return NULL;
    if (end - at < number || memchr(at, '\n', (size_t)number) != at + number - 1)
        return NULL;
    *size = number;
    return at;
}

static PyObject *one_push(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 3 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "one_push takes bytes, bytes and a size");
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(args[2]), size = 0;
    if (most == -1 && PyErr_Occurred())
        return NULL;
    const char *data = PyBytes_AS_STRING(args[0]), *end = data + PyBytes_GET_SIZE(args[0]);
    const char *message = message_of_push(data, end, args[1], most, &size);
    if (message == NULL || message + size != end)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(message, size);
}

static PyObject *pushes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *prefix;
    Py_ssize_t start, most, room, size = 0;
    if (!PyArg_ParseTuple(args, "SnSnn", &data, &start, &prefix, &most, &room))
        return NULL;
    if (start < 0 || start > PyBytes_GET_SIZE(data)) {
        PyErr_SetString(PyExc_ValueError, "pushes begins inside its data");
        return NULL;
    }
    PyObject *bodies = PyList_New(0);
    const char *first = PyBytes_AS_STRING(data), *at = first + start, *message;
    const char *end = first + PyBytes_GET_SIZE(data);
    while (bodies != NULL && (message = message_of_push(at, end, prefix, most, &size)) != NULL &&
           (room -= size) >= 0) {
        PyObject *body = PyBytes_FromStringAndSize(message, size);
        if (body == NULL || PyList_Append(bodies, body) < 0)
            Py_CLEAR(bodies);
        Py_XDECREF(body);
        at = message + size;
    }
    return bodies == NULL ? NULL : Py_BuildValue("(Nn)", bodies, (Py_ssize_t)(at - first));
}

enum { MAX_RUNS = 256 }; /* a run is a byte in the list of turns */

/* Which run the push at `at` belongs to, its message and size; -1 if to none. Turns often repeat, so the run after
 * the last one is tried first. */
static Py_ssize_t run_of_push(const char *at, const char *end, PyObject *prefixes, Py_ssize_t last, Py_ssize_t most,
                              const char **message, Py_ssize_t *size)
{
    Py_ssize_t count = PyList_GET_SIZE(prefixes);
    for (Py_ssize_t tried = 0; tried < count; tried++) {
        Py_ssize_t run = (last + 1 + tried) % count;
        *message = message_of_push(at, end, PyList_GET_ITEM(prefixes, run), most, size);
        if (*message != NULL)
            return run;
    }
    return -1;
}

static int append_bytes(PyObject *list, const char *data, Py_ssize_t size)
{
    PyObject *item = PyBytes_FromStringAndSize(data, size);
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

static PyObject *mixed_pushes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *prefixes, *bodies, *turns;
    Py_ssize_t start, stop, most, size = 0, run = -1;
    if (!PyArg_ParseTuple(args, "SnnnO!O!O!", &data, &start, &stop, &most, &PyList_Type, &prefixes, &PyList_Type,
                          &bodies, &PyByteArray_Type, &turns))
        return NULL;
    if (start < 0 || start > stop || stop > PyBytes_GET_SIZE(data) || PyList_GET_SIZE(prefixes) > MAX_RUNS ||
        PyList_GET_SIZE(prefixes) != PyList_GET_SIZE(bodies)) {
        PyErr_SetString(PyExc_ValueError, "mixed_pushes begins and ends inside its data, and has a list for each prefix");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(prefixes); i++)
        if (!PyBytes_Check(PyList_GET_ITEM(prefixes, i)))
            return PyErr_Format(PyExc_TypeError, "mixed_pushes takes prefixes as bytes");
    const char *first = PyBytes_AS_STRING(data), *at = first + start, *end = first + stop, *message;
    while ((run = run_of_push(at, end, prefixes, run, most, &message, &size)) >= 0) {
        Py_ssize_t count = PyByteArray_GET_SIZE(turns);
        PyObject *list = PyList_GET_ITEM(bodies, run);
        if (!PyList_Check(list) || append_bytes(list, message, size) < 0 || PyByteArray_Resize(turns, count + 1) < 0)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "mixed_pushes takes a list of lists");
        PyByteArray_AS_STRING(turns)[count] = (char)run;
        at = message + size;
    }
    return PyLong_FromSsize_t(at - first);
}

static char *write_number(char *to, unsigned long long number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

static size_t write_answer(char *to, unsigned long long offset)
{
    memcpy(to, "OK ", 3);
    char *end = write_number(to + 3, offset);
    memcpy(end, " 1\r\n", 4);
    return (size_t)(end + 4 - to);
}

enum { ANSWER = 27 }; /* the longest one */

static PyObject *ok_lines(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *turns, *offsets;
    unsigned long long next[MAX_RUNS];
    if (!PyArg_ParseTuple(args, "SO!", &turns, &PyList_Type, &offsets))
        return NULL;
    Py_ssize_t runs = PyList_GET_SIZE(offsets), count = PyBytes_GET_SIZE(turns);
    for (Py_ssize_t i = 0; i < runs && i < MAX_RUNS; i++)
        next[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(offsets, i));
    const unsigned char *run = (const unsigned char *)PyBytes_AS_STRING(turns);
    PyObject *lines = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, count * ANSWER);
    if (lines == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(lines);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (run[i] >= runs) {
            Py_DECREF(lines);
            return PyErr_Format(PyExc_ValueError, "ok_lines takes an offset for each run");
        }
        at += write_answer(at, next[run[i]]++);
    }
    _PyBytes_Resize(&lines, at - PyBytes_AS_STRING(lines));
    return lines;
}

/* Into `sent`, for each socket: how many bytes the kernel took, or -1 where nothing is left to send. */
static int send_answers(int *sent, Py_ssize_t count, unsigned long long offset)
{
    char text[32];
    int unsent = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (sent[i] < 0)
            continue;
        size_t size = write_answer(text, offset + (unsigned long long)i);
        ssize_t taken = send(sent[i], text, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent[i] = taken == (ssize_t)size ? -1 : taken > 0 ? (int)taken : 0;
        unsent += sent[i] >= 0;
    }
    return unsent;
}

/* The same with `data` for every socket. */
static int send_copies(int *sent, Py_ssize_t count, const char *data, size_t size)
{
    int unsent = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        ssize_t taken = send(sent[i], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent[i] = taken == (ssize_t)size ? -1 : taken > 0 ? (int)taken : 0;
        unsent += sent[i] >= 0;
    }
    return unsent;
}

enum { FEW = 64 }; /* sockets that need no memory of their own */

static int *numbers_of(PyObject *list, int *few)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    int *numbers = count <= FEW ? few : PyMem_Malloc((size_t)count * sizeof *numbers);
    if (numbers == NULL)
        return (int *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        numbers[i] = (int)PyLong_AsLong(PyList_GET_ITEM(list, i));
    return numbers;
}

/* A list of the sockets that something is left for, by index, with what they took. */
static PyObject *left_of(const int *sent, Py_ssize_t count, int unsent)
{
    PyObject *left = PyErr_Occurred() ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; left != NULL && unsent > 0 && i < count; i++) {
        PyObject *one = sent[i] < 0 ? NULL : Py_BuildValue("ni", i, sent[i]);
        if (sent[i] >= 0 && (one == NULL || PyList_Append(left, one) < 0))
            Py_CLEAR(left);
        Py_XDECREF(one);
    }
    return left;
}

static PyObject *answer(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "answer takes a list of sockets and an offset");
        return NULL;
    }
    unsigned long long offset = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(args[0]);
    int few[FEW], unsent = 0, *sent = numbers_of(args[0], few);
    if (sent == NULL)
        return NULL;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        unsent = send_answers(sent, count, offset);
        Py_END_ALLOW_THREADS
    }
    PyObject *left = left_of(sent, count, unsent);
    if (sent != few)
        PyMem_Free(sent);
    return left;
}

static PyObject *deliver(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 2 || !PyList_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "deliver takes a list of sockets and bytes");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(args[0]);
    int few[FEW], unsent = 0, *sent = numbers_of(args[0], few);
    if (sent == NULL)
        return NULL;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        unsent = send_copies(sent, count, PyBytes_AS_STRING(args[1]), (size_t)PyBytes_GET_SIZE(args[1]));
        Py_END_ALLOW_THREADS
    }
    PyObject *left = left_of(sent, count, unsent);
    if (sent != few)
        PyMem_Free(sent);
    return left;
}

/* ---- the header of a batch ---- */

static uint32_t rotated(uint32_t number, int bits)
{
    return number << bits | number >> (32 - bits);
}

static uint32_t word_at(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* XXH32 with the seed 0, as specified by its authors. */
static uint32_t xxh32(const char *data, size_t size)
{
    const uint32_t p1 = 2654435761U, p2 = 2246822519U, p3 = 3266489917U, p4 = 668265263U, p5 = 374761393U;
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    uint32_t sum = p5;
    if (size >= 16) {
        uint32_t lanes[4] = {p1 + p2, p2, 0, 0U - p1};
        for (; end - at >= 16; at += 16)
            for (int i = 0; i < 4; i++)
                lanes[i] = rotated(lanes[i] + word_at(at + 4 * i) * p2, 13) * p1;
        sum = rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18);
    }
    sum += (uint32_t)size;
    for (; end - at >= 4; at += 4)
        sum = rotated(sum + word_at(at) * p3, 17) * p4;
    for (; at < end; at++)
        sum = rotated(sum + *at * p5, 11) * p1;
    sum = (sum ^ sum >> 15) * p2;
    sum = (sum ^ sum >> 13) * p3;
    return sum ^ sum >> 16;
}

static void write_hex(char *to, uint32_t number)
{
    for (int i = 7; i >= 0; i--, number >>= 4)
        to[i] = "0123456789abcdef"[number & 15];
}

enum { MAX_HEADER = 1024, NUMBERS = 4, WORDS = 3 };

/* `more` is words that this version does not know, each followed by a space. */
static PyObject *header(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    char text[MAX_HEADER], *at = text + 6, *end = text + MAX_HEADER - 12;
    if (given < NUMBERS + WORDS - 1 || given > NUMBERS + WORDS + 1) {
        PyErr_SetString(PyExc_TypeError, "header takes four numbers and two to four words");
        return NULL;
    }
    memcpy(text, "BATCH ", 6);
    for (int i = 0; i < NUMBERS; i++) {
        unsigned long long number = PyLong_AsUnsignedLongLong(args[i]);
        if (number == (unsigned long long)-1 && PyErr_Occurred())
            return NULL;
        at = write_number(at, number);
        *at++ = ' ';
    }
    for (Py_ssize_t i = NUMBERS; i < given; i++) {
        Py_ssize_t size;
        const char *word = PyUnicode_AsUTF8AndSize(args[i], &size);
        if (word == NULL)
            return NULL;
        if (size >= end - at) {
            PyErr_SetString(PyExc_ValueError, "a header is at most 1,024 bytes");
            return NULL;
        }
        memcpy(at, word, (size_t)size);
        at += size;
        if (i < NUMBERS + WORDS)
            *at++ = ' ';
    }
    if (given < NUMBERS + WORDS) {
        memcpy(at, "- ", 2);
        at += 2;
    }
    write_hex(at, xxh32(text, (size_t)(at - text)));
    memcpy(at + 8, "\r\n", 2);
    return PyBytes_FromStringAndSize(text, at + 10 - text);
}

struct batch { /* as its header describes it */
    unsigned long long offset, next, size; /* the size of header and body */
};

/* The number at *at, up to a byte that is no digit; *at is NULL if there is none, or too large a one. */
static unsigned long long read_number(const char **at, const char *end)
{
    const char *digits = *at, *stop = digits;
    unsigned long long number = 0;
    while (stop < end && *stop >= '0' && *stop <= '9' && stop - digits < 19)
        number = 10 * number + (unsigned long long)(*stop++ - '0');
    *at = stop == digits || stop - digits == 19 ? NULL : stop;
    return number;
}

/* A valid header at `at`, of a batch with messages; 0 if there is none. */
static int read_header(const char *at, const char *end, struct batch *batch)
{
    char sum[8];
    const char *start = at;
    unsigned long long fields[3];
    const char *stop = memchr(at, '\n', (size_t)(end - at > MAX_HEADER ? MAX_HEADER : end - at));
    if (stop == NULL || stop - at < 16 || memcmp(at, "BATCH ", 6) != 0 || stop[-1] != '\r')
        return 0;
    write_hex(sum, xxh32(at, (size_t)(stop - 9 - at)));
    if (memcmp(sum, stop - 9, 8) != 0)
        return 0;
    at += 6;
    for (int i = 0; i < 3; i++) {
        fields[i] = read_number(&at, stop);
        if (at == NULL || *at++ != ' ')
            return 0;
    }
    batch->offset = fields[0];
    batch->next = fields[0] + fields[1];
    batch->size = fields[2] + (unsigned long long)(stop + 1 - start);
    return fields[1] > 0 && fields[2] > 0 && fields[2] < 1ULL << 32;
}

/* ---- a READ of a few messages ---- */

static PyObject *one_read(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    if (given != 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "one_read takes bytes and a prefix");
        return NULL;
    }
    const char *at = PyBytes_AS_STRING(args[0]), *end = at + PyBytes_GET_SIZE(args[0]);
    Py_ssize_t skip = PyBytes_GET_SIZE(args[1]);
    if (end - at < skip || memcmp(at, PyBytes_AS_STRING(args[1]), (size_t)skip) != 0)
        Py_RETURN_NONE;
    at += skip;
    unsigned long long offset = read_number(&at, end), messages = 0;
    if (at != NULL && at < end && *at++ == ' ' && at < end && *at != '0')
        messages = read_number(&at, end);
    if (!messages || at == NULL)
        Py_RETURN_NONE;
    at += at < end && *at == '\r';
    if (end - at != 1 || *at != '\n')
        Py_RETURN_NONE;
    return Py_BuildValue("KK", offset, messages);
}

enum { ENTRY = 32, WINDOW = 64 * 1024, HEAD = 80 };

static unsigned long long field_at(const unsigned char *at)
{
    return (unsigned long long)word_at(at) | (unsigned long long)word_at(at + 4) << 32;
}

/* The position of the last entry up to `offset`, as an index; -1 if there is none. */
static Py_ssize_t entry_up_to(const unsigned char *entries, Py_ssize_t count, unsigned long long offset)
{
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (field_at(entries + middle * ENTRY) <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

struct range { /* of whole batches in a window of a file */
    unsigned long long next;
    size_t start, end;
};

/* The batches with the messages from `offset` to `last`. The window starts with the batch `expected`. */
static int find_batches(const char *window, size_t size, unsigned long long expected, unsigned long long offset,
                        unsigned long long last, struct range *found)
{
    struct batch batch;
    size_t at = 0, start = size;
    do {
        if (!read_header(window + at, window + size, &batch) || batch.offset != expected || batch.size > size - at)
            return 0;
        if (start == size && batch.next > offset)
            start = at;
        at += (size_t)batch.size;
        expected = batch.next;
    } while (batch.next <= last && at < size);
    *found = (struct range){batch.next, start, at};
    return batch.next > last && start < size;
}

static size_t write_batches_line(char *to, unsigned long long offset, const struct range *found)
{
    char *at = to + 8;
    memcpy(to, "BATCHES ", 8);
    at = write_number(at, offset);
    *at++ = ' ';
    at = write_number(at, found->next - offset);
    *at++ = ' ';
    at = write_number(at, found->end - found->start);
    memcpy(at, "\r\n", 2);
    return (size_t)(at + 2 - to);
}

/* Sends the reply to a READ of `messages` messages from `offset`. The partition ends at the offset `next` and the
 * position `end`. Returns the size of the reply, with what the socket did not accept if there is any; None, and
 * nothing is sent, unless the reply is one small run of cached and valid batches where the index says. */
static PyObject *send_batches(PyObject *module, PyObject *args)
{
    (void)module;
    int socket, file;
    Py_buffer index;
    unsigned long long offset, messages, next, end;
    char buffer[HEAD + WINDOW], line[HEAD];
    struct range found;
    if (!PyArg_ParseTuple(args, "iiy*KKKK", &socket, &file, &index, &offset, &messages, &next, &end))
        return NULL;
    Py_ssize_t count = index.len / ENTRY, i = entry_up_to(index.buf, count, offset);
    unsigned long long first = 0, position = 0, last = offset + messages - 1;
    if (i >= 0) {
        const unsigned char *entry = (const unsigned char *)index.buf + i * ENTRY;
        first = field_at(entry);
        position = field_at(entry + 8);
        if (i + 1 < count && field_at(entry + ENTRY) <= next) {
            next = field_at(entry + ENTRY);
            end = field_at(entry + ENTRY + 8);
        }
    }
    PyBuffer_Release(&index);
    if (i < 0 || last >= next || end <= position || end - position > WINDOW)
        Py_RETURN_NONE;
    size_t size = (size_t)(end - position);
    struct iovec window = {buffer + HEAD, size};
    if (preadv2(file, &window, 1, (off_t)position, RWF_NOWAIT) != (ssize_t)size ||
        !find_batches(buffer + HEAD, size, first, offset, last, &found))
        Py_RETURN_NONE;
    size_t head = write_batches_line(line, offset, &found), body = found.end - found.start;
    char *reply = buffer + HEAD + found.start - head;
    memcpy(reply, line, head);
    ssize_t sent = send(socket, reply, head + body, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == (ssize_t)(head + body))
        return PyLong_FromSize_t(body);
    sent = sent < 0 ? 0 : sent; /* if the socket is broken, the next attempt finds out */
    return Py_BuildValue("ny#", (Py_ssize_t)body, reply + sent, (Py_ssize_t)(head + body) - sent);
}

static PyMethodDef methods[] = {
    {"count", count, METH_O, "count(buffer) -> how many LF it holds"},
    {"split", split, METH_O, "split(buffer) -> its lines, each without its LF"},
    {"sizes", sizes, METH_O,
     "sizes(buffer) -> how many sizes its first line holds, where that ends, and their sum; None if the line has another form"},
    {"elements", elements, METH_VARARGS,
     "elements(array, at, most) -> where up to so many elements of a JSON array start and end, and where the next one "
     "starts: 0 if there is none, -1 if the array does not end"},
    {"label", label, METH_VARARGS,
     "label(type, offset, time, values) -> a list of type(offset, time, value), counting up"},
    {"one_push", (PyCFunction)(void (*)(void))one_push, METH_FASTCALL,
     "one_push(data, prefix, most) -> the message, if data is one push of one message"},
    {"pushes", pushes, METH_VARARGS,
     "pushes(data, at, prefix, most, room) -> the messages of the pushes there, and where they end"},
    {"mixed_pushes", mixed_pushes, METH_VARARGS,
     "mixed_pushes(data, at, end, most, prefixes, bodies, turns) -> where the pushes with known prefixes end"},
    {"ok_lines", ok_lines, METH_VARARGS, "ok_lines(turns, offsets) -> OK <offset> 1 for each turn"},
    {"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL,
     "answer(sockets, offset) -> which got only a part of OK <offset + i> 1, and how much of it"},
    {"deliver", (PyCFunction)(void (*)(void))deliver, METH_FASTCALL,
     "deliver(sockets, data) -> which did not accept all of the data, and how much they accepted"},
    {"header", (PyCFunction)(void (*)(void))header, METH_FASTCALL,
     "header(offset, messages, size, time_ms, enc, sum, id='-', more='') -> the header of a batch"},
    {"one_read", (PyCFunction)(void (*)(void))one_read, METH_FASTCALL,
     "one_read(data, prefix) -> the offset and the number of messages, if data is one READ"},
    {"send_batches", send_batches, METH_VARARGS,
     "send_batches(socket, file, index, offset, messages, next, end) -> the size of the reply, or None"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "logd._native", "Counting and labelling messages, fast.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
