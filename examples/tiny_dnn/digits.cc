/* Training with tiny-dnn on all ranks of a job: a small CNN on MNIST's digits. Each batch is
 * divided among the ranks, and the weights are those that one process computes from whole batches.
 *
 * network::fit has no callback between backward and update, but its layers are public and do both
 * one by one. So this loop calls them itself: it submits each layer's gradients before the backward
 * pass of the layer below begins, and waits for each gradient just before its own update. tiny-dnn
 * keeps a gradient for each sample and sums them when it updates. Here each rank sums its own and
 * PERSEUS_SUM does the rest, so a batch need not divide evenly among the ranks.
 *
 * Debian's packages are tiny-dnn, libcereal-dev and libstb-dev; the last has in stb/ what tiny-dnn
 * looks for in third_party/stb/. -DCNN_USE_DOUBLE trains in double precision.
 *
 *   mkdir -p include/third_party && ln -s /usr/include/stb include/third_party/stb
 *   c++ -std=c++17 -O2 digits.cc -o digits -Iinclude -I../cpp \
 *       $(python -m perseus.config --cflags --libs) -pthread
 *   perseusrun -np 4 ./digits FOLDER [WEIGHTS]
 *
 * FOLDER holds MNIST's four files (../cpp/mnist_file.h). Rank 0 writes the trained weights to the
 * file WEIGHTS.
 */
// One thread in each rank: the work is too short for tiny-dnn's threads to pay for their start.
#define CNN_SINGLE_THREAD
#include <tiny_dnn/config.h>
// For quantized layers, which are not used here; their headers are in another package.
#undef CNN_USE_GEMMLOWP
#include <mnist_file.h>
#include <perseus_training.h>
#include <tiny_dnn/tiny_dnn.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

using perseus_training::Array;
using perseus_training::Gradients;
using tiny_dnn::tensor_t;
using tiny_dnn::vec_t;

using Network = tiny_dnn::network<tiny_dnn::sequential>;
using Loss = tiny_dnn::cross_entropy_multiclass;

constexpr size_t kBatch = 64;  // images of all ranks together
constexpr size_t kEpochs = 2;

static void add_layers(Network& network) {
  using namespace tiny_dnn::activation;
  using namespace tiny_dnn::layers;
  network << conv<tan_h>(28, 28, 5, 1, 6) << ave_pool<tan_h>(24, 24, 6, 2)
          << fc<tan_h>(12 * 12 * 6, 32) << fc<softmax>(32, mnist_file::kClasses);
}

/* A vector of a layer's weights or biases. */
struct Parameter {
  vec_t* weights;
  tiny_dnn::edgeptr_t edge;  // has the gradients of single samples
  vec_t gradient;            // their sum, and from wait on that of all ranks
  int32_t number;            // of the gradient among those that are submitted
};

/* Trains on a batch as network::fit does, but with all ranks' gradients. */
class Trainer {
 public:
  explicit Trainer(Network& network) : network_(network), gradients_(PERSEUS_SUM, 1.0 / kBatch) {
    network.init_weight();
    for (size_t l = 0; l < network.layer_size(); ++l) parameters_.push_back(parameters_of(l));
    perseus_training::broadcast_from_rank_0("weights", weights());
    add_gradients();
  }

  void train_on(const std::vector<tensor_t>& images, const std::vector<tensor_t>& targets,
                tiny_dnn::optimizer& optimizer) {
    backward(tiny_dnn::gradient<Loss>(network_.predict(images), targets, {}));
    update(optimizer);
  }

  std::vector<Array> weights() const {
    std::vector<Array> arrays;
    for (const auto& of_layer : parameters_) {
      for (const Parameter& parameter : of_layer) arrays.push_back(array_of(*parameter.weights));
    }
    return arrays;
  }

 private:
  static Array array_of(vec_t& numbers) {
    return perseus_training::array(numbers.data(), numbers.size());
  }

  std::vector<Parameter> parameters_of(size_t l) {
    std::vector<Parameter> parameters;
    for (const tiny_dnn::edgeptr_t& edge : network_[l]->inputs()) {
      if (!tiny_dnn::is_trainable_weight(edge->vtype())) continue;
      vec_t* weights = &edge->get_data()->front();
      parameters.push_back({weights, edge, vec_t(weights->size()), 0});
    }
    return parameters;
  }

