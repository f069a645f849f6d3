// Init, ranks, process sets, and the launcher's rendezvous.

#include "python/process.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/kept_objects.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

// Returns whether a signal handler has raised, as that of Ctrl-C does. The exception stays set.
int has_signal_raised(void* unlocked) {
  return static_cast<Unlocked*>(unlocked)->with_lock([] { return PyErr_CheckSignals() != 0; });
}

// Makes a call that may block, without the GIL, and hands it what it can get the GIL by. Its
// message is fetched afterwards on this thread.
template <class Call>
void blocking(const Call& call) {
  perseus_status_t status;
  {
    Unlocked unlocked;
    perseus_set_interruption_check(has_signal_raised, &unlocked);
    status = call(unlocked);
    perseus_set_interruption_check(nullptr, nullptr);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  check(status);
}

// The function that init was given, and the thread's state while it does not have the GIL.
struct Board {
  const py::object* function;
  Unlocked* unlocked;
};

// An error of the function's is none of init's: the ranks then meet without it.
int32_t call_board(void* user, int32_t generation, int32_t port) {
  const Board& board = *static_cast<Board*>(user);
  return board.unlocked->with_lock([&]() -> int32_t {
    try {
      return (*board.function)(generation, port).cast<int32_t>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(*board.function);
    } catch (const py::cast_error&) {
    }
    return 0;
  });
}

// The rank, the number of ranks, the rendezvous, its secret, whether others may know that, and
// which of the meetings at the rendezvous it is.
using WorldPlace = std::tuple<int32_t, int32_t, std::string, std::string, bool, int32_t>;

void init(const std::optional<std::vector<int32_t>>& ranks, const py::object& board,
          const std::optional<WorldPlace>& place) {
  perseus_init_options_t options{};
  options.struct_size = sizeof options;
  if (place) {
    const auto& [rank, size, rendezvous, secret, secret_is_known, meeting] = *place;
    options.rank = rank;
    options.size = size;
    options.rendezvous = rendezvous.c_str();
    options.secret = secret.c_str();
    options.secret_is_known = secret_is_known;
    options.meeting = meeting;
  }
  if (ranks) {
    options.ranks = ranks->data();
    options.rank_count = static_cast<int32_t>(ranks->size());
  }
  KeptObjects::instance().drop_complete();
  if (board.is_none()) return blocking([&](Unlocked&) { return perseus_init(&options); });
  blocking([&](Unlocked& unlocked) {
    Board with{&board, &unlocked};
    perseus_set_meeting_board(call_board, &with);
    const perseus_status_t status = perseus_init(&options);
    perseus_set_meeting_board(nullptr, nullptr);
    return status;
  });
}

std::tuple<int32_t, int32_t, std::string> launched_as() {
  int32_t rank = 0, size = 0;
  const char* variable = "";
  check(perseus_launched_as(&rank, &size, &variable));
  return {rank, size, variable};
}

perseus_process_set_t add_process_set(const std::vector<int32_t>& ranks) {
  perseus_process_set_t set = 0;
  blocking([&](Unlocked&) {
    return perseus_add_process_set(ranks.data(), static_cast<int32_t>(ranks.size()), &set);
  });
  return set;
}

std::vector<int32_t> process_set_ranks(perseus_process_set_t set) {
  const int32_t size = perseus_process_set_size(set);
  if (size < 0) {
    throw py::value_error("there is no process set " + std::to_string(set));
  }
  std::vector<int32_t> ranks(size);
  check(perseus_process_set_ranks(set, ranks.data()));
  return ranks;
}

std::vector<perseus_process_set_t> process_sets() {
  std::vector<perseus_process_set_t> ids(perseus_process_sets(nullptr, 0));
  const int32_t count = perseus_process_sets(ids.data(), static_cast<int32_t>(ids.size()));
  ids.resize(std::min<size_t>(ids.size(), count));
  return ids;
}

// The exchange of a job's addresses, which the launcher serves until stop() or the object's end.
class Rendezvous {
 public:
  Rendezvous(int32_t size, const std::string& secret, const std::string& address, int32_t port,
             const std::vector<std::string>& hosts)
      : port_(port) {
    if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
      throw py::value_error("a rendezvous needs the host of each rank, or none");
    }
    std::vector<const char*> named;
    for (const std::string& host : hosts) named.push_back(host.c_str());
    blocking([&](Unlocked&) {
      return perseus_rendezvous_start(address.c_str(), &port_, size, secret.c_str(),
                                      named.empty() ? nullptr : named.data(), &rendezvous_);
    });
  }
  ~Rendezvous() { perseus_rendezvous_stop(rendezvous_); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int32_t port() const { return port_; }

  void add_rank(const std::string& host) {
    check(perseus_rendezvous_add_rank(rendezvous_, host.c_str()));
  }

  void note_ended(int32_t rank, const std::string& how) {
    check(perseus_rendezvous_note_ended(rendezvous_, rank, how.c_str()));
  }

  bool has_met(const std::string& world, const std::vector<int32_t>& ranks) const {
    const auto count = static_cast<int32_t>(ranks.size());
    return perseus_rendezvous_has_met(rendezvous_, world.c_str(), ranks.data(), count) == 1;
  }

  void stop() {
    perseus_rendezvous_t* rendezvous = std::exchange(rendezvous_, nullptr);
    if (!rendezvous) return;
    Unlocked unlocked;
    perseus_rendezvous_stop(rendezvous);
  }

 private:
  perseus_rendezvous_t* rendezvous_ = nullptr;
  int32_t port_;
};

}  // namespace

