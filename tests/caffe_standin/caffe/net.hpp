// A chain of layers, from data to a loss.
#pragma once

#include <algorithm>
#include <map>

#include "caffe/layers.hpp"

namespace caffe {

struct NetParameter {
  int batch_size = 1;
  vector<LayerParameter> layer;
  // Caffe calls back for each layer, those too that need no backward. 0: only after backward.
  bool calls_back_for_all_layers = true;
};

template <typename Dtype>
class Net {
 public:
  class Callback {
   protected:
    virtual void run(int layer) = 0;

    template <typename T>
    friend class Net;
  };

  explicit Net(const NetParameter& parameter) : parameter_(parameter) {
    bool bottom_needs_backward = false;
    for (const LayerParameter& each : parameter.layer) {
      append(each);
      bottom_need_backward_.push_back(bottom_needs_backward);
      bottom_needs_backward = bottom_needs_backward || any_is_learnt(*layers_.back());
      layer_need_backward_.push_back(bottom_needs_backward);
    }
  }

  Dtype ForwardBackward() {
    Dtype loss = 0;
    for (size_t i = 0; i < layers_.size(); ++i) loss += layers_[i]->Forward(bottoms_[i], tops_[i]);
    BackwardFromTo(static_cast<int>(layers_.size()) - 1, 0);
    return loss;
  }

  void BackwardFromTo(int start, int end) {
    for (int i = start; i >= end; --i) {
      for (Callback* callback : before_backward_) callback->run(i);
      if (layer_need_backward_[i]) {
        layers_[i]->Backward(tops_[i], bottom_need_backward_[i], bottoms_[i]);
      } else if (!parameter_.calls_back_for_all_layers) {
        continue;
      }
      for (Callback* callback : after_backward_) callback->run(i);
    }
  }

  void ClearParamDiffs() {
    for (Blob<Dtype>* blob : learnable_params_) {
      std::fill_n(blob->mutable_cpu_diff(), blob->count(), Dtype(0));
    }
  }

  void Update() {
    for (Blob<Dtype>* blob : learnable_params_) blob->Update();
  }

  const vector<string>& layer_names() const { return layer_names_; }
  const vector<shared_ptr<Layer<Dtype>>>& layers() const { return layers_; }
  // The blobs of all layers, one after the other; each shared one appears once for each layer.
  const vector<shared_ptr<Blob<Dtype>>>& params() const { return params_; }
  // The blobs that are not shared, and the first of each group that is.
  const vector<Blob<Dtype>*>& learnable_params() const { return learnable_params_; }
  // For each of params(): the index in params() of the blob that it shares, or -1.
  const vector<int>& param_owners() const { return param_owners_; }
  const vector<float>& params_lr() const { return params_lr_; }

  void add_before_backward(Callback* callback) { before_backward_.push_back(callback); }
  void add_after_backward(Callback* callback) { after_backward_.push_back(callback); }

 private:
  void append(const LayerParameter& parameter) {
    layers_.push_back(make_layer(parameter));
    layer_names_.push_back(parameter.name);
    vector<Blob<Dtype>*> bottom;
    if (!tops_.empty()) bottom.push_back(tops_.back()[0]);
    if (parameter.type == "EuclideanLoss") bottom.push_back(tops_.front()[1]);
    vector<shared_ptr<Blob<Dtype>>> top;
    layers_.back()->SetUp(bottom, &top);
    bottoms_.push_back(bottom);
    tops_.emplace_back();
    for (const auto& blob : top) {
      blobs_.push_back(blob);
      tops_.back().push_back(blob.get());
    }
    for (size_t i = 0; i < layers_.back()->blobs().size(); ++i) append_param(i);
  }

  shared_ptr<Layer<Dtype>> make_layer(const LayerParameter& parameter) const {
    typedef shared_ptr<Layer<Dtype>> Pointer;
    if (parameter.type == "Data") {
      return Pointer(new DataLayer<Dtype>(parameter, parameter_.batch_size));
    }
    if (parameter.type == "InnerProduct") return Pointer(new InnerProductLayer<Dtype>(parameter));
    if (parameter.type == "TanH") return Pointer(new TanHLayer<Dtype>(parameter));
    CHECK(parameter.type == "EuclideanLoss");
    return Pointer(new EuclideanLossLayer<Dtype>(parameter));
  }

  void append_param(size_t i) {
    Layer<Dtype>& layer = *layers_.back();
    const ParamSpec spec =
        i < layer.layer_param().param.size() ? layer.layer_param().param[i] : ParamSpec();
    layer.set_param_propagate_down(static_cast<int>(i), spec.lr_mult != 0);
    params_.push_back(layer.blobs()[i]);
    const auto shared = shared_.find(spec.name);
    if (!spec.name.empty() && shared != shared_.end()) {
      param_owners_.push_back(shared->second);
      params_.back()->ShareData(*params_[shared->second]);
      params_.back()->ShareDiff(*params_[shared->second]);
      return;
    }
    if (!spec.name.empty()) shared_[spec.name] = static_cast<int>(params_.size()) - 1;
    param_owners_.push_back(-1);
    learnable_params_.push_back(params_.back().get());
    params_lr_.push_back(spec.lr_mult);
  }

  static bool any_is_learnt(Layer<Dtype>& layer) {
    for (size_t i = 0; i < layer.blobs().size(); ++i) {
      if (layer.param_propagate_down(static_cast<int>(i))) return true;
    }
    return false;
  }

  const NetParameter parameter_;
  vector<shared_ptr<Layer<Dtype>>> layers_;
  vector<string> layer_names_;
  vector<shared_ptr<Blob<Dtype>>> blobs_;
  vector<vector<Blob<Dtype>*>> bottoms_;
  vector<vector<Blob<Dtype>*>> tops_;
  vector<bool> bottom_need_backward_;
  vector<bool> layer_need_backward_;
  vector<shared_ptr<Blob<Dtype>>> params_;
  vector<Blob<Dtype>*> learnable_params_;
  vector<int> param_owners_;
  vector<float> params_lr_;
  std::map<string, int> shared_;
  vector<Callback*> before_backward_;
  vector<Callback*> after_backward_;
};

}  // namespace caffe
