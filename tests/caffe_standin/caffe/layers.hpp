// Layers, each with forward and backward. Caffe calls a layer's parameters its blobs.
#pragma once

#include <cmath>

#include "caffe/blob.hpp"

namespace caffe {

struct ParamSpec {
  string name;  // layers that give the same one share the parameter
  float lr_mult = 1;
};

struct LayerParameter {
  string name;
  string type;
  int num_output = 0;
  vector<ParamSpec> param;  // none: all as they are by default
};

template <typename Dtype>
class Layer {
 public:
  typedef vector<Blob<Dtype>*> Blobs;

  explicit Layer(const LayerParameter& parameter) : parameter_(parameter) {}
  virtual ~Layer() {}

  // Makes the tops' blobs, and its own.
  virtual void SetUp(const Blobs& bottom, vector<shared_ptr<Blob<Dtype>>>* top) = 0;
  // Returns the loss, if the layer computes one.
  virtual Dtype Forward(const Blobs& bottom, const Blobs& top) = 0;
  // Adds to the parameters' diffs, and writes the first bottom's diff if asked to.
  virtual void Backward(const Blobs& top, bool propagate_down, const Blobs& bottom) = 0;

  const LayerParameter& layer_param() const { return parameter_; }
  vector<shared_ptr<Blob<Dtype>>>& blobs() { return blobs_; }
  bool param_propagate_down(int blob) const { return param_propagate_down_[blob]; }
  void set_param_propagate_down(int blob, bool value) {
    param_propagate_down_.resize(blobs_.size(), true);
    param_propagate_down_[blob] = value;
  }

 protected:
  static shared_ptr<Blob<Dtype>> make_blob(const vector<int>& shape) {
    return shared_ptr<Blob<Dtype>>(new Blob<Dtype>(shape));
  }

  LayerParameter parameter_;
  vector<shared_ptr<Blob<Dtype>>> blobs_;
  vector<bool> param_propagate_down_;
};

// Rows of a table of a formula's, and what is to be learnt of them. Each of several solvers takes
// the rows that are its own, by the count and rank that Caffe has when the layer is set up: as in
// Caffe, where that is when the thread starts that reads.
template <typename Dtype>
class DataLayer : public Layer<Dtype> {
 public:
  static const int kRows = 90;
  static const int kColumns = 5;
  static const int kLabels = 2;

  DataLayer(const LayerParameter& parameter, int batch_size)
      : Layer<Dtype>(parameter), batch_size_(batch_size) {}

  void SetUp(const vector<Blob<Dtype>*>&, vector<shared_ptr<Blob<Dtype>>>* top) override {
    solver_count_ = Caffe::solver_count();
    solver_rank_ = Caffe::solver_rank();
    top->push_back(this->make_blob({batch_size_, kColumns}));
    top->push_back(this->make_blob({batch_size_, kLabels}));
  }

  Dtype Forward(const vector<Blob<Dtype>*>&, const vector<Blob<Dtype>*>& top) override {
    Dtype* data = top[0]->mutable_cpu_data();
    Dtype* labels = top[1]->mutable_cpu_data();
    for (int i = 0; i < batch_size_; ++i, ++offset_) {
      while (offset_ % solver_count_ != solver_rank_) ++offset_;
      const int row = offset_ % kRows;
      for (int j = 0; j < kColumns; ++j) {
        data[i * kColumns + j] = static_cast<Dtype>(std::sin(1.7 * row + 2.3 * j));
      }
      for (int j = 0; j < kLabels; ++j) {
        labels[i * kLabels + j] = static_cast<Dtype>(std::cos(0.3 * row * (j + 1)));
      }
    }
    return 0;
  }

  void Backward(const vector<Blob<Dtype>*>&, bool, const vector<Blob<Dtype>*>&) override {}

 private:
  const int batch_size_;
  int solver_count_ = 1;
  int solver_rank_ = 0;
  int offset_ = 0;
};

// y = x W^T + b; its blobs are W and b.
template <typename Dtype>
class InnerProductLayer : public Layer<Dtype> {
 public:
  explicit InnerProductLayer(const LayerParameter& parameter) : Layer<Dtype>(parameter) {}

  void SetUp(const vector<Blob<Dtype>*>& bottom, vector<shared_ptr<Blob<Dtype>>>* top) override {
    rows_ = bottom[0]->shape(0);
    inputs_ = bottom[0]->shape(1);
    outputs_ = this->parameter_.num_output;
    top->push_back(this->make_blob({rows_, outputs_}));
    this->blobs_.push_back(this->make_blob({outputs_, inputs_}));
    this->blobs_.push_back(this->make_blob({outputs_}));
    for (const auto& blob : this->blobs_) fill(blob.get());
  }

  Dtype Forward(const vector<Blob<Dtype>*>& bottom, const vector<Blob<Dtype>*>& top) override {
    const Dtype* x = bottom[0]->cpu_data();
    const Dtype* weights = this->blobs_[0]->cpu_data();
    const Dtype* bias = this->blobs_[1]->cpu_data();
    Dtype* y = top[0]->mutable_cpu_data();
    for (int r = 0; r < rows_; ++r) {
      for (int o = 0; o < outputs_; ++o) {
        Dtype sum = bias[o];
        for (int i = 0; i < inputs_; ++i) sum += x[r * inputs_ + i] * weights[o * inputs_ + i];
        y[r * outputs_ + o] = sum;
      }
    }
    return 0;
  }

