#include "kvasir/executor.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "model/linear_inputs.h"
#include "model/workspace.h"

namespace kvasir {
namespace {

constexpr int kMaxThreads = 1024;

int check_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("threads is {}, must be 0 (all that the process may use) to {}", threads, kMaxThreads));
  }
  return threads == 0 ? usable_processors() : threads;
}

const kernels::KernelSet& find_kernels(const std::string& name) {
  if (name.empty()) return kernels::default_kernels();
  for (const kernels::KernelSet* set : kernels::available_kernels()) {
    if (name == set->name) return *set;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("kernel set \"{}\" is unknown or not for this machine", name));
}

}  // namespace

struct Executor::Buffers {
  std::array<AlignedBuffer<float>, static_cast<std::size_t>(Buffer::kCount)> floats;
};

Executor::Executor(int threads, const std::string& kernel_set)
    : Executor(threads, find_kernels(kernel_set)) {}

Executor::Executor(int threads, const kernels::KernelSet& kernel_set)
    : kernels_(&kernel_set),
      buffers_(std::make_unique<Buffers>()),
      linear_inputs_(std::make_unique<LinearInputs>()),
      workspace_(std::make_unique<Workspace>()) {
  pool_ = std::make_unique<ThreadPool>(check_threads(threads));
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

int Executor::threads() const { return pool_->threads(); }

float* Executor::buffer(Buffer which, std::size_t floats) {
  AlignedBuffer<float>& buffer = buffers_->floats[static_cast<std::size_t>(which)];
  buffer.reserve(floats);
  return buffer.data();
}

void Executor::LinearInputs::convert(const kernels::KernelSet& kernels, kernels::InputKind kind,
                                     std::int64_t row) {
  const std::int64_t k = rows_.k, pairs = (k + 1) / 2;
  const float* x = rows_.floats + row * k;
  switch (kind) {
    case kernels::InputKind::kFloat:
      break;
    case kernels::InputKind::kBF16:
      kernels.round_bf16(x, k, bf16_.data() + row * pairs);
      break;
    case kernels::InputKind::kInt8:
      kernels.quantize(x, k, blocks_.data() + row * k / kernels::kQuantBlock);
      break;
  }
}

void Executor::LinearInputs::set(Executor& executor, const float* x, std::int64_t rows, std::int64_t k,
                                 std::span<const kernels::InputKind> kinds, const RowMaker& maker) {
  rows_ = {.k = k, .floats = x};
  for (const kernels::InputKind kind : kinds) {
    if (kind == kernels::InputKind::kBF16) {
      bf16_.reserve(static_cast<std::size_t>(rows * ((k + 1) / 2)));
      rows_.pairs = bf16_.data();
    } else if (kind == kernels::InputKind::kInt8) {
      blocks_.reserve(static_cast<std::size_t>(rows * k / kernels::kQuantBlock));
      rows_.blocks = blocks_.data();
    }
  }
  executor.pool().parallel_for(rows, [&](std::int64_t row) {
    if (maker.make) maker.make(row);
    for (const kernels::InputKind kind : kinds) convert(executor.kernels(), kind, row);
  });
  if (maker.made) maker.made();
}

}  // namespace kvasir
