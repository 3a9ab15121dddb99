// Ends a text before the first stop string, while it is being generated.
#ifndef KVASIR_STOP_MATCHER_H_
#define KVASIR_STOP_MATCHER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Fed with generated text, piece by piece, it hands out what may go to the client. Only a suffix that could
// still become a stop string is held back; the result does not depend on how the text was cut into pieces.
// The stop string that is complete first wins; of those complete at the same byte, the longest. The text ends
// before it.
class StopMatcher {
 public:
  static constexpr std::size_t kMaxStops = 64;
  static constexpr std::size_t kMaxStopBytes = 4096;  // of each stop string

  // Error(kInvalidArgument) if a stop string is empty, too long or no valid UTF-8, or if there are too many.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that may go out now. After a stop: nothing more.
  std::string push(std::string_view piece);
  // The text is over: what was held back (nothing after a stop).
  std::string finish();

  // Index of the stop string that was found, if any.
  std::optional<std::size_t> stopped() const { return stopped_; }

 private:
  // Knuth, Morris, Pratt 1977.
  struct Stop {
    std::string text;
    std::vector<std::size_t>
        border;               // [length] of the first i+1 bytes: longest proper prefix that is a suffix too
    std::size_t matched = 0;  // how many of its bytes the text so far ends with; never all of them
  };
  static bool advance(Stop& stop, char byte);  // whether the stop is complete now

  std::vector<Stop> stops_;
  std::string held_;  // text not handed out yet
  std::optional<std::size_t> stopped_;
};

}  // namespace kvasir

#endif  // KVASIR_STOP_MATCHER_H_