void bind_process(py::module_& module) {
  module.def("version", &perseus_version);
  module.def("init", &init, py::arg("ranks") = py::none(), py::arg("meeting_board") = py::none(),
             py::arg("place") = py::none());
  module.def("launched_as", &launched_as);
  module.def(
      "shutdown",
      [](const std::string& why) {
        blocking([&](Unlocked&) { return perseus_shutdown_because(why.c_str()); });
      },
      py::arg("why") = "");
  // The C library's environment, which os.environ is a copy of.
  module.def("environment_variable", [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  module.def("is_initialized", [] { return perseus_is_initialized() != 0; });
  module.def("prefer_huge_pages", [](uintptr_t memory, size_t bytes) {
    perseus_prefer_huge_pages(reinterpret_cast<void*>(memory), bytes);
  });
  module.def("rank", &perseus_rank);
  module.def("size", &perseus_size);
  module.def("local_rank", &perseus_local_rank);
  module.def("local_size", &perseus_local_size);
  module.def("cross_rank", &perseus_cross_rank);
  module.def("cross_size", &perseus_cross_size);
  module.def("is_homogeneous", &perseus_is_homogeneous);
  module.def("processor_share", &perseus_processor_share);
  module.def("mpi_thread_level", &perseus_mpi_thread_level);
  module.def("announce", [](uint64_t number) { check(perseus_announce(number)); });
  module.def("announced", &perseus_announced);
  module.def("commit_residuals", &perseus_commit_residuals);
  module.def("restore_residuals", &perseus_restore_residuals);
  module.def("forget_residuals", &perseus_forget_residuals);

  module.def("add_process_set", &add_process_set, py::arg("ranks"));
  module.def(
      "remove_process_set",
      [](perseus_process_set_t set) {
        blocking([&](Unlocked&) { return perseus_remove_process_set(set); });
      },
      py::arg("process_set"));
  module.def(
      "open_process_set",
      [](perseus_process_set_t set, const std::vector<int32_t>& ranks) {
        blocking([&](Unlocked&) {
          return perseus_open_process_set(set, ranks.data(), static_cast<int32_t>(ranks.size()));
        });
      },
      py::arg("process_set"), py::arg("ranks"));
  module.def(
      "close_process_set",
      [](perseus_process_set_t set) {
        blocking([&](Unlocked&) { return perseus_close_process_set(set); });
      },
      py::arg("process_set"));
  module.attr("FIRST_OPENED_SET") = PERSEUS_FIRST_OPENED_SET;
  module.def("process_set_rank", &perseus_process_set_rank, py::arg("process_set"));
  module.def("process_set_size", &perseus_process_set_size, py::arg("process_set"));
  module.def("process_set_ranks", &process_set_ranks, py::arg("process_set"));
  module.def("process_sets", &process_sets);

  py::class_<Rendezvous>(module, "Rendezvous")
      .def(py::init<int32_t, const std::string&, const std::string&, int32_t,
                    const std::vector<std::string>&>(),
           py::arg("size"), py::arg("secret"), py::arg("address") = "", py::arg("port") = 0,
           py::arg("hosts") = std::vector<std::string>{})
      .def_property_readonly("port", &Rendezvous::port)
      .def("add_rank", &Rendezvous::add_rank, py::arg("host") = "")
      .def("note_ended", &Rendezvous::note_ended, py::arg("rank"), py::arg("how") = "")
      .def("has_met", &Rendezvous::has_met, py::arg("world"), py::arg("ranks"))
      .def("stop", &Rendezvous::stop)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Rendezvous& self, const py::args&) { self.stop(); });
}

}  // namespace perseus::python
