// Byte-pair encoding: joins neighbouring tokens by a ranked list of merges.
#ifndef KVASIR_TEXT_BPE_H_
#define KVASIR_TEXT_BPE_H_

#include <cstdint>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

struct Merge {
  TokenId left, right;
  TokenId result;  // the token that the two become
};

// Immutable; may be used from several threads, each with its own Workspace.
class Bpe {
 public:
  // Best merge first. Of two merges with the same left and right the better one counts.
  explicit Bpe(std::vector<Merge> merges);

  struct Workspace {
    // [symbols] A symbol takes up all places that were merged into it. Of its first place: its last one; of
    // its last place: its first one. (Half the memory of a doubly linked list, and memory is what a long word
    // costs most.)
    std::vector<std::uint32_t> other_end;
    std::vector<std::uint64_t>
        heap;  // candidates: rank in the high half, first place of the left symbol below
  };

  // Sennrich et al. 2016: while any two neighbours can merge, merges the pair with the best rank, the
  // leftmost of equals. In place. Time O(n log n); n below 2^32 - 1.
  void merge(std::vector<TokenId>& symbols, Workspace& workspace) const;

 private:
  struct Slot {
    std::uint64_t pair;
    std::uint32_t rank;  // kNone: the slot is free
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  std::uint32_t rank_of(TokenId left, TokenId right) const;  // kNone if there is no such merge
  std::size_t slot_of(std::uint64_t pair) const;             // where the pair is, or would go
  void merge_few(std::vector<TokenId>& symbols) const;
  void merge_many(std::vector<TokenId>& symbols, Workspace& workspace) const;

  std::vector<Merge> merges_;  // [rank]
  std::vector<Slot> slots_;    // open addressing, linear probing; a power of two, at most half full
  int hash_shift_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_TEXT_BPE_H_
