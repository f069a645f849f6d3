// The only implementation of Mpi, a template over a type that describes a binary interface:
//   Comm, Datatype, Request, Message, Errhandler   handle types
//   Status                                         with the library's layout
//   kThreadLevels                                  MPI_THREAD_SINGLE ... MULTIPLE
//   kAnySource
//   world, byte, errors_return                     predefined handles, set by
//   bool resolve(void* library, std::string& missing)
#pragma once

#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "mpi/mpi.h"

namespace perseus {

// The library's functions; a test can fill it with its own.
template <typename I>
struct MpiFunctions {
  using Comm = typename I::Comm;
  using Datatype = typename I::Datatype;
  using Request = typename I::Request;
  using Message = typename I::Message;
  using Status = typename I::Status;

  int (*Initialized)(int*);
  int (*Finalized)(int*);
  int (*Init_thread)(int*, char***, int, int*);
  int (*Finalize)();
  int (*Query_thread)(int*);
  int (*Is_thread_main)(int*);
  int (*Get_library_version)(char*, int*);
  int (*Error_string)(int, char*, int*);
  int (*Comm_rank)(Comm, int*);
  int (*Comm_size)(Comm, int*);
  int (*Comm_idup)(Comm, Comm*, Request*);
  int (*Comm_set_errhandler)(Comm, typename I::Errhandler);
  int (*Isend)(const void*, int, Datatype, int, int, Comm, Request*);
  int (*Improbe)(int, int, Comm, int*, Message*, Status*);
  int (*Imrecv)(void*, int, Datatype, Message*, Request*);
  int (*Get_count)(const Status*, Datatype, int*);
  int (*Test)(Request*, int*, Status*);

  // Returns false if a function is missing, which `missing` then names.
  bool resolve(void* library, std::string& missing) {
    return find(library, "MPI_Initialized", Initialized, missing) &&
           find(library, "MPI_Finalized", Finalized, missing) &&
           find(library, "MPI_Init_thread", Init_thread, missing) &&
           find(library, "MPI_Finalize", Finalize, missing) &&
           find(library, "MPI_Query_thread", Query_thread, missing) &&
           find(library, "MPI_Is_thread_main", Is_thread_main, missing) &&
           find(library, "MPI_Get_library_version", Get_library_version, missing) &&
           find(library, "MPI_Error_string", Error_string, missing) &&
           find(library, "MPI_Comm_rank", Comm_rank, missing) &&
           find(library, "MPI_Comm_size", Comm_size, missing) &&
           find(library, "MPI_Comm_idup", Comm_idup, missing) &&
           find(library, "MPI_Comm_set_errhandler", Comm_set_errhandler, missing) &&
           find(library, "MPI_Isend", Isend, missing) &&
           find(library, "MPI_Improbe", Improbe, missing) &&
           find(library, "MPI_Imrecv", Imrecv, missing) &&
           find(library, "MPI_Get_count", Get_count, missing) &&
           find(library, "MPI_Test", Test, missing);
  }

  template <typename Function>
  static bool find(void* library, const char* name, Function& function, std::string& missing) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) missing = name;
    return function != nullptr;
  }
};

template <typename I>
class MpiBinding final : public Mpi {
 public:
  static std::unique_ptr<Mpi> bind(void* library, const std::string& path, std::string& missing) {
    auto binding = std::unique_ptr<MpiBinding>(new MpiBinding(path));
    if (!binding->functions_.resolve(library, missing)) return nullptr;
    if (!binding->interface_.resolve(library, missing)) return nullptr;
    return binding;
  }

  std::string version() const override {
    // 8192 is the largest MPI_MAX_LIBRARY_VERSION_STRING among the interfaces.
    std::array<char, 8192> text{};
    int length = 0;
    functions_.Get_library_version(text.data(), &length);
    // MPICH's text continues with how it was configured.
    const std::string all = text.data();
    return all.substr(0, all.find_first_of(",\n")) + " (" + path_ + ")";
  }

  bool is_initialized() const override {
    int flag = 0;
    return functions_.Initialized(&flag) == kSuccess && flag != 0;
  }
  bool is_finalized() const override {
    int flag = 0;
    return functions_.Finalized(&flag) == kSuccess && flag != 0;
  }
  Status initialize(MpiThreadLevel wanted) override {
    int provided = 0;
    return check(
        "MPI_Init_thread",
        functions_.Init_thread(nullptr, nullptr, I::kThreadLevels[index(wanted)], &provided));
  }
  Status finalize() override { return check("MPI_Finalize", functions_.Finalize()); }
  MpiThreadLevel thread_level() const override {
    int provided = 0;
    functions_.Query_thread(&provided);
    // The standard orders the levels, whatever their numbers are.
    int level = 0;
    while (level < 3 && provided >= I::kThreadLevels[level + 1]) ++level;
    return static_cast<MpiThreadLevel>(level);
  }
  bool is_main_thread() const override {
    int flag = 0;
    return functions_.Is_thread_main(&flag) == kSuccess && flag != 0;
  }

