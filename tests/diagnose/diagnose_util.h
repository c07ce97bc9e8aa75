// SPDX-License-Identifier: Apache-2.0
// Cases with a wrong observed output, in memory.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/faults.hpp"
#include "quire/tools/report.hpp"
#include "semantics/dtype.h"

namespace quire::test {

inline Case made(const std::string& line) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Case> c = make_case(parsed.value());
  EXPECT_TRUE(c.ok()) << c.status().message();
  return std::move(c).value();
}

inline Tensor copy_of(Case& c, const Tensor& t) {
  if (!t.present()) return t;
  const auto bytes = static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype));
  const Tensor copy = Tensor::from_shape(c.allocate(bytes), t.dtype, t.shape, t.rank);
  if (bytes > 0) std::memcpy(copy.data, t.data, bytes);
  return copy;
}

/// Makes what is in batch.output and lse the observed output.
inline void observe_output(Case& c) {
  c.observed = copy_of(c, c.batch.output);
  c.observed_lse = copy_of(c, c.batch.lse);
}

/// The fp64 reference, rounded to the output's type.
inline Case right(const std::string& line) {
  Case c = made(line);
  const Result<Reference> r = reference(c.batch, c.cache, c.options);
  EXPECT_TRUE(r.ok()) << r.status().message();
  for (std::size_t i = 0; i < r->out.size(); ++i)
    semantics::store(c.batch.output.data, c.batch.output.dtype, static_cast<std::int64_t>(i), static_cast<float>(r->out[i]));
  for (std::size_t i = 0; c.batch.lse.present() && i < r->lse.size(); ++i)
    static_cast<float*>(c.batch.lse.data)[i] = static_cast<float>(r->lse[i]);
  observe_output(c);
  return c;
}

/// Makes the case of a line with the output of a kernel with this fault; rows that the kernel does not write hold NaN.
inline Case with_fault(const std::string& line, const std::string& fault) {
  Case c = made(line);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, fault);
  EXPECT_TRUE(status.ok()) << status.message();
  observe_output(c);
  return c;
}

inline float& f32_at(const Tensor& t, std::int64_t token, std::int64_t head, std::int64_t dim) {
  return static_cast<float*>(t.data)[(token * t.shape[1] + head) * t.shape[2] + dim];
}

inline Diagnosis diagnosed(const Case& c, const DiagnoseOptions& options = {}) {
  const Result<Diagnosis> d = diagnose(c, options);
  EXPECT_TRUE(d.ok()) << d.status().message();
  return d.ok() ? d.value() : Diagnosis{};
}

/// Position of a fault in the ranking, from 1; suspects as good as the first one share its place. 0 = not listed.
inline int place_of(const Diagnosis& d, const std::string& fault) {
  int place = 0;
  for (const Suspicion& s : d.suspicions) {
    if (place == 0 || !s.refutation.empty()) ++place;
    if (s.fault == fault) return place;
  }
  return 0;
}

}  // namespace quire::test
