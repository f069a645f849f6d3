#include "messages/message_moves.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "messages/staged_run.h"

namespace perseus {
namespace {

// The runs of a message that are under way, each in memory of its own. A Task that has begun
// transfers must await end().
class StagedRuns {
 public:
  StagedRuns(MessageLines& lines, const Operation& operation, const MessageForm& form) {
    const uint32_t count = std::min(form.runs(), StagedRun::kAtOnce);
    for (uint32_t i = 0; i < count; ++i) {
      stages_.emplace_back(lines.buffers, lines.gpus, operation, form);
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(stages_.size()); }
  StagedRun& of(uint32_t run) { return stages_[run % StagedRun::kAtOnce]; }

  // Awaits all transfers. Returns `status`, or the first error among theirs if it is ok.
  Task end(Status status) {
    for (StagedRun& stage : stages_) {
      const Status ended = co_await stage.transferred();
      if (status.is_ok()) status = ended;
    }
    co_return status;
  }

 private:
  std::deque<StagedRun> stages_;
};

Task send_whole(Link& link, const Operation& send, uint64_t number) {
  Transfer transfer;
  link.send(transfer, tag_of_message(number), send.tensors.front().input,
            static_cast<uint64_t>(send.description.bytes()), send.description.priority);
  const Status status = co_await transfer;
  co_return status;
}

Task send_runs(MessageLines& lines, const Operation& send, uint64_t number) {
  const MessageForm form = form_of(send);
  StagedRuns stages(lines, send, form);
  Status status;
  for (uint32_t run = 0; run < form.runs(); ++run) {
    StagedRun& stage = stages.of(run);
    status = co_await stage.transferred();
    if (status.is_ok()) status = co_await stage.load(run);
    if (!status.is_ok()) break;
    lines.mesh.link(send.message.peer)
        .send(stage.transfer.emplace(), tag_of_message(number, run), stage.wire(),
              form.run(run).bytes, send.description.priority);
  }
  status = co_await stages.end(status);
  co_return status;
}

Task receive_whole(MessageLines& lines, const Operation& receive,
                   const AnnouncedElements& announced) {
  Transfer transfer;
  lines.mesh.link(announced.source)
      .receive(transfer, tag_of_message(announced.number), receive.tensors.front().output,
               announced.form.bytes());
  lines.tell(announced.source, Clearance{.number = announced.number});
  const Status status = co_await transfer;
  co_return status;
}

Task receive_runs(MessageLines& lines, const Operation& receive,
                  const AnnouncedElements& announced) {
  const MessageForm& form = announced.form;
  StagedRuns stages(lines, receive, form);
  const auto post = [&](uint32_t run) {
    StagedRun& stage = stages.of(run);
    lines.mesh.link(announced.source)
        .receive(stage.transfer.emplace(), tag_of_message(announced.number, run), stage.wire(),
                 form.run(run).bytes);
  };
  Status status;
  for (uint32_t run = 0; run < stages.count() && status.is_ok(); ++run) {
    status = co_await stages.of(run).make_room(run);
    if (status.is_ok()) post(run);
  }
  if (status.is_ok()) {
    lines.tell(announced.source, Clearance{.number = announced.number, .in_runs = true});
  }
  for (uint32_t run = 0; run < form.runs() && status.is_ok(); ++run) {
    StagedRun& stage = stages.of(run);
    status = co_await stage.transferred();
    if (status.is_ok()) status = co_await stage.store();
    const uint32_t next = run + StagedRun::kAtOnce;
    if (!status.is_ok() || next >= form.runs()) continue;
    status = co_await stage.make_room(next);
    if (status.is_ok()) post(next);
  }
  status = co_await stages.end(status);
  co_return status;
}

}  // namespace

Task send_elements(MessageLines& lines, const Operation& send, uint64_t number, bool in_runs) {
  return in_runs ? send_runs(lines, send, number)
                 : send_whole(lines.mesh.link(send.message.peer), send, number);
}

Task receive_elements(MessageLines& lines, const Operation& receive, AnnouncedElements announced) {
  Task moving = announced.in_runs ? receive_runs(lines, receive, announced)
                                  : receive_whole(lines, receive, announced);
  const Status status = co_await std::move(moving);
  co_return status;
}

Task receive_ahead(MessageLines& lines, AnnouncedElements announced, std::byte* wire) {
  const auto& [source, number, in_runs, form] = announced;
  Link& link = lines.mesh.link(source);
  std::deque<Transfer> transfers(in_runs ? form.runs() : 1);
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    const MessageForm::Run run =
        in_runs ? form.run(i) : MessageForm::Run{0, form.elements(), 0, form.bytes()};
    link.receive(transfers[i], tag_of_message(number, i), wire + run.offset, run.bytes);
  }
  lines.tell(source, Clearance{.number = number, .in_runs = in_runs});
  Status status;
  for (Transfer& transfer : transfers) {
    const Status ended = co_await transfer;
    if (status.is_ok()) status = ended;
  }
  co_return status;
}

Task copy_to_tensor(MessageLines& lines, const Operation& receive, MessageForm form,
                    const std::byte* wire) {
  StagedRun stage(lines.buffers, lines.gpus, receive, form);
  Status status;
  for (uint32_t index = 0; index < form.runs() && status.is_ok(); ++index) {
    const MessageForm::Run run = form.run(index);
    status = co_await stage.make_room(index);
    if (!status.is_ok()) break;
    std::memcpy(stage.wire(), wire + run.offset, run.bytes);
    status = co_await stage.store();
  }
  co_return status;
}

Task copy_from_tensor(MessageLines& lines, const Operation& send, MessageForm form,
                      std::byte* wire) {
  StagedRun stage(lines.buffers, lines.gpus, send, form);
  Status status;
  for (uint32_t index = 0; index < form.runs() && status.is_ok(); ++index) {
    const MessageForm::Run run = form.run(index);
    status = co_await stage.load(index);
    if (status.is_ok()) std::memcpy(wire + run.offset, stage.wire(), run.bytes);
  }
  co_return status;
}

Task copy_between(MessageLines& lines, const Operation& send, const Operation& receive,
                  MessageForm form) {
  StagedRun from(lines.buffers, lines.gpus, send, form);
  StagedRun to(lines.buffers, lines.gpus, receive, form);
  Status status;
  for (uint32_t index = 0; index < form.runs() && status.is_ok(); ++index) {
    status = co_await from.load(index);
    if (status.is_ok()) status = co_await to.make_room(index);
    if (!status.is_ok()) break;
    std::memcpy(to.wire(), from.wire(), form.run(index).bytes);
    status = co_await to.store();
  }
  co_return status;
}

}  // namespace perseus
