/* Training with dlib on all ranks of a job: a small CNN on MNIST's digits. Each batch is divided
 * among the ranks, and the weights are those that one process computes from whole batches.
 *
 * dlib has no hooks, but a layer or a solver may be any class with the functions that dlib calls.
 * Reduced<...> is a dlib layer that submits its gradient as soon as its own backward has computed
 * it, before the layer below begins. WaitingSgd waits for it just before it updates the layer. So
 * the loop itself is dlib's: compute_parameter_gradients, then update_parameters, which begins with
 * the last layer. dnn_trainer is not used, because it decides when to lower the learning rate by
 * the loss of the images that it was given, and those differ between ranks.
 *
 * dlib's gradients are means over the given images, so with PERSEUS_AVERAGE all ranks must be given
 * the same number of images.
 *
 *   c++ -std=c++17 -O2 digits.cc -o digits -I../cpp \
 *       $(python -m perseus.config --cflags --libs) -ldlib -pthread
 *   perseusrun -np 4 ./digits FOLDER [WEIGHTS]
 *
 * dlib is Debian's package libdlib-dev. FOLDER holds MNIST's four files (../cpp/mnist_file.h). Rank
 * 0 writes the trained weights to the file WEIGHTS.
 */
#include <dlib/dnn.h>
#include <mnist_file.h>
#include <perseus_training.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

using perseus_training::Array;
using perseus_training::Gradients;

constexpr size_t kBatch = 60;  // images of all ranks together
constexpr size_t kEpochs = 2;
constexpr double kLearningRate = 0.05;

/* A dlib layer whose gradient is reduced over the ranks, once it knows the gradient's number. */
template <typename LAYER>
class Reduced : public LAYER {
 public:
  void reduce_as(Gradients* gradients, int32_t number) {
    gradients_ = gradients;
    number_ = number;
  }

  template <typename SUBNET>
  void backward(const dlib::tensor& gradient_input, SUBNET& sub, dlib::tensor& params_grad) {
    LAYER::backward(gradient_input, sub, params_grad);
    if (gradients_ != nullptr) gradients_->submit(number_);
  }

  void wait() const { gradients_->wait(number_); }

 private:
  Gradients* gradients_ = nullptr;
  int32_t number_ = 0;
};

/* dlib's SGD with momentum, for layers that are Reduced. */
class WaitingSgd {
 public:
  template <typename LAYER>
  const dlib::tensor& operator()(float learning_rate, const Reduced<LAYER>& layer,
                                 const dlib::tensor& gradient) {
    layer.wait();
    // Casts to the base layer, for which dlib's solver treats biases differently.
    return sgd_(learning_rate, static_cast<const LAYER&>(layer), gradient);
  }

  template <typename LAYER>
  const dlib::tensor& operator()(float, const LAYER&, const dlib::tensor&) {
    throw std::logic_error("a layer with parameters is not Reduced: ranks would drift apart");
  }

 private:
  dlib::sgd sgd_;
};

template <long FILTERS, long SIDE, typename SUBNET>
using reduced_con = dlib::add_layer<Reduced<dlib::con_<FILTERS, SIDE, SIDE, 1, 1, 0, 0>>, SUBNET>;
template <unsigned long OUTPUTS, typename SUBNET>
using reduced_fc = dlib::add_layer<Reduced<dlib::fc_<OUTPUTS, dlib::FC_HAS_BIAS>>, SUBNET>;

using Image = dlib::matrix<unsigned char>;
template <typename SUBNET>
using features = dlib::avg_pool<2, 2, 2, 2, dlib::htan<reduced_con<6, 5, SUBNET>>>;
using Network = dlib::loss_multiclass_log<
    reduced_fc<mnist_file::kClasses, dlib::htan<reduced_fc<32, features<dlib::input<Image>>>>>>;

/* Images in dlib's form. */
struct Digits {
  std::vector<Image> images;
  std::vector<unsigned long> labels;
};

/* Calls `visit(layer)` for each Reduced layer of dlib's network, first layer first. */
template <typename VISIT>
class ReducedLayers {
 public:
  explicit ReducedLayers(VISIT visit) : visit_(visit) {}