  /* Call it when all parameters are in place: their gradients' memory must not move after this. */
  void add_gradients() {
    for (size_t l = 0; l < parameters_.size(); ++l) {
      for (size_t p = 0; p < parameters_[l].size(); ++p) {
        const std::string name = "layer" + std::to_string(l) + ".parameter" + std::to_string(p);
        Parameter& parameter = parameters_[l][p];
        parameter.number = gradients_.add(name, array_of(parameter.gradient));
      }
    }
  }

  /* tiny-dnn has the loss's gradients by sample, while a layer takes them by channel; the last
   * layer has one channel. */
  static tensor_t by_channel(const std::vector<tensor_t>& by_sample) {
    tensor_t channel;
    for (const tensor_t& sample : by_sample) channel.push_back(sample.front());
    return channel;
  }

  /* While a layer's gradients are reduced, the layer below computes its own. */
  void backward(const std::vector<tensor_t>& loss_gradients) {
    network_[network_.layer_size() - 1]->set_out_grads({by_channel(loss_gradients)});
    for (size_t l = network_.layer_size(); l-- > 0;) {
      network_[l]->backward();
      for (Parameter& parameter : parameters_[l]) {
        parameter.edge->merge_grads(&parameter.gradient);
        gradients_.submit(parameter.number);
      }
    }
  }

  /* First layers first: perseus.h sends their gradients ahead of others that are waiting. */
  void update(tiny_dnn::optimizer& optimizer) {
    for (size_t l = 0; l < network_.layer_size(); ++l) {
      for (Parameter& parameter : parameters_[l]) {
        gradients_.wait(parameter.number);
        optimizer.update(parameter.gradient, *parameter.weights, /*parallelize=*/false);
      }
      network_[l]->clear_grads();
      network_[l]->post_update();
    }
  }

  Network& network_;
  std::vector<std::vector<Parameter>> parameters_;  // of each layer
  Gradients gradients_;                             // goes before the memory that is submitted
};

static vec_t numbers_of(const mnist_file::Image& image) {
  vec_t numbers;
  for (const uint8_t pixel : image) numbers.push_back(tiny_dnn::float_t(pixel) / 255);
  return numbers;
}

static vec_t target_of(uint8_t label) {
  vec_t target(mnist_file::kClasses, 0);
  target[label] = 1;
  return target;
}

static void train_epoch(Trainer& trainer, const mnist_file::Digits& digits, size_t epoch,
                        tiny_dnn::optimizer& optimizer) {
  const auto rank = static_cast<size_t>(perseus_rank()), size = static_cast<size_t>(perseus_size());
  for (const auto& rows :
       mnist_file::own_batches(digits.images.size(), kBatch, epoch, rank, size)) {
    std::vector<tensor_t> images, targets;
    for (const size_t row : rows) {
      images.push_back({numbers_of(digits.images[row])});
      targets.push_back({target_of(digits.labels[row])});
    }
    trainer.train_on(images, targets, optimizer);
  }
}

/* Returns a percentage. */
static double accuracy(Network& network, const mnist_file::Digits& digits) {
  std::vector<vec_t> images;
  for (const mnist_file::Image& image : digits.images) images.push_back(numbers_of(image));
  const std::vector<tiny_dnn::label_t> labels(digits.labels.begin(), digits.labels.end());
  return static_cast<double>(network.test(images, labels).accuracy());
}

static void run(const std::string& folder, const std::string& weights_path) {
  const perseus_training::Process process;
  // Each rank starts with different weights, as programs do; the broadcast makes them equal.
  tiny_dnn::set_random_seed(static_cast<unsigned>(perseus_rank()) + 1);
  Network network;
  add_layers(network);
  Trainer trainer(network);
  tiny_dnn::momentum optimizer;
  optimizer.alpha = tiny_dnn::float_t(0.05);

  const mnist_file::Digits digits = mnist_file::read(folder, "train");
  network.set_netphase(tiny_dnn::net_phase::train);
  for (size_t epoch = 0; epoch < kEpochs; ++epoch) train_epoch(trainer, digits, epoch, optimizer);

  if (perseus_rank() != 0) return;
  std::printf("%d processes: test accuracy %.1f %%\n", static_cast<int>(perseus_size()),
              accuracy(network, mnist_file::read(folder, "t10k")));
  if (!weights_path.empty()) perseus_training::save(weights_path, trainer.weights());
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
