// Ranks whose negotiators pass each other their ballots within one thread.
#include "watch/name_conflicts.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/run_until.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

class ConflictRank final : public NameConflictHost {
  EventLoop& loop_;  // first: the conflicts' alarm needs it

 public:
  ConflictRank(EventLoop& loop, int rank) : loop_(loop), rank_(rank) {}

  void open(int32_t id, std::vector<int> ranks) {
    auto set = std::make_shared<ProcessSet>();
    set->id = id;
    set->ranks = std::move(ranks);
    set->index = set->index_of(rank_);
    if (set->index >= 0) {
      set->host = std::make_unique<Host>(*this, *set);
      set->negotiator =
          std::make_unique<Negotiator>(set->index, static_cast<int>(set->ranks.size()), set->ranks,
                                       16, std::vector<std::byte>(), *set->host);
    }
    sets_[id] = std::move(set);
  }
  void submit(int32_t set_id, OperationKind kind, const std::string& name) {
    ProcessSet& set = *sets_.at(set_id);
    auto operation = std::make_shared<Operation>();
    operation->name_id = 0;
    operation->process_set = set_id;
    operation->key = operation_key(kind, name);
    operation->description.kind = kind;
    operation->description.root = kind == OperationKind::kBroadcast ? 0 : -1;
    operation->description.tensors = {{DataType::kFloat32, {1}}};
    operation->submitted_at = Clock::now();
    set.pending.insert(operation->key, operation);
    conflicts.watch(*operation);
    set.negotiator->submit(operation->key, {operation, &operation->description});
    advance(set);
  }

  const std::map<int32_t, ProcessSetPtr>& process_sets() const override { return sets_; }
  void advance(ProcessSet& set) override {
    if (set.negotiator != nullptr) set.negotiator->advance();
  }

  NameConflicts conflicts{loop_, 1s, *this};
  std::map<int, ConflictRank*> others;
  std::vector<std::string> failures;
  int agreed = 0;

 private:
  class Host final : public NegotiatorHost {
   public:
    Host(ConflictRank& owner, ProcessSet& set) : owner_(owner), set_(set) {}
    void send(int to_index, std::span<const std::byte> message) override {
      ConflictRank& to = *owner_.others.at(set_.ranks[to_index]);
      owner_.loop_.post([&to, id = set_.id, copy = std::vector(message.begin(), message.end())] {
        ProcessSet& set = *to.sets_.at(id);
        EXPECT_TRUE(set.negotiator->receive(copy).is_ok());
        to.advance(set);
      });
    }
    void agreed(const Agreement& agreement) override {
      owner_.conflicts.on_agreement(set_, agreement);
      for (const Agreement::Failure& failure : agreement.failures) {
        if (!failure.is_refused_here && set_.pending.extract(failure.key) != nullptr) {
          owner_.failures.push_back(failure.message);
        }
      }
      for (const Agreement::Ready& ready : agreement.ready) {
        set_.pending.extract(ready.key());
        ++owner_.agreed;
      }
    }

   private:
    ConflictRank& owner_;
    ProcessSet& set_;
  };

  const int rank_;
  std::map<int32_t, ProcessSetPtr> sets_;
};

struct NameConflictsTest : testing::Test {
  NameConflictsTest() {
    for (ConflictRank* rank : {&first, &second}) {
      rank->open(ProcessSet::kWorld, {0, 1});
      rank->others = {{0, &first}, {1, &second}};
    }
  }
  EventLoop loop;
  ConflictRank first{loop, 0}, second{loop, 1};
};

TEST_F(NameConflictsTest, OneNameForTwoKindsOfOperationsFailsBoth) {
  first.submit(0, OperationKind::kAllreduce, "x");
  second.submit(0, OperationKind::kBroadcast, "x");
  run_until(loop, [&] { return !first.failures.empty() && !second.failures.empty(); });
  EXPECT_NE(first.failures[0].find("broadcast.x"), std::string::npos) << first.failures[0];
  EXPECT_NE(second.failures[0].find("allreduce.x"), std::string::npos) << second.failures[0];
}

TEST_F(NameConflictsTest, OneNameInTwoProcessSetsFailsBoth) {
  for (ConflictRank* rank : {&first, &second}) rank->open(1, {0, 1});
  first.submit(0, OperationKind::kAllreduce, "x");
  second.submit(1, OperationKind::kAllreduce, "x");
  run_until(loop, [&] { return !first.failures.empty() && !second.failures.empty(); });
  EXPECT_NE(first.failures[0].find("process set 1"), std::string::npos) << first.failures[0];
}

TEST_F(NameConflictsTest, ACallOutsideItsProcessSetRefusesWhatItWasMeantFor) {
  first.submit(0, OperationKind::kAllreduce, "x");
  second.conflicts.add_non_member_call(operation_key(OperationKind::kAllreduce, "x"),
                                       "it is not in the set");
  run_until(loop, [&] { return !first.failures.empty(); });
  EXPECT_NE(first.failures[0].find("it is not in the set"), std::string::npos) << first.failures[0];
}

TEST_F(NameConflictsTest, ARankThatIsOnlySlowFailsNothing) {
  first.submit(0, OperationKind::kAllreduce, "x");
  run_for(loop, 2s);
  second.submit(0, OperationKind::kAllreduce, "x");
  run_until(loop, [&] { return first.agreed == 1 && second.agreed == 1; });
  EXPECT_TRUE(first.failures.empty() && second.failures.empty());
}

}  // namespace
}  // namespace perseus
