// SPDX-License-Identifier: Apache-2.0
// Makes one device current while it lives. Costs one query if it already is.
#pragma once

#include "backend/gpu/entry.h"

namespace quire::gpu {

class CurrentDevice {
 public:
  CurrentDevice(const Vendor& vendor, int ordinal) : vendor_(vendor) {
    const Result<int> before = vendor.current_device();
    status_ = before.status();
    if (!before.ok() || before.value() == ordinal) return;
    before_ = before.value();
    status_ = vendor.set_device(ordinal);
    changed_ = status_.ok();
  }
  ~CurrentDevice() {
    if (changed_) (void)vendor_.set_device(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  const Status& status() const { return status_; }

 private:
  const Vendor& vendor_;
  int before_ = 0;
  bool changed_ = false;
  Status status_;
};

}  // namespace quire::gpu
