// The one exception type that a caller of Kvasir meets.
#ifndef KVASIR_ERROR_H_
#define KVASIR_ERROR_H_

#include <stdexcept>
#include <string>

namespace kvasir {

enum class ErrorKind {
  kInvalidArgument,  // a parameter, token id, shape or text that cannot be used as given
  kCapacity,         // what was asked for does not fit (context, cache, memory limit)
  kFormat,           // a file that is not what it claims to be
  kIo,               // the operating system refused: missing file, full disk, no permission
  kBusy,             // there is too much to do already: trying again later may succeed
  kRuntime,          // the computation itself failed (for example: logits that are not finite)
};

// what() is one line: it names the thing that is wrong and, where there is one, the mend.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace kvasir

#endif  // KVASIR_ERROR_H_
