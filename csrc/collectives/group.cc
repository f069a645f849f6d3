#include <algorithm>
#include <map>
#include <utility>

#include "collectives/collective.h"

namespace perseus {
namespace {

HostSplit split_by_host(const Group& group) {
  HostSplit split;
  const int host = group.host_of[group.index];
  std::map<int, int> seen;  // ranks of each host so far
  const auto position =
      std::count(group.host_of.begin(), group.host_of.begin() + group.index, host);
  const auto add = [&group](Group& to, int i) {
    if (i == group.index) to.index = static_cast<int>(to.links.size());
    to.links.push_back(group.links[i]);
    to.host_of.push_back(group.host_of[i]);
    to.size = static_cast<int>(to.links.size());
  };
  for (int i = 0; i < group.size; ++i) {
    if (group.host_of[i] == host) add(split.local, i);
    if (seen[group.host_of[i]]++ == position) add(split.across, i);
  }
  return split;
}

}  // namespace

bool can_be_hierarchical(const Group& group) {
  return group.by_host != nullptr && group.by_host->local.size > 1 &&
         group.by_host->across.size > 1;
}

bool spans_hosts(const Group& group) {
  return std::ranges::any_of(group.host_of,
                             [&](int host) { return host != group.host_of.front(); });
}

Group make_group(int index, std::vector<Link*> links, std::vector<int> host_of) {
  Group group;
  group.index = index;
  group.size = static_cast<int>(links.size());
  group.links = std::move(links);
  group.host_of = std::move(host_of);
  std::map<int, int> ranks_on;
  for (int host : group.host_of) ranks_on[host] += 1;
  const bool is_homogeneous = std::all_of(ranks_on.begin(), ranks_on.end(), [&](const auto& host) {
    return host.second == ranks_on.begin()->second;
  });
  if (is_homogeneous) {
    group.by_host = std::make_shared<const HostSplit>(split_by_host(group));
  }
  return group;
}

}  // namespace perseus
