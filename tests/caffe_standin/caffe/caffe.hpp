// A stand-in for BVLC Caffe 1.0, which Debian no longer has: classes of the same names, with those
// of their public members that frameworks/caffe/perseus_caffe.hpp uses, and with callbacks and
// numbers as Caffe has them. Nets are chains of fully connected layers, whose gradients are
// computed on the CPU. In GPU mode the blobs of parameters go to the GPU and back, as they do in
// Caffe for layers that only have code for the CPU.
#pragma once

#include "caffe/blob.hpp"
#include "caffe/common.hpp"
#include "caffe/layers.hpp"
#include "caffe/net.hpp"
#include "caffe/solver.hpp"
