#include <algorithm>
#include <map>
#include <utility>

#include "collectives/collective.h"

namespace perseus {
namespace {

// Splits the group by the place of each index. Null unless all places hold equally many.
std::shared_ptr<const GroupSplit> split(const Group& group, const std::vector<int>& place_of) {
  std::map<int, int> ranks_in;
  for (const int place : place_of) ranks_in[place] += 1;
  const bool is_homogeneous = std::ranges::all_of(
      ranks_in, [&](const auto& place) { return place.second == ranks_in.begin()->second; });
  if (!is_homogeneous) return nullptr;

  GroupSplit split;
  const int own = place_of[group.index];
  const auto position = std::count(place_of.begin(), place_of.begin() + group.index, own);
  std::map<int, int> seen;  // ranks of each place so far
  const auto add = [&group](Group& to, int i) {
    if (i == group.index) to.index = static_cast<int>(to.links.size());
    to.links.push_back(group.links[i]);
    to.host_of.push_back(group.host_of[i]);
    to.size = static_cast<int>(to.links.size());
  };
  for (int i = 0; i < group.size; ++i) {
    if (place_of[i] == own) add(split.local, i);
    if (seen[place_of[i]]++ == position) add(split.across, i);
  }
  return std::make_shared<const GroupSplit>(std::move(split));
}

bool has_two_levels(const GroupSplit* split) {
  return split != nullptr && split->local.size > 1 && split->across.size > 1;
}

}  // namespace

const GroupSplit* levels_of(const Group& group) {
  return group.by_cache != nullptr ? group.by_cache.get() : group.by_host.get();
}

bool can_be_hierarchical(const Group& group) { return has_two_levels(levels_of(group)); }

bool can_be_hierarchical_over_hosts(const Group& group) {
  return has_two_levels(group.by_host.get());
}

bool spans_hosts(const Group& group) {
  return std::ranges::any_of(group.host_of,
                             [&](int host) { return host != group.host_of.front(); });
}

Group make_group(int index, std::vector<Link*> links, std::vector<int> host_of,
                 const std::vector<int>& cache_of) {
  Group group;
  group.index = index;
  group.size = static_cast<int>(links.size());
  group.links = std::move(links);
  group.host_of = std::move(host_of);
  group.by_host = split(group, group.host_of);
  const bool knows_caches =
      !cache_of.empty() && std::ranges::all_of(cache_of, [](int cache) { return cache >= 0; });
  if (knows_caches && !spans_hosts(group)) {
    auto by_cache = split(group, cache_of);
    if (has_two_levels(by_cache.get())) group.by_cache = std::move(by_cache);
  }
  return group;
}

}  // namespace perseus
