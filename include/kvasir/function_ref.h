// A function to be called, owned by somebody else: as std::function, but never allocates.
#ifndef KVASIR_FUNCTION_REF_H_
#define KVASIR_FUNCTION_REF_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace kvasir {

template <class Signature>
class FunctionRef;

// What it refers to must live as long as it is called; empty by default.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  FunctionRef() = default;
  template <class Fn, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<Fn>, FunctionRef>>>
  FunctionRef(Fn&& fn)  // NOLINT(google-explicit-constructor): stands for the function itself
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(fn)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<Fn>*>(object))(std::forward<Args>(args)...);
        }) {}

  explicit operator bool() const { return call_ != nullptr; }
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_ = nullptr;
  Result (*call_)(void* object, Args... args) = nullptr;
};

}  // namespace kvasir

#endif  // KVASIR_FUNCTION_REF_H_
