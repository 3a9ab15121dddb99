#include "bindings.h"
#include "kvasir/error.h"

namespace kvasir::python {
namespace {

// The one table from kinds of errors to Python's.
PyObject* exception_type(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kCapacity:
    case ErrorKind::kFormat:
      return PyExc_ValueError;
    case ErrorKind::kIo:
      return PyExc_OSError;
    case ErrorKind::kBusy:
    case ErrorKind::kRuntime:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetString(exception_type(error.kind()), error.what());
  }
}

}  // namespace
}  // namespace kvasir::python

NB_MODULE(_kvasir, module) {
  module.doc() = "The C++ engine as kvasir and kvasir.lab use it; not for direct use.";
  nanobind::register_exception_translator(kvasir::python::translate);
  kvasir::python::bind_lab(module);
  kvasir::python::bind_model(module);
  kvasir::python::bind_engine(module);
}
