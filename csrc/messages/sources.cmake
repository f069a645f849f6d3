set(SOURCES departed_senders.cc envelope.cc incoming_messages.cc mailbox.cc message_lines.cc message_watch.cc messenger.cc
            outgoing_messages.cc)
set(NEEDS base observe transport state)
