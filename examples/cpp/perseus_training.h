/* The C++17 layer that a training loop needs above perseus.h's C functions: errors as exceptions,
 * and objects that release what they hold. It knows no framework; copy it into your own program.
 *
 *   perseus_training::Process process;                       // before all that follows
 *   perseus_training::Gradients gradients(PERSEUS_AVERAGE);  // and then, once:
 *   const int32_t number = gradients.add("dense", perseus_training::array(data, elements));
 *   perseus_training::broadcast_from_rank_0("weights", weights);
 *
 *   gradients.submit(number);  // in each batch, as soon as backward has computed it
 *   gradients.wait(number);    // just before its parameter's update
 *
 * examples/tiny_dnn/digits.cc and examples/dlib/digits.cc use it.
 */
#ifndef PERSEUS_EXAMPLES_CPP_PERSEUS_TRAINING_H_
#define PERSEUS_EXAMPLES_CPP_PERSEUS_TRAINING_H_

#include <perseus/perseus.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace perseus_training {

/* Throws if a call of perseus.h has failed, with the library's message. */
inline void check(perseus_status_t status, const std::string& what) {
  if (status == PERSEUS_OK) return;
  throw std::runtime_error(what + ": " + perseus_last_error());
}

/* This process as a rank of the job, for as long as the object lives. */
class Process {
 public:
  Process() { check(perseus_init(nullptr), "perseus_init"); }
  ~Process() { perseus_shutdown(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
};

/* A view of contiguous numbers in memory that somebody else owns. */
struct Array {
  void* data;
  int64_t elements;
  perseus_dtype_t dtype;
  size_t element_size;
};

template <typename T>
Array array(T* data, size_t elements) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "no dtype is known for it");
  const perseus_dtype_t dtype = std::is_same_v<T, float> ? PERSEUS_FLOAT32 : PERSEUS_FLOAT64;
  return {data, static_cast<int64_t>(elements), dtype, sizeof(T)};
}

/* The view of an array that perseus.h takes; valid while the array is. */
inline perseus_tensor_t tensor_of(const Array& array) {
  return {array.data, array.data, &array.elements, 1, array.dtype};
}

/* Overwrites these arrays with rank 0's. All ranks must pass the same number, of the same sizes. */
inline void broadcast_from_rank_0(const std::string& name, const std::vector<Array>& arrays) {
  std::vector<perseus_tensor_t> tensors;
  for (const Array& array : arrays) tensors.push_back(tensor_of(array));

  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.tensor_count = static_cast<int32_t>(tensors.size());
  submission.tensors = tensors.data();
  submission.root = 0;
  submission.prescale = submission.postscale = 1;
  check(perseus_register(PERSEUS_WORLD, PERSEUS_BROADCAST, name.c_str(), &submission.id), name);

  perseus_handle_t handle;
  check(perseus_submit(&submission, &handle), name);
  const perseus_status_t status = perseus_wait(handle, -1);
  perseus_release(handle);
  check(status, name);
}

/* The gradients of a model. They are added once, in the order in which forward uses their layers,
 * and submitted and waited for one by one in each batch. Their memory must not move. */
class Gradients {
 public:
  /* `scale`: results are multiplied by it. */
  explicit Gradients(perseus_reduce_op_t reduce_op, double scale = 1) {
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    options.reduce_op = reduce_op;
    options.scale = scale;
    check(perseus_gradients_create(&options, &gradients_), "perseus_gradients_create");
  }
  ~Gradients() {
    // If an exception is under way, other ranks may wait for gradients that will never come, and
    // this rank for theirs. Leaving the job first ends both waits.
    if (std::uncaught_exceptions() > 0) perseus_shutdown_because("an exception ended its training");
    perseus_gradients_destroy(gradients_);
  }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  int32_t add(const std::string& name, const Array& gradient) {
    const perseus_tensor_t tensor = tensor_of(gradient);
    int32_t number;
    check(perseus_gradients_add(gradients_, name.c_str(), &tensor, &number), name);
    names_.push_back(name);
    return number;
  }

  /* Returns at once; until wait has returned, the gradient's memory is the library's. */
  void submit(int32_t number) {
    check(perseus_gradients_submit(gradients_, number, PERSEUS_NO_STREAM), names_.at(number));
  }

  /* After it, the gradient's memory holds the result of all ranks. */
  void wait(int32_t number) {
    check(perseus_gradients_wait(gradients_, number, -1), names_.at(number));
  }

 private:
  perseus_gradients_t* gradients_ = nullptr;
  std::vector<std::string> names_;
};

/* Writes the arrays' bytes, one array after the other, so that runs can be compared. */
inline void save(const std::string& path, const std::vector<Array>& arrays) {
  std::ofstream file(path, std::ios::binary);
  for (const Array& array : arrays) {
    const auto bytes = static_cast<std::streamsize>(array.element_size * array.elements);
    file.write(static_cast<const char*>(array.data), bytes);
  }
  if (!file.flush()) throw std::runtime_error(path + " could not be written");
}

}  // namespace perseus_training

#endif  // PERSEUS_EXAMPLES_CPP_PERSEUS_TRAINING_H_
