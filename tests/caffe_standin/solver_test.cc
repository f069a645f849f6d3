// Trains a net of the stand-in for Caffe with perseus_caffe.hpp, and writes its parameters, as
// float64, to WEIGHTS.<rank>. Prints after which layer of which backward pass each gradient was
// submitted, "2.ip3: ip3/0 ip3/1, ..."; ends with 1 if that differs between iterations.
//
//   perseusrun -np 2 ./solver_test WEIGHTS --batch 6 --iter-size 2 --shared
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <perseus/perseus_caffe.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

const int kIterations = 8;

struct Options {
  std::string weights;
  int batch = 12;  // of this rank
  int iter_size = 1;
  bool is_float = false;
  bool is_shared = false;  // ip3's parameters are ip2's
  bool is_frozen = false;  // ip1 is not learnt
  bool clips = false;
  bool skips = false;  // no callback for a layer without backward
  bool is_on_gpu = false;
  bool is_without_init = false;
  std::string rank_1;  // the mistake that rank 1 makes
};

Options parse(int argc, char** argv) {
  Options options;
  options.weights = argv[1];
  const std::map<std::string, bool*> switches = {{"--float", &options.is_float},
                                                 {"--shared", &options.is_shared},
                                                 {"--frozen", &options.is_frozen},
                                                 {"--clip", &options.clips},
                                                 {"--skip", &options.skips},
                                                 {"--gpu", &options.is_on_gpu},
                                                 {"--without-init", &options.is_without_init}};
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (switches.count(flag) > 0) {
      *switches.at(flag) = true;
    } else if (flag == "--batch") {
      options.batch = std::stoi(argv[++i]);
    } else if (flag == "--iter-size") {
      options.iter_size = std::stoi(argv[++i]);
    } else if (flag == "--rank-1") {
      options.rank_1 = argv[++i];
    } else {
      throw std::invalid_argument("there is no option " + flag);
    }
  }
  return options;
}

// The gradients submitted after each layer. The names are by the engine's numbers.
struct Record {
  std::vector<std::string> names;
  std::vector<std::string> iterations;
  std::string place;  // that of the next submission
  std::string last_place;

  void begin() {
    iterations.emplace_back();
    last_place.clear();
  }

  void note(int32_t gradient) {
    std::string& order = iterations.back();
    if (place != last_place) order += (order.empty() ? "" : ", ") + place + ":";
    last_place = place;
    order += " " + names[gradient];
  }
};

Record record;

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The program's own come before those of the library, to which they go on.
extern "C" perseus_status_t perseus_gradients_add(perseus_gradients_t* gradients, const char* name,
                                                  const perseus_tensor_t* tensor,
                                                  int32_t* gradient) {
  record.names.push_back(name);
  return next<decltype(perseus_gradients_add)>("perseus_gradients_add")(gradients, name, tensor,
                                                                        gradient);
}

extern "C" perseus_status_t perseus_gradients_submit(perseus_gradients_t* gradients,
                                                     int32_t gradient, void* stream) {
  record.note(gradient);
  return next<decltype(perseus_gradients_submit)>("perseus_gradients_submit")(gradients, gradient,
                                                                              stream);
}

namespace {

// Records where the solver is. Register it before the Synchronizer.
template <typename Dtype>
class Observer final : public caffe::Solver<Dtype>::Callback, public caffe::Net<Dtype>::Callback {
 public:
  Observer(caffe::Solver<Dtype>& solver, const Options& options)
      : solver_(solver), options_(options) {
    solver.add_callback(this);
    solver.net()->add_before_backward(this);
  }

 protected:
  void on_start() override {
    record.begin();
    pass_ = 0;
  }

  void run(int layer) override {
    const auto& names = solver_.net()->layer_names();
    if (names[layer] == "loss") ++pass_;
    record.place = std::to_string(pass_) + "." + names[layer];
    const bool dies = options_.rank_1 == "dies" && perseus_rank() == 1 && solver_.iter() == 2;
    if (dies && names[layer] == "ip1") _exit(3);
  }

