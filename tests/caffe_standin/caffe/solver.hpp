// The loop of training, and stochastic gradient descent with momentum.
#pragma once

#include <cmath>

#include "caffe/net.hpp"

namespace caffe {

class SolverParameter {
 public:
  int max_iter() const { return max_iter_; }
  int iter_size() const { return iter_size_; }
  float base_lr() const { return base_lr_; }
  float momentum() const { return momentum_; }
  float clip_gradients() const { return clip_gradients_; }
  int random_seed() const { return random_seed_; }
  const NetParameter& net_param() const { return net_param_; }

  void set_max_iter(int value) { max_iter_ = value; }
  void set_iter_size(int value) { iter_size_ = value; }
  void set_base_lr(float value) { base_lr_ = value; }
  void set_momentum(float value) { momentum_ = value; }
  void set_clip_gradients(float value) { clip_gradients_ = value; }
  void set_random_seed(int value) { random_seed_ = value; }
  NetParameter* mutable_net_param() { return &net_param_; }

 private:
  int max_iter_ = 0;
  int iter_size_ = 1;
  float base_lr_ = 0;
  float momentum_ = 0;
  float clip_gradients_ = -1;
  int random_seed_ = 1;
  NetParameter net_param_;
};

template <typename Dtype>
class Solver {
 public:
  class Callback {
   protected:
    virtual void on_start() = 0;
    virtual void on_gradients_ready() = 0;

    template <typename T>
    friend class Solver;
  };

  explicit Solver(const SolverParameter& parameter) : param_(parameter) {
    Caffe::set_random_seed(parameter.random_seed() + Caffe::solver_rank());
    net_.reset(new Net<Dtype>(parameter.net_param()));
  }
  virtual ~Solver() {}

  void Solve() {
    CHECK(Caffe::root_solver());
    Step(param_.max_iter() - iter_);
  }

  void Step(int iterations) {
    for (const int stop = iter_ + iterations; iter_ < stop; ++iter_) {
      net_->ClearParamDiffs();
      for (Callback* callback : callbacks_) callback->on_start();
      for (int i = 0; i < param_.iter_size(); ++i) net_->ForwardBackward();
      for (Callback* callback : callbacks_) callback->on_gradients_ready();
      ApplyUpdate();
    }
  }

  const SolverParameter& param() const { return param_; }
  shared_ptr<Net<Dtype>> net() const { return net_; }
  int iter() const { return iter_; }
  void add_callback(Callback* callback) { callbacks_.push_back(callback); }
  // The stand-in's own, in place of Restore(), for it has no files.
  void set_iter(int iteration) { iter_ = iteration; }

 protected:
  virtual void ApplyUpdate() = 0;

  const SolverParameter param_;
  shared_ptr<Net<Dtype>> net_;
  int iter_ = 0;
  vector<Callback*> callbacks_;
};

template <typename Dtype>
class SGDSolver : public Solver<Dtype> {
 public:
  explicit SGDSolver(const SolverParameter& parameter) : Solver<Dtype>(parameter) {
    for (const Blob<Dtype>* blob : this->net_->learnable_params()) {
      history_.emplace_back(blob->count(), Dtype(0));
    }
  }

 protected:
  void ApplyUpdate() override {
    const Dtype clipping = clipping_factor();
    for (size_t i = 0; i < history_.size(); ++i) {
      Blob<Dtype>& blob = *this->net_->learnable_params()[i];
      const Dtype rate =
          this->param_.base_lr() * this->net_->params_lr()[i] * clipping / this->param_.iter_size();
      Dtype* diff = blob.mutable_cpu_diff();
      for (int j = 0; j < blob.count(); ++j) {
        history_[i][j] = this->param_.momentum() * history_[i][j] + rate * diff[j];
        diff[j] = history_[i][j];
      }
    }
    this->net_->Update();
  }

 private:
  Dtype clipping_factor() const {
    if (this->param_.clip_gradients() < 0) return 1;
    Dtype squares = 0;
    for (const Blob<Dtype>* blob : this->net_->learnable_params()) {
      for (int j = 0; j < blob->count(); ++j) squares += blob->cpu_diff()[j] * blob->cpu_diff()[j];
    }
    const Dtype norm = std::sqrt(squares);
    return norm > this->param_.clip_gradients() ? this->param_.clip_gradients() / norm : 1;
  }

  vector<vector<Dtype>> history_;
};

}  // namespace caffe
