/* How many line ends a buffer holds. The daemon checks every body of lines it stores, and
 * bytes.count of CPython 3.11 goes byte by byte: half of the time of a 64 KB push. This loop is one
 * the compiler turns into vector instructions. Without it logd/batch.py falls back to bytes.count. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

static PyMethodDef methods[] = {
    {"count", count, METH_O, "count(buffer) -> how many LF it holds"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "logd._lines", "Counting line ends, fast.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lines(void)
{
    return PyModule_Create(&definition);
}