  void on_gradients_ready() override { record.place = "end"; }

 private:
  caffe::Solver<Dtype>& solver_;
  const Options& options_;
  int pass_ = 0;
};

caffe::LayerParameter layer(const char* name, const char* type, int outputs = 0) {
  caffe::LayerParameter parameter;
  parameter.name = name;
  parameter.type = type;
  parameter.num_output = outputs;
  return parameter;
}

caffe::NetParameter net_of(const Options& options, bool is_odd) {
  const int width = is_odd && options.rank_1 == "is-wider" ? 7 : 6;
  caffe::NetParameter net;
  net.batch_size = options.batch;
  net.calls_back_for_all_layers = !options.skips;
  net.layer = {
      layer("data", "Data"),         layer("ip1", "InnerProduct", width),
      layer("tanh1", "TanH"),        layer("ip2", "InnerProduct", width),
      layer("tanh2", "TanH"),        layer("ip3", "InnerProduct", width),
      layer("tanh3", "TanH"),        layer("ip4", "InnerProduct", caffe::DataLayer<float>::kLabels),
      layer("loss", "EuclideanLoss")};
  caffe::ParamSpec weights, bias;
  if (options.is_shared) {
    weights.name = "weights";
    bias.name = "bias";
    net.layer[3].param = net.layer[5].param = {weights, bias};
  }
  if (options.is_frozen || (is_odd && options.rank_1 == "is-frozen")) {
    caffe::ParamSpec frozen;
    frozen.lr_mult = 0;
    net.layer[1].param = {frozen, frozen};
  }
  return net;
}

template <typename Dtype>
void write_weights(const caffe::Net<Dtype>& net, const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error(path + ": " + std::strerror(errno));
  for (const caffe::Blob<Dtype>* blob : net.learnable_params()) {
    const std::vector<double> values(blob->cpu_data(), blob->cpu_data() + blob->count());
    std::fwrite(values.data(), sizeof(double), values.size(), file);
  }
  if (std::fclose(file) != 0) throw std::runtime_error(path + ": " + std::strerror(errno));
}

template <typename Dtype>
void train(const Options& options) {
  if (!options.is_without_init) perseus::caffe::init();
  caffe::Caffe::set_mode(options.is_on_gpu ? caffe::Caffe::GPU : caffe::Caffe::CPU);

  const bool is_odd = perseus_rank() == 1;
  caffe::SolverParameter parameter;
  parameter.set_max_iter(kIterations);
  parameter.set_iter_size(options.iter_size);
  parameter.set_base_lr(0.2f);
  parameter.set_momentum(0.9f);
  if (options.clips) parameter.set_clip_gradients(0.1f);
  *parameter.mutable_net_param() = net_of(options, is_odd);
  caffe::shared_ptr<caffe::Solver<Dtype>> solver(new caffe::SGDSolver<Dtype>(parameter));
  if (is_odd && options.rank_1 == "is-ahead") solver->set_iter(5);

  const Observer<Dtype> observer(*solver, options);
  perseus::caffe::Synchronizer<Dtype> synchronizer(*solver);
  // No pass of the solver's: nothing is submitted.
  solver->net()->BackwardFromTo(static_cast<int>(solver->net()->layers().size()) - 1, 0);
  synchronizer.solve();

  for (const std::string& order : record.iterations) {
    if (order != record.iterations[0]) {
      throw std::runtime_error("orders differ: " + record.iterations[0] + " and then " + order);
    }
  }
  std::printf("order: %s\n", record.iterations[0].c_str());
  write_weights(*solver->net(), options.weights + "." + std::to_string(perseus_rank()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    options.is_float ? train<float>(options) : train<double>(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    perseus_shutdown_because(error.what());  // lets the other ranks see theirs
    return 1;
  }
  return perseus_shutdown() == PERSEUS_OK ? 0 : 1;
}