  template <typename LAYER, typename SUBNET, typename E>
  void operator()(dlib::add_layer<Reduced<LAYER>, SUBNET, E>& layer) {
    visit_(layer);
  }

 private:
  VISIT visit_;
};

template <typename VISIT>
static void visit_reduced_layers(Network& network, VISIT visit) {
  dlib::visit_layers_backwards(network, ReducedLayers<VISIT>(visit));
}

static Array array_of(dlib::tensor& tensor) {
  return perseus_training::array(tensor.host(), tensor.size());
}

static std::vector<Array> weights_of(Network& network) {
  std::vector<Array> arrays;
  visit_reduced_layers(network, [&](auto& layer) {
    arrays.push_back(array_of(layer.layer_details().get_layer_params()));
  });
  return arrays;
}

static void reduce_gradients(Network& network, Gradients& gradients) {
  visit_reduced_layers(network, [&, l = 0](auto& layer) mutable {
    const std::string name = "layer" + std::to_string(l++);
    const int32_t number = gradients.add(name, array_of(layer.get_parameter_gradient()));
    layer.layer_details().reduce_as(&gradients, number);
  });
}

static Digits these(const mnist_file::Digits& digits, const std::vector<size_t>& rows) {
  Digits chosen;
  for (const size_t row : rows) {
    const uint8_t* pixels = digits.images[row].data();
    chosen.images.push_back(dlib::mat(pixels, mnist_file::kSide, mnist_file::kSide));
    chosen.labels.push_back(digits.labels[row]);
  }
  return chosen;
}

static void compute_gradients(Network& network, const Digits& part) {
  network.compute_parameter_gradients(part.images.begin(), part.images.end(), part.labels.begin());
}

static void train_epoch(Network& network, const mnist_file::Digits& digits, size_t epoch,
                        std::vector<WaitingSgd>& solvers) {
  const auto rank = static_cast<size_t>(perseus_rank()), size = static_cast<size_t>(perseus_size());
  for (const auto& rows :
       mnist_file::own_batches(digits.images.size(), kBatch, epoch, rank, size)) {
    compute_gradients(network, these(digits, rows));
    network.update_parameters(solvers, kLearningRate);
  }
}

/* Returns a percentage. */
static double accuracy(Network& network, const mnist_file::Digits& digits) {
  size_t right = 0;
  for (size_t i = 0; i < digits.images.size(); ++i) {
    const Digits one = these(digits, {i});
    right += network(one.images.front()) == one.labels.front() ? 1 : 0;
  }
  return 100.0 * static_cast<double>(right) / static_cast<double>(digits.images.size());
}

static void check_batch() {
  if (kBatch % static_cast<size_t>(perseus_size()) == 0) return;
  throw std::invalid_argument("a batch of " + std::to_string(kBatch) +
                              " cannot be divided evenly among " + std::to_string(perseus_size()) +
                              " ranks");
}

static void run(const std::string& folder, const std::string& weights_path) {
  const perseus_training::Process process;
  check_batch();
  const mnist_file::Digits digits = mnist_file::read(folder, "train");
  // Each rank starts with different weights, as programs do; the broadcast makes them equal.
  std::srand(static_cast<unsigned>(perseus_rank()) + 1);
  Network network;
  // dlib allocates weights and gradients when it first sees images; this pass has no other use.
  compute_gradients(network, these(digits, {0}));
  perseus_training::broadcast_from_rank_0("weights", weights_of(network));
  Gradients gradients(PERSEUS_AVERAGE);  // goes before the network, whose memory is submitted
  reduce_gradients(network, gradients);

  std::vector<WaitingSgd> solvers(Network::num_computational_layers);
  for (size_t epoch = 0; epoch < kEpochs; ++epoch) train_epoch(network, digits, epoch, solvers);

  if (perseus_rank() != 0) return;
  std::printf("%d processes: test accuracy %.1f %%\n", static_cast<int>(perseus_size()),
              accuracy(network, mnist_file::read(folder, "t10k")));
  if (!weights_path.empty()) perseus_training::save(weights_path, weights_of(network));
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: digits FOLDER [WEIGHTS]\n");
    return 2;
  }
  try {
    run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
