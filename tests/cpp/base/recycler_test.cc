#include "base/recycler.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace perseus {
namespace {

struct Note {
  std::string text;
  int recycled = 0;
  void recycle() {
    text.clear();
    recycled += 1;
  }
};

TEST(Recycler, WhatWasLetGoOfIsUsedAgainWithItsMemory) {
  Recycler<Note> recycler;
  std::shared_ptr<Note> note = recycler.take();
  note->text.assign(1000, 'x');
  const char* const memory = note->text.data();
  const Note* const place = note.get();
  note.reset();
  note = recycler.take();
  EXPECT_EQ(note.get(), place);
  EXPECT_EQ(note->recycled, 1);
  EXPECT_TRUE(note->text.empty());
  EXPECT_EQ(note->text.data(), memory);
}

TEST(Recycler, TheLastOwnerRecycles) {
  Recycler<Note> recycler;
  std::shared_ptr<Note> first = recycler.take();
  const std::shared_ptr<Note> second = first;
  first.reset();
  EXPECT_EQ(second->recycled, 0);
  EXPECT_NE(recycler.take(), second);
}

TEST(Recycler, IsNotUsedAgainWhileSomebodyRefersToItWeakly) {
  Recycler<Note> recycler;
  std::shared_ptr<Note> note = recycler.take();
  const Note* const place = note.get();
  std::weak_ptr<Note> weak = note;
  note.reset();
  EXPECT_EQ(weak.lock(), nullptr);
  EXPECT_NE(recycler.take().get(), place);
  weak.reset();
  const std::shared_ptr<Note> one = recycler.take(), other = recycler.take();
  EXPECT_TRUE(one.get() == place || other.get() == place);
}

TEST(Recycler, ThreadsMayLetGoOfWhatOthersTook) {
  Recycler<Note> recycler;
  std::mutex mutex;
  std::vector<std::shared_ptr<Note>> handed_over;
  const auto take_and_hand_over = [&] {
    for (int round = 0; round < 2000; ++round) {
      std::shared_ptr<Note> note = recycler.take();
      EXPECT_TRUE(note->text.empty());
      note->text = "in use";
      std::vector<std::shared_ptr<Note>> let_go_of;
      std::lock_guard lock(mutex);
      if (handed_over.size() > 10) let_go_of.swap(handed_over);
      handed_over.push_back(std::move(note));
    }
  };
  std::thread one(take_and_hand_over), other(take_and_hand_over);
  one.join();
  other.join();
  for (const auto& note : handed_over) EXPECT_EQ(note->text, "in use");
}

}  // namespace
}  // namespace perseus
