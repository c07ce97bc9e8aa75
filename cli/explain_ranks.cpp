// SPDX-License-Identifier: Apache-2.0
// quire explain --ranks: how long several GPUs would take, from what one was measured to take.
#include "commands.h"
#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "quire/rank_prediction.hpp"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

constexpr double kMicroseconds = 1e6;

Json shared_json(const SharedSeconds& s) {
  if (!s.known()) return {{"why_not", s.why_not}};
  return {{"us", kMicroseconds * s.total()},           {"attention_us", kMicroseconds * s.compute},
          {"exchange_us", kMicroseconds * s.exchange}, {"merge_us", kMicroseconds * s.merge},
          {"received_bytes", s.received_bytes},        {"kernel", s.kernel}};
}

}  // namespace

Report explain_ranks(const ExplainArgs& args, const Problem& problem) {
  if (args.all || !args.as.empty() || !args.kernel.empty())
    return Report::usage("--ranks predicts one device: --all, --as and --kernel have no meaning with it");
  if (args.batch_invariant || args.exact_weights)
    return Report::usage("--ranks predicts plans without --batch-invariant and --exact-weights");
  const std::string asked = args.device.empty() ? "h100" : args.device;
  const Result<Device> device = find_device(asked);
  if (!device.ok()) return Report::failure(device.status(), did_you_mean(args.device, device_names()));
  RankLink link;
  if (!args.link.empty()) {
    const Result<double> bandwidth = parse_bandwidth(args.link);
    if (!bandwidth.ok()) return Report::usage("--link " + bandwidth.status().message());
    link.bytes_per_second = bandwidth.value();
  }
  const Result<RankPrediction> p = predict_ranks(problem, device.value(), args.ranks, link);
  if (!p.ok()) return Report::failure(p.status());
  Report report;
  report.text =
      formatted("problem   {}\ndevice    {} ({})\n", to_string(problem), asked, device->name) + to_string(p.value(), link);
  report.json = {{"schema", "quire.explain_ranks/1"},
                 {"ok", true},
                 {"exit_code", kOk},
                 {"problem", to_string(problem)},
                 {"device", device->name},
                 {"predicted", true},
                 {"ranks", p->ranks},
                 {"link_bytes_per_s", link.bytes_per_second},
                 {"one_us", p->why_no_one.empty() ? Json(kMicroseconds * p->one) : Json(nullptr)},
                 {"contexts", shared_json(p->contexts)},
                 {"heads", shared_json(p->heads)},
                 {"advice", p->advice}};
  return report;
}

}  // namespace quire::cli
