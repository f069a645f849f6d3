// A hash map by name for the steady path, where the same names come and go. An extracted node, with
// the memory of its name, is reused for the next insertion. One thread.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace perseus {

template <typename Value>
class NameMap {
  using Map = std::unordered_map<std::string, Value>;

 public:
  // The name must not be in the map.
  void insert(const std::string& name, Value value) {
    if (spare_.empty()) {
      map_.emplace(name, std::move(value));
      return;
    }
    typename Map::node_type place = std::move(spare_.back());
    spare_.pop_back();
    place.key() = name;
    place.mapped() = std::move(value);
    map_.insert(std::move(place));
  }

  // Removes and returns the value under the name; Value() if there is none.
  Value extract(const std::string& name) {
    const auto found = map_.find(name);
    return found == map_.end() ? Value() : extract(found);
  }
  Value extract(typename Map::iterator at) {
    typename Map::node_type place = map_.extract(at);
    Value value = std::exchange(place.mapped(), Value());
    spare_.push_back(std::move(place));
    return value;
  }
  void clear() {
    while (!map_.empty()) extract(map_.begin());
  }

  bool empty() const { return map_.empty(); }
  size_t size() const { return map_.size(); }
  bool contains(const std::string& name) const { return map_.contains(name); }
  auto find(const std::string& name) { return map_.find(name); }
  auto begin() { return map_.begin(); }
  auto begin() const { return map_.begin(); }
  auto end() { return map_.end(); }
  auto end() const { return map_.end(); }

 private:
  Map map_;
  std::vector<typename Map::node_type> spare_;
};

}  // namespace perseus
