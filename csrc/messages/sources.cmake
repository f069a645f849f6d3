set(SOURCES departed_senders.cc envelope.cc incoming_messages.cc mailbox.cc message_form.cc message_lines.cc
            message_moves.cc message_watch.cc messenger.cc outgoing_messages.cc staged_run.cc)
set(NEEDS base observe codec device transport state)
