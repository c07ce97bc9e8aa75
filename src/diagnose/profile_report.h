// SPDX-License-Identifier: Apache-2.0
// The profile by which an output was judged, in words and as JSON, and what it hides.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "diagnose/localise.h"

namespace quire::cause {

/// The smallest relative error that some element shows if all outputs have it: min over elements of tolerance / |out|. Infinite
/// if all outputs are 0.
double least_factor(const Reference& expected);

/// "right", or "right for a kernel that rounds its softmax weights to bf16 (worst 0.63 of the tolerance)".
std::string verdict_text(const std::string& verdict, const Localisation& where);

/// Which profile, who named it, and what it hides. Empty for the plain one.
std::vector<std::string> profile_lines(const Localisation& where);

/// {"weights": "bf16", "scores": "f32", "accumulator": "f32", "products": "f32", "dequantised": "exact", "found": true, "words":
/// ..., "worst": ..., "least_factor": ...}
nlohmann::ordered_json profile_json(const Localisation& where);

}  // namespace quire::cause
