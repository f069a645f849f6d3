// An array, and the values to be subtracted from it.
#pragma once

#include "caffe/common.hpp"
#include "caffe/syncedmem.hpp"

namespace caffe {

template <typename Dtype>
class Blob {
 public:
  explicit Blob(const vector<int>& shape) : shape_(shape) {
    for (const int extent : shape) count_ *= extent;
    data_.reset(new SyncedMemory(count_ * sizeof(Dtype)));
    diff_.reset(new SyncedMemory(count_ * sizeof(Dtype)));
  }

  int count() const { return count_; }
  const vector<int>& shape() const { return shape_; }
  int shape(int axis) const { return shape_[axis]; }

  const Dtype* cpu_data() const { return static_cast<const Dtype*>(data_->cpu_data()); }
  const Dtype* cpu_diff() const { return static_cast<const Dtype*>(diff_->cpu_data()); }
  Dtype* mutable_cpu_data() { return static_cast<Dtype*>(data_->mutable_cpu_data()); }
  Dtype* mutable_cpu_diff() { return static_cast<Dtype*>(diff_->mutable_cpu_data()); }
  Dtype* mutable_gpu_diff() { return static_cast<Dtype*>(diff_->mutable_gpu_data()); }

  // From now on, the memory is the other blob's.
  void ShareData(const Blob& other) { data_ = other.data_; }
  void ShareDiff(const Blob& other) { diff_ = other.diff_; }

  void Update() {
    Dtype* data = mutable_cpu_data();
    const Dtype* diff = cpu_diff();
    for (int i = 0; i < count_; ++i) data[i] -= diff[i];
  }

 private:
  vector<int> shape_;
  int count_ = 1;
  shared_ptr<SyncedMemory> data_;
  shared_ptr<SyncedMemory> diff_;
};

}  // namespace caffe
