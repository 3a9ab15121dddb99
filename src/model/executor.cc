#include "kvasir/executor.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "model/linear_inputs.h"

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
      linear_inputs_(std::make_unique<LinearInputs>()) {
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

void Executor::LinearInputs::set(const float* x, std::int64_t rows, std::int64_t k) {
  x_ = x;
  rows_ = rows;
  k_ = k;
  quantized_ = rounded_ = false;
}

kernels::InputRows Executor::LinearInputs::get(kernels::InputKind kind, Executor& executor) {
  const auto size = static_cast<std::size_t>(rows_ * k_);
  const kernels::KernelSet& kernels = executor.kernels();
  kernels::InputRows result{.k = k_};
  switch (kind) {
    case kernels::InputKind::kFloat:
      result.floats = x_;
      break;
    case kernels::InputKind::kBF16: {
      const std::int64_t pairs = (k_ + 1) / 2;
      if (!rounded_) {
        bf16_.reserve(static_cast<std::size_t>(rows_ * pairs));
        executor.pool().parallel_for(rows_, [&](std::int64_t row) {
          kernels.round_bf16(x_ + row * k_, k_, bf16_.data() + row * pairs);
        });
        rounded_ = true;
      }
      result.pairs = bf16_.data();
      break;
    }
    case kernels::InputKind::kInt8:
      if (!quantized_) {
        quants_.reserve(size);
        scales_.reserve(size / kernels::kQuantBlock);
        sums_.reserve(size / kernels::kSubBlock);
        executor.pool().parallel_for(rows_, [&](std::int64_t row) {
          const std::int64_t block = row * k_ / kernels::kQuantBlock;
          kernels.quantize(x_ + row * k_, k_, quants_.data() + row * k_, scales_.data() + block,
                           sums_.data() + row * k_ / kernels::kSubBlock);
        });
        quantized_ = true;
      }
      result.quants = quants_.data();
      result.scales = scales_.data();
      result.sums = sums_.data();
      break;
  }
  return result;
}

}  // namespace kvasir
