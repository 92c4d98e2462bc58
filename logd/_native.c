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
 * one_push, pushes: most of what a daemon receives is pushes of one message, of any size, to the topic that the
 * last one went to. Fallback in logd/wire/requests.py.
 *
 * answer: clients that wait for one message each are answered side by side, without a call into the
 * event loop and an object for each. Fallback in logd/storage/single_push.py.
 *
 * label: a reader hands out each message as a tuple of offset, time and value. Fallback in
 * logd/wire/read_state.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/socket.h>

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

static size_t write_answer(char *to, unsigned long long offset)
{
    char digits[20];
    size_t count = 0, at = 3;
    do
        digits[count++] = (char)('0' + offset % 10);
    while (offset /= 10);
    memcpy(to, "OK ", 3);
    while (count)
        to[at++] = digits[--count];
    memcpy(to + at, " 1\r\n", 4);
    return at + 4;
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
    int few[64], *sent = count <= 64 ? few : PyMem_Malloc((size_t)count * sizeof *sent);
    if (sent == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        sent[i] = (int)PyLong_AsLong(PyList_GET_ITEM(args[0], i));
    int unsent = 0;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        unsent = send_answers(sent, count, offset);
        Py_END_ALLOW_THREADS
    }
    PyObject *left = PyErr_Occurred() ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; left != NULL && unsent > 0 && i < count; i++) {
        PyObject *one = sent[i] < 0 ? NULL : Py_BuildValue("ni", i, sent[i]);
        if (sent[i] >= 0 && (one == NULL || PyList_Append(left, one) < 0))
            Py_CLEAR(left);
        Py_XDECREF(one);
    }
    if (sent != few)
        PyMem_Free(sent);
    return left;
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
    {"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL,
     "answer(sockets, offset) -> which got only a part of OK <offset + i> 1, and how much of it"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "logd._native", "Counting and labelling messages, fast.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
