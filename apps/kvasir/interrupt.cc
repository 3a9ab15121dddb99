#include "interrupt.h"

namespace kvasir::cli {
namespace {

volatile std::sig_atomic_t g_raised = 0;

void on_interrupt(int signal) {
  g_raised = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptFlag::InterruptFlag() : previous_(std::signal(SIGINT, SIG_IGN)) {
  g_raised = 0;
  // A program that was started with interrupts ignored (nohup, a job in the background) goes on ignoring
  // them.
  if (previous_ != SIG_IGN) std::signal(SIGINT, on_interrupt);
}

InterruptFlag::~InterruptFlag() { std::signal(SIGINT, previous_); }

bool InterruptFlag::raised() const { return g_raised != 0; }

}  // namespace kvasir::cli