  void Backward(const vector<Blob<Dtype>*>& top, bool propagate_down,
                const vector<Blob<Dtype>*>& bottom) override {
    const Dtype* dy = top[0]->cpu_diff();
    if (this->param_propagate_down(0)) add_weights_diff(dy, bottom[0]->cpu_data());
    if (this->param_propagate_down(1)) add_bias_diff(dy);
    if (propagate_down) write_bottom_diff(dy, bottom[0]->mutable_cpu_diff());
  }

 private:
  static void fill(Blob<Dtype>* blob) {
    std::uniform_real_distribution<double> values(-0.5, 0.5);
    Dtype* data = blob->mutable_cpu_data();
    for (int i = 0; i < blob->count(); ++i) {
      data[i] = static_cast<Dtype>(values(Caffe::generator()));
    }
  }

  void add_weights_diff(const Dtype* dy, const Dtype* x) {
    Dtype* diff = this->blobs_[0]->mutable_cpu_diff();
    for (int r = 0; r < rows_; ++r) {
      for (int o = 0; o < outputs_; ++o) {
        for (int i = 0; i < inputs_; ++i) {
          diff[o * inputs_ + i] += dy[r * outputs_ + o] * x[r * inputs_ + i];
        }
      }
    }
  }

  void add_bias_diff(const Dtype* dy) {
    Dtype* diff = this->blobs_[1]->mutable_cpu_diff();
    for (int r = 0; r < rows_; ++r) {
      for (int o = 0; o < outputs_; ++o) diff[o] += dy[r * outputs_ + o];
    }
  }

  void write_bottom_diff(const Dtype* dy, Dtype* dx) {
    const Dtype* weights = this->blobs_[0]->cpu_data();
    for (int r = 0; r < rows_; ++r) {
      for (int i = 0; i < inputs_; ++i) {
        Dtype sum = 0;
        for (int o = 0; o < outputs_; ++o) sum += dy[r * outputs_ + o] * weights[o * inputs_ + i];
        dx[r * inputs_ + i] = sum;
      }
    }
  }

  int rows_ = 0;
  int inputs_ = 0;
  int outputs_ = 0;
};

template <typename Dtype>
class TanHLayer : public Layer<Dtype> {
 public:
  explicit TanHLayer(const LayerParameter& parameter) : Layer<Dtype>(parameter) {}

  void SetUp(const vector<Blob<Dtype>*>& bottom, vector<shared_ptr<Blob<Dtype>>>* top) override {
    top->push_back(this->make_blob(bottom[0]->shape()));
  }

  Dtype Forward(const vector<Blob<Dtype>*>& bottom, const vector<Blob<Dtype>*>& top) override {
    const Dtype* x = bottom[0]->cpu_data();
    Dtype* y = top[0]->mutable_cpu_data();
    for (int i = 0; i < top[0]->count(); ++i) y[i] = std::tanh(x[i]);
    return 0;
  }

  void Backward(const vector<Blob<Dtype>*>& top, bool propagate_down,
                const vector<Blob<Dtype>*>& bottom) override {
    if (!propagate_down) return;
    const Dtype* y = top[0]->cpu_data();
    const Dtype* dy = top[0]->cpu_diff();
    Dtype* dx = bottom[0]->mutable_cpu_diff();
    for (int i = 0; i < top[0]->count(); ++i) dx[i] = dy[i] * (1 - y[i] * y[i]);
  }
};

// Half of the mean squared distance to the labels, over the rows of this solver's batch.
template <typename Dtype>
class EuclideanLossLayer : public Layer<Dtype> {
 public:
  explicit EuclideanLossLayer(const LayerParameter& parameter) : Layer<Dtype>(parameter) {}

  void SetUp(const vector<Blob<Dtype>*>&, vector<shared_ptr<Blob<Dtype>>>* top) override {
    top->push_back(this->make_blob({1}));
  }

  Dtype Forward(const vector<Blob<Dtype>*>& bottom, const vector<Blob<Dtype>*>& top) override {
    const Dtype* found = bottom[0]->cpu_data();
    const Dtype* labels = bottom[1]->cpu_data();
    Dtype sum = 0;
    for (int i = 0; i < bottom[0]->count(); ++i) {
      sum += (found[i] - labels[i]) * (found[i] - labels[i]);
    }
    return top[0]->mutable_cpu_data()[0] = sum / (2 * bottom[0]->shape(0));
  }

  void Backward(const vector<Blob<Dtype>*>&, bool propagate_down,
                const vector<Blob<Dtype>*>& bottom) override {
    if (!propagate_down) return;
    const Dtype* found = bottom[0]->cpu_data();
    const Dtype* labels = bottom[1]->cpu_data();
    Dtype* diff = bottom[0]->mutable_cpu_diff();
    for (int i = 0; i < bottom[0]->count(); ++i) {
      diff[i] = (found[i] - labels[i]) / bottom[0]->shape(0);
    }
  }
};

}  // namespace caffe
