// SPDX-License-Identifier: Apache-2.0
// The types that the matrix kernels take, as parts of problem lines.
#pragma once

#include <string>
#include <vector>

namespace quire::test {

inline const std::vector<std::string>& matrix_types() {
  static const std::vector<std::string> list = {
      "q=f16 kv=f16 layout=hnd index=i64",
      "q=bf16 kv=bf16 layout=nhd",
      "q=bf16 kv=fp8_e4m3fn layout=nhd kscale=head vscale=tensor",
      "q=f16 kv=fp8_e4m3fnuz layout=nhd kscale=tensor vscale=head index=i64",
      "q=bf16 kv=bf16 layout=packed vscale=tensor",
      "q=f16 kv=fp8_e5m2 layout=hnd vscale=head",
      "q=bf16 kv=fp8_e5m2fnuz layout=hnd",
      "q=f16 kv=fp8_e4m3fn layout=packed kscale=tensor vscale=tensor",
  };
  return list;
}

/// The shape with a head_dim of these kernels.
inline std::string with_head_dim(std::string shape, int head_dim) {
  const auto replace = [&shape](const std::string& name, const std::string& field) {
    const std::size_t at = shape.find(name);
    if (at == std::string::npos) return;
    const std::size_t end = shape.find(' ', at + 1);
    shape.replace(at, end == std::string::npos ? end : end - at, field);
  };
  replace(" d=", " d=" + std::to_string(head_dim));
  // No matrix kernel takes another head_dim of V
  replace(" dv=", "");
  replace(" latent=", "");
  return shape;
}

}  // namespace quire::test
