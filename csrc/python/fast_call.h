// Functions that take their arguments as an array (METH_FASTCALL): pybind11's conversions would cost more than the work
// on a small model.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>
#include <stdexcept>

namespace fatclip {

// Small calls keep the GIL: to release it costs more than they take.
struct MaybeReleaseGil {
  explicit MaybeReleaseGil(int64_t elements) {
    if (elements > (1 << 16)) release.emplace();
  }
  std::optional<pybind11::gil_scoped_release> release;
};

struct Args {
  PyObject* const* at;

  pybind11::handle object(int i) const { return at[i]; }
  double number(int i) const { return checked(PyFloat_AsDouble(at[i]), -1.0); }
  int integer(int i) const { return static_cast<int>(checked(PyLong_AsLong(at[i]), -1L)); }
  bool flag(int i) const { return checked(PyObject_IsTrue(at[i]), -1) == 1; }
  pybind11::list list(int i) const {
    if (!PyList_Check(at[i])) throw pybind11::type_error("expected a list");
    return pybind11::reinterpret_borrow<pybind11::list>(at[i]);
  }

  template <class T>
  static T checked(T value, T mark) {
    if (value == mark && PyErr_Occurred()) throw pybind11::error_already_set();
    return value;
  }
};

template <pybind11::object (*kFunction)(Args), Py_ssize_t kCount>
PyObject* call_fast(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != kCount) return PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", kCount, count);
  try {
    return kFunction(Args{args}).release().ptr();
  } catch (pybind11::error_already_set& e) {
    e.restore();
  } catch (const pybind11::builtin_exception& e) {
    e.set_error();
  } catch (const std::out_of_range& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  }
  return nullptr;
}

// An entry of a module's table of such functions: kFunction takes kCount arguments.
template <pybind11::object (*kFunction)(Args), Py_ssize_t kCount>
PyMethodDef fast_method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_fast<kFunction, kCount>)),
          METH_FASTCALL, nullptr};
}

// The table lives as long as the module: it ends with an empty entry.
inline void add_methods(pybind11::module_& m, PyMethodDef* table) {
  if (PyModule_AddFunctions(m.ptr(), table) != 0) throw pybind11::error_already_set();
}

}  // namespace fatclip
