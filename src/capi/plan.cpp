// SPDX-License-Identifier: Apache-2.0
// C ABI: plans, from a batch or from a problem line, and explain().
#include "quire/plan.hpp"

#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "quire/problem.hpp"

using quire::Result;
using quire::Status;
using quire::capi::guarded;
using quire::capi::hand_out;
using quire::capi::require;

namespace {

struct Question {
  quire::Problem problem;
  quire::Device device;
  quire::PlanSettings settings;
};

/// `device` may be null: this machine.
Result<Question> read_question(const char* line, const char* device, const quire_plan_settings* settings) {
  auto parsed = quire::parse_problem_line(line);
  if (!parsed.ok()) return parsed.status();
  auto chosen = device != nullptr ? quire::find_device(device) : Result<quire::Device>(quire::host_device());
  if (!chosen.ok()) return chosen.status();
  auto read = quire::capi::read_settings(settings);
  if (!read.ok()) return read.status();
  return Question{std::move(parsed.value().problem), std::move(chosen.value()), std::move(read.value())};
}

}  // namespace

extern "C" {

quire_code quire_plan_create(const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                             const quire_plan_settings* settings, quire_plan** out) {
  return guarded({{out, "out"}}, [&]() -> Status {
    *out = nullptr;
    auto inputs = quire::capi::read_inputs(batch, cache, options);
    if (!inputs.ok()) return inputs.status();
    auto read = quire::capi::read_settings(settings);
    if (!read.ok()) return read.status();
    return hand_out(quire::plan(inputs->batch, inputs->cache, inputs->options, read.value()), out);
  });
}

quire_code quire_plan_for_problem_line(const char* line, const char* device, const quire_plan_settings* settings,
                                       quire_plan** out) {
  return guarded({{out, "out"}}, [&]() -> Status {
    *out = nullptr;
    if (Status s = require({{line, "line"}}); !s.ok()) return s;
    auto question = read_question(line, device, settings);
    if (!question.ok()) return question.status();
    return hand_out(quire::plan(question->problem, question->device, question->settings), out);
  });
}

quire_code quire_plan_text(const quire_plan* plan, char* buffer, size_t capacity, size_t* length) {
  return guarded({{plan, "plan"}},
                 [&]() -> Status { return quire::capi::copy_text(quire::to_string(plan->plan), buffer, capacity, length); });
}

int64_t quire_plan_workspace_bytes(const quire_plan* plan) {
  const quire_code code = guarded([&] { return require({{plan, "plan"}}); });
  return code == QUIRE_OK ? static_cast<int64_t>(quire::workspace_bytes(plan->plan)) : -1;
}

void quire_plan_free(quire_plan* plan) { delete plan; }

quire_code quire_explain(const char* line, const char* device, const quire_plan_settings* settings, char* buffer, size_t capacity,
                         size_t* length) {
  return guarded({{line, "line"}}, [&]() -> Status {
    auto question = read_question(line, device, settings);
    if (!question.ok()) return question.status();
    const quire::Explanation answer = quire::explain(question->problem, question->device, question->settings);
    return quire::capi::copy_text(answer.text, buffer, capacity, length);
  });
}

}  // extern "C"
