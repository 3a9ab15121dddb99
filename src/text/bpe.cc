#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

namespace kvasir {
namespace {

// Up to here a plain scan for the best pair beats the heap (most words have fewer bytes).
constexpr std::size_t kFewSymbols = 24;

std::uint64_t pack(std::uint32_t high, std::uint32_t low) { return std::uint64_t{high} << 32 | low; }
std::uint64_t pack(TokenId left, TokenId right) {
  return pack(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right));
}

}  // namespace

Bpe::Bpe(std::vector<Merge> merges) : merges_(std::move(merges)) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2, 2 * merges_.size()));
  hash_shift_ = 64 - std::countr_zero(size);
  slots_.assign(size, Slot{0, kNone});
  for (std::uint32_t rank = 0; rank < merges_.size(); ++rank) {
    const std::uint64_t pair = pack(merges_[rank].left, merges_[rank].right);
    Slot& slot = slots_[slot_of(pair)];
    if (slot.rank == kNone) slot = {pair, rank};
  }
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  // Multiplicative hashing (Knuth, TAOCP 3, 6.4) by 2^64 / golden ratio. The halves are folded first: the top
  // bits of the product must depend on both ids.
  std::size_t i = ((pair ^ pair >> 29) * 0x9E3779B97F4A7C15U) >> hash_shift_;
  while (slots_[i].rank != kNone && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
  return i;
}

std::uint32_t Bpe::rank_of(TokenId left, TokenId right) const {
  return slots_[slot_of(pack(left, right))].rank;
}

void Bpe::merge(std::vector<TokenId>& symbols, Workspace& workspace) const {
  if (symbols.size() <= kFewSymbols) {
    merge_few(symbols);
  } else {
    merge_many(symbols, workspace);
  }
}

void Bpe::merge_few(std::vector<TokenId>& symbols) const {
  std::size_t n = symbols.size();
  if (n < 2) return;
  std::uint32_t ranks[kFewSymbols];  // [n - 1] of each symbol with the one after it
  for (std::size_t i = 0; i + 1 < n; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  for (; n > 1; --n) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    symbols[best] = merges_[ranks[best]].result;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 2 < n) std::copy(ranks + best + 2, ranks + n - 1, ranks + best + 1);
    if (best + 2 < n) ranks[best] = rank_of(symbols[best], symbols[best + 1]);
    if (best > 0) ranks[best - 1] = rank_of(symbols[best - 1], symbols[best]);
  }
  symbols.resize(n);
}

void Bpe::merge_many(std::vector<TokenId>& symbols, Workspace& workspace) const {
  const auto n = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t>& other_end = workspace.other_end;
  std::vector<std::uint64_t>& heap = workspace.heap;
  constexpr TokenId kGone = -1;  // at each place but the first of a symbol
  other_end.resize(n);
  std::iota(other_end.begin(), other_end.end(), 0U);
  heap.clear();
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    const std::uint32_t rank = rank_of(symbols[i], symbols[i + 1]);
    if (rank != kNone) heap.push_back(pack(rank, i));
  }
  const auto worse = std::greater<>();  // makes the smallest (best rank, then leftmost) the top
  std::make_heap(heap.begin(), heap.end(), worse);
  const auto consider = [&](std::uint32_t left, std::uint32_t right) {
    const std::uint32_t rank = rank_of(symbols[left], symbols[right]);
    if (rank == kNone) return;
    heap.push_back(pack(rank, left));
    std::push_heap(heap.begin(), heap.end(), worse);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), worse);
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto left = static_cast<std::uint32_t>(top);
    const Merge& merge = merges_[top >> 32];
    // An earlier merge may have taken either side.
    if (symbols[left] != merge.left) continue;
    const std::uint32_t right = other_end[left] + 1;
    if (right == n || symbols[right] != merge.right) continue;
    const std::uint32_t last = other_end[right];
    symbols[left] = merge.result;
    symbols[right] = kGone;
    other_end[left] = last;
    other_end[last] = left;
    if (last + 1 != n) consider(left, last + 1);
    if (left != 0) consider(other_end[left - 1], left);
  }
  std::erase(symbols, kGone);
}

}  // namespace kvasir
