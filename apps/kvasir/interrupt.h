// Ctrl-C ends the generation in hand, not the program; a second one does.
#ifndef KVASIR_APPS_INTERRUPT_H_
#define KVASIR_APPS_INTERRUPT_H_

#include <csignal>

namespace kvasir::cli {

// While one exists, SIGINT sets the flag.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  bool raised() const;

 private:
  using Handler = void (*)(int);
  Handler previous_;
};

}  // namespace kvasir::cli

#endif  // KVASIR_APPS_INTERRUPT_H_
