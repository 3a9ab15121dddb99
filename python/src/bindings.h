// What the parts of the module share.
#ifndef KVASIR_PYTHON_BINDINGS_H_
#define KVASIR_PYTHON_BINDINGS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvasir::python {

namespace nb = nanobind;

// Row-major arrays as they come from kvasir/_arrays.py, which has checked and copied them: nothing is
// converted here.
template <class T>
using InputArray = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using OutputArray = nb::ndarray<nb::numpy, T>;

template <class T>
std::span<const T> values(const InputArray<T>& array) {
  return {array.data(), array.size()};
}

// Numpy arrays that own their data.
template <class T>
OutputArray<T> to_numpy(std::unique_ptr<T[]> data, std::initializer_list<std::size_t> shape) {
  T* first = data.get();
  nb::capsule owner(first, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  data.release();
  return OutputArray<T>(first, shape, owner);
}

template <class T>
OutputArray<T> to_numpy(const std::vector<T>& data, std::initializer_list<std::size_t> shape) {
  auto copy = std::make_unique_for_overwrite<T[]>(data.size());
  std::copy(data.begin(), data.end(), copy.get());
  return to_numpy(std::move(copy), shape);
}

// For long computations that run without the GIL: lets Python handle signals (Ctrl-C). Throws what the
// handler raised.
inline void check_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_lab(nb::module_& module);
void bind_model(nb::module_& module);
void bind_engine(nb::module_& module);  // after bind_model

}  // namespace kvasir::python

#endif  // KVASIR_PYTHON_BINDINGS_H_
