// How many tokens to guess.
#ifndef KVASIR_ENGINE_DRAFT_LENGTH_H_
#define KVASIR_ENGINE_DRAFT_LENGTH_H_

#include <algorithm>
#include <cstdint>

namespace kvasir {

// What it costs to compute a guess beside `sequences` tokens, in tokens: one more row takes about 0.15 of the
// time of a step of one row, whose weights have to be read anyway; but so does each of many tokens, so that
// among them a right guess saves little.
inline double guess_cost(std::int64_t sequences) {
  constexpr double kRow = 0.15;
  const auto n = static_cast<double>(sequences);
  return kRow * n / (1.0 + kRow * (n - 1.0));
}

// Of one sequence: more while guesses are right, fewer while they are wrong, none where they cost more than
// they bring.
class DraftLength {
 public:
  // cost: of a guess, in tokens.
  std::int64_t next(double cost) const { return accepted_share_ < cost ? 0 : length_; }
  void note(std::int64_t drafted, std::int64_t accepted) {
    if (drafted == 0) return;
    constexpr double kWeight = 0.2;  // of the newest; the others together 0.8
    accepted_share_ +=
        kWeight * (static_cast<double>(accepted) / static_cast<double>(drafted) - accepted_share_);
    length_ = accepted == drafted ? std::min(2 * length_, kMost) : std::max(length_ / 2, accepted + 1);
  }

 private:
  static constexpr std::int64_t kFirst = 4, kMost = 12;
  std::int64_t length_ = kFirst;
  double accepted_share_ = 0.8;  // lately; at first a hope, which a few wrong guesses disappoint
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_DRAFT_LENGTH_H_
