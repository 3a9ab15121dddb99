// Finds the items of a vector by name.
#ifndef KVASIR_FORMATS_NAME_INDEX_H_
#define KVASIR_FORMATS_NAME_INDEX_H_

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvasir {

// A sorted index rather than a hash table: the names come from an untrusted file, which could choose them so
// that they collide. `kName` is the member that holds the name.
template <class T, auto kName>
class NameIndex {
 public:
  // The items must stay where they are while the index is used.
  void build(const std::vector<T>& items) {
    sorted_.reserve(items.size());
    for (const T& item : items) sorted_.push_back(&item);
    std::sort(sorted_.begin(), sorted_.end(), [](const T* a, const T* b) { return name_of(a) < name_of(b); });
  }

  // nullptr if no item has that name.
  const T* find(std::string_view name) const {
    const auto place =
        std::lower_bound(sorted_.begin(), sorted_.end(), name,
                         [](const T* item, std::string_view wanted) { return name_of(item) < wanted; });
    return place != sorted_.end() && name_of(*place) == name ? *place : nullptr;
  }

  // An item whose name another one has too, or nullptr.
  const T* duplicate() const {
    const auto place = std::adjacent_find(sorted_.begin(), sorted_.end(),
                                          [](const T* a, const T* b) { return name_of(a) == name_of(b); });
    return place != sorted_.end() ? *place : nullptr;
  }

 private:
  static std::string_view name_of(const T* item) { return item->*kName; }
  std::vector<const T*> sorted_;
};

}  // namespace kvasir

#endif  // KVASIR_FORMATS_NAME_INDEX_H_
