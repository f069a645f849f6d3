#include "bootstrap/meeting_board.h"

namespace perseus {
namespace {

struct Board {
  MeetingBoard function = nullptr;
  void* user = nullptr;
};
thread_local Board current;

}  // namespace

void set_meeting_board(MeetingBoard board, void* user) { current = {board, user}; }

bool has_meeting_board() { return current.function != nullptr; }

void leave_meeting_port(int generation, uint16_t port) {
  current.function(current.user, generation, port);
}

uint16_t left_meeting_port(int generation) {
  const int32_t port = current.function(current.user, generation, 0);
  return port > 0 && port <= UINT16_MAX ? static_cast<uint16_t>(port) : 0;
}

}  // namespace perseus