  MpiComm world() const override { return {to_bits(interface_.world)}; }
  Result<int> rank(MpiComm comm) const override {
    int rank = 0;
    PERSEUS_RETURN_IF_ERROR(check(
        "MPI_Comm_rank", functions_.Comm_rank(from_bits<typename I::Comm>(comm.bits), &rank)));
    return rank;
  }
  Result<int> size(MpiComm comm) const override {
    int size = 0;
    PERSEUS_RETURN_IF_ERROR(check(
        "MPI_Comm_size", functions_.Comm_size(from_bits<typename I::Comm>(comm.bits), &size)));
    return size;
  }
  Status begin_duplicate(MpiComm comm, MpiComm* out, MpiRequest& request) override {
    // The library writes a handle of its own width. On a little-endian machine it lies at the
    // beginning of MpiComm, whichever width that is.
    static_assert(sizeof(typename I::Comm) <= sizeof(out->bits));
    out->bits = 0;
    typename I::Request native;
    PERSEUS_RETURN_IF_ERROR(
        check("MPI_Comm_idup",
              functions_.Comm_idup(from_bits<typename I::Comm>(comm.bits),
                                   reinterpret_cast<typename I::Comm*>(&out->bits), &native)));
    request.bits = to_bits(native);
    return Status::ok();
  }
  Status return_errors(MpiComm comm) override {
    return check("MPI_Comm_set_errhandler",
                 functions_.Comm_set_errhandler(from_bits<typename I::Comm>(comm.bits),
                                                interface_.errors_return));
  }

  Status begin_send(MpiComm comm, int to, int tag, const void* data, size_t bytes,
                    MpiRequest& request) override {
    PERSEUS_RETURN_IF_ERROR(check_count(bytes));
    typename I::Request native;
    PERSEUS_RETURN_IF_ERROR(
        check("MPI_Isend", functions_.Isend(data, static_cast<int>(bytes), interface_.byte, to, tag,
                                            from_bits<typename I::Comm>(comm.bits), &native)));
    request.bits = to_bits(native);
    return Status::ok();
  }
  Status match(MpiComm comm, int source, int tag, bool& found,
               MpiMatchedMessage& arrival) override {
    int flag = 0;
    typename I::Message message;
    typename I::Status status;
    PERSEUS_RETURN_IF_ERROR(check(
        "MPI_Improbe",
        functions_.Improbe(source == kAnySource ? I::kAnySource : source, tag,
                           from_bits<typename I::Comm>(comm.bits), &flag, &message, &status)));
    found = flag != 0;
    if (!found) return Status::ok();
    int count = 0;
    PERSEUS_RETURN_IF_ERROR(
        check("MPI_Get_count", functions_.Get_count(&status, interface_.byte, &count)));
    arrival.message.bits = to_bits(message);
    arrival.source = status.MPI_SOURCE;
    arrival.tag = status.MPI_TAG;
    arrival.bytes = static_cast<size_t>(count);
    return Status::ok();
  }
  Status begin_receive(MpiMatchedMessage& arrival, void* target, MpiRequest& request) override {
    auto message = from_bits<typename I::Message>(arrival.message.bits);
    typename I::Request native;
    PERSEUS_RETURN_IF_ERROR(
        check("MPI_Imrecv", functions_.Imrecv(target, static_cast<int>(arrival.bytes),
                                              interface_.byte, &message, &native)));
    request.bits = to_bits(native);
    return Status::ok();
  }
  Status test(MpiRequest& request, bool& done) override {
    auto native = from_bits<typename I::Request>(request.bits);
    typename I::Status status;
    int flag = 0;
    PERSEUS_RETURN_IF_ERROR(check("MPI_Test", functions_.Test(&native, &flag, &status)));
    request.bits = to_bits(native);
    done = flag != 0;
    return Status::ok();
  }

 private:
  static constexpr int kSuccess = 0;  // in every interface

  explicit MpiBinding(const std::string& path) : path_(path) {}

  static size_t index(MpiThreadLevel level) { return static_cast<size_t>(level); }

  template <typename Handle>
  static uintptr_t to_bits(Handle handle) {
    uintptr_t bits = 0;
    std::memcpy(&bits, &handle, sizeof(handle));
    return bits;
  }
  template <typename Handle>
  static Handle from_bits(uintptr_t bits) {
    Handle handle;
    std::memcpy(&handle, &bits, sizeof(handle));
    return handle;
  }

  Status check(const char* call, int code) const {
    if (code == kSuccess) return Status::ok();
    // 512 is the largest MPI_MAX_ERROR_STRING among the interfaces.
    std::array<char, 512> text{};
    int length = 0;
    functions_.Error_string(code, text.data(), &length);
    return Status::internal(std::string(call) + " failed: " + text.data());
  }
  static Status check_count(size_t bytes) {
    if (bytes <= INT_MAX) return Status::ok();
    return Status::invalid_argument("an MPI message cannot have " + std::to_string(bytes) +
                                    " bytes");
  }

  const std::string path_;
  MpiFunctions<I> functions_;
  I interface_;
};

}  // namespace perseus
