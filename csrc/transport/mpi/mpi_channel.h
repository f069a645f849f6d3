// One link's channel over MPI; the fabric does the work. Loop thread.
#pragma once

#include "transport/channel.h"
#include "transport/mpi/mpi_fabric.h"

namespace perseus {

class MpiChannel final : public Channel {
 public:
  MpiChannel(MpiFabric& fabric, int peer, FramePort& port)
      : fabric_(fabric), peer_(peer), port_(port) {}
  ~MpiChannel() override { close(); }

  Kind kind() const override { return Kind::kMpi; }
  void start() override {
    open_ = true;
    fabric_.open(peer_, this);
  }
  void kick() override {
    if (open_) fabric_.send_all(peer_);
  }
  void close() override {
    if (!open_) return;
    open_ = false;
    fabric_.close(peer_);
  }

  FramePort& port() { return port_; }

 private:
  MpiFabric& fabric_;
  const int peer_;
  FramePort& port_;
  bool open_ = false;
};

}  // namespace perseus
