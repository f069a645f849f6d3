// Where rank 0 leaves word of the port at which it serves the rendezvous, if the program has such a
// place: PyTorch's store, under torchrun. Anybody may read it and write to it, so nothing depends
// on what it says but where a rank calls first. Each thread has its own, for the init that it
// calls.
#pragma once

#include <cstdint>

namespace perseus {

// With a port, leaves word of it for this init, which `generation` counts. With port 0, returns the
// port that rank 0 has left, or 0 if there is none yet. Does not wait.
using MeetingBoard = int32_t (*)(void* user, int32_t generation, int32_t port);
void set_meeting_board(MeetingBoard board, void* user);

bool has_meeting_board();
void leave_meeting_port(int generation, uint16_t port);
// Returns 0 if there is none.
uint16_t left_meeting_port(int generation);

}  // namespace perseus
