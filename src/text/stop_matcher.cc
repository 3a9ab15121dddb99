#include "kvasir/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

void check(const std::vector<std::string>& stops) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::kInvalidArgument, what); };
  if (stops.size() > StopMatcher::kMaxStops) {
    refuse(std::to_string(stops.size()) + " stop strings were given; the limit is " +
           std::to_string(StopMatcher::kMaxStops));
  }
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::string name = "stop string " + std::to_string(i);
    if (stops[i].empty()) refuse(name + " is empty: leave it out");
    if (stops[i].size() > StopMatcher::kMaxStopBytes) {
      refuse(name + " has " + std::to_string(stops[i].size()) + " bytes; the limit is " +
             std::to_string(StopMatcher::kMaxStopBytes));
    }
    // A stop that begins inside a character would have us hand out half of one.
    if (!is_valid_utf8(stops[i])) refuse(name + " is not valid UTF-8");
  }
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  check(stops);
  for (std::string& text : stops) {
    Stop stop{std::move(text), {}};
    stop.border.assign(stop.text.size(), 0);
    for (std::size_t i = 1, length = 0; i < stop.text.size(); ++i) {
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.border[length - 1];
      if (stop.text[i] == stop.text[length]) ++length;
      stop.border[i] = length;
    }
    stops_.push_back(std::move(stop));
  }
}

bool StopMatcher::advance(Stop& stop, char byte) {
  while (stop.matched > 0 && stop.text[stop.matched] != byte) stop.matched = stop.border[stop.matched - 1];
  if (stop.text[stop.matched] == byte) ++stop.matched;
  return stop.matched == stop.text.size();
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped_) return {};
  std::size_t keep = 0;  // bytes at the end of the text that a stop may begin with
  for (const char byte : piece) {
    held_ += byte;
    keep = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      const bool complete = advance(stops_[i], byte);
      if (complete && (!stopped_ || stops_[i].text.size() > stops_[*stopped_].text.size())) stopped_ = i;
      keep = std::max(keep, stops_[i].matched);
    }
    if (!stopped_) continue;
    held_.resize(held_.size() - stops_[*stopped_].text.size());
    return std::exchange(held_, {});
  }
  if (piece.empty()) return {};
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace kvasir
