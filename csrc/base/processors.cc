#include "base/processors.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <fstream>

namespace perseus {
namespace {

constexpr int kWordBits = 64;
// As many as Linux can have.
constexpr int kMostProcessors = 8192;
// Linux gives a processor one folder for each level of its caches, and two for the first level.
constexpr int kMostCaches = 10;

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && number >= 0 && number < kMostProcessors ? std::optional(number) : std::nullopt;
}

std::string first_line(const std::string& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::optional<Processors> last_level_cache_of(int processor, const std::string& folder) {
  std::optional<Processors> found;
  int highest = 0;
  for (int index = 0; index < kMostCaches; ++index) {
    const std::string cache =
        folder + "/cpu" + std::to_string(processor) + "/cache/index" + std::to_string(index);
    const int level = number_in(first_line(cache + "/level")).value_or(0);
    if (level == 0) break;
    if (level <= highest) continue;
    highest = level;
    found = Processors::parse(first_line(cache + "/shared_cpu_list"));
  }
  return found && found->contains(processor) ? found : std::nullopt;
}

}  // namespace

Processors::Processors(std::vector<uint64_t> words) : words_(std::move(words)) {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

Processors Processors::of_this_process() {
  std::vector<uint64_t> words(kMostProcessors / kWordBits);
  const int got = sched_getaffinity(getpid(), words.size() * sizeof words[0],
                                    reinterpret_cast<cpu_set_t*>(words.data()));
  return got == 0 ? Processors(std::move(words)) : Processors();
}

std::optional<Processors> Processors::parse(std::string_view list) {
  Processors found;
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(item.size() + 1, list.size()));
    const size_t dash = item.find('-');
    const auto first = number_in(item.substr(0, dash));
    const auto last = dash == item.npos ? first : number_in(item.substr(dash + 1));
    if (!first || !last) return {};
    for (int processor = *first; processor <= *last; ++processor) found.add(processor);
  }
  return found;
}

void Processors::add(int processor) {
  const size_t word = processor / kWordBits;
  if (word >= words_.size()) words_.resize(word + 1);
  words_[word] |= uint64_t{1} << processor % kWordBits;
}

bool Processors::contains(int processor) const {
  const size_t word = processor / kWordBits;
  return word < words_.size() && (words_[word] >> processor % kWordBits & 1) != 0;
}

bool Processors::contains_all(const Processors& others) const {
  return common_with(others) == others;
}

Processors Processors::common_with(const Processors& others) const {
  std::vector<uint64_t> words(std::min(words_.size(), others.words_.size()));
  for (size_t i = 0; i < words.size(); ++i) words[i] = words_[i] & others.words_[i];
  return Processors(std::move(words));
}

int Processors::count() const {
  int count = 0;
  for (const uint64_t word : words_) count += std::popcount(word);
  return count;
}

int Processors::lowest() const {
  for (size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return static_cast<int>(i) * kWordBits + std::countr_zero(words_[i]);
  }
  return -1;
}

int Processors::end() const { return static_cast<int>(words_.size()) * kWordBits; }

std::vector<Processors> last_level_caches(const Processors& wanted, const std::string& folder) {
  std::vector<Processors> caches;
  for (int processor = 0; processor < wanted.end(); ++processor) {
    const auto has_it = [&](const Processors& cache) { return cache.contains(processor); };
    if (!wanted.contains(processor) || std::ranges::any_of(caches, has_it)) continue;
    std::optional<Processors> cache = last_level_cache_of(processor, folder);
    if (!cache) return {};
    caches.push_back(*std::move(cache));
  }
  return caches;
}

bool bind_thread_to(const Processors& processors) {
  if (processors.is_empty()) return false;
  const auto& words = processors.words();
  return pthread_setaffinity_np(pthread_self(), words.size() * sizeof words[0],
                                reinterpret_cast<const cpu_set_t*>(words.data())) == 0;
}

}  // namespace perseus
