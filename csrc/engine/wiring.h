// The parts of an engine that ProcessSets and Agreements use. Some are constructed later than these
// two, so neither may use any of them until EngineParts is complete.
#pragma once

#include "base/event_loop.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "transport/mesh.h"

namespace perseus {

struct Settings;

class Agreements;
class Announcements;
class Blame;
class Departures;
class Executor;
class MessageWatch;
class Messenger;
class OperationTracker;
class ProcessSets;
class Termination;
struct Watches;

struct Wiring {
  EventLoop& loop;
  const Settings& settings;
  Mesh& mesh;
  Timeline& timeline;
  Counters& counters;
  const Announcements& announcements;
  Blame& blame;
  const Departures& departures;
  OperationTracker& tracker;
  ProcessSets& sets;
  Agreements& agreements;
  Executor& executor;
  Messenger& messenger;
  MessageWatch& message_watch;
  Termination& termination;
  Watches& watches;
};

}  // namespace perseus
