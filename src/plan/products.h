// SPDX-License-Identifier: Apache-2.0
// Names of products (h100, mi300x) that find_device() takes beside the names of architectures.
#pragma once

#include <string>
#include <vector>

namespace quire::plan_detail {

std::vector<std::string> product_names();

}  // namespace quire::plan_detail
