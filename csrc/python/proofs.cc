// Proofs that bytes come from a rank of this world.

#include "python/proofs.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/gil.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

// Hashing as many bytes as this takes longer than handing the GIL over.
constexpr py::ssize_t kManyBytes = 64 << 10;

// Contiguous bytes of a Python object, which stay where they are meanwhile.
class View {
 public:
  explicit View(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }
  ~View() { PyBuffer_Release(&buffer_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const void* data() const { return buffer_.buf; }
  py::ssize_t size() const { return buffer_.len; }

 private:
  Py_buffer buffer_{};
};

perseus_message_t message_of(perseus_process_set_t set, int32_t sender, const std::string& what,
                             uint64_t sequence, const View& data) {
  perseus_message_t message{};
  message.struct_size = sizeof message;
  message.process_set = set;
  message.sender = sender;
  message.what = what.c_str();
  message.sequence = sequence;
  message.data = data.data();
  message.bytes = static_cast<size_t>(data.size());
  return message;
}

template <class Call>
void call_with(const View& data, const Call& call) {
  perseus_status_t status;
  {
    std::optional<Unlocked> unlocked;
    if (data.size() >= kManyBytes) unlocked.emplace();
    status = call();
  }
  check(status);
}

py::bytes prove(perseus_process_set_t set, int32_t sender, const std::string& what,
                uint64_t sequence, const py::object& data) {
  const View view(data);
  const perseus_message_t message = message_of(set, sender, what, sequence, view);
  char proof[PERSEUS_PROOF_BYTES];
  call_with(view, [&] { return perseus_prove(&message, proof); });
  return {proof, sizeof proof};
}

void check_proof(perseus_process_set_t set, int32_t sender, const std::string& what,
                 uint64_t sequence, const py::object& data, const py::object& proof) {
  const View view(data);
  const View given(proof);
  char whole[PERSEUS_PROOF_BYTES] = {};  // what is missing is wrong
  const auto* const bytes = static_cast<const char*>(given.data());
  std::copy_n(bytes, std::min<py::ssize_t>(given.size(), sizeof whole), whole);
  const perseus_message_t message = message_of(set, sender, what, sequence, view);
  call_with(view, [&] { return perseus_check_proof(&message, whole); });
}

}  // namespace

void bind_proofs(py::module_& module) {
  module.def("prove", &prove, py::arg("process_set"), py::arg("sender"), py::arg("what"),
             py::arg("sequence"), py::arg("data"));
  module.def("check_proof", &check_proof, py::arg("process_set"), py::arg("sender"),
             py::arg("what"), py::arg("sequence"), py::arg("data"), py::arg("proof"));
  module.attr("PROOF_BYTES") = PERSEUS_PROOF_BYTES;
}

}  // namespace perseus::python
