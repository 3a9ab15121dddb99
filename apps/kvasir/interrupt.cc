#include "interrupt.h"

#include <csignal>

namespace kvasir::cli {
namespace {

volatile std::sig_atomic_t g_raised = 0;

void on_interrupt(int signal) {
  g_raised = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptFlag::InterruptFlag() {
  g_raised = 0;
  std::signal(SIGINT, on_interrupt);
}

InterruptFlag::~InterruptFlag() { std::signal(SIGINT, SIG_DFL); }

bool InterruptFlag::raised() const { return g_raised != 0; }

}  // namespace kvasir::cli
