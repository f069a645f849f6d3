set(SOURCES envelope.cc mailbox.cc message_watch.cc messenger.cc)
set(NEEDS base observe transport state)
