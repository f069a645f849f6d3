// Tasks that move the elements of one message: from a tensor to a link, from a link to a tensor or
// to memory, and between tensors and memory of this rank where one is on a GPU. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/task.h"
#include "messages/message_lines.h"

namespace perseus {

// Sends the elements, which the receiver has cleared.
Task send_elements(MessageLines& lines, const Operation& send, uint64_t number, bool in_runs);

// A message whose elements another rank has announced.
struct AnnouncedElements {
  int source;
  uint64_t number;
  bool in_runs;
  MessageForm form;
};

// Clear the message, and receive its elements: into the tensor of a receive, or as they travel.
Task receive_elements(MessageLines& lines, const Operation& receive, AnnouncedElements announced);
Task receive_ahead(MessageLines& lines, AnnouncedElements announced, std::byte* wire);

// Copy between tensors of this rank, and memory that has elements as they travel.
Task copy_to_tensor(MessageLines& lines, const Operation& receive, MessageForm form,
                    const std::byte* wire);
Task copy_from_tensor(MessageLines& lines, const Operation& send, MessageForm form,
                      std::byte* wire);
Task copy_between(MessageLines& lines, const Operation& send, const Operation& receive,
                  MessageForm form);

}  // namespace perseus
