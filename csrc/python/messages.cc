#include "python/messages.h"

#include <cstdint>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/hand_over.h"
#include "python/plain_function.h"

namespace perseus::python {
namespace {

// The end of a message that arguments 0 to 2 (process_set, peer, tag), 4 to 6 (address, shape,
// dtype), 7 (priority) and, if they are given, 9 (codec) and 10 to 12 (device, device_index,
// stream) describe. Its tensor has that address as input and as output.
class MessageEnd {
 public:
  explicit MessageEnd(const Arguments& arguments) {
    arguments.expect(9, 13);
    end.struct_size = sizeof end;
    end.set = arguments.int32(0);
    end.peer = arguments.int32(1);
    end.tag = arguments.int32(2);
    end.priority = arguments.int32(7);
    if (arguments.has(9)) end.codec = arguments.int32(9);
    if (arguments.has(10)) {
      arguments.expect(13, 13);
      end.device = static_cast<perseus_device_t>(arguments.int32(10));
      end.device_index = arguments.int32(11);
      end.stream = arguments.address(12);
    }
    if (arguments.object(5).is_none()) return;
    tensor_.input = tensor_.output = arguments.address(4);
    tensor_.rank = arguments.shape(5, extents_);
    tensor_.shape = extents_;
    tensor_.dtype = static_cast<perseus_dtype_t>(arguments.int32(6));
    end.tensor = &tensor_;
  }
  MessageEnd(const MessageEnd&) = delete;

  perseus_transfer_t end{};

 private:
  perseus_tensor_t tensor_{};
  int64_t extents_[kMaxRank];
};

// send(process_set, peer, tag, keep, address, shape, dtype, priority, callback, codec = 0[, device,
// device_index, stream]) -> handle; recv is the same, except that a shape of None takes whatever
// comes.
template <perseus_status_t (*begin)(const perseus_transfer_t*, perseus_handle_t*)>
PyObject* transfer(const Arguments& arguments) {
  MessageEnd message(arguments);
  return PyLong_FromLongLong(
      hand_over(begin, message.end, arguments.object(3), arguments.object(8)));
}

// refuse_message(is_send, process_set, peer, tag, reason): the other end of the message fails
PyObject* refuse_message(const Arguments& arguments) {
  arguments.expect(5, 5);
  perseus_transfer_t end{};
  end.struct_size = sizeof end;
  end.set = arguments.int32(1);
  end.peer = arguments.int32(2);
  end.tag = arguments.int32(3);
  end.refusal = arguments.text(4);
  perseus_handle_t handle = 0;
  check((arguments.int32(0) != 0 ? perseus_send : perseus_recv)(&end, &handle));
  perseus_release(handle);
  return none();
}

// message_of(handle) -> (source, tag) of a receive that is complete
PyObject* message_of(const Arguments& arguments) {
  arguments.expect(1, 1);
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(arguments.int64(0), 0, &result));
  return py::make_tuple(result.source, result.tag).release().ptr();
}

}  // namespace

void bind_messages(py::module_& module) {
  static PyMethodDef methods[] = {
      method<transfer<perseus_send>>("send"),   method<transfer<perseus_recv>>("recv"),
      method<refuse_message>("refuse_message"), method<message_of>("message_of"),
      {nullptr, nullptr, 0, nullptr},
  };
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
  module.attr("ANY_RANK") = PERSEUS_ANY_RANK;
  module.attr("ANY_TAG") = PERSEUS_ANY_TAG;
  module.attr("FIRST_TAG_OF_LIBRARIES") = PERSEUS_FIRST_TAG_OF_LIBRARIES;
}

}  // namespace perseus::python
