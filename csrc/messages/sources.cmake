set(SOURCES departed_senders.cc envelope.cc mailbox.cc message_watch.cc messenger.cc)
set(NEEDS base observe transport state)
