// Makes one device current while it lives. Costs one query if it already is.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/error.h"

namespace quire::cuda {

class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) {
    status_ = status_of(cudaGetDevice(&before_), "cudaGetDevice");
    if (!status_.ok() || before_ == ordinal) return;
    status_ = status_of(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = status_.ok();
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  const Status& status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  Status status_;
};

}  // namespace quire::cuda
