// The floating-point environment that the arithmetic is defined in: round to nearest even, subnormals kept,
// no traps. A host program may have changed it (flush-to-zero is common), so nothing here trusts it.
#ifndef KVASIR_BASE_FLOAT_ENVIRONMENT_H_
#define KVASIR_BASE_FLOAT_ENVIRONMENT_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "the floating-point control register of this architecture is not known here"
#endif

namespace kvasir {

// Sets the environment for the calling thread and puts the caller's back when it goes out of scope. For the
// whole of a thread's work; a function that computes uses with_defined_floats.
class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(read()) { write(kDefined); }
  ~FloatEnvironment() { write(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kDefined =
      0x1f80;  // MXCSR after reset: all exceptions masked, nearest, no FTZ, no DAZ
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#else
  using Register = std::uint64_t;
  static constexpr Register kDefined = 0;  // FPCR: nearest, no flush to zero, no default NaN
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif
  Register saved_;
};

namespace float_environment_internal {

// Arithmetic on registers does not depend, in the compiler's eyes, on the control register, so that it may be
// moved across a change of it. A call that is not inlined and has side effects may not.
template <class Fn>
[[gnu::noinline]] auto call(Fn& fn) {
  asm volatile("" : : : "memory");
  return fn();
}

}  // namespace float_environment_internal

// fn(), computed in the defined environment, whatever the calling program has set.
template <class Fn>
auto with_defined_floats(Fn&& fn) {
  const FloatEnvironment environment;
  return float_environment_internal::call(fn);
}

}  // namespace kvasir

#endif  // KVASIR_BASE_FLOAT_ENVIRONMENT_H_
